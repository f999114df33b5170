"""Groups as tables and as streams of changes, with real Spark, ZooKeeper and brokers."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as RawPartition
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from support.scenes import Scene, scenes
from support.wait import eventually
from support.zk.client import peer_of

from zkconsumer.admin.groups import members, read_groups
from zkconsumer.admin.lag import GroupLag, group_lags
from zkconsumer.errors import ConfigError, InvalidNameError, SparkSourceError, ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Create
from zkconsumer.sandbox import Sandbox, ZooKeeperServer
from zkconsumer.spark import tables
from zkconsumer.spark.tables import changes
from zkconsumer.spark.tables.changes import ZnodeReading
from zkconsumer.spark.tables.options import OPTIONS, Table, parse
from zkconsumer.spark.tables.rows import COLUMNS, RowReader, schema_of
from zkconsumer.spark.tables.source import ChangesReader, GroupSlice, GroupsSource, chunks, plan
from zkconsumer.zk.client import ZooKeeperClient

ROOT = Path(__file__).parents[2]
GROUPS, PARTITIONS = 30, 4
# Time limit in seconds for an operation that usually takes one second.
LIMIT_S = 120.0

Unique = Callable[[str], str]


class Cluster(Scene):
    """A real cluster with registered brokers; the names of its groups start with `prefix`."""

    def __init__(self, sandbox: Sandbox, session: KazooClient, prefix: str) -> None:
        self.connect, self.session, self.prefix = sandbox.zookeeper_connect, session, prefix
        self.topic_name = f"{prefix}-topic"

    def lags(self) -> dict[str, GroupLag]:
        """Return the lag of all groups that the operator's tools report."""
        names = [*(f"{self.prefix}-{n}" for n in range(GROUPS)), f"{self.prefix}-bad"]
        with ZooKeeperClient(self.config()) as connection:
            return group_lags(connection, names, limit_s=LIMIT_S)


@pytest.fixture(scope="module")
def cluster(sandbox: Sandbox) -> Iterator[Cluster]:
    """Dozens of groups, some of which have znodes that no member would write."""
    with peer_of(sandbox.zookeeper_connect) as session:
        yield _planted(Cluster(sandbox, session, "tables"), sandbox)


