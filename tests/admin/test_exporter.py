"""The lag of groups as metrics of three programs, and as Burrow's HTTP API; no server is needed."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from zkconsumer.admin.exporter import (
    BurrowApi,
    LagExporter,
    MetricNames,
    ServedCluster,
    ServedGroup,
    exposition,
)
from zkconsumer.admin.groups import GroupImage
from zkconsumer.admin.lag import (
    NO_SUCH_PARTITION,
    CommitWindow,
    GroupLag,
    PartitionLag,
    SeenCommit,
    Status,
)
from zkconsumer.cli.lag import group_notes
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import requested_topics
from zkconsumer.protocol.model import ConsumerId, OffsetAndMetadata, ThreadId
from zkconsumer.protocol.registrations import Registration
from zkconsumer.protocol.requests import denied
from zkconsumer.sandbox.ports import free_port

COMMITS = (SeenCommit(1_000.0, 3, 9), SeenCommit(1_060.5, 5, 7))


def partition(number: int, committed: int | None, log: LogRange | str, **more: Any) -> PartitionLag:
    """Return a partition of the topic `orders`, whose offset is in ZooKeeper."""
    return PartitionLag("orders", number, None, 0, committed, 1_060_500, None, log, **more)


def group(*partitions: PartitionLag, name: str = "billing", hidden: str = "") -> ServedGroup:
    """Return a group with partitions of a topic of five; `hidden` is an unreadable znode."""
    image = GroupImage(name, {}, unreadable={hidden: denied(hidden)} if hidden else {})
    lag = GroupLag(image, requested_topics({}, {}), partitions, {"orders": 5})
    first = [one.tp for one in partitions[:1]]
    commits, statuses = dict.fromkeys(first, COMMITS), dict.fromkeys(first, Status.STOPPED)
    return ServedGroup(lag, image.health, commits, statuses)


KNOWN = partition(0, 5, LogRange(2, 12))
MARKERS = partition(1, 9, LogRange(0, 10), is_read=True)
UNKNOWN = partition(2, 4, "the leader does not answer")
BEYOND = partition(3, 40, LogRange(0, 10))
WITHOUT_OFFSET = partition(4, None, LogRange(0, 10))


def samples(*partitions: PartitionLag, names: MetricNames, hidden: str = "") -> dict[str, float]:
    """Return name and labels -> value of the metrics of one group."""
    text = exposition([group(*partitions, hidden=hidden)], names=names, cluster="prod")
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_own_names() -> None:
    """A lag of transaction markers is no lag, as in `lag`; an unknown lag has no sample."""
    found = samples(KNOWN, MARKERS, UNKNOWN, BEYOND, names=MetricNames.ZKCONSUMER)
    lags = {name: value for name, value in found.items() if name.startswith("zkconsumer_group_lag")}
    labels = 'group="billing",partition="{}",topic="orders"'
    assert lags == {
        f"zkconsumer_group_lag{{{labels.format(0)}}}": 7,
        f"zkconsumer_group_lag{{{labels.format(1)}}}": 0,
    }
    assert found['zkconsumer_group_unknown_partitions{group="billing"}'] == 2
    assert found["zkconsumer_group_read_success"] == 1


def test_only_subscribed_partitions_need_an_owner() -> None:
    """An offset that is left of a topic to which no member subscribes is no missing owner."""
    owned = partition(0, 5, LogRange(0, 9))
    owned = replace(owned, owner=ThreadId("billing_web-0"), session=7)
    unowned = partition(1, 5, LogRange(0, 9))
    deleted = partition(9, 5, NO_SUCH_PARTITION)
    left = replace(partition(0, 5, LogRange(0, 9)), topic="archive")
    one, web = group(owned, unowned, deleted, left), ConsumerId("billing_web")
    topics = {"orders": b'{"partitions":{"0":[0],"1":[0]}}', "archive": b'{"partitions":{"0":[0]}}'}
    wanted = requested_topics({web: Registration({"orders": 1})}, topics)
    served = replace(one, lag=replace(one.lag, requested_topics=wanted))
    found = re.findall(
        r'group_owned{.*partition="(\d+)",topic="(\w+)"} (\S+)',
        exposition([served], names=MetricNames.ZKCONSUMER, cluster="prod"),
    )
    assert found == [("0", "orders", "1.0"), ("1", "orders", "0.0")]
    notes = list(group_notes(served.lag, replace(one.health, live={web: 7})))
    assert [note for note in notes if "without an owner" in note] == [
        "group billing: orders-1 without an owner"
    ]


def test_a_group_with_an_unreadable_znode() -> None:
    """What an unreadable znode may hold is neither 0 nor OK; what can be read is served."""
    hidden = paths.member("billing", ConsumerId("billing_web"))
    found = samples(KNOWN, names=MetricNames.ZKCONSUMER, hidden=hidden)
    labels = 'group="billing",partition="0",topic="orders"'
    assert found[f"zkconsumer_group_lag{{{labels}}}"] == 7
    assert found['zkconsumer_group_unreadable_znodes{group="billing"}'] == 1
    absent = ("zkconsumer_group_members", "zkconsumer_group_unknown_partitions")
    assert not [name for name in found if name.startswith(absent)]
    found = samples(names=MetricNames.BURROW, hidden=paths.offsets("billing"))
    of_group = '{cluster="prod",consumer_group="billing"}'
    assert f"burrow_kafka_consumer_lag_total{of_group}" not in found
    assert found[f"burrow_kafka_consumer_status{of_group}"] == 3
    found = samples(KNOWN, names=MetricNames.KAFKA_EXPORTER, hidden=hidden)
    assert not [name for name in found if name.startswith("kafka_consumergroup_members")]
    # An offset hides no member and no other partition, but may be another client's.
    one = group(KNOWN, hidden=paths.offset("billing", KNOWN.tp))
    assert (one.registered, one.unregistered, one.unknown, one.total) == (0, None, 0, 7)


def test_an_owner_that_cannot_be_read() -> None:
    """A partition whose owner znode is unreadable is not one without an owner."""
    served = group(replace(KNOWN, fault="ZooKeeper does not allow it"))
    registrations = {ConsumerId("billing_web"): Registration({"orders": 1})}
    wanted = requested_topics(registrations, {"orders": b'{"partitions":{"0":[0]}}'})
    served = replace(served, lag=replace(served.lag, requested_topics=wanted))
    assert "group_owned{" not in exposition([served], names=MetricNames.ZKCONSUMER, cluster="prod")
    window = CommitWindow()
    window.observe(served.lag.partitions[0], now_s=10_000.0)
    assert window.status(10_000.0) is Status.STALLED


def test_the_names_of_kafka_exporter() -> None:
    """Names, labels and meanings are those of kafka_exporter; the sum of unknowns is unknown."""
    ahead = replace(KNOWN, partition=3, in_kafka=OffsetAndMetadata(11, ""))
    absurd = replace(KNOWN, partition=2**31 - 1, log=NO_SUCH_PARTITION)
    every = (KNOWN, MARKERS, ahead, WITHOUT_OFFSET, absurd)
    found = samples(*every, names=MetricNames.KAFKA_EXPORTER)

    def of(name: str) -> list[float | None]:
        labels = 'consumergroup="billing",partition="{}",topic="orders"'
        return [found.get(f"kafka_{name}{{{labels.format(one.partition)}}}") for one in every]

    assert of("consumergroup_current_offset") == [5, 9, 11, -1, None]
    assert of("consumergroup_lag") == [7, 1, 1, -1, None]
    assert of("consumergroupzookeeper_lag_zookeeper") == [7, 1, 7, None, None]
    of_topic = '{consumergroup="billing",topic="orders"}'
    assert found[f"kafka_consumergroup_lag_sum{of_topic}"] == 9
    assert found[f"kafka_consumergroup_current_offset_sum{of_topic}"] == 25
    assert found['kafka_consumergroup_members{consumergroup="billing"}'] == 0
    assert found['kafka_topic_partitions{topic="orders"}'] == 5
    assert found['kafka_topic_partition_oldest_offset{partition="0",topic="orders"}'] == 2
    unknown = samples(KNOWN, UNKNOWN, names=MetricNames.KAFKA_EXPORTER)
    assert not [name for name in unknown if "lag_sum" in name]
    beyond = samples(KNOWN, BEYOND, names=MetricNames.KAFKA_EXPORTER)
    assert [value for name, value in beyond.items() if "group_lag" in name] == [7, -30]
    nothing = samples(WITHOUT_OFFSET, names=MetricNames.KAFKA_EXPORTER)
    assert not [name for name in nothing if "group_lag" in name]


def test_the_names_of_burrow() -> None:
    """The names and labels are those of Burrow, with the numbers of its statuses."""
    found = samples(KNOWN, MARKERS, names=MetricNames.BURROW)
    of_group = 'cluster="prod",consumer_group="billing"'
    labels = f'{of_group},partition="0",topic="orders"'
    assert found[f"burrow_kafka_consumer_lag_total{{{of_group}}}"] == 7
    assert found[f"burrow_kafka_consumer_status{{{of_group}}}"] == 3
    assert found[f"burrow_kafka_topic_partition_status{{{labels}}}"] == 4
    assert found[f"burrow_kafka_consumer_partition_lag{{{labels}}}"] == 7
    assert found[f"burrow_kafka_consumer_current_offset{{{labels}}}"] == 5
    of_topic = 'cluster="prod",partition="0",topic="orders"'
    assert found[f"burrow_kafka_topic_partition_offset{{{of_topic}}}"] == 12


@pytest.fixture
def cluster() -> ServedCluster:
    one = ServedCluster("prod", ("zk1:2181",))
    one.read([group(KNOWN, MARKERS, WITHOUT_OFFSET), group(UNKNOWN, name="search")])
    return one


def answer(cluster: ServedCluster, path: str) -> dict[str, Any]:
    """Return Burrow's answer without the fields that each answer has."""
    code, found = BurrowApi([cluster]).answer(path)
    assert (code, found.pop("error"), found.pop("request")["url"]) == (200, False, path)
    assert found.pop("message")
    return found


