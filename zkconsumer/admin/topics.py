"""Topics as ZooKeeper has them: partitions, replicas, leaders, in-sync replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zkconsumer.admin.images import TopicImage, read_topic_names, read_topics
from zkconsumer.core import paths
from zkconsumer.core.records import decode_partition_state, decode_replicas
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.zk.connection import Connection


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic: how many partitions, and replicas of each (fewest, most); or its `fault`."""

    name: str
    partitions: int = 0
    replicas: tuple[int, int] = (0, 0)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Where a partition is kept; `leader` None where nobody leads, or a text: why not known."""

    topic: str
    partition: int
    leader: int | str | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        """Replicas that lack something."""
        return tuple(one for one in self.replicas if one not in self.isr)


def topics(connection: Connection, names: Iterable[str] | None = None) -> list[TopicSummary]:
    """These topics, as far as they exist, or all; sorted. Raises as `Connection.read`."""
    wanted = read_topic_names(connection) if names is None else sorted(set(names))
    return [_summary(image) for image in read_topics(connection, wanted).values()]


def _summary(image: TopicImage) -> TopicSummary:
    try:
        counts = [len(brokers) for brokers in _replicas(image).values()]
    except MalformedZnodeError as error:
        return TopicSummary(image.name, fault=error.what)
    return TopicSummary(
        image.name, len(counts), (min(counts, default=0), max(counts, default=0))
    )


def _replicas(image: TopicImage) -> dict[int, tuple[int, ...]]:
    return decode_replicas(image.node.data, where=paths.topic(image.name))


def partitions(connection: Connection, names: Iterable[str]) -> list[PartitionPlace]:
    """Every partition of these topics, as far as they exist, sorted.

    Raises MalformedZnodeError for a topic that cannot be read, and as `Connection.read`.
    """
    placed = {
        (image.name, number): replicas
        for image in read_topics(connection, sorted(set(names))).values()
        for number, replicas in _replicas(image).items()
    }
    return list(_places(connection, placed))


def _places(
    connection: Connection, placed: dict[tuple[str, int], tuple[int, ...]]
) -> Iterator[PartitionPlace]:
    states = connection.read(paths.partition_state(*key) for key in placed)
    for (topic, number), replicas in placed.items():
        path = paths.partition_state(topic, number)
        leader: int | str | None
        isr: tuple[int, ...] = ()
        try:
            if path not in states:
                leader = "the brokers have not said yet"
            else:
                state = decode_partition_state(states[path].data, where=path)
                leader, isr = (state.leader if state.leader >= 0 else None), state.isr
        except MalformedZnodeError as error:
            leader = error.what
        yield PartitionPlace(topic, number, leader, replicas, isr)
