"""Metrics are counted, served over HTTP, and removed together with their connector."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.members.group import SETTINGS, Group, Reader
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.metrics import COUNTERS, GAUGES, LABELS
from zkconsumer.errors import ConfigError
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port, is_free

MAPPING = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
# The MBeans of a consumer of 0.8.2 to 1.1.1, by type.
MBEANS = {
    "kafka.consumer:type=ZookeeperConsumerConnector": (
        "FetchQueueSize",
        "OwnedPartitionsCount",
        "RebalanceRateAndTime",
        "KafkaCommitsPerSec",
        "ZooKeeperCommitsPerSec",
        "yammer-metrics-count",
    ),
    "kafka.consumer:type=ConsumerFetcherManager": ("MaxLag", "MinFetchRate"),
    "kafka.server:type=FetcherLagMetrics": ("ConsumerLag",),
    "kafka.server:type=FetcherStats": ("RequestsPerSec", "BytesPerSec"),
    "kafka.consumer:type=ConsumerTopicMetrics": ("MessagesPerSec", "BytesPerSec"),
    "kafka.consumer:type=FetchRequestAndResponseMetrics": (
        "FetchRequestRateAndTimeMs",
        "FetchResponseSize",
        "FetchRequestThrottleRateAndTimeMs",
    ),
    "kafka.producer:type=ProducerRequestMetrics": (),
}

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Samples by name and labels, without the labels of the member and the connector."""


def page(text: str) -> Page:
    """Return the samples on the page; fail if two have the same name and labels."""
    found: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def of(text: str, name: str, consumer: str, **labels: str) -> float:
    """Return one sample of one connector."""
    for (sample, labelled), value in page(text).items():
        given = dict(labelled)
        if sample == name and given["consumer_id"] == consumer and labels.items() <= given.items():
            return value
    raise AssertionError(f"no {name} of {consumer} with {labels}:\n{text}")


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


def test_a_scrape_shows_the_members_activity(group: Group) -> None:
    """`metrics.port` serves partitions, messages, commits and rebalances until the shutdown."""
    port = free_port()
    one = group.join("a", metrics_port=port, client_id="me")
    one.settled(0, 1, 2, 3)
    one.read(40)
    one.connector.commit_offsets()
    text, consumer = scrape(port), f"{group.name}_a"
    assert of(text, "zkconsumer_owned_partitions", consumer, topic=group.topic) == 4
    assert of(text, "zkconsumer_messages_total", consumer, topic=group.topic) == 40
    assert of(text, "zkconsumer_zookeeper_commits_total", consumer) == 4
    assert of(text, "zkconsumer_rebalance_seconds_count", consumer) >= 1
    assert of(text, "zkconsumer_rebalance_seconds_sum", consumer) > 0
    assert of(text, "zkconsumer_zookeeper_connected", consumer) == 1
    assert of(text, "zkconsumer_lease_seconds", consumer) > 0
    assert of(text, "zkconsumer_phase", consumer, phase="settled") == 1
    assert of(text, "zkconsumer_events_total", consumer, event="position_reset") == 4
    assert of(text, "zkconsumer_owned_partitions", consumer, client_id="me", group_id=group.name)
    eventually(lambda: 'partition="0"' in scrape(port))
    assert of(scrape(port), "zkconsumer_lag", consumer, topic=group.topic, partition="0") == 0
    one.close()
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_the_lag_is_what_was_not_handed_out(group: Group) -> None:
    """After the first of forty messages a reader has a lag; after the last it has none."""
    one = group.member("a")
    one.readers.extend(
        Reader(s) for s in one.connector.create_message_streams({group.topic: 1})[group.topic]
    )
    one.readers[0].free.clear()
    one.readers[0].start()
    one.read(1)
    eventually(lambda: one.counted["max_lag"] in (9, 10))
    one.readers[0].free.set()
    one.read(40)
    eventually(lambda: one.counted["max_lag"] == 0)


def test_fetched_bytes_are_those_of_keys_and_values(group: Group) -> None:
    """For a few messages, some of them without key or value, the fetched bytes are exact."""
    topic, port = f"{group.topic}-few", free_port()
    group.sandbox.create_topic(topic, partitions=1)
    group.sandbox.produce(topic, [b"", b"x" * 100, None], key="a key", partition=0)
    group.sandbox.produce(topic, [b"y"], partition=0)
    one = group.member("a", metrics_port=port)
    one.subscribe(topic)
    one.read(4)
    name, consumer = "zkconsumer_fetched_bytes_total", f"{group.name}_a"
    assert of(scrape(port), name, consumer, topic=topic) == 3 * 5 + 100 + 1
    assert one.counted["fetched_bytes"] == 116


def test_fetched_bytes_are_sampled(group: Group) -> None:
    """For thousands of messages with 100 bytes or none, the estimate of fetched bytes is close."""
    topic = f"{group.topic}-many"
    group.sandbox.create_topic(topic, partitions=1)
    group.sandbox.produce(topic, [b"", b"x" * 100] * 10_000, partition=0)
    one = group.member("a")
    one.subscribe(topic)
    one.read(20_000)
    assert 0.5 < one.counted["fetched_bytes"] / 1_000_000 < 1.5


def test_messages_are_counted_once_wherever_they_are_read(group: Group) -> None:
    """When a partition moves, the counters of both members add up to the number of deliveries."""
    one = group.join("a")
    one.settled(0, 1, 2, 3)
    one.read(40)
    two = group.join("b")
    two.settled(2, 3)
    one.settled(0, 1)
    for partition in range(4):
        group.sandbox.produce(group.topic, 5, partition=partition)
    two.read(10)
    one.read(50)
    assert (one.counted["messages"], two.counted["messages"]) == (50, 10)


