"""The operator's commands on a protected ZooKeeper: digest, TLS, and TLS with SASL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.members.group import SETTINGS, MemberUnderTest
from support.zk.secure import PASSWORD, USER, SecureZooKeeper
from typer.testing import CliRunner

from zkconsumer import ConsumerConfig
from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Right, SetData
from zkconsumer.sandbox.topics import ServerTopics
from zkconsumer.zk.client import ZooKeeperClient

DIGEST = {
    "zookeeper_auth_scheme": "digest",
    "zookeeper_auth_credential": "alice:canary-one",
    "zookeeper_acl": "creator",
}
SASL = {
    "zookeeper_auth_scheme": "sasl",
    "zookeeper_auth_credential": f"{USER}:{PASSWORD}",
    "zookeeper_acl": "creator",
}

# G, T, Z: group, topic, and the address of ZooKeeper. `-o json` is added to commands that have it.
READING = (
    "topics list",
    "topics show T",
    "groups list",
    "groups list -t T",
    "groups show G",
    "members -g G",
    "owners -g G",
    "offsets get -g G",
    "lag -g G",
    "assign -g G",
    "verify -g G",
    "doctor -g G",
    "explain G",
)
OLD_READING = (
    "ConsumerGroupCommand --zookeeper Z --list",
    "ConsumerGroupCommand --zookeeper Z --describe --group G",
    "--release 0.11.0.3 ConsumerOffsetChecker --zookeeper Z --group G --topic T",
    "ExportZkOffsets --zkconnect Z --group G --output-file exported.txt",
    "VerifyConsumerRebalance --zookeeper.connect Z --group G",
)
CHANGING = (
    "offsets set -g G T:0=3 --plan-out plan.json",
    "apply plan.json --execute",
    "offsets reset -g G -t T --to-earliest --execute",
    "offsets shift -g G -t T --by 2 --execute",
    "offsets export --file kept.json -g G",
    "offsets copy --from G -g G-2 -t T --execute",
    "offsets delete -g G -t T:1 --execute",
    "offsets import kept.json --execute",
    "groups rename G-2 G-3 --execute",
    "topics forget T -g G-3 --execute",
    "groups delete G-3 --execute",
    "migrate zookeeper-to-kafka -g G --execute",
    "migrate kafka-to-zookeeper -g G --execute",
    "groups copy G G-4 --execute",
    "legacy --config C ExportZkOffsets --zkconnect Z --group G --output-file exported.txt",
    "legacy --config C ImportZkOffsets --zkconnect Z --input-file exported.txt",
    "legacy UpdateOffsetsInZK earliest C T",
)


@dataclass
class World:
    """A group in a protected ZooKeeper.

    `settings` and the file `config` are those of an authorised client; `stranger` has the settings
    of a client without rights.
    """

    group: str
    topic: str
    settings: dict[str, Any]
    config: Path
    stranger: dict[str, Any]

    @property
    def connect(self) -> str:
        return str(self.settings["zookeeper_connect"])

    def run(self, command: str, *more: str, config: Path | None = None) -> Result:
        """Run a command as an authorised user, with the names of the group and the topic."""
        named = {"C": str(self.config), "T": self.topic, "Z": self.connect}
        words = []
        for word in command.split():
            topic, colon, rest = word.partition(":")
            group = word.replace("G", self.group, 1) if word.startswith("G") else word
            words.append(self.topic + colon + rest if topic == "T" else named.get(word, group))
        if words[0] != "legacy":
            words += ["--config", str(config or self.config), "--timeout", "30"]
        result = CliRunner().invoke(app, [*words, *more])
        assert "canary" not in result.output
        return result

    def connection(self) -> ZooKeeperClient:
        return ZooKeeperClient(ConsumerConfig(group_id=self.group, **self.settings))

    def rights(self, group: str) -> set[tuple[Right, ...]]:
        """Return every access control list below a group."""
        with self.connection() as zk:
            found = zk.rights(zk.tree(paths.group(group)))
        return {one for one in found.values() if isinstance(one, tuple)}

    def member(self) -> MemberUnderTest:
        """Return a member that owns both partitions, and has committed ten messages of each."""
        own = ConsumerConfig(group_id=self.group, **{**SETTINGS, **self.settings})
        member = MemberUnderTest(own)
        member.subscribe(self.topic)
        member.read(20)
        member.connector.commit_offsets()
        return member


def _file(settings: dict[str, Any], at: Path) -> Path:
    words = {True: "true"}
    lines = [
        f"{name.replace('_', '.')}={words.get(value, value)}\n" for name, value in settings.items()
    ]
    at.write_text("".join(lines))
    return at


@pytest.fixture(params=["digest", "certificate", "sasl"])
def world(
    request: pytest.FixtureRequest,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Two partitions with ten messages each; the group has had no member yet."""
    plain: str
    if request.param == "digest":
        plain = request.getfixturevalue("sandbox").zookeeper_connect
        stranger: dict[str, Any] = {"zookeeper_connect": plain}
        settings = {**stranger, **DIGEST}
    else:
        secure: SecureZooKeeper = request.getfixturevalue("secure")
        request.getfixturevalue("secure_broker")
        plain = secure.plain.connect
        open_to = ("zookeeper_connect", "zookeeper_ssl_enable", "zookeeper_ssl_ca")
        settings, stranger = secure.settings, {name: secure.settings[name] for name in open_to}
    if request.param == "sasl":  # `creator` gives clients with the same certificate access.
        settings = {**settings, **SASL}
        other = secure.authority.issue(unique("other"))
        stranger |= {
            "zookeeper_ssl_certificate": str(other),
            "zookeeper_ssl_key": str(other.with_suffix(".key")),
        }
    group, topic = unique("group"), unique("topic")
    ServerTopics(plain).create_topic(topic, partitions=2)
    for partition in range(2):
        ServerTopics(plain).produce(topic, 10, partition=partition)
    monkeypatch.chdir(tmp_path)
    file = _file({"group_id": group, **settings}, tmp_path / "c.properties")
    return World(group, topic, settings, file, stranger)


