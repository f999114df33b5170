"""Which reader fetches: librdkafka, or zkconsumer's own columnar reader (`fetch.engine`).

Only this module chooses, and only the package `kafka` knows both readers. Importing this module
imports neither pyarrow nor numba, because the import of numba alone takes 0.15 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import ConfigError
from zkconsumer.kafka.client_settings import (
    Brokers,
    Settings,
    broker_settings,
    fetch_settings,
    servers,
    without_columns,
)
from zkconsumer.kafka.fetcher import BrokerClient, Fetcher, KafkaFetcher
from zkconsumer.protocol.model import TopicPartition

if TYPE_CHECKING:
    from zkconsumer.kafka.columns.fetcher import ColumnFetcher, Run

# The packages that the columnar reader needs. `fetch.engine=auto` also requires the compiler,
# because plain Python is slower than librdkafka.
_NEEDED: Final = ("pyarrow", "google_crc32c")
_COMPILER: Final = "numba"


class RunFetcher(BrokerClient, Protocol):
    """Fetches runs of messages as columns; zkconsumer's own reader does."""

    def fetch(self, timeout_s: float) -> list[Run]:
        """Return the next runs; none at the timeout or at a new fault.

        The call waits at most `timeout_s` seconds.
        """

    def assign_ranges(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Also fetch these partitions, each from its first offset up to but excluding the second.

        None of them may already be assigned. The call never blocks.
        """


class Engines(NamedTuple):
    """How the clients of a configuration are made from their settings.

    `columns` is None if columns are made from librdkafka's messages. `may_share` tells whether many
    streams may share clients that fetch messages (`kafka.pool`).
    """

    messages: Callable[[Settings], Fetcher]
    columns: Callable[[Settings], RunFetcher] | None
    may_share: bool


def engines(config: ConsumerConfig) -> Engines:
    """Choose the readers.

    Raises ConfigError if `fetch.engine=columns` is set and a package that it needs is missing, or
    if the columnar reader does not honour a `kafka.` property.
    """
    missing = missing_packages(config.fetch_engine)
    refused = without_columns(config.kafka)
    lacks = bool(missing) or refused is not None
    if config.fetch_engine == "librdkafka" or (lacks and config.fetch_engine == "auto"):
        return Engines(librdkafka_s, None, may_share=True)
    if refused is not None:
        raise ConfigError(refused.what, where=refused.where, remedy=refused.remedy)
    if missing:
        raise ConfigError(
            f"fetch.engine=columns needs {' and '.join(missing)}",
            where="fetch.engine",
            remedy="install zkconsumer[fast]",
        )
    if config.fetch_engine == "columns":
        return Engines(columnar, columnar, may_share=False)
    return Engines(librdkafka_s, columnar, may_share=True)


def missing_packages(engine: str) -> list[str]:
    """Return the packages that the columnar reader needs with `fetch.engine`, and that are not
    installed."""
    needed = _NEEDED if engine == "columns" else (*_NEEDED, _COMPILER)
    return [name for name in needed if find_spec(name) is None]


def librdkafka_s(settings: Settings) -> Fetcher:
    """Make a client that fetches through librdkafka."""
    return KafkaFetcher(settings)


def columnar(settings: Settings) -> ColumnFetcher:
    """Make a client of the columnar reader."""
    from zkconsumer.kafka.columns.fetcher import ColumnFetcher  # noqa: PLC0415 - see the module

    return ColumnFetcher(settings)


def columnar_with_headers(settings: Settings) -> ColumnFetcher:
    """Make a client of the columnar reader whose batches have the column `headers`."""
    from zkconsumer.kafka.columns.fetcher import ColumnFetcher  # noqa: PLC0415 - see the module

    return ColumnFetcher(settings, with_headers=True)


class StreamClients:
    """Makes the broker clients of a stream, or of a pool, for the brokers that are registered."""

    def __init__(self, config: ConsumerConfig, brokers: Callable[[], Brokers]) -> None:
        """`brokers` returns the registered brokers, and may wait for ZooKeeper.

        Raises ConfigError as `engines` does.
        """
        self.engines = engines(config)
        self._config, self._brokers = config, brokers
        self._servers: set[str] = set()

    def messages(self) -> Fetcher | None:
        """Make a client that fetches messages; None while no broker is registered."""
        settings = self._settings()
        return None if settings is None else self.engines.messages(settings)

    def columns(self) -> RunFetcher | None:
        """Make a client that fetches columns; None while no broker is registered."""
        settings = self._settings()
        assert self.engines.columns is not None
        return None if settings is None else self.engines.columns(settings)

    def have_brokers_moved(self) -> bool:
        """Return whether all brokers have other addresses than when the last client was made; False
        before the first client."""
        known = self._brokers()
        return bool(known and self._servers) and self._servers.isdisjoint(servers(known))

    def _settings(self) -> Settings | None:
        known = self._brokers()
        if not known:
            return None
        self._servers = set(servers(known))
        return {**fetch_settings(self._config), **broker_settings(known)}