def _planted(cluster: Cluster, sandbox: Sandbox) -> Cluster:
    topic = cluster.topic_name
    sandbox.create_topic(topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": sandbox.bootstrap})
    for number in range(10 * PARTITIONS):
        producer.produce(topic, b"x", partition=number % PARTITIONS)
    producer.flush()
    for number in range(GROUPS):
        group = f"{cluster.prefix}-{number}"
        consumers = [f"{group}_host-140000000000{n}-0123456{n}" for n in range(1 + number % 3)]
        for consumer in consumers:
            cluster.member(consumer, group, **{topic: 1 + number % 2})
        for partition in range(PARTITIONS - number % 2):
            thread = f"{consumers[partition % len(consumers)]}-0"
            cluster.owner(topic, partition, thread, group)
            cluster.offset(topic, partition, number % 10, group)
    bad = f"{cluster.prefix}-bad"
    cluster.member(f"{bad}_a", bad, **{topic: 1})
    cluster.hold(paths.member(bad, f"{bad}_b"), b"{")
    cluster.owner(topic, 0, "nodash", bad)
    # These bytes are not UTF-8.
    cluster.hold(paths.owner(bad, TopicPartition(topic, 1)), b"\xff\xfe")
    cluster.offset(topic, 0, "12x", bad)
    cluster.offset(topic, 1, -1, bad)
    cluster.offset(topic, 2, 3, bad)
    cluster.offset("no.such.topic", 0, 3, bad)
    cluster.offset(topic, 99, 3, bad)
    return cluster


@pytest.fixture
def scene(sandbox: Sandbox, unique: Unique) -> Iterator[Scene]:
    """A chroot of its own, whose only broker does not answer."""
    with scenes(sandbox.zookeeper, unique("tables")) as one:
        yield one


def _by_partition(frame: DataFrame) -> dict[tuple[str, str, int], Row]:
    rows = frame.collect()
    found = {(row.group, row.topic, row.partition): row for row in rows}
    assert len(found) == len(rows)
    return found


def _all_of(cluster: Cluster) -> dict[str, Any]:
    patient = {"zookeeper.connection.timeout.ms": "60000"}
    pattern = f"{cluster.prefix}-.*"
    return {"zookeeper": cluster.connect, "groups_pattern": pattern, "properties": patient}


# ---- tables -------------------------------------------------------------------------------------


def test_lag(spark: SparkSession, cluster: Cluster) -> None:
    """The figures equal those of the tools; only the group with malformed znodes has errors."""
    found = _by_partition(tables.lag(spark, **_all_of(cluster)))
    expected = {
        (name, one.topic, one.partition): one
        for name, lag in cluster.lags().items()
        for one in lag.partitions
    }
    assert found.keys() == expected.keys()
    for key, one in expected.items():
        row = found[key]
        assert row.lag == (one.lag if isinstance(one.lag, int) else None)
        assert row.offset == (one.committed if isinstance(one.committed, int) else None)
        assert row.owner == (one.owner or None)
        assert row.session == (one.session if one.owner is not None else None)
        assert row.storage == (one.source.value if one.source else None)
        if not isinstance(one.log, str):
            assert (row.log_start, row.log_end) == one.log
    bad = {(row.topic, row.partition): row.error for row in found.values() if row.error}
    topic = cluster.topic_name
    assert bad.keys() == {(topic, 0), (topic, 99), ("no.such.topic", 0)}
    assert "'12x'" in bad[topic, 0] and bad["no.such.topic", 0] == "the topic does not exist"
    assert {row.group for row in found.values() if row.error} == {f"{cluster.prefix}-bad"}


def test_an_offset_beyond_the_log(spark: SparkSession, sandbox: Sandbox, unique: Unique) -> None:
    """The lag of an offset beyond the log's end is null and marked, so that no sum contains it."""
    topic, group = unique("beyond"), unique("beyond")
    sandbox.create_topic(topic, partitions=2)
    for partition, offset in ((0, b"1000"), (1, b"3")):
        sandbox.produce(topic, 10, partition=partition)
        with peer_of(sandbox.zookeeper_connect) as client:
            path = paths.offset(group, TopicPartition(topic, partition))
            client.create(path, offset, makepath=True)
    found = tables.lag(spark, zookeeper=sandbox.zookeeper_connect, groups=[group])
    rows = {row.partition: row for row in found.collect()}
    assert (rows[0].offset, rows[0].log_end, rows[0].lag) == (1000, 10, None)
    assert rows[0].error == "the offset is beyond the log's end, 10"
    assert (rows[1].lag, rows[1].error) == (7, None)


def test_lag_beside_the_command_line(spark: SparkSession, cluster: Cluster) -> None:
    """The sum over a group's rows equals what `zkconsumer lag` shows."""
    group = f"{cluster.prefix}-5"
    command = [sys.executable, "-m", "zkconsumer", "lag", "-z", cluster.connect, "-g", group]
    command += ["-o", "json", "--timeout", "60"]
    shown = subprocess.run(command, capture_output=True, check=True)
    frame = tables.lag(spark, zookeeper=cluster.connect, groups=[group], columns=["group", "lag"])
    (row,) = frame.groupBy("group").sum("lag").collect()
    assert row["sum(lag)"] == sum(one["lag"] or 0 for one in json.loads(shown.stdout))
    assert row["sum(lag)"] > 0


def test_members(spark: SparkSession, cluster: Cluster) -> None:
    """The members are those that the tools report, including unreadable registrations."""
    found = {row.member: row for row in tables.members(spark, **_all_of(cluster)).collect()}
    with ZooKeeperClient(cluster.config()) as connection:
        names = {row.group for row in found.values()}
        reports = [one for _, of in members(connection, names).values() for one in of]
    expected = {one.consumer: one for one in reports}
    assert found.keys() == expected.keys() and len(names) == GROUPS + 1
    for name, one in expected.items():
        row = found[name]
        assert (row.error or "") == one.fault and row.session == one.session
        assert row.since.timestamp() * 1000 == pytest.approx(one.since_ms, abs=1)
        if not one.fault:
            assert row.subscription == dict(one.subscription) == row.topics
            assert (row.threads, row.owned) == (len(one.threads), sum(one.owned.values()))
            assert row.idle == len(one.idle) and row.pattern == "static"
    assert found[f"{cluster.prefix}-0_host-1400000000000-01234560"].host == "host"
    assert [name for name, row in found.items() if row.error] == [f"{cluster.prefix}-bad_b"]
    assert found[f"{cluster.prefix}-bad_a"].host is None


def test_owners_and_offsets(spark: SparkSession, cluster: Cluster) -> None:
    """Each znode is a row with version and session; an unreadable znode has no value."""
    owners = _by_partition(tables.owners(spark, **_all_of(cluster)))
    offsets = _by_partition(tables.offsets(spark, **_all_of(cluster)))
    with ZooKeeperClient(cluster.config()) as connection:
        images = read_groups(connection, {row.group for row in offsets.values()})
    assert len(owners) == sum(len(image.owners) for image in images.values())
    assert len(offsets) == sum(len(image.offsets) for image in images.values())
    for image in images.values():
        for tp, owner in image.owners.items():
            row = owners[image.name, *tp]
            assert (row.owner or "", row.session) == (owner.thread, cluster.session.client_id[0])
            assert (row.error or "") == owner.fault
        for tp, offset in image.offsets.items():
            row = offsets[image.name, *tp]
            is_there = offset.value is not None and offset.value >= 0
            assert row.offset == (offset.value if is_there else None)
            assert (row.version, row.error or "") == (offset.version, offset.fault)
    owned = Counter((row.group, row.member) for row in owners.values())
    columns = ["group", "member", "owned"]
    rows = tables.members(spark, **_all_of(cluster), columns=columns).collect()
    assert len(rows) > GROUPS
    for row in rows:
        assert (row.owned or 0) == owned[row.group, row.member]


def test_a_marked_edit(
    spark: SparkSession, cluster: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """If an operator's tool wrote an offset last, its row says that it was a marked edit."""
    group, topic = unique("marked"), cluster.topic_name
    cluster.put(paths.ids(group))
    cluster.offset(topic, 0, 1, group)
    cluster.offset(topic, 1, 1, group)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "zkconsumer",
            "offsets",
            "set",
            "-z",
            cluster.connect,
            "-g",
            group,
            f"{topic}:0=7",
            "--execute",
            "--timeout",
            "60",
            "--backup-dir",
            str(tmp_path),
        ],
        capture_output=True,
        check=True,
    )
    found = _by_partition(tables.offsets(spark, zookeeper=cluster.connect, groups=[group]))
    assert [(row.offset, row.marked) for _, row in sorted(found.items())] == [(7, True), (1, False)]


