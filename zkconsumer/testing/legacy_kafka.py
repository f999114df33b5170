"""One test on three kinds of servers: the fake cluster, the sandbox, and containers.

`open_legacy_kafka` starts the servers; the fixture `legacy_kafka` of `zkconsumer.testing.plugin`
calls it. A `LegacyKafka` has the same methods on each backend.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import NamedTuple, Protocol, Unpack

from confluent_kafka import Message

from zkconsumer.errors import ConfigError, FakeServerError, SandboxError
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Storage, TopicPartition
from zkconsumer.protocol.requests import Code
from zkconsumer.sandbox import topics
from zkconsumer.sandbox.sandbox import Sandbox
from zkconsumer.sandbox.topics import ServerTopics, TopicOptions
from zkconsumer.testing import groups
from zkconsumer.testing.cluster import DEFAULT_BROKER, Content, FakeCluster
from zkconsumer.testing.cluster_metadata import INTERNAL_TOPICS
from zkconsumer.testing.groups import SETTLE_LIMIT_S, Deliveries, Rebalances


class Backend(Enum):
    """The kinds of servers; the value is that of the option `--legacy-kafka`."""

    FAKE = "fake"
    SANDBOX = "sandbox"
    CONTAINERS = "containers"


class Topics(Protocol):
    """What a backend does with topics; `LegacyKafka` describes the methods."""

    def create_topic(self, name: str, **options: Unpack[TopicOptions]) -> object: ...

    def add_partitions(self, name: str, *, partitions: int) -> object: ...

    def delete_topic(self, name: str) -> object: ...

    def produce(
        self,
        name: str,
        messages: int | Iterable[Content],
        *,
        key: Content,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Sequence[tuple[int, int]]: ...

    def messages(self, topic: str, *, partition: int | None = None) -> list[Message]: ...


class LegacyKafka:
    """A ZooKeeper and its brokers, as a test sees them.

    Attributes:
        backend: the kind of servers.
        release: the brokers' release.
        zookeeper_connect: the value of `zookeeper.connect`.
        bootstrap: the value of `bootstrap.servers`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        release: str,
        zookeeper_connect: str,
        bootstrap: str,
        on: Topics,
    ) -> None:
        """`on` is the part of the servers that concerns topics."""
        self.backend, self.release = backend, release
        self.zookeeper_connect, self.bootstrap = zookeeper_connect, bootstrap
        self._topics = on

    # ---- topics and messages --------------------------------------------------------------------

    def create_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic; its leaders are known when the call returns.

        Args:
            options: `partitions=1`, `replicas=1`, and `config=None`, the topic's settings.

        Raises:
            FakeServerError, SandboxError: the topic exists, or cannot be created.
        """
        self._topics.create_topic(name, **options)

    def add_partitions(self, name: str, *, partitions: int) -> None:
        """Raise a topic's number of partitions to `partitions`.

        Raises:
            FakeServerError, SandboxError: there is no such topic, or it already has as many.
        """
        self._topics.add_partitions(name, partitions=partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages.

        Raises:
            FakeServerError, SandboxError: there is no such topic.
        """
        self._topics.delete_topic(name)

    def produce(
        self,
        name: str,
        messages: int | Iterable[Content],
        *,
        key: Content = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[tuple[int, int]]:
        """Write messages, and return the partition and the offset of each.

        Args:
            messages: the values in order; a number n means the n values `0`, `1`, ... `n-1`.
            key: the key of every message; it determines the partition as in the Java producer.
            partition: the partition of all messages.
            timestamp_ms: the timestamp of all messages, in ms since 1970; None: the current time.

        Raises:
            FakeServerError, SandboxError: there is no such topic or partition.
        """
        placed = self._topics.produce(
            name, messages, key=key, partition=partition, timestamp_ms=timestamp_ms
        )
        return list(placed)

    def messages(self, topic: str, *, partition: int | None = None) -> list[Message]:
        """Return the messages of a topic now, each partition's in their order.

        Messages of open and of aborted transactions are among them.

        Args:
            topic: the topic.
            partition: the only partition to read; None: all.

        Raises:
            FakeServerError, SandboxError: there is no such topic or partition.
        """
        return self._topics.messages(topic, partition=partition)

    @staticmethod
    def unique(name: str) -> str:
        """Return a name that no other test uses, because tests may share real servers."""
        return f"{name}-{uuid.uuid4().hex[:8]}"

    # ---- groups ---------------------------------------------------------------------------------

    def wait_until_settled(
        self,
        group: str,
        *,
        members: int | Collection[str] | None = None,
        timeout_s: float = SETTLE_LIMIT_S,
    ) -> dict[TopicPartition, str]:
        """Wait until every partition of a group has an owner; see `groups.wait_until_settled`."""
        return groups.wait_until_settled(
            self.zookeeper_connect, group, members=members, timeout_s=timeout_s
        )

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """Return the consumer thread that owns each partition of a group now."""
        return groups.owners(self.zookeeper_connect, group)

    def committed(
        self, group: str, *, storage: Storage = Storage.ZOOKEEPER
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed to ZooKeeper, or to Kafka."""
        return groups.committed(self.zookeeper_connect, group, storage=storage)

    def rebalances(self, group: str) -> Rebalances:
        """Return a recorder of the group's rebalances; it records while its block runs."""
        return Rebalances(self.zookeeper_connect, group)

    def check_delivered_once(self, topic: str, deliveries: Deliveries) -> None:
        """Check that the consumers have received every message of a topic exactly once.

        Raises:
            AssertionError: a message was lost, or delivered more than once; the text says which.
        """
        log = []
        for one in self.messages(topic):
            tp = TopicPartition(one.topic() or "", one.partition() or 0)
            log.append((tp, one.offset() or 0))
        deliveries.check(log)

    # ---- faults ---------------------------------------------------------------------------------

    @property
    def fake(self) -> FakeCluster:
        """The fake cluster, for faults and for the test's own time.

        Raises:
            FakeServerError: the test runs on another backend.
        """
        if isinstance(self._topics, FakeCluster):
            return self._topics
        raise FakeServerError(
            f"the backend {self.backend.value} is not a fake cluster",
            remedy="give the test the mark legacy_kafka(backend='fake')",
        )


# ---- real servers --------------------------------------------------------------------------------


class _Shared(ServerTopics):
    """Topics of servers that several tests share."""

    def __init__(self, zookeeper_connect: str) -> None:
        super().__init__(zookeeper_connect)
        with topics.session(zookeeper_connect) as zookeeper:
            self._groups = set(zookeeper.children([paths.CONSUMERS]).get(paths.CONSUMERS, ()))
        self._kept = set(self.list_topics())

    def clean(self) -> None:
        """Delete the topics, and the groups in ZooKeeper, that did not exist at the start.

        Raises:
            SandboxError: a topic or a group could not be deleted.
        """
        for name in set(self.list_topics()) - self._kept - INTERNAL_TOPICS:
            self.delete_topic(name)
        with topics.session(self.zookeeper_connect) as zookeeper:
            names = set(zookeeper.children([paths.CONSUMERS]).get(paths.CONSUMERS, ()))
            znodes = zookeeper.tree(*(paths.group(name) for name in names - self._groups))
            reply = zookeeper.write([rq.Delete(path) for path in reversed(znodes)])
        if reply.code is not Code.OK:
            raise SandboxError(
                f"the groups of a test could not be deleted: {reply.code.name}",
                where=self.zookeeper_connect,
                remedy="stop the test's consumers before the test ends",
            )


# ---- opening -------------------------------------------------------------------------------------


class Servers(NamedTuple):
    """Real servers that run: where they are, and their release."""

    backend: Backend
    release: str
    zookeeper_connect: str
    bootstrap: str

    @contextmanager
    def lend(self) -> Iterator[LegacyKafka]:
        """Give the servers to one test; afterwards, its topics and groups are deleted.

        Offsets that a group has committed to Kafka stay until the brokers delete them.
        """
        shared = _Shared(self.zookeeper_connect)
        yield LegacyKafka(
            self.backend,
            release=self.release,
            zookeeper_connect=self.zookeeper_connect,
            bootstrap=self.bootstrap,
            on=shared,
        )
        shared.clean()


@contextmanager
def run_servers(backend: Backend, *, release: str, brokers: int) -> Iterator[Servers]:
    """Run a sandbox or containers in the block.

    Raises:
        ConfigError: the backend has no such release, or not so many brokers; or testcontainers is
            not installed.
        SandboxError: a server does not start.
    """
    if backend is Backend.SANDBOX:
        with Sandbox(release=release, brokers=brokers, tick_time_s=0.1) as sandbox:
            connect = sandbox.zookeeper_connect
            yield Servers(backend, release, connect, sandbox.bootstrap)
        return
    with _run_containers(release, brokers) as (connect, bootstrap):
        yield Servers(backend, release, connect, bootstrap)


@contextmanager
def _run_containers(release: str, brokers: int) -> Iterator[tuple[str, str]]:
    """Run ZooKeeper and a broker in containers; yield `zookeeper.connect` and `bootstrap.servers`.

    Raises:
        ConfigError: testcontainers is not installed, or there are no such containers.
        SandboxError: a container does not start.
    """
    try:
        from zkconsumer.testing import containers  # noqa: PLC0415 - testcontainers is optional
    except ImportError as error:
        raise ConfigError(
            f"the package {error.name}, which runs the containers, is missing",
            where="legacy_kafka",
            remedy="install it: pip install testcontainers",
        ) from error
    if (release, brokers) != (containers.RELEASE, 1):
        raise ConfigError(
            f"containers run 1 broker of release {containers.RELEASE}, not {brokers} of {release}",
            where="legacy_kafka",
            remedy="use the sandbox, which runs every release",
        )
    with ExitStack() as stack:
        try:
            zookeeper = stack.enter_context(containers.ZooKeeperContainer())
            kafka = stack.enter_context(containers.LegacyKafkaContainer(zookeeper))
        except containers.START_ERRORS as error:
            reason = str(error).partition("\n")[0]
            raise SandboxError(
                f"the containers do not start: {reason}",
                where="legacy_kafka",
                remedy="check that a Docker engine runs and can pull the images; DOCKER_HOST names"
                " the engine, ZKCONSUMER_ZOOKEEPER_IMAGE and ZKCONSUMER_KAFKA_IMAGE other images",
            ) from error
        yield zookeeper.get_connection_string(), kafka.get_bootstrap_server()


@contextmanager
def open_legacy_kafka(
    backend: Backend | str = Backend.FAKE, *, release: str = DEFAULT_BROKER, brokers: int = 1
) -> Iterator[LegacyKafka]:
    """Run the servers of a backend in the block, for one test.

    Args:
        backend: "fake", "sandbox" or "containers".
        release: the brokers' release, one of `zkconsumer.testing.RELEASES`; containers have 3.9.1.
        brokers: the number of brokers; containers have one.

    Raises:
        ConfigError: there is no such backend, or it has no such release.
        SandboxError: a server does not start.
    """
    try:
        backend = Backend(backend)
    except ValueError:
        raise ConfigError(
            f"there is no backend {backend!r}",
            where="legacy_kafka",
            remedy=f"choose one of {', '.join(one.value for one in Backend)}",
        ) from None
    if backend is Backend.FAKE:
        cluster = FakeCluster(release=release, brokers=brokers, auto_create_topics=False)
        with cluster:
            yield LegacyKafka(
                backend,
                release=release,
                zookeeper_connect=cluster.zookeeper_connect,
                bootstrap=cluster.bootstrap,
                on=cluster,
            )
        return
    with run_servers(backend, release=release, brokers=brokers) as servers, servers.lend() as lent:
        yield lent
