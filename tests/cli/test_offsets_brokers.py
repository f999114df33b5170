"""Changes of offsets that need brokers: targets that depend on the log, offsets stored in Kafka,
and groups with a live member."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result
from support.kafka.offsets import Foreign, foreign
from support.members.group import Group, group_on
from support.wait import eventually
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.sandbox import Sandbox

Command = Callable[..., Result]


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group and a topic of two partitions with ten messages each; the group has committed offset
    5."""
    with group_on(sandbox, unique, partitions=2) as one:
        for partition in range(2):
            one.write(partition, b"5")
        yield one


@pytest.fixture
def command(group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `zkconsumer ARGUMENTS -g GROUP` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", group.sandbox.zookeeper_connect)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "-g", group.name, "--timeout", "30"])

    return run


@pytest.fixture
def kafka(group: Group) -> Iterator[Foreign]:
    """A second client that reads and commits the offsets of the group in Kafka."""
    with foreign(group.sandbox.zookeeper_connect, group.name, group.topic) as client:
        yield client


def test_every_kind(group: Group, command: Command) -> None:
    """Each kind of reset sets its target, or the log's near end; a note says if it skips a log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    Path("f.csv").write_text(f"{group.topic},0,4\n")
    for kind, expected in {
        "--to-latest": "10",
        "--to-earliest": "0",
        "--to-offset=3": "3",
        "--shift-by=2": "5",
        "--shift-by=-1": "4",
        "--to-current": "4",
        "--by-duration=PT1H": "0",
        f"--to-datetime={now}": "10",
        "--from-file=f.csv": "4",
    }.items():
        topic = () if "file" in kind else ("-t", f"{group.topic}:0")
        done = command("offsets", "reset", *topic, kind, "--execute")
        assert (kind, done.exit_code, group.stored(0)) == (kind, 0, expected)
        skips = "0 has no message of that time or later" in done.stderr
        assert skips == kind.startswith("--to-datetime")
    assert group.stored(1) == "5"
    shown = command("offsets", "shift", "-t", group.topic, "--by", "99", "-o", "json")
    assert [(row["new"], row["lag"], row["new_lag"]) for row in json.loads(shown.stdout)] == [
        (10, 6, 0),
        (10, 5, 0),
    ]
    assert f"{group.topic}-0: 103 is beyond the end of the log; set to 10" in shown.stderr
    assert (
        command(
            "offsets", "reset", "--topic-regex", "topic.*", "--to-latest", "--execute"
        ).exit_code
        == 0
    )
    assert (group.stored(0), group.stored(1)) == ("10", "10")


def test_in_kafka(group: Group, command: Command, kafka: Foreign) -> None:
    """A reset in Kafka or in both stores can be undone as far as Kafka permits."""
    topic = ("-t", group.topic)
    done = command(
        "offsets", "reset", *topic, "--to-offset", "7", "--storage", "kafka", "--execute"
    )
    assert (done.exit_code, kafka.offsets(0, 1), group.stored(0)) == (0, {0: 7, 1: 7}, "5")
    (first,) = Path().glob("zkconsumer/backups/*/zkconsumer-backup-*")
    word = command("offsets", "reset", *topic, "--to-latest")
    assert "Kafka has offsets of group" in word.stderr
    done = command("offsets", "set", f"{group.topic}:0=8", "--storage", "both", "--execute")
    assert (done.exit_code, kafka.offsets(0, 1), group.stored(0)) == (0, {0: 8, 1: 7}, "8")
    (second,) = set(Path().glob("zkconsumer/backups/*/zkconsumer-backup-*")) - {first}
    exported = command("offsets", "export", *topic, "--storage", "kafka", "-f", "csv")
    assert exported.stdout == f"{group.topic},0,8\n{group.topic},1,7\n"
    runner = CliRunner()
    assert runner.invoke(app, ["undo", str(second), "--execute"]).exit_code == 0
    assert (kafka.offsets(0), group.stored(0)) == ({0: 7}, "5")
    undone = runner.invoke(app, ["undo", str(first), "--execute"])
    assert "keeps 7: offsets in Kafka cannot be deleted" in undone.stderr


def test_offsets_in_kafka_cause_a_note(group: Group, command: Command, kafka: Foreign) -> None:
    """If a group has offsets in Kafka, a change in ZooKeeper alone adds a note."""
    Path("f.csv").write_text(f"{group.topic},0,4\n")
    word = f"Kafka has offsets of group {group.name}, too"
    deleting = ("offsets", "delete", "-t", group.topic)
    assert "Kafka" not in command(*deleting).stderr
    kafka.commit({0: 5})
    assert word in command(*deleting).stderr
    assert word in command("offsets", "import", "f.csv").stderr
    for verb in ("copy", "rename"):
        done = CliRunner().invoke(app, ["groups", verb, group.name, f"{group.name}-2"])
        assert (done.exit_code, word in done.stderr) == (0, True)
    copied = CliRunner().invoke(
        app, ["offsets", "copy", "--from", group.name, "-g", f"{group.name}-2"]
    )
    assert word in copied.stderr


def test_kafka_has_moved(group: Group, command: Command, kafka: Foreign) -> None:
    """If the offset in Kafka has changed since the plan, --execute refuses to write."""
    plan = ("offsets", "reset", "-t", group.topic, "--to-offset", "7", "--storage", "both")
    assert command(*plan, "--plan-out", "plan.json").exit_code == 0
    kafka.commit({1: 2})
    done = CliRunner().invoke(app, ["apply", "plan.json", "--execute"])
    assert (done.exit_code, group.stored(0), kafka.offsets(0, 1)) == (4, "5", {1: 2})
    assert "1 offset in Kafka changed since" in done.stderr


def test_our_own_member_honours_it(group: Group, command: Command) -> None:
    """A live zkconsumer member continues from an offset that --force-live has set."""
    member = group.join(auto_commit_interval_s=0.2)
    member.settled(0, 1)
    eventually(lambda: group.stored(0) == "10" and group.stored(1) == "10")
    refused = command("offsets", "set", f"{group.topic}:0=3", "--execute")
    assert (refused.exit_code, group.stored(0)) == (4, "10")
    forced = command("offsets", "set", f"{group.topic}:0=3", "--execute", "--force-live")
    assert forced.exit_code == 0
    group.sandbox.produce(group.topic, 1, partition=0)
    reader = member.readers[0]
    eventually(lambda: reader.offsets(0).count(3) == 1 and 10 in reader.offsets(0))
    assert [offset for offset in reader.offsets(0) if offset == 2] == []
    eventually(lambda: group.stored(0) == "11")