def test_offsets_in_kafka(spark: SparkSession, sandbox: Sandbox, cluster: Cluster) -> None:
    """With storage=kafka the brokers' offsets are further rows, and the lag counts from them."""
    group, topic = f"{cluster.prefix}-4", cluster.topic_name
    settings = {"bootstrap.servers": sandbox.bootstrap, "group.id": group}
    consumer = Consumer(settings)
    try:
        stored = [RawPartition(topic, 0, 9, "a note"), RawPartition(topic, 1, 4)]
        consumer.commit(offsets=stored, asynchronous=False)
    finally:
        consumer.close()
    asked: Any = {"zookeeper": cluster.connect, "groups": [group], "storage": "kafka"}
    rows = tables.offsets(spark, **asked).collect()
    found = {(row.storage, row.partition): (row.offset, row.metadata) for row in rows}
    assert {key: one for key, one in found.items() if key[0] == "kafka"} == {
        ("kafka", 0): (9, "a note"),
        ("kafka", 1): (4, ""),
    }
    assert {key[1]: one for key, one in found.items() if key[0] == "zookeeper"} == dict.fromkeys(
        range(PARTITIONS), (4, None)
    )
    lags = _by_partition(tables.lag(spark, **asked))
    assert [(row.storage, row.offset) for _, row in sorted(lags.items())] == [
        ("kafka", 9),
        ("both", 4),
        ("zookeeper", 4),
        ("zookeeper", 4),
    ]


def test_only_needed_values_are_requested(spark: SparkSession, scene: Scene) -> None:
    """A broker that does not answer is an error only if a column about its logs is read."""
    scene.settled({"g_a": {"t": 1}}, {"t": 2})
    asked: Any = {
        "zookeeper": scene.connect,
        "properties": {"zookeeper.connection.timeout.ms": "1000"},
    }
    rows = tables.lag(spark, **asked, columns=["offset", "error"]).collect()
    assert [tuple(row) for row in rows] == [(5, None), (5, None)]
    rows = tables.lag(spark, **asked, columns=["lag", "error"]).collect()
    assert [row.lag for row in rows] == [None, None]
    assert all("the brokers do not answer" in row.error for row in rows)


