"""zkconsumer beside real programs of other people, in the releases that are named here."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from strangers.conftest import MESSAGES, PARTITIONS, Start, Tools
from support.kafka.logs import TOOL_S, contents, java, tool
from support.members.group import Group
from support.packages import node_packages, pip
from support.wait import LIMIT_S, eventually

from zkconsumer.cli.exits import Exit
from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox, jars

KAFKA_NODE = "2.6.1"
ZK_SHELL = "zk-shell==1.3.4"
# pykafka imports pkg_resources, which later releases of setuptools do not have.
PYKAFKA = ("pykafka==2.8.0", "setuptools==65.5.0")

# The arguments are the broker, ZooKeeper, the topic and the group.
PYKAFKA_MEMBER = """
import sys
from pykafka import KafkaClient
from pykafka.common import OffsetType
broker, zookeeper, topic, group = sys.argv[1:]
client = KafkaClient(hosts=broker, broker_version="0.9.0")
consumer = client.topics[topic].get_balanced_consumer(
    group.encode(),
    zookeeper_connect=zookeeper,
    auto_offset_reset=OffsetType.EARLIEST,
)
for message in consumer:
    print(message.partition_id, message.offset, flush=True)
"""


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kafka-node and what it requires, from npm."""
    return node_packages(tmp_path_factory.mktemp("npm"), {"kafka-node": KAFKA_NODE})


def test_kafka_node(group: Group, tools: Tools, node_modules: Path, start: Start) -> None:
    """Ten times kafka-node joins three members and leaves: all settle, and nothing is lost."""
    members = [group.join(name) for name in "abc"]
    eventually(lambda: sum(len(one.owned) for one in members) == PARTITIONS)
    script = Path(__file__).with_name("kafka_node.js")
    connect, seen = group.sandbox.zookeeper_connect, set[tuple[int, int]]()
    for number in range(10):
        node = start("node", script, connect, group.name, group.topic, NODE_PATH=str(node_modules))
        eventually(lambda node=node: "rebalanced" in node.lines())
        eventually(lambda: tools.run("verify", group.name).exit_code == 0)
        assert tools.listed() == (4, "live"), number
        assert [one["owned"] for one in tools.rows("members", group.name)] == [1] * 4
        assert tools.findings() == []
        for partition in range(PARTITIONS):
            group.sandbox.produce(group.topic, 1, partition=partition)
        eventually(lambda node=node: bool(node.delivered()))
        node.leave()
        seen.update(node.delivered())
        eventually(lambda: tools.run("verify", group.name).exit_code == 0)
    wanted = {(partition, n) for partition in range(PARTITIONS) for n in range(MESSAGES + 10)}

    def found() -> set[tuple[int, int]]:
        messages = (message for one in members for message in one.readers[0].messages)
        return seen | {(message.partition, message.offset) for message in messages}

    eventually(lambda: found() == wanted)


@pytest.fixture(scope="module")
def target() -> Iterator[Sandbox]:
    """A second cluster, into which a mirror writes."""
    with Sandbox(release="0.10.2.2", tick_time_s=0.1) as servers:
        yield servers


