"""The inventory of a ZooKeeper with every kind of user, on a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl
from strangers import writers
from support.scenes import Scene, job
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.admin.broker_offsets import BrokerOffsets
from zkconsumer.admin.inventory import Inventory, InventoryEntry, Verdict, inventory
from zkconsumer.admin.inventory_page import page, remember
from zkconsumer.admin.runbooks import WAYS, runbook
from zkconsumer.cli import app
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import BadFileError
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import GroupState
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.programs import Evidence, Program
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.client import ZooKeeperClient

ORDERS, LOGS = TopicPartition("orders", 0), TopicPartition("orders", 1)
LIMIT_S = 1.0


def taken(
    scene: Scene, *, patience_s: float = 0.0, idle_s: float = 3600.0
) -> dict[str, InventoryEntry]:
    with ZooKeeperClient(scene.config()) as connection:
        found = inventory(connection, limit_s=LIMIT_S, patience_s=patience_s, idle_s=idle_s)
    return {one.name: one for one in found.entries}


@pytest.fixture
def topic(scene: Scene) -> Scene:
    """A scene without brokers, and with a topic of two partitions."""
    scene.session.delete(paths.broker(0))
    scene.topic("orders", 2)
    return scene


def test_who_uses_groups(topic: Scene) -> None:
    """Each kind of user has its state, program and verdict."""
    client: KazooClient = topic.session
    topic.member("jvm_host1-1400000000000-1a2b3c4d", "jvm", orders=1)
    for tp in (ORDERS, LOGS):
        topic.owner(*tp, "jvm_host1-1400000000000-1a2b3c4d-0", "jvm")
        topic.offset(*tp, 5, "jvm")
    for name, kind in (("go", writers.ConsumerGroup), ("node", writers.KafkaNode)):
        other = kind(client, "", name, f"{name}_x")
        other.register("orders")
        other.claim(ORDERS)
    writers.flink_read(client, "job", ORDERS)
    writers.secor_create(client, "backup", ORDERS)
    writers.spark_direct(client, "dead", TopicPartition("gone", 0), 5)
    writers.spark_direct(client, "logstash", ORDERS, 5)
    writers.storm(client, "spout", ORDERS, 5)
    client.ensure_path("/secor/locks/orders/0")
    client.ensure_path("/storm-root/clicks")
    client.create("/storm-root/clicks/partition_0", client.get("/consumers/spout/partition_0")[0])
    client.ensure_path(paths.ids("empty"))
    found = {
        name: (one.state and one.state.value, one.program, one.verdict)
        for name, one in taken(topic).items()
    }
    assert found == {
        "jvm": ("live", Program.JVM, Verdict.ACT),
        "go": ("live", Program.GO, Verdict.ACT),
        "node": ("live", Program.KAFKA_NODE, Verdict.ACT),
        "job": ("idle", Program.FLINK, Verdict.UNKNOWN),
        "backup": ("idle", Program.SECOR, Verdict.UNKNOWN),
        "dead": ("idle", Program.UNKNOWN, Verdict.DELETE),
        "logstash": ("idle", Program.LOGSTASH, Verdict.UNKNOWN),
        "spout": ("idle", Program.STORM, Verdict.UNKNOWN),
        "empty": ("idle", Program.UNKNOWN, Verdict.DELETE),
        "/secor": (None, Program.SECOR, Verdict.UNKNOWN),
        "/storm-root/clicks": (None, Program.STORM, Verdict.ACT),
    }
    entry = taken(topic)["jvm"]
    assert (entry.hosts, entry.members, entry.blocked_by) == (("host1",), 1, ("1 live member",))
    assert entry.committed_ms is not None
    assert taken(topic, idle_s=-1.0)["logstash"].verdict is Verdict.DELETE


def test_a_client_that_never_registers(topic: Scene) -> None:
    """The second reading shows a client that commits without a registration: it must act."""
    path = topic.offset("orders", 0, 1, "direct")
    with job(topic.session, path, b"2"):
        one = taken(topic, patience_s=1.0)["direct"]
    assert (one.state, one.program) == (GroupState.UNREGISTERED, Program.WRITER)
    assert one.verdict is Verdict.ACT


def test_a_group_that_may_not_be_read(topic: Scene) -> None:
    """A group that this client may not read is listed as unknown, with the znode."""
    path = topic.put(paths.ids("secret"))
    topic.session.set_acls(path, [make_digest_acl("other", "secret", all=True)])
    one = taken(topic)["secret"]
    assert one.verdict is Verdict.UNKNOWN
    assert path in one.why
    command = ["inventory", "--group", "secret", "--output", "json", "--zookeeper", topic.connect]
    (row,) = json.loads(CliRunner().invoke(app, command).stdout)
    assert {row[name] for name in ("members", "topics", "lag", "last_commit")} == {None}
    assert path in row["unknown"]["members"]


def test_a_partly_readable_group(topic: Scene) -> None:
    """What may be read is shown and decides; the rest is unknown, and the znodes are named."""
    hidden = [make_digest_acl("other", "secret", all=True)]
    for group in ("used", "unused"):
        for tp in (ORDERS, LOGS):
            topic.offset(*tp, 5, group)
        topic.session.set_acls(paths.offset(group, LOGS), hidden)
    member = "used_host1-1400000000000-1a2b3c4d"
    topic.session.set_acls(paths.member("used", topic.member(member, "used", orders=1)), hidden)
    found = taken(topic, idle_s=-1.0)
    used, unused = found["used"], found["unused"]
    assert (used.state, used.members, used.hosts) == (GroupState.LIVE, 1, ("host1",))
    assert (unused.state, unused.members, unused.hosts) == (None, 0, ())
    assert (used.verdict, unused.verdict) == (Verdict.ACT, Verdict.UNKNOWN)
    assert paths.member("used", member) in used.why
    for one in (used, unused):
        path = paths.offset(one.name, LOGS)
        assert (one.topics, type(one.lag)) == (("orders",), str)
        assert path in one.why and path in str(one.committed_ms)
        assert any(path in clause for clause in one.blocked_by)
        assert f"<td>{one.name}</td>" in page(Inventory((one,), 0), [], "zk1")
    command = ["inventory", "--group", "unused", "--output", "json", "--zookeeper", topic.connect]
    (row,) = json.loads(CliRunner().invoke(app, [*command, "--idle-for", "0s"]).stdout)
    assert (row["members"], row["topics"]) == (0, ["orders"])
    assert row["unknown"].keys() == {"state", "lag", "last_commit"}


def test_a_hidden_tree_of_another_program_below_a_group(topic: Scene) -> None:
    """A group below which another program may write unseen is neither idle nor to be deleted."""
    topic.offset(*ORDERS, 5, "shared")
    topic.put("/consumers/shared/state/open/partition_0", b"{}")
    secret = topic.put("/consumers/shared/state/secret")
    topic.session.set_acls(secret, [make_acl("world", "anyone", admin=True)])
    one = taken(topic, idle_s=-1.0)["shared"]
    assert (one.state, one.topics, one.verdict) == (None, ("orders",), Verdict.UNKNOWN)
    assert secret in one.why and secret in str(one.committed_ms)
    command = ["groups", "list", "--idle-for", "0s", "--zookeeper", topic.connect]
    told = CliRunner().invoke(app, command)
    assert secret in told.stderr and "shared" not in told.stdout
    topic.session.set_acls(secret, OPEN_ACL_UNSAFE)
    assert taken(topic, idle_s=-1.0)["shared"].verdict is Verdict.DELETE


def test_offsets_of_a_spout_that_may_not_be_read(topic: Scene) -> None:
    """A tree of Storm whose offsets this client may not read is unknown, and not 50 years old."""
    path = topic.put("/storm-hidden/clicks/partition_0", b"{}")
    topic.session.set_acls(path, [make_digest_acl("other", "secret", all=True)])
    one = taken(topic)["/storm-hidden/clicks"]
    assert one.verdict is Verdict.UNKNOWN
    assert all(path in str(value) for value in (one.why, one.committed_ms, one.lag))


def test_znodes_that_were_not_searched_are_named(
    topic: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory says where a spout's offsets may be that it has not found."""
    secret = topic.put("/secret-root")
    topic.session.set_acls(secret, [make_digest_acl("other", "secret", all=True)])
    topic.put("/open-root/a")
    command = ["inventory", "--output", "html", "--zookeeper", topic.connect]
    told = CliRunner().invoke(app, command)
    assert f"may not list {secret}: " in told.stderr and f"may not list {secret}: " in told.stdout
    assert "znodes of level" not in told.stderr
    monkeypatch.setattr("zkconsumer.admin.inventory.MOST_TREES", 1)
    assert "only 1 of 2 znodes of level 1 were searched" in CliRunner().invoke(app, command).stderr