def test_a_forbidden_group(spark: SparkSession, scene: Scene) -> None:
    """A group that may not be read is one row with the reason; other groups are complete."""
    for group in ("a", "b", "c"):
        scene.offset("t", 0, 1, group)
    nobody = make_digest_acl("somebody", "else", all=True)
    scene.session.set_acls(paths.offset("b", TopicPartition("t", 0)), [nobody])
    rows = tables.offsets(spark, zookeeper=scene.connect).collect()
    found = {row.group: (row.offset, row.error) for row in rows}
    assert found["a"] == found["c"] == (1, None)
    assert found["b"][0] is None and "does not allow this client to read" in found["b"][1]
    # The driver, which plans tasks, may not list the parents of this group's offsets either.
    scene.session.set_acls(paths.offsets("b"), [nobody])
    rows = tables.lag(spark, zookeeper=scene.connect).collect()
    errors = {row.group: row.error for row in rows}
    assert errors.keys() == {"a", "b", "c"} and "does not allow this client to read" in errors["b"]


def _rows(scene: Scene, table: str) -> dict[Any, dict[str, Any]]:
    """Return partition, or member without a partition, -> row of group g; no broker is asked."""
    options = parse({"table": table, "zookeeper": scene.connect})
    columns = COLUMNS[options.table].keys() - {"log_start", "log_end", "lag"}
    with (
        ZooKeeperClient(options.config) as connection,
        closing(RowReader(connection, options, columns)) as reader,
    ):
        found: list[Any] = reader.rows(["g"], None)
    keyed = {row["member"] if (n := row.get("partition")) is None else n: row for row in found}
    assert len(keyed) == len(found)
    return keyed


def test_a_partly_readable_group(scene: Scene) -> None:
    """Each unreadable znode is one row, or an error of its partition; other rows are complete."""
    scene.settled({"g_a": {"t": 1}, "g_b": {"t": 1}}, {"t": 4})
    of_member, of_owner, of_offset = hidden = (
        paths.member("g", "g_b"),
        paths.owner("g", TopicPartition("t", 1)),
        paths.offset("g", TopicPartition("t", 0)),
    )
    nobody = make_digest_acl("somebody", "else", all=True)
    for path in (*hidden, scene.put(paths.edits("g"))):
        scene.session.set_acls(path, [nobody])
    members = _rows(scene, "members")
    assert members.keys() == {"g_a", "g_b"}
    assert (members["g_a"]["threads"], members["g_a"]["owned"]) == (1, None)
    assert of_owner in members["g_a"]["error"] and of_member in members["g_b"]["error"]
    owners = _rows(scene, "owners")
    assert of_member in owners.pop("g_b")["error"] and of_owner in owners[1].pop("error")
    assert [owners[n].get("owner") for n in range(4)] == ["g_a-0", None, "g_b-0", "g_b-0"]
    offsets = _rows(scene, "offsets")
    assert of_offset in offsets[0]["error"] and paths.edits("g") in offsets[1]["error"]
    assert [offsets[n].get("offset") for n in range(4)] == [None, 5, 5, 5]
    assert offsets[1]["marked"] is None
    lag = _rows(scene, "lag")
    assert of_member in lag.pop("g_b")["error"]
    assert of_offset in lag[0]["error"] and of_owner in lag[1]["error"]
    assert [lag[n]["owner"] for n in range(4)] == ["g_a-0", None, "g_b-0", "g_b-0"]
    assert [lag[n]["offset"] for n in range(4)] == [None, 5, 5, 5]


def test_one_task_reads_a_group_whose_members_are_hidden(scene: Scene) -> None:
    """The plan does not fail, and only one task reports the unreadable znode."""
    scene.settled({"g_a": {"t": 1, "u": 1}}, {"t": 2, "u": 2})
    scene.session.set_acls(paths.ids("g"), [make_digest_acl("somebody", "else", all=True)])
    options = parse({"table": "lag", "zookeeper": scene.connect, "parallelism": "1000"})
    with ZooKeeperClient(options.config) as connection:
        ((one,),) = plan(connection, options)
    assert (one.group, one.topics) == ("g", None)


def test_thousands_of_groups(spark: SparkSession, scene: Scene) -> None:
    """Each of thousands of groups appears once, although several tasks read them."""
    with ZooKeeperClient(scene.config()) as connection:
        connection.write([Create(paths.CONSUMERS)])
        for first in range(0, 3_000, 250):
            writes = []
            for number in range(first, first + 250):
                name = f"g{number}"
                writes += [
                    Create(path)
                    for path in (
                        paths.group(name),
                        paths.offsets(name),
                        paths.offsets_of(name, "t"),
                    )
                ]
                offset = paths.offset(name, TopicPartition("t", 0))
                writes.append(Create(offset, str(number).encode()))
            assert connection.write(writes).value is not None
    frame = tables.offsets(spark, zookeeper=scene.connect, parallelism=3)
    assert frame.rdd.getNumPartitions() == 3
    found = {row.group: row.offset for row in frame.collect()}
    assert found == {f"g{number}": number for number in range(3_000)}
    assert tables.members(spark, zookeeper=scene.connect).count() == 0