@pytest.mark.parametrize("release", ["0.8.2.2", "1.1.1"])
def test_mirror_maker(
    group: Group, tools: Tools, target: Sandbox, *, start: Start, tmp_path: Path, release: str
) -> None:
    """A mirror and a member share a group: the member reads what the mirror does not copy."""
    target.create_topic(group.topic)
    consumer, producer = tmp_path / "consumer.properties", tmp_path / "producer.properties"
    connect = group.sandbox.zookeeper_connect
    consumer.write_text(
        f"zookeeper.connect={connect}\ngroup.id={group.name}\nconsumer.id=mirror\n"
        "zookeeper.session.timeout.ms=6000\nrebalance.backoff.ms=500\n"
        "auto.offset.reset=smallest\nauto.commit.interval.ms=500\n"
    )
    producer.write_text(f"bootstrap.servers={target.bootstrap}\nacks=all\n")
    member = group.join("a")
    member.read(PARTITIONS * MESSAGES)
    mirror = start(
        *java(release, "kafka.tools.MirrorMaker"),
        *("--consumer.config", consumer, "--producer.config", producer),
        *("--whitelist", group.topic, "--num.streams", "1"),
        *(["--new.producer"] if release == "0.8.2.2" else []),
    )
    member.settled(0, 1)
    eventually(lambda: tools.run("verify", group.name).exit_code == 0)
    member.connector.commit_offsets()
    assert tools.listed() == (2, "live")
    assert [one["owned"] for one in tools.rows("members", group.name)] == [2, 2]
    assert tools.findings() == []
    sent = {tp: [f"{tp} {n}" for n in range(5)] for tp in range(PARTITIONS)}
    for partition, values in sent.items():
        group.sandbox.produce(group.topic, values, partition=partition)
    eventually(lambda: len(contents(target, group.topic)) >= 10)
    mirror.terminate()
    member.settled(0, 1, 2, 3)
    copied = {(one.value() or b"").decode() for one in contents(target, group.topic)}
    assert copied == {*sent[2], *sent[3]}

    def read() -> set[str]:
        messages = member.readers[0].messages[PARTITIONS * MESSAGES :]
        return {(one.value or b"").decode() for one in messages}

    eventually(lambda: {*sent[0], *sent[1]} <= read())


# ---- Flume ---------------------------------------------------------------------------------------

FLUME = """
a.sources = kafka
a.channels = memory
a.sinks = none
a.sources.kafka.type = org.apache.flume.source.kafka.KafkaSource
a.sources.kafka.zookeeperConnect = {zookeeper}
a.sources.kafka.topic = {topic}
a.sources.kafka.groupId = {group}
a.sources.kafka.kafka.auto.offset.reset = smallest
a.sources.kafka.kafka.consumer.timeout.ms = 100
a.sources.kafka.channels = memory
a.channels.memory.type = memory
a.sinks.none.type = null
a.sinks.none.channel = memory
"""


def flume(directory: Path) -> list[str | Path]:
    """Return the command of a Flume agent with the configuration `agent.conf`."""
    lines = Path(__file__).with_name("flume-1.6.0.txt").read_text().splitlines()
    pins = [line.split() for line in lines if not line.startswith("#")]
    locked = [jars.Jar(sha256, *coordinate.split(":")) for sha256, coordinate in pins]
    files = jars.resolve_jars(locked, title="flume-1.6.0")
    command = [jars.find_java().executable, "-Xmx128m", "-cp", os.pathsep.join(map(str, files))]
    main = "org.apache.flume.node.Application"
    return [*command, main, "--name", "a", "--conf-file", directory / "agent.conf"]


def test_flume(group: Group, tools: Tools, start: Start, tmp_path: Path) -> None:
    """Flume's source is a JVM consumer that blocks its migration; its runbook moves its offsets."""
    connect = group.sandbox.zookeeper_connect
    text = FLUME.format(zookeeper=connect, topic=group.topic, group=group.name)
    (tmp_path / "agent.conf").write_text(text)
    agent = start(*flume(tmp_path))

    eventually(lambda: tools.run("groups", "show", group.name).exit_code == 0)
    eventually(lambda: [one["lag"] for one in tools.rows("lag", group.name)] == [0] * PARTITIONS)
    (found,) = tools.rows("inventory", group.name)
    assert (found["state"], found["program"], found["verdict"]) == (
        "live",
        "JVM consumer",
        "must act",
    )
    assert found["blocked_by"] == ["1 live member"]
    move = ("migrate", "zookeeper-to-kafka", "-g", group.name, "--execute", "--patience", "0.1")
    assert tools.run(*move).exit_code == Exit.REFUSED
    agent.terminate()
    eventually(lambda: tools.run(*move).exit_code == Exit.OK)
    stored = tools.rows("offsets", "get", "-g", group.name)
    assert all(one["zookeeper"] == one["kafka"] == MESSAGES for one in stored)
    assert len(stored) == PARTITIONS
    (found,) = tools.rows("inventory", group.name)
    assert found["verdict"] == "already moved"