def test_the_lists_of_burrow(cluster: ServedCluster) -> None:
    """Burrow's API lists clusters, groups and topics."""
    assert answer(cluster, "/v3/kafka") == {"clusters": ["prod"]}
    assert answer(cluster, "/v3/kafka/prod")["module"]["servers"] == ["zk1:2181"]
    assert answer(cluster, "/v3/kafka/prod/consumer") == {"consumers": ["billing", "search"]}
    assert answer(cluster, "/v3/kafka/prod/topic") == {"topics": ["orders"]}
    assert answer(cluster, "/v3/kafka/prod/topic/orders") == {"offsets": [12, 10, None, None, 10]}
    consumers = answer(cluster, "/v3/kafka/prod/topic/orders/consumers")
    assert consumers == {"consumers": ["billing", "search"]}


def test_a_cluster_with_a_chroot(cluster: ServedCluster) -> None:
    """A cluster is found by its address with a chroot, also if another has that address only."""
    outer = ServedCluster("zk1:2181")
    inner = ServedCluster("zk1:2181/kafka", ("zk1:2181",), cluster.groups, read_s=1.0)
    api = BurrowApi([outer, inner])
    code, found = api.answer("/v3/kafka/zk1:2181/kafka/consumer/billing/lag")
    assert (code, found["status"]["cluster"]) == (200, "zk1:2181/kafka")
    assert api.answer("/v3/kafka/zk1:2181/kafka")[1]["module"]["servers"] == ["zk1:2181"]
    assert api.answer("/v3/kafka/zk1:2181/kafka2/consumer")[0] == 503
    assert api.answer("/v3/kafka/zk1:218")[0] == 404