def test_a_large_group_is_read_by_several_tasks(spark: SparkSession, scene: Scene) -> None:
    """Each topic of a large group, even if only subscribed, is read by exactly one task."""
    topics = {f"t{number}": 400 for number in range(6)} | {"new": 3}
    scene.settled({"g_a": dict.fromkeys(topics, 1)}, topics)
    for number in range(3):
        scene.session.delete(paths.owner("g", TopicPartition("new", number)))
        scene.session.delete(paths.offset("g", TopicPartition("new", number)))
    scene.offset("t0", 0, 5, "small")
    options = parse({"table": "lag", "zookeeper": scene.connect, "parallelism": "4"})
    with ZooKeeperClient(options.config) as connection:
        shares = plan(connection, options)
    assert len(shares) == 4
    sizes = [sum(piece.size for piece in share) for share in shares]
    assert max(sizes) - min(sizes) <= 900, "more than one topic"
    dealt = Counter(t for share in shares for piece in share for t in piece.topics or ())
    assert dealt == dict.fromkeys(topics, 1)
    columns = ["group", "topic", "partition", "owner"]
    frame = tables.lag(spark, zookeeper=scene.connect, parallelism=4, columns=columns)
    found = _by_partition(frame)
    assert len(found) == 6 * 400 + 3 + 400 and found["g", "new", 2].owner is None


def test_no_group(spark: SparkSession, scene: Scene) -> None:
    """If there are no groups, or not the requested ones, the table is empty."""
    assert tables.lag(spark, zookeeper=scene.connect).collect() == []
    scene.offset("t", 0, 1, "a")
    assert tables.offsets(spark, zookeeper=scene.connect, groups=["b"]).collect() == []
    assert tables.offsets(spark, zookeeper=scene.connect, topics=["u"]).collect() == []
    assert tables.offsets(spark, zookeeper=scene.connect, topics=["t"]).count() == 1


def test_a_task_reads_groups_up_to_a_limit() -> None:
    """A task reads several whole groups up to a limit; parts of large groups get own tasks."""
    pieces = [
        GroupSlice("a", None, 15_000),
        GroupSlice("b", None, 4_000),
        GroupSlice("c", None, 4_000),
        GroupSlice("d", frozenset(["t"]), 10),
        GroupSlice("e", frozenset(["t"]), 10),
    ]
    assert list(chunks(pieces)) == [
        (["a", "b"], None),
        (["c"], None),
        (["d", "e"], frozenset(["t"])),
    ]


# ---- options ------------------------------------------------------------------------------------