# ---- programs from PyPI, each in an environment of its own ---------------------------------------


def environment(directory: Path, *requirements: str) -> Path:
    """Install a program into an environment of its own, and return the folder of its commands."""
    venv.create(directory, with_pip=False, symlinks=True)
    pip("--python", str(directory / "bin" / "python"), "install", *requirements)
    return directory / "bin"


def test_pykafka(group: Group, tools: Tools, start: Start, tmp_path: Path) -> None:
    """pykafka cannot share a group: both clients read all messages, and the doctor says why."""
    python = environment(tmp_path / "pykafka", *PYKAFKA) / "python"
    member = group.join("a")
    member.settled(0, 1, 2, 3)
    where = (group.sandbox.bootstrap, group.sandbox.zookeeper_connect, group.topic, group.name)
    other = start(python, "-c", PYKAFKA_MEMBER, *where)
    eventually(lambda: len(set(other.delivered())) == PARTITIONS * MESSAGES)
    member.read(PARTITIONS * MESSAGES)
    member.settled(0, 1, 2, 3)
    assert len(member.status.malformed_peers) == 1
    codes = {one["code"] for one in tools.findings()}
    assert codes == {"malformed-registration", "foreign-topic-name"}
    assert tools.listed() == (2, "live")


def test_zk_shell(group: Group, tools: Tools, tmp_path: Path) -> None:
    """Offsets that zk-shell sets, copies and deletes are read as it wrote them."""
    shell = environment(tmp_path / "zk-shell", ZK_SHELL) / "zk-shell"

    def run(command: str) -> None:
        words = [str(shell), group.sandbox.zookeeper_connect, "--run-once", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout

    for partition in range(PARTITIONS):
        group.write(partition, b"2")
    run(f"set {group.offset(0)} '7'")
    assert [one["lag"] for one in tools.rows("lag", group.name)] == [3, 8, 8, 8]
    assert [one["code"] for one in tools.findings()] == ["no-members"]
    member = group.join("a")
    member.read(27)
    member.connector.commit_offsets()
    copy = f"{paths.group(group.name)}-copy"
    run(f"cp {paths.group(group.name)} {copy} true")
    copied = Tools(group.sandbox.zookeeper_connect, f"{group.name}-copy")
    assert copied.listed() == (0, "idle")
    run(f"rmr {copy}")
    run(f"rmr {paths.group(group.name)}/offsets")
    group.sandbox.produce(group.topic, 3, partition=0)
    member.read(30)
    assert member.readers[0].offsets(0) == [*range(7, 13)]


# ---- Kafka's own tools ---------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["0.8.2.2", "0.10.2.2"])
def test_consumer_offset_checker(group: Group, tools: Tools, release: str) -> None:
    """Kafka's tool prints the offsets, lags and owners of a member that `lag` prints."""
    member = group.join("a")
    member.read(PARTITIONS * MESSAGES)
    member.connector.commit_offsets()
    group.sandbox.produce(group.topic, 3, partition=1)
    where = ("--zookeeper", group.sandbox.zookeeper_connect, "--group", group.name)
    with tool(release, "kafka.tools.ConsumerOffsetChecker", *where) as process:
        theirs = process.communicate(timeout=TOOL_S)[0]
    rows = [line.split()[2:] for line in theirs.splitlines() if line.startswith(group.name)]
    columns = ("partition", "offset", "log_end", "lag", "owner")
    ours = [[str(one[name]) for name in columns] for one in tools.rows("lag", group.name)]
    assert ours == rows