def test_the_status_of_burrow(cluster: ServedCluster) -> None:
    """`status` has the partitions that are not OK, and `lag` has all with an offset."""
    found = answer(cluster, "/v3/kafka/prod/consumer/billing/status")["status"]
    (stopped,) = found.pop("partitions")
    assert stopped == {
        "topic": "orders",
        "partition": 0,
        "owner": "",
        "client_id": "",
        "status": "STOP",
        "start": {"offset": 3, "timestamp": 1_000_000, "observedAt": None, "lag": 9},
        "end": {"offset": 5, "timestamp": 1_060_500, "observedAt": None, "lag": 7},
        "current_lag": 7,
        "complete": 0.2,
    }
    assert found == {
        "cluster": "prod",
        "group": "billing",
        "status": "ERR",
        "complete": 0,
        "partition_count": 2,
        "maxlag": stopped,
        "totallag": 7,
    }
    every = answer(cluster, "/v3/kafka/prod/consumer/billing/lag")["status"]["partitions"]
    assert [(one["partition"], one["status"]) for one in every] == [(0, "STOP"), (1, "OK")]
    topics = answer(cluster, "/v3/kafka/prod/consumer/billing")["topics"]
    assert [one["current-lag"] for one in topics["orders"]] == [7, 0, None, None, None]
    assert topics["orders"][0]["offsets"][:8] == [None] * 8