GOOD = {"table": "lag", "zookeeper": "h:1/chroot"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tabel": "lag"}, "tabel: did you mean table?"),
        ({"group": "a"}, "did you mean groups?"),
        ({"table": "lags"}, "bad value 'lags' of table"),
        ({"zookeeper.connect": "h:1"}, "ZooKeeper is set twice"),
        (
            {"groups": "a", "groupsPattern": "b"},
            "options contradict each other (groups, groupsPattern)",
        ),
        ({"groups": " , "}, "the option is empty (groups)"),
        ({"groups": "a/b"}, "is not a legal group name"),
        ({"topics": "a/b"}, "is not a legal topic name"),
        (
            {"table": "members", "topics": "a"},
            "the option does not apply to the table members (topics)",
        ),
        (
            {"startingOffsets": "latest"},
            "the option does not apply to the table lag (startingOffsets)",
        ),
        (
            {"table": "owner_changes", "parallelism": "2"},
            "the option does not apply to the table owner_changes",
        ),
        (
            {"table": "owners", "offsets.storage": "kafka"},
            "the option does not apply to the table owners",
        ),
        (
            {"table": "offset_changes", "offsets.storage": "kafka"},
            "offset storage cannot be followed",
        ),
        ({"parallelism": "0"}, "bad value '0' of parallelism"),
        ({"groupsPattern": "("}, "("),
    ],
)
def test_options_are_strict(options: dict[str, str], says: str) -> None:
    """For an unknown, bad or contradictory option, one sentence names the option."""
    with pytest.raises((ConfigError, InvalidNameError)) as caught:
        parse(GOOD | options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_options() -> None:
    """Names of options have any case, as Spark passes them; properties set up the connection."""
    given = GOOD | {
        "GROUPSPATTERN": "a.*",
        "zookeeper.session.timeout.ms": "9000",
        "offsets.storage": "KAFKA",
    }
    found = parse(given)
    assert found.selected(["a1", "ba", "a"]) == ["a1", "a"] and found.ask_kafka
    assert found.config.zookeeper_session_timeout_s == 9
    assert found.config.zookeeper_connect == "h:1/chroot"
    assert parse(GOOD | {"groups": "b, a"}).selected(["a", "ab", "b"]) == ["a", "b"]


def test_wrong_options_of_a_stream() -> None:
    """The first call of a stream's reader says what is wrong; Spark hides earlier errors."""
    for options, says in (
        ({"table": "lag"}, "lag is not a stream"),
        ({"table": "owner_changes", "grups": "a"}, "unknown option (grups)"),
    ):
        source = GroupsSource({"zookeeper": "h:1", **options})
        reader = source.streamReader(schema_of(Table.OWNER_CHANGES))
        with pytest.raises(ZkConsumerError) as raised:
            reader.initialOffset()
        assert says in str(raised.value)


def test_errors_are_sentences(spark: SparkSession, scene: Scene) -> None:
    """An error reaches the user as one line, without the traceback of a Python worker."""
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("lag", {"grups": "a"}, "unknown option (grups): grups: did you mean groups?"),
        ("lag_changes", {}, "bad value 'lag_changes' of table"),
        ("owner_changes", {}, "owner_changes is a stream (table): use spark.readStream"),
        (
            "owners",
            {"zookeeper": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "300"},
            "no ZooKeeper session within 0.3 s",
        ),
    ]
    for table, options, says in wrong:
        given = {"zookeeper": scene.connect, "table": table} | options
        with pytest.raises(AnalysisException) as caught:
            spark.read.format(tables.FORMAT).options(**given).load().collect()
        text = str(caught.value)
        assert says in text and "Traceback" not in text
    with pytest.raises(ConfigError, match="there is no column lags"):
        tables.lag(spark, zookeeper=scene.connect, columns=["lags"])


# ---- changes ------------------------------------------------------------------------------------