def test_a_registration_that_cannot_be_read(topic: Scene) -> None:
    """A live member whose registration nobody can read is no evidence of a JVM consumer."""
    topic.hold(paths.member("odd", "odd_a"), b"[]")
    one = taken(topic)["odd"]
    assert (one.state, one.program, one.evidence) == (GroupState.LIVE, Program.UNKNOWN, ())


def test_a_topic_that_cannot_be_read_may_exist(topic: Scene) -> None:
    """No group is to be deleted because the partitions of its topic are unknown."""
    topic.topic("secret", 1)
    topic.put(paths.topic("malformed"), b"no json")
    for name in ("secret", "malformed"):
        writers.spark_direct(topic.session, f"of_{name}", TopicPartition(name, 0), 5)
        writers.storm(topic.session, f"spout_{name}", TopicPartition(name, 0), 5)
    topic.session.set_acls(paths.topic("secret"), [make_digest_acl("other", "secret", all=True)])
    found = taken(topic)
    for name, why in (("secret", "does not allow this client"), ("malformed", "not the expected")):
        assert found[f"of_{name}"].verdict is Verdict.UNKNOWN
        assert why in str(found[f"of_{name}"].lag)
        assert why in str(found[f"spout_{name}"].lag)


def test_offsets_that_are_in_kafka(sandbox: Sandbox) -> None:
    """A group has moved if Kafka has its offsets and none is lower than ZooKeeper's."""
    name = "moved-inventory"
    sandbox.create_topic(name, partitions=1)
    tp = TopicPartition(name, 0)
    config = ConnectionConfig.from_properties({"zookeeper.connect": sandbox.zookeeper_connect})
    with peer_of(sandbox.zookeeper_connect) as client, ZooKeeperClient(config) as connection:
        writers.spark_direct(client, name, tp, 0)
        verdicts = []
        for offset in (None, 0):
            if offset is not None:
                BrokerOffsets.of(connection).store(name, {tp: OffsetAndMetadata(offset)})
            found = inventory(connection, groups=[name], limit_s=30.0, patience_s=0.0)
            verdicts.append(found.entries[0].verdict)
        client.delete(paths.group(name), recursive=True)
    assert verdicts == [Verdict.UNKNOWN, Verdict.MOVED]