def test_an_absurd_partition_in_burrow() -> None:
    """The lists of partitions are as long as the topic, whatever the names of offset znodes are."""
    one, left = ServedCluster("prod"), replace(KNOWN, partition=2**31 - 1)
    fault = replace(left, topic="secret", log="the topic's partitions cannot be read")
    one.read([group(KNOWN, replace(left, log=NO_SUCH_PARTITION), left, fault)])
    assert answer(one, "/v3/kafka/prod/topic/orders") == {"offsets": [12, None, None, None, None]}
    assert answer(one, "/v3/kafka/prod/topic/secret") == {"offsets": None}
    topics = answer(one, "/v3/kafka/prod/consumer/billing")["topics"]
    assert (len(topics["orders"]), topics["secret"]) == (5, None)
    one.read([group(KNOWN, replace(left, log=NO_SUCH_PARTITION))])
    status = answer(one, "/v3/kafka/prod/consumer/billing/lag")["status"]
    assert (status["totallag"], status["partition_count"]) == (7, 1)


def test_an_unknown_lag_in_burrow(cluster: ServedCluster) -> None:
    """An unknown lag is null and an error, so no alert takes it for 0."""
    found = answer(cluster, "/v3/kafka/prod/consumer/search/lag")["status"]
    assert (found["status"], found["totallag"], found["maxlag"]) == ("ERR", None, None)
    assert found["partitions"][0]["current_lag"] is None


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("/v3/kafka/other", 404, "cluster not found"),
        ("/v3/kafka/prod/consumer/x", 404, "consumer not found"),
        ("/v3/kafka/prod/consumer/x/status", 404, "consumer status"),
        ("/v3/kafka/prod/topic/x", 404, "topic not found"),
        ("/v3/kafka/prod/consumer/billing/x", 404, "invalid request type"),
        ("/v3/config", 404, "invalid request type"),
        ("/v3/kafka/down/consumer", 503, "not been read yet: ZooKeeper is away"),
    ],
)
def test_what_burrow_does_not_find(
    cluster: ServedCluster, path: str, code: int, message: str
) -> None:
    """A wrong path and an unknown name give 404; a cluster that was never read gives 503."""
    down = ServedCluster("down")
    down.failed("ZooKeeper is away")
    found_code, found = BurrowApi([cluster, down]).answer(path)
    assert (found_code, message in found["message"]) == (code, True)


@pytest.fixture
def served(cluster: ServedCluster) -> Iterator[tuple[ServedCluster, str]]:
    """An exporter of two clusters, of which one was never read; the address of the exporter."""
    down, port = ServedCluster("down"), free_port()
    down.failed("ZooKeeper is away")
    with LagExporter("127.0.0.1", port, [cluster, down], has_cluster=True):
        yield down, f"http://127.0.0.1:{port}"


def get(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        return str(response.read().decode())


def test_the_server(served: tuple[ServedCluster, str]) -> None:
    """One port serves the metrics of several clusters, and Burrow's API, which only reads."""
    down, url = served
    page = get(f"{url}/metrics")
    assert 'zkconsumer_group_lag{cluster="prod",group="billing",' in page
    success = dict(re.findall(r'read_success{cluster="(\w+)"} (\S+)', page))
    assert success == {"prod": "1.0", "down": "0.0"}
    assert 'zkconsumer_group_read_timestamp_seconds{cluster="prod"}' in page
    assert 'zkconsumer_group_read_timestamp_seconds{cluster="down"}' not in page
    assert get(f"{url}/burrow/admin") == "GOOD"
    assert json.loads(get(f"{url}/v3/kafka"))["clusters"] == ["prod", "down"]
    delete = urllib.request.Request(f"{url}/v3/kafka/prod/consumer/billing", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(delete)
    assert refused.value.code == 405
    refused.value.close()
    down.read([])
    assert 'read_success{cluster="down"} 1.0' in get(f"{url}/metrics")
