"""Which reader fetches: librdkafka, or zkconsumer's own columnar reader (`fetch.engine`).

Only this module chooses, and only the package `kafka` knows both readers. A reader is
imported only if it may be used: the imports are slow (docs/performance.md), and a process with
`fetch.engine=columns` does not load librdkafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import ConfigError, FetchError
from zkconsumer.kafka.client_settings import (
    Brokers,
    Settings,
    broker_settings,
    fetch_settings,
    mechanism_without_columns,
    servers,
    without_columns,
)
from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    BrokerClient,
    Fetcher,
    descriptors_error,
)
from zkconsumer.protocol.model import TopicPartition

if TYPE_CHECKING:
    from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher, ColumnRun
    from zkconsumer.kafka.columns.fetcher import RecordFetcher
    from zkconsumer.kafka.librdkafka import KafkaFetcher
    from zkconsumer.kafka.pool import FetcherPool

T = TypeVar("T")

# The packages that the columnar reader needs. `fetch.engine=auto` also requires the compiler,
# because plain Python is slower than librdkafka.
_NEEDED: Final = ("pyarrow", "google_crc32c", "cramjam")
_COMPILER: Final = "numba"


# Maximum number of streams of a connector that each have their own client. If a connector has more
# streams, all its streams share the pool. Four idle clients cost 0.5 % of a CPU.
OWN_CLIENTS: Final = 4


class RunFetcher(BrokerClient, Protocol):
    """Fetches runs of messages as columns; zkconsumer's own reader does."""

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[ColumnRun]:
        """Return the next runs; none at the timeout or at a new fault.

        The call waits at most `timeout_s` seconds. Runs may have more than `max_messages` messages.
        """

    def assign_ranges(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Also fetch these partitions, each from its first offset up to but excluding the second.

        None of them may already be assigned. The call never blocks.
        """


class Engines(NamedTuple):
    """How the clients of a configuration are made from their settings.

    `columns` is None if columns are made from librdkafka's messages.
    """

    messages: Callable[[Settings], Fetcher]
    columns: Callable[[Settings], RunFetcher] | None


def engines(config: ConsumerConfig) -> Engines:
    """Choose the readers.

    With `fetch.engine=auto`, the columnar reader reads everything if the extra `fast` is installed
    and the reader honours the `kafka.` properties. So messages and columns come from one reader,
    and no metadata request names a topic: if the cluster creates topics automatically, a broker
    before 0.11 creates each topic that librdkafka names, even a topic that was just deleted.

    Raises ConfigError if `fetch.engine=columns` is set and a package that it needs is missing, or
    if the columnar reader does not honour a `kafka.` property.
    """
    missing = missing_packages(config.fetch_engine)
    refused = without_columns(config.kafka)
    lacks = bool(missing) or refused is not None
    if config.fetch_engine == "librdkafka" or (lacks and config.fetch_engine == "auto"):
        return Engines(librdkafka_s, None)
    if refused is not None:
        raise ConfigError(refused.what, where=refused.where, remedy=refused.remedy)
    if missing:
        raise ConfigError(
            f"fetch.engine=columns needs {' and '.join(missing)}",
            where="fetch.engine",
            remedy="install zkconsumer[fast]",
        )
    return Engines(records, columnar)


class RangeEngine(NamedTuple):
    """What reads ranges of offsets; `why` says why this is librdkafka although `auto` is set."""

    name: str
    why: str = ""


def planned_range_engine(config: ConsumerConfig) -> RangeEngine:
    """Choose, on the driver, what reads ranges in other processes: a value of `fetch.engine`.

    Raises FetchError if the columnar reader does not honour a `kafka.` property, and
    `fetch.engine=columns` is set.
    """
    engine, refused = config.fetch_engine, without_columns(config.kafka)
    if refused is None or engine == "librdkafka":
        return RangeEngine(engine)
    if engine == "columns":
        raise refused
    return RangeEngine("librdkafka", refused.what)


def range_engine(engine: str, settings: Settings) -> RangeEngine:
    """Choose what reads ranges in this process, `columns` or `librdkafka`.

    `engine` is the planned one. Raises FetchError if it is `columns`, and the columnar reader
    cannot log in.
    """
    if engine == "librdkafka":
        return RangeEngine(engine)
    if (refused := mechanism_without_columns(settings)) is not None:
        if engine == "columns":
            raise refused
        return RangeEngine("librdkafka")
    missing = missing_packages(engine)
    if missing and engine == "auto":
        return RangeEngine("librdkafka", f"{' and '.join(missing)} cannot be imported")
    return RangeEngine("columns")


def missing_packages(engine: str) -> list[str]:
    """Return the packages that the columnar reader needs with `fetch.engine`, and that are not
    installed."""
    needed = _NEEDED if engine == "columns" else (*_NEEDED, _COMPILER)
    return [name for name in needed if find_spec(name) is None]


def librdkafka_s(settings: Settings) -> KafkaFetcher:
    """Make a client that fetches through librdkafka."""
    from zkconsumer.kafka.librdkafka import KafkaFetcher  # noqa: PLC0415 - see the module

    return KafkaFetcher(settings)


def records(settings: Settings) -> RecordFetcher:
    """Make a client of the columnar reader that fetches messages."""
    from zkconsumer.kafka.columns.fetcher import RecordFetcher  # noqa: PLC0415 - see the module

    return RecordFetcher(settings)


def columnar(settings: Settings) -> ColumnFetcher:
    """Make a client of the columnar reader that fetches columns."""
    from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher  # noqa: PLC0415 - see the module

    return ColumnFetcher(settings)


def columnar_with_headers(settings: Settings) -> ColumnFetcher:
    """Make a client of the columnar reader whose batches have the column `headers`."""
    from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher  # noqa: PLC0415 - see the module

    return ColumnFetcher(settings, with_headers=True)


class StreamClients:
    """Makes the broker clients of a stream, or of a pool, for the brokers that are registered."""

    def __init__(self, config: ConsumerConfig, brokers: Callable[[], Brokers]) -> None:
        """`brokers` returns the registered brokers, and may wait for ZooKeeper.

        Raises ConfigError as `engines` does.
        """
        self.engines = engines(config)
        if self.engines.messages is librdkafka_s:
            # Load librdkafka now, since later no file descriptor may be left. If it is missing, a
            # client that needs it raises the error.
            with suppress(ImportError):
                import zkconsumer.kafka.librdkafka  # noqa: PLC0415 - see the module
        else:
            import zkconsumer.kafka.columns.fetcher  # noqa: F401, PLC0415 - as above
        self._config, self._brokers = config, brokers
        self._servers: set[str] = set()

    def messages(self) -> Fetcher | None:
        """Make a client that fetches messages; None while no broker is registered."""
        return self._made(self.engines.messages)

    def columns(self) -> RunFetcher | None:
        """Make a client that fetches columns; None while no broker is registered."""
        assert self.engines.columns is not None
        return self._made(self.engines.columns)

    def _made(self, make: Callable[[Settings], T]) -> T | None:
        known = self._brokers()
        if not known:
            return None
        settings = self._settings(known)
        try:
            return make(settings)
        except (ImportError, OSError) as error:
            # The import of the reader needs file descriptors, too.
            if not (text := descriptors_error()):
                raise
            where = str(settings.get("bootstrap.servers", ""))
            raise FetchError(text, where=where, remedy="then retry") from error

    def have_brokers_moved(self) -> bool:
        """Return whether all brokers have other addresses than when the last client was made; False
        before the first client."""
        known = self._brokers()
        return bool(known and self._servers) and self._servers.isdisjoint(servers(known))

    def _settings(self, known: Brokers) -> Settings:
        self._servers = set(servers(known))
        return {**fetch_settings(self._config), **broker_settings(known)}


def fetcher_pool(
    config: ConsumerConfig,
    name: str,
    streams: int,
    *,
    brokers: Callable[[], Brokers],
    trouble: Callable[[str], None],
) -> FetcherPool | None:
    """Return the broker clients that streams share; None if each stream has its own client.

    Args:
        name: the consumer id, for the names of threads.
        streams: the number of streams.
        brokers: returns the registered brokers. It may wait for ZooKeeper, so only background
            threads call it.
        trouble: receives the text of each failure that the clients survive.

    Raises ConfigError as `engines` does.
    """
    if streams <= OWN_CLIENTS:
        return None
    clients = StreamClients(config, brokers)
    from zkconsumer.kafka.pool import CLIENTS, FetcherPool  # noqa: PLC0415 - see the module

    limits = fetch_settings(config)
    return FetcherPool(
        connect=clients.messages,
        brokers_moved=clients.have_brokers_moved,
        trouble=trouble,
        clients=max(CLIENTS, config.num_consumer_fetchers),
        max_messages=int(limits["queued.min.messages"]),
        max_bytes=1024 * int(limits["queued.max.messages.kbytes"]),
        name=name,
    )