class Log:
    """The rows of a query on a stream of changes, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Row]]] = []

    def note(self, batch: DataFrame, number: int) -> None:
        self.batches.append((number, batch.collect()))

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.batches for row in rows]

    def changes(self) -> list[tuple[Any, ...]]:
        return [(row.group, row.partition, row.change, row.old, row.new) for row in self.rows]

    def wait(self, count: int) -> None:
        """Wait until the query has reported this number of rows."""
        eventually(lambda: len(self.rows) >= count, LIMIT_S)


@contextmanager
def _following(frame: DataFrame, checkpoint: Path) -> Iterator[Log]:
    """Run a query in the background; at the end, wait for the batches that it has reported."""
    log = Log()
    writer = frame.writeStream.foreachBatch(log.note)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield log
        _finished(checkpoint, max((number for number, _ in log.batches), default=0))
    finally:
        query.stop()


def _finished(checkpoint: Path, number: int) -> None:
    """Wait until Spark has recorded that this batch has finished."""
    eventually((checkpoint / "commits" / str(number)).exists, LIMIT_S)


def _asked(scene: Scene, **more: Any) -> dict[str, Any]:
    return {"zookeeper": scene.connect, "poll_interval_s": 0.1, **more}


class Here(ChangesReader):
    """Plays the part of Spark in this process, whose signals the reader must not handle."""

    def _settle(self) -> None:
        pass


class Follower:
    """Calls the reader as Spark does, and passes offsets as text and rows as pickles.

    `offset` is the offset in the checkpoint; a follower that starts with an offset is a restarted
    query.
    """

    def __init__(self, table: str, scene: Scene, offset: str = "{}", **options: str) -> None:
        given = {"table": table, "zookeeper": scene.connect, "poll.interval.ms": "1"}
        parsed = parse(given | options)
        self.reader, self.offset = Here(parsed, schema_of(parsed.table)), offset

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def batch(self) -> list[dict[str, Any]]:
        """Wait for the next batch and return its rows."""
        start = json.loads(self.offset)
        text = self.offset

        def is_new() -> bool:
            nonlocal text
            text = json.dumps(self.reader.latestOffset(json.loads(self.offset), None))
            return text != self.offset

        eventually(is_new, LIMIT_S)
        shares = pickle.loads(pickle.dumps(self.reader.partitions(start, json.loads(text))))
        self.offset = text
        return [row for one in shares for part in self.reader.read(one) for row in part.to_pylist()]

    def changes(self) -> list[tuple[Any, ...]]:
        names = ("group", "partition", "change", "old", "new")
        return [tuple(row[name] for name in names) for row in self.batch()]


def test_a_claim_a_move_and_a_release(scene: Scene) -> None:
    """Each change of an owner is a row, even if it happened while no query was running."""
    znode = scene.owner("t", 0, "g_a-0")
    scene.owner("t", 1, "g_a-0")
    with Follower("owner_changes", scene) as query:
        assert query.changes() == [
            ("g", 0, "claimed", None, "g_a-0"),
            ("g", 1, "claimed", None, "g_a-0"),
        ]
        scene.session.delete(znode)
        assert query.changes() == [("g", 0, "released", "g_a-0", None)]
        scene.owner("t", 0, "g_b-0")
        (claim,) = query.batch()
        assert (claim["change"], claim["new"]) == ("claimed", "g_b-0")
        stat = scene.session.exists(znode)
        assert claim["zxid"] == stat.czxid and claim["time"].timestamp() * 1000 == stat.ctime
        scene.owner("u", 7, "h_a-0", "h")
        assert query.changes() == [("h", 7, "claimed", None, "h_a-0")]
    # While no stream follows, owners move, are released, or are deleted and created.
    scene.session.delete(znode)
    scene.owner("t", 0, "g_c-0")
    scene.session.delete(paths.owner("g", TopicPartition("t", 1)))
    scene.session.delete(paths.owner("h", TopicPartition("u", 7)))
    scene.owner("u", 7, "h_a-0", "h")
    with Follower("owner_changes", scene, query.offset) as again:
        assert again.changes() == [
            ("g", 0, "moved", "g_b-0", "g_c-0"),
            ("g", 1, "released", "g_a-0", None),
            ("h", 7, "moved", "h_a-0", "h_a-0"),
        ]
        offset = json.loads(again.offset)
        assert again.reader.latestOffset(offset, None) is offset, "the text has changed"


def test_commits(scene: Scene) -> None:
    """Each row counts the commits that it stands for; an unreadable offset is reported."""
    znode = scene.offset("t", 0, 10)
    with Follower("offset_changes", scene, startingOffsets="latest") as query:
        assert query.batch() == [], "earlier commits must not be reported"
        scene.put(znode, b"11")
        assert query.changes() == [("g", 0, "committed", 10, 11)]
        for value in range(12, 40):
            scene.put(znode, str(value).encode())
        (row,) = query.batch()
        assert (row["old"], row["new"], row["merged"]) == (11, 39, 27)
        assert row["version"] == scene.session.exists(znode).version
    scene.put(znode, b"5")
    scene.offset("t", 1, 1)
    with Follower("offset_changes", scene, query.offset, startingOffsets="latest") as again:
        assert again.changes() == [("g", 0, "committed", 39, 5), ("g", 1, "committed", None, 1)]
        scene.session.delete(znode)
        assert again.changes() == [("g", 0, "deleted", 5, None)]
        scene.offset("t", 0, "12x")
        (row,) = again.batch()
        assert (row["new"], row["merged"]) == (None, None) and "'12x'" in row["error"]


def test_a_replay_has_the_same_rows(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    """An unfinished batch is replayed row for row, even if the owners have changed since."""
    scene.owner("t", 0, "g_a-0")
    frame = tables.owner_changes(spark, **_asked(scene))
    with _following(frame, tmp_path) as log:
        log.wait(1)
        scene.owner("t", 1, "g_a-0")
        log.wait(2)
    number, rows = log.batches[-1]
    for one in (tmp_path / "commits").glob(f"*{number}*"):
        one.unlink()
    scene.session.delete(paths.owner("g", TopicPartition("t", 1)))
    with _following(frame, tmp_path) as again:
        again.wait(2)
        assert again.batches[0] == (number, rows)
        assert again.changes()[1] == ("g", 1, "released", "g_a-0", None)


def test_a_group_that_may_not_be_read_for_a_while(scene: Scene) -> None:
    """Changes of other groups appear meanwhile, and none of the forbidden group's is lost."""
    znode = scene.owner("t", 0, "a_a-0", "a")
    scene.owner("t", 0, "b_a-0", "b")
    with Follower("owner_changes", scene) as query:
        assert len(query.changes()) == 2
        (open_,), _ = scene.session.get_acls(paths.owners("a"))
        nobody = make_digest_acl("somebody", "else", all=True)
        scene.session.set_acls(paths.owners("a"), [nobody])
        scene.session.delete(paths.owner("b", TopicPartition("t", 0)))
        assert query.changes() == [("b", 0, "released", "b_a-0", None)]
        scene.session.add_auth("digest", "somebody:else")
        scene.session.set_acls(paths.owners("a"), [open_])
        scene.session.delete(znode)
        assert query.changes() == [("a", 0, "released", "a_a-0", None)]