def test_messages_that_a_seek_skips_are_not_counted(group: Group) -> None:
    """After seeks forwards, backwards and beyond the log, the count is that of the deliveries."""
    connector = group.member().connector
    (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
    tps = [group.tp(number) for number in range(4)]

    def delivered(count: int) -> int:
        found = 0
        while found < count:
            found += len(stream.poll(timeout_s=LIMIT_S))
        return found

    total = delivered(40)
    connector.seek_to_beginning(tps)
    total += delivered(40)
    connector.seek_to_beginning(tps)
    connector.seek_to_end(tps)
    connector.seek(tps[0], 90_000)  # beyond the log: `auto.offset.reset` is smallest
    total += delivered(10)
    connector.seek(tps[1], 7)
    total += delivered(3)
    assert connector.metrics()["messages"] == total == 93


def test_the_user_s_registry_has_the_same_figures(group: Group) -> None:
    """Two connectors share a registry under different labels, and each removes its metrics."""
    registry = CollectorRegistry()
    members = [group.member(suffix) for suffix in ("a", "b")]
    for one in members:
        one.connector.register_metrics(registry)
        one.subscribe(group.topic)
    one, two = members
    one.settled(0, 1)
    two.settled(2, 3)
    # Afterwards, no partition can still get its first position.
    eventually(lambda: all(len(one.readers[0].offsets(number)) == 10 for number in (0, 1)))
    text = generate_latest(registry).decode()
    figures = one.counted
    for name in ("rebalances", "position_reset"):
        counted = of(text, "zkconsumer_events_total", f"{group.name}_a", event=name)
        assert counted == figures[name]
    owned = [
        of(text, "zkconsumer_owned_partitions", f"{group.name}_{suffix}") for suffix in ("a", "b")
    ]
    assert owned == [2, 2]
    one.close()
    consumers = {
        dict(labels)["consumer_id"] for _, labels in page(generate_latest(registry).decode())
    }
    assert consumers == {f"{group.name}_b"}
    two.close()
    assert generate_latest(registry) == b""


def test_metrics_leak(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """MetricsTest.testMetricsLeak: six rounds of connectors leave no metric behind."""
    topic, port, registry = unique("leak"), free_port(), CollectorRegistry()
    sandbox.create_topic(topic, partitions=1)
    before = list(registry.collect())
    for _ in range(6):
        for group_id, suffix in (("group0", "consumer0"), ("group1", "consumer1")):
            config = ConsumerConfig(
                group_id=f"{topic}-{group_id}",
                consumer_id=suffix,
                metrics_port=port,
                **{**SETTINGS, "zookeeper_connect": sandbox.zookeeper_connect},
            )
            with ConsumerConnector(config) as connector:
                connector.register_metrics(registry)
                connector.create_message_streams({topic: 1})
                eventually(lambda: list(registry.collect()))
    assert list(registry.collect()) == before
    assert is_free(port)


def test_one_port_serves_all_connectors_of_a_process(group: Group) -> None:
    """Two connectors with the same `metrics.port` share a page until the second one shuts down."""
    port = free_port()
    one, two = (group.join(suffix, metrics_port=port) for suffix in ("a", "b"))
    one.settled(0, 1)
    text = scrape(port)
    assert of(text, "zkconsumer_owned_partitions", f"{group.name}_a") == 2
    assert of(text, "zkconsumer_phase", f"{group.name}_b") == 1
    one.close()
    assert f"{group.name}_a" not in scrape(port)
    two.close()
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_a_port_in_use_is_a_bad_setting(sandbox: Sandbox) -> None:
    """If the metrics port is in use, the constructor raises a ConfigError."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = ConsumerConfig(
            group_id="g",
            zookeeper_connect=sandbox.zookeeper_connect,
            metrics_port=taken.getsockname()[1],
        )
        with pytest.raises(ConfigError, match="metrics cannot be served"):
            ConsumerConnector(config)


def test_the_labels_are_the_jvm_s_and_the_consumer_s() -> None:
    """The labels are the MBeans' clientId and groupId, and the consumer id of the member."""
    assert LABELS == ("client_id", "group_id", "consumer_id")


def test_every_mbean_has_its_row() -> None:
    """docs/metrics.md names the replacement of each MBean, or the reason why there is none."""
    rows = [line.split("|")[1:] for line in MAPPING.splitlines() if line.startswith("| `kafka.")]
    for kind, names in MBEANS.items():
        of_kind = [row for row in rows if kind in row[0]]
        assert of_kind, kind
        for name in names:
            (row,) = [row for row in of_kind if re.search(rf"[=`]{name}`", row[0])]
            assert row[1].strip()


def test_every_metric_has_its_row() -> None:
    """docs/metrics.md lists exactly the exported metrics."""
    table = MAPPING.split("\n## Metrics\n")[1].split("\nMBeans that describe")[0]
    listed = [
        name
        for line in table.splitlines()
        if line.startswith("| ")
        for name in re.findall(r"`(zkconsumer_\w+)`", line.split("|")[2])
    ]
    gauges = [row[0] for row in GAUGES] + ["zkconsumer_phase", "zkconsumer_rebalance_seconds"]
    assert sorted(listed) == sorted(gauges + [f"{row[0]}_total" for row in COUNTERS])