@pytest.fixture
def live(world: World) -> Iterator[World]:
    """The world with a member that works."""
    member = world.member()
    try:
        member.settled(0, 1)
        yield world
    finally:
        member.close()


@pytest.fixture
def idle(world: World) -> World:
    """The world after its member has left."""
    world.member().close()
    return world


def test_reading(live: World) -> None:
    """Every command that reads, even an old tool, shows the state of a live group."""
    for command in READING:
        result = live.run(command, "-o", "json")
        assert result.exit_code == Exit.OK, (command, result.output)
        if not command.startswith(("verify", "doctor")):
            assert (live.topic if "topics" in command else live.group) in result.stdout, command
    lags = json.loads(live.run("lag -g G", "-o", "json").stdout)
    assert [(one["offset"], one["log_end"], one["lag"]) for one in lags] == [(10, 10, 0)] * 2
    for command in OLD_READING:
        result = live.run(f"legacy --config C {command}")
        assert result.exit_code == Exit.OK, (command, result.output)
    assert Path("exported.txt").read_text().count(live.topic) == 2
    refused = live.run("offsets set -g G T:0=3 --execute")
    assert (refused.exit_code, "live members" in refused.stderr) == (Exit.REFUSED, True)


def test_changing(idle: World) -> None:
    """Every change is permitted, even an undo, and created znodes belong to the group's owner."""
    whose = idle.rights(idle.group)
    assert len(whose) == 1
    for command in CHANGING:
        result = idle.run(command)
        assert result.exit_code == Exit.OK, (command, result.output)
    assert idle.rights(idle.group) == idle.rights(f"{idle.group}-4") == whose
    with idle.connection() as zk:
        offset = paths.offset(idle.group, TopicPartition(idle.topic, 0))
        assert zk.read([offset])[offset].data == b"0"
        zk.write([SetData(offset, b"7 ", -1)])
    result = idle.run("doctor -g G --fix --execute")
    assert "1 change made" in result.stderr
    # Nobody reads the messages that wait after the changes: this problem remains.
    assert (result.exit_code, "no member is registered" in result.stderr) == (Exit.FOUND, True)
    result = idle.run("groups delete G --execute", "--backup-dir", "gone")
    assert result.exit_code == Exit.USAGE
    Path("gone").mkdir()
    assert idle.run("groups delete G --execute", "--backup-dir", "gone").exit_code == Exit.OK
    (backup,) = Path("gone").iterdir()
    assert idle.rights(idle.group) == set()
    assert idle.run(f"undo {backup} --execute").exit_code == Exit.OK
    assert idle.rights(idle.group) == whose
    shown = json.loads(idle.run("offsets get -g G", "-o", "json").stdout)
    assert [one["zookeeper"] for one in shown] == [7, 0]


def test_a_user_without_rights(idle: World, tmp_path: Path) -> None:
    """Without the right the error names the znode (exit code 1); without a login the code is 3."""
    file = _file({"group_id": idle.group, **idle.stranger}, tmp_path / "stranger.properties")
    if "zookeeper_ssl_ca" in idle.stranger and "zookeeper_ssl_key" not in idle.stranger:
        for command in ("groups list", "offsets set -g G T:0=3 --execute"):
            result = idle.run(command, "--timeout", "1", config=file)
            assert (result.exit_code, result.stdout) == (Exit.UNREACHABLE, "")
        return
    for command in (
        "groups show G",
        "lag -g G",
        "owners -g G",
        "verify -g G",
        "explain G",
        "doctor -g G",
        "members",
        "offsets set -g G T:0=3 --execute",
        "groups delete G --execute",
    ):
        result = idle.run(command, config=file)
        code = Exit.FOUND if command.startswith("doctor") else Exit.FAILED
        assert result.exit_code == code, (command, result.output)
        assert paths.group(idle.group) in result.output, command
    for command in ("groups list", "groups list -t T"):
        listed = idle.run(command, "-o", "json", config=file)
        assert listed.exit_code == Exit.OK, listed.output
        (row,) = (one for one in json.loads(listed.stdout) if one["group"] == idle.group)
        assert (row["members"], row["state"]) == (None, None)
        assert "ZooKeeper does not allow this client to read the znode" in str(row)