def test_a_znode_that_may_not_be_read_for_a_while(scene: Scene) -> None:
    """Changes of other znodes of its group appear meanwhile, and none of its own is lost."""
    znode, other = scene.owner("t", 0, "g_a-0"), scene.owner("t", 1, "g_a-0")
    with Follower("owner_changes", scene) as query:
        assert len(query.changes()) == 2
        scene.session.set_acls(znode, [make_digest_acl("somebody", "else", all=True)])
        scene.session.delete(other)
        assert query.changes() == [("g", 1, "released", "g_a-0", None)]
        scene.session.delete(znode)
        assert query.changes() == [("g", 0, "released", "g_a-0", None)]


def test_available_now(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    """A query that ends by itself reports the changes since the previous run once."""
    scene.owner("t", 0, "g_a-0")
    frame = tables.owner_changes(spark, zookeeper=scene.connect)
    told = []
    for thread in ("g_b-0", None, "g_c-0"):
        if thread:
            scene.owner("t", 0, thread)
        log = Log()
        writer = frame.writeStream.foreachBatch(log.note).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        assert query.awaitTermination(LIMIT_S)
        told.append(log.changes())
    assert told == [
        [("g", 0, "claimed", None, "g_b-0")],
        [],
        [("g", 0, "moved", "g_b-0", "g_c-0")],
    ]


def test_zookeeper_restarts(tmp_path: Path) -> None:
    """A query waits while ZooKeeper restarts, and reports the commits after the restart."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as server, scenes(server, "restart") as scene:
        znode = scene.offset("t", 0, 1)
        patient = {"zookeeper.connection.timeout.ms": "60000"}
        with Follower("offset_changes", scene, **patient) as query:
            assert query.changes() == [("g", 0, "committed", None, 1)]
            server.kill()
            server.start()
            scene.session.retry(scene.session.set, znode, b"2")
            assert query.changes() == [("g", 0, "committed", 1, 2)]


def test_a_checkpoint_of_another_table(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    """A checkpoint of another table is refused with one sentence, and no row is reported."""
    scene.owner("t", 0, "g_a-0")
    with _following(tables.owner_changes(spark, **_asked(scene)), tmp_path) as log:
        log.wait(1)
    frame = tables.offset_changes(spark, **_asked(scene))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(LIMIT_S)
    assert "the checkpoint is for the table owner_changes" in str(caught.value)


def test_the_size_of_an_offset_depends_on_followed_partitions() -> None:
    """An offset of the stream needs less than 30 bytes for each of 10,000 partitions."""
    reading = {
        (f"group-{n % 20}", f"topic-{n % 7}", n): ZnodeReading(
            f"group-{n % 20}_host-17000000{n % 100:05}-{n * 7919 % 2**32:08x}-0",
            4_000_000 + n,
            4_000_000 + n,
            0,
            1_700_000_000_000 + n,
        )
        for n in range(10_000)
    }
    table = Table.OWNER_CHANGES
    offset = changes.to_offset(table, reading, read_ms=1, is_first=False)
    assert len(json.dumps(offset)) < 30 * len(reading)
    assert changes.from_offset(table, json.loads(json.dumps(offset))) == reading
    assert list(changes.changes_between(table, offset, offset)) == []
    with pytest.raises(SparkSourceError, match="did not write"):
        changes.from_offset(table, {"t": {"0": [1, 2]}})


def test_the_page() -> None:
    """docs/spark.md names every option, and the columns of each table in their order."""
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    section = page.split("\n## Tables of groups\n")[1].split("\n## ")[0]
    section = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    cells = {code(row[0])[0]: row for row in rows}
    for table in (Table.MEMBERS, Table.OWNERS, Table.OFFSETS, Table.LAG):
        names = [name for name in COLUMNS[table] if name not in ("group", "error")]
        said = code(re.sub(r"\(.*?\)", "", cells[table.value][2]))
        assert said == names
    for table in (Table.OWNER_CHANGES, Table.OFFSET_CHANGES):
        assert set(COLUMNS[table]) <= set(code(section)) and table.value in section
    assert set(OPTIONS) <= cells.keys()


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)
