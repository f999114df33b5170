"""A live member writes every JVM log line of docs/metrics.md."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl
from support.internals import client_of
from support.members.group import Group
from support.wait import LIMIT_S, eventually
from support.zk.takeover import expire

from zkconsumer import ConsumerConfig, ConsumerConnector, white_list
from zkconsumer.protocol import paths
from zkconsumer.sandbox.process import until

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
READ_ONLY = [make_acl("world", "anyone", read=True, admin=True)]
VALUES = {
    "consumer": r"[\w.-]+",
    "thread": r"[\w.-]+-\d+",
    "topic": r"[\w.-]+",
    "n": r"-?\d+",
    "path": r"/[\w./-]+",
    "list": r"[\w., -]*",
    "reason": r"\S.*",
}


def listed() -> dict[str, str]:
    """Return line -> level, from the table on the page."""
    rows = re.findall(r"^\| `([^`]+)` \| ([A-Z]+) \|", PAGE, re.MULTILINE)
    assert len(rows) > 25
    return dict(rows)


def pattern(line: str) -> str:
    """Return a line of the page as a regular expression in which <> stands for any value."""
    parts = re.split(r"<(\w+)>", line)
    texts = [re.escape(part) for part in parts[::2]]
    values = [VALUES[name] for name in parts[1::2]]
    return "".join(one for pair in zip(texts, [*values, ""], strict=True) for one in pair)


Seen = Callable[..., None]


@pytest.fixture
def seen(caplog: pytest.LogCaptureFixture) -> Iterator[Seen]:
    """Wait until the member has logged each listed line at the listed level."""
    caplog.set_level(logging.DEBUG, "zkconsumer.consumer.journal")
    lines = listed()

    def check(*beginnings: str) -> None:
        for beginning in beginnings:
            (line,) = [one for one in lines if one.startswith(beginning)]
            wanted = re.compile(rf"\[[\w.-]+\], {pattern(line)}.*")

            def logged(line: str = line, wanted: re.Pattern[str] = wanted) -> bool:
                return any(
                    record.levelname == lines[line] and wanted.fullmatch(record.getMessage())
                    for record in list(caplog.records)
                    if record.name == "zkconsumer.consumer.journal"
                )

            assert until(logged, limit_s=LIMIT_S), line

    yield check


JOINING = (
    "begin registering",
    "end registering",
    "begin rebalancing",
    "end rebalancing",
    "Consumer <consumer> rebalancing",
    "<thread> attempting",
    "<thread> successfully",
    "Consumer <consumer> selected",
    "reset fetch offset",
    "Invoking rebalance listener before relasing",
    "Invoking rebalance listener before starting",
)
GIVING_UP = (
    "Cleared all",
    "Cleared the data",
    "Committing all",
    "Releasing partition",
    "Consumer <consumer> releasing",
)
LEAVING = ("ZKConsumerConnector shutting", "ZKConsumerConnector shutdown")
CONFLICT = ("conflict in", "waiting for the partition", "Rebalancing attempt failed")
OTHERS = (
    "No broker partitions consumed",
    "exception during rebalance",
    "exception during autoCommit",
    "Topic info for path",
    "Topic for path",
    "Topic event: added",
    "Topic event: deleted",
    "no brokers found",
    "ZK expired",
)


class Silent:
    """A listener that does nothing."""

    def before_releasing_partitions(self, partitions: Any) -> None:
        """Do nothing."""

    def before_starting_fetchers(self, consumer_id: str, assignment: Any) -> None:
        """Do nothing."""


def test_joining_reading_and_leaving(group: Group, seen: Seen) -> None:
    """A member registers, rebalances, claims, fetches, hands over partitions, and leaves."""
    one = group.member("a")
    one.connector.set_consumer_rebalance_listener(Silent())
    one.subscribe(group.topic)
    one.settled(0, 1, 2, 3)
    one.read(40)
    seen(*JOINING)
    other = group.join("b")
    other.settled(2, 3)
    one.settled(0, 1)
    seen(*GIVING_UP)
    one.close()
    seen(*LEAVING)


def test_threads_without_partitions(group: Group, seen: Seen) -> None:
    """With five threads for four partitions, a line names the thread without a partition."""
    group.join("a", threads=5).settled(0, 1, 2, 3)
    seen("No broker partitions consumed")


def test_a_partition_of_another_owner(group: Group, seen: Seen) -> None:
    """If another client owns a partition, lines name both threads and the failed attempt."""
    group.hold(2)
    one = group.join("a")
    eventually(lambda: one.owned == {0, 1, 3})
    seen(*CONFLICT)


def test_refusals(group: Group, seen: Seen) -> None:
    """ZooKeeper refuses first a claim, and later an automatic commit."""
    owners = paths.owners_of(group.name, group.topic)
    group.admin.ensure_path(owners)
    group.admin.set_acls(owners, READ_ONLY)
    one = group.join("a", auto_commit_interval_s=0.2)
    seen("exception during rebalance")
    group.admin.set_acls(owners, [make_acl("world", "anyone", all=True)])
    one.settled(0, 1, 2, 3)
    one.read(40)
    # A commit could still create an offset that is missing when the rights are withdrawn.
    eventually(lambda: [group.stored(number) for number in range(4)] == ["10"] * 4)
    group.admin.set_acls(paths.offsets(group.name), READ_ONLY)
    for partition in range(4):
        group.admin.set_acls(group.offset(partition), READ_ONLY)
    group.sandbox.produce(group.topic, 5, partition=0)
    seen("exception during autoCommit")


def test_topics_that_change(group: Group, seen: Seen, unique: Callable[[str], str]) -> None:
    """Partitions are added, a topic is deleted, and topics of a filter come and go."""
    mine, prefix = unique("changing"), unique("filtered")
    group.sandbox.create_topic(mine, partitions=1)
    one = group.member("a")
    one.subscribe(mine)
    one.settled(0)
    group.sandbox.add_partitions(mine, partitions=2)
    one.settled(0, 1)
    seen("Topic info for path")
    group.sandbox.delete_topic(mine)
    seen("Topic for path")
    other = group.member("b")
    other.connector.create_message_streams_by_filter(white_list(f"{prefix}.*"))
    group.sandbox.create_topic(f"{prefix}-1", partitions=1)
    seen("Topic event: added")
    group.sandbox.delete_topic(f"{prefix}-1")
    seen("Topic event: deleted")


def test_no_brokers(group: Group, seen: Seen, unique: Callable[[str], str]) -> None:
    """Below a chroot that has a topic, no broker is registered."""
    chroot = f"/{unique('empty')}"
    topic = chroot + paths.topic("t")
    group.admin.create(topic, b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    config = ConsumerConfig(
        group_id=group.name, zookeeper_connect=group.sandbox.zookeeper_connect + chroot
    )
    with ConsumerConnector(config) as connector:
        connector.create_message_streams({"t": 1})
        seen("no brokers found")


def test_an_expired_session(group: Group, seen: Seen) -> None:
    """Another connection ends the session of the member."""
    one = group.join("a")
    one.settled(0, 1, 2, 3)
    expire(group.sandbox.zookeeper_connect, client_of(one.connector).client_id)
    seen("ZK expired")
    one.settled(0, 1, 2, 3)


def test_every_line_of_the_page_is_covered() -> None:
    """Together, the tests above cover every line of the table in docs/metrics.md."""
    waited = [*JOINING, *GIVING_UP, *LEAVING, *CONFLICT, *OTHERS]
    found = [[one for one in listed() if one.startswith(beginning)] for beginning in waited]
    assert sorted(line for (line,) in found) == sorted(listed())