def test_the_page_and_its_burn_down(topic: Scene, tmp_path: Path) -> None:
    """The page escapes names, and draws a burn-down from the second run on."""
    writers.spark_direct(topic.session, "a<b>", ORDERS, 5)
    state = tmp_path / "runs"
    with ZooKeeperClient(topic.config()) as connection:
        for runs in (1, 2):
            found = inventory(connection, limit_s=LIMIT_S, patience_s=0.0)
            found = replace(found, at_ms=runs)
            past = remember(state, found)
            text = page(found, past, "zk1:2181")
            assert len(past) == runs
            assert ("<svg" in text) is (runs == 2)
    assert "<td>a&lt;b&gt;</td>" in text
    (state / "inventory-3.json").write_text(json.dumps({"format": "x"}))
    with pytest.raises(BadFileError, match="not the result of an earlier run"):
        remember(state, found)


@pytest.mark.parametrize("program", Program)
def test_a_runbook_for_each_program(program: Program) -> None:
    """Each runbook has the commands there and back, with the group and the address."""
    one = InventoryEntry("g", GroupState.LIVE, (Evidence(program, "reason"),), why="it is used")
    text = runbook(one, "zk1:2181/kafka")
    for command in ("doctor", "offsets export", "migrate zookeeper-to-kafka", "verify"):
        assert f"zkconsumer {command} -g g -z zk1:2181/kafka" in text
    assert "zkconsumer migrate kafka-to-zookeeper -g g -z zk1:2181/kafka --execute" in text
    assert "{" not in text
    assert program in WAYS
