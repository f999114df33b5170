"""librdkafka's settings, from the old consumer's properties and the registered brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final, Self, TypeAlias

from zkconsumer.config.kafka_properties import BY_BOTH, only_for_librdkafka
from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
from zkconsumer.errors import FetchError
from zkconsumer.protocol.paths import BROKER_IDS
from zkconsumer.protocol.payloads import Broker

Settings: TypeAlias = dict[str, Any]
"""Properties of librdkafka: texts, numbers and functions. librdkafka checks their types."""

# Maximum number of prefetched messages. At the limit librdkafka stops fetching until the stream has
# taken some. librdkafka documents it as "per partition", but a stream has one queue for all its
# partitions. librdkafka needs about 150 bytes of overhead per message, which its limit in bytes
# does not count; this limit bounds the overhead of tiny messages. At two million messages a second,
# the highest measured rate, 20,000 messages last 10 ms.
QUEUED_MESSAGES: Final = 20_000

# Milliseconds after which librdkafka checks a full queue again. Its own default of one second would
# starve a fast reader; at two million messages a second even 5 ms is too long. While the user does
# not read, the checks cost 1 % of a CPU at 3 ms, and 3 % at 1 ms.
QUEUE_BACKOFF_MS: Final = 3

# Maximum number of bytes of a broker's response; for a longer one librdkafka closes the connection.
# Up to 0.10.0 a response contains up to `fetch.message.max.bytes` for each partition, without a
# total limit, so librdkafka's default of 100 MB would fail at the 101st partition.
RECEIVE_BYTES: Final = 1_000_000_000

# The JVM's default of `socket.receive.buffer.bytes`. A buffer fixed at this size costs 25 % more
# CPU per message of 1 KB than the system's own buffer, which grows as needed. So with this value
# zkconsumer uses the system's buffer. It passes every other value to librdkafka.
OLD_RECEIVE_BUFFER_BYTES: Final = 65_536


def fetch_settings(config: ConsumerConfig) -> Settings:
    """Return the settings with which one stream's consumer fetches, without the brokers' addresses.

    Two limits bound the memory of a stream. Each applies to the messages prefetched for all its
    partitions together: `queued.max.message.chunks` x `fetch.message.max.bytes` bytes (default
    2 MiB, plus one response in flight), and `QUEUED_MESSAGES` messages. At either limit fetching
    pauses until the stream has taken messages. The columnar reader has no limit in messages, and
    its limit in bytes holds for each broker, because it receives from several at once.
    """
    buffer = config.socket_receive_buffer_bytes
    ahead = max(1024, config.queued_max_message_chunks * config.fetch_message_max_bytes)
    return {
        "client.id": config.client_id,
        # librdkafka requires a group id; this client neither commits offsets of the group nor joins
        # it.
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A fetcher reports the ends of logs, so that positions move over transaction markers.
        "enable.partition.eof": True,
        # zkconsumer resets the offset itself, so that it knows the new position and can commit it.
        "auto.offset.reset": "error",
        # By default read all messages up to the high watermark, including those of aborted and open
        # transactions, as the JVM's fetch (version 3) does.
        "isolation.level": config.isolation_level,
        "check.crcs": True,
        "socket.timeout.ms": _within(10, _ms(config.socket_timeout_s), 300_000),
        "socket.receive.buffer.bytes": (
            0 if buffer == OLD_RECEIVE_BUFFER_BYTES else _within(0, buffer, 100_000_000)
        ),
        "fetch.message.max.bytes": _within(1, config.fetch_message_max_bytes, RECEIVE_BYTES),
        "fetch.max.bytes": _within(1_048_576, ahead, RECEIVE_BYTES - 512),
        "receive.message.max.bytes": RECEIVE_BYTES,
        "fetch.min.bytes": _within(1, config.fetch_min_bytes, 100_000_000),
        "fetch.wait.max.ms": _within(0, _ms(config.fetch_wait_max_s), 300_000),
        "fetch.error.backoff.ms": _within(0, _ms(config.refresh_leader_backoff_s), 300_000),
        "topic.metadata.refresh.fast.interval.ms": _within(
            1, _ms(config.refresh_leader_backoff_s), 60_000
        ),
        "queued.min.messages": QUEUED_MESSAGES,
        "queued.max.messages.kbytes": _within(1, ahead // 1024, 2_097_151),
        "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
        # Reconnect within 1 s, so that a restarted broker is used soon.
        "reconnect.backoff.max.ms": 1000,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _within(lowest: int, value: int, highest: int) -> int:
    """Return Kafka's value, limited to librdkafka's range, which is narrower for some
    properties."""
    return max(lowest, min(value, highest))


# The SASL mechanisms of zkconsumer's own reader. GSSAPI (Kerberos) needs a package, in the extra
# `kerberos`.
_COLUMN_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")


def mechanism_of(kafka: Mapping[str, object]) -> str:
    """Return the SASL mechanism that librdkafka's properties name; empty if they name none."""
    return str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "").upper()


def without_columns(kafka: Mapping[str, object]) -> FetchError | None:
    """Return why the columnar reader cannot honour these properties; None if it can.

    `kafka` are the `kafka.` properties of a configuration, without zkconsumer's own settings.
    """
    if (refused := mechanism_without_columns(kafka)) is not None:
        return refused
    if not (names := only_for_librdkafka(kafka)):
        return None
    shown = [
        f"kafka.{name}" + ("" if BY_BOTH.get(name) is None else f"={kafka[name]}") for name in names
    ]
    return FetchError(
        f"fetch.engine=columns does not honour {' and '.join(shown)}",
        where=", ".join(f"kafka.{name}" for name in names),
        remedy="remove it, or set fetch.engine=librdkafka or auto",
    )


# How the names of the properties begin that decide whether a client reaches a broker.
_ACCESS: Final = (
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "oauth_cb",
    "sasl.",
    "security.",
    "ssl.",
)


def without_own_connections(settings: Mapping[str, object]) -> FetchError | None:
    """Return why zkconsumer's own connections cannot reach the brokers; None if they can.

    Unlike `without_columns`, `settings` may be all settings of a client, and properties that do not
    concern the access to brokers are ignored: they have no effect on a look-up.
    """
    return without_columns(
        {name: value for name, value in settings.items() if name.startswith(_ACCESS)}
    )


def mechanism_without_columns(kafka: Mapping[str, object]) -> FetchError | None:
    """Return why the columnar reader cannot log in; None if it can.

    `kafka` are librdkafka's properties.
    """
    name = mechanism_of(kafka)
    if name == "GSSAPI" and find_spec("gssapi") is None:
        return FetchError(
            "fetch.engine=columns needs the package gssapi for the SASL mechanism GSSAPI",
            where="kafka.sasl.mechanism",
            remedy="pip install 'zkconsumer[fast,kerberos]', which needs a C compiler and the "
            "headers of Kerberos (Debian: gcc, libkrb5-dev)",
        )
    if name in ("", *_COLUMN_MECHANISMS):
        return None
    return FetchError(
        f"zkconsumer's own connections to brokers do not support the SASL mechanism {name}",
        where="kafka.sasl.mechanism",
        remedy=f"use {', '.join(_COLUMN_MECHANISMS)}; messages can also be read with"
        " fetch.engine=librdkafka or auto",
    )


# ---- brokers -------------------------------------------------------------------------------------


PLAINTEXT: Final = "PLAINTEXT"

# Version of a broker's registration -> the Kafka release whose protocol the client uses without an
# ApiVersions request. Brokers before 0.10 close the connection when a client asks for their API
# versions (KIP-35). Registrations of version 3 and later come from brokers of 0.10 and later, which
# answer the request.
_SILENT: Final = {1: "0.8.2.2", 2: "0.9.0.1"}

# The lowest registration version of brokers that may have transactions: 0.11, and also 0.10.2.
TRANSACTIONS: Final = 4

# librdkafka (up to 2.16 at least) reserves four bytes of memory for each byte of the brokers'
# metadata, and five if it has a rack. A topic with one partition needs up to 176 bytes; brokers up
# to 0.10 describe it in 34 bytes and its name, so four times this is too little for a short name.
# Then librdkafka rejects the metadata ("Bad message format"): with brokers 0.8 and 0.9 it cannot
# read a topic `a` at all, and with later ones it cannot list twenty such topics. No broker has this
# rack, so partitions are still read from their leaders.
_RACK: Final = "zkconsumer-has-no-rack"


class Brokers(tuple[Broker, ...]):
    """The registered brokers of a cluster, and the configuration for connections to them.

    Without a configuration, clients connect to the PLAINTEXT listeners.

    Attributes:
        has_offsets_topic: whether ZooKeeper has the topic of the groups' offsets; None: unknown.
    """

    config: ConnectionConfig | None
    has_offsets_topic: bool | None

    def __new__(
        cls,
        brokers: Iterable[Broker] = (),
        config: ConnectionConfig | None = None,
        has_offsets_topic: bool | None = None,
    ) -> Self:
        self = super().__new__(cls, brokers)
        self.config, self.has_offsets_topic = config, has_offsets_topic
        return self

    def __getnewargs__(self) -> tuple[tuple[Broker, ...], ConnectionConfig | None, bool | None]:
        return tuple(self), self.config, self.has_offsets_topic

    @property
    def listener(self) -> str:
        """The name or the security protocol of the listener to which clients connect."""
        if self.config is None:
            return PLAINTEXT
        return self.config.broker_listener or str(
            self.config.kafka.get("security.protocol", PLAINTEXT)
        )

    @property
    def isolation(self) -> str:
        """`isolation.level`, which decides where the logs end."""
        return "read_uncommitted" if self.config is None else self.config.isolation_level


def broker_settings(brokers: Brokers) -> Settings:
    """Return librdkafka's `bootstrap.servers`, its protocol settings, and the `kafka.` properties.

    The oldest broker determines the protocol version: newer brokers still support it, and a rolling
    upgrade has old and new brokers. Brokers without the chosen listener are ignored. The JVM
    (`kafka.cluster.Broker`, 0.9 to 1.1) rejects the whole cluster if a broker has no PLAINTEXT
    endpoint. If `brokers` is empty, the result has no servers, and the caller waits for brokers.

    Raises FetchError if no broker has the chosen listener, if the listener has another security
    protocol than `kafka.security.protocol`, or if the protocol of an old broker would return the
    messages of aborted transactions from newer brokers although `isolation.level` is
    read_committed.
    """
    passed_on = {} if brokers.config is None else dict(brokers.config.kafka)
    ends = list(_endpoints(brokers))
    if brokers and not ends:
        raise _no_listener(brokers)
    release = _SILENT.get(max(1, min((one.version for one in brokers), default=3)))
    if release is not None and brokers.isolation == "read_committed":
        _check_transactions(brokers)
    settings: Settings = {
        # librdkafka prints only critical lines to stderr, because errors arrive as events. Among
        # the other lines are warnings about properties that this function sets.
        "log_level": 2,
        "client.rack": _RACK,
        **passed_on,
        "bootstrap.servers": ",".join(servers(brokers)),
    }
    if release is not None:
        settings |= {"api.version.request": False, "broker.version.fallback": release}
    wanted = passed_on.get("security.protocol")
    for protocol in dict.fromkeys(protocol for _, protocol in ends):
        if wanted is not None and str(wanted).upper() != protocol:
            raise FetchError(
                f"the listener {brokers.listener} has the security protocol {protocol}, and "
                f"kafka.security.protocol is {wanted}",
                where=_offered(brokers),
                remedy="remove kafka.security.protocol, or set broker.listener to another listener",
            )
        if protocol != PLAINTEXT:
            settings["security.protocol"] = protocol
    return settings


def servers(brokers: Brokers) -> list[str]:
    """Return the `host:port` of all chosen endpoints, each once, in their order."""
    return list(dict.fromkeys(server for server, _ in _endpoints(brokers)))


def _endpoints(brokers: Brokers) -> Iterator[tuple[str, str]]:
    """Yield the `host:port` and the security protocol of each broker's chosen endpoints.

    The chosen endpoints are those of the listener with the chosen name. If no listener has that
    name, they are the endpoints with the chosen security protocol.
    """
    wanted = brokers.listener.upper()
    for broker in brokers:
        protocols = {name.upper(): protocol.upper() for name, protocol in broker.protocols}
        listed = [
            (name.upper(), protocols.get(name.upper(), name.upper()), server)
            for name, _, server in (end.partition("://") for end in broker.endpoints)
        ]
        chosen = [one for one in listed if one[0] == wanted] or [
            one for one in listed if one[1] == wanted
        ]
        if chosen:
            yield from ((server, protocol) for _, protocol, server in chosen)
        elif wanted == PLAINTEXT and broker.host and broker.port > 0:
            # Version 1 has only host and port. In later versions, brokers fill these fields from
            # their first PLAINTEXT endpoint, even if its listener has another name (KIP-103).
            host = f"[{broker.host}]" if ":" in broker.host else broker.host
            yield f"{host}:{broker.port}", PLAINTEXT


def _check_transactions(brokers: Brokers) -> None:
    """Raise FetchError if newer brokers, which may have transactions, are asked in the protocol of
    a broker before 0.10, which cannot tell aborted messages from others."""
    newer = Brokers((one for one in brokers if one.version >= TRANSACTIONS), brokers.config)
    if newer:
        raise FetchError(
            "isolation.level=read_committed needs brokers from 0.11 on; besides newer brokers, a"
            " broker before 0.10 is registered, and all brokers are asked in its protocol",
            where=f"{BROKER_IDS}; newer brokers: {', '.join(servers(newer))}",
            remedy="finish the upgrade of the brokers, or use isolation.level=read_uncommitted",
        )


def _no_listener(brokers: Brokers) -> FetchError:
    if brokers.listener.upper() == PLAINTEXT:
        what = "no broker has a PLAINTEXT listener"
    else:
        what = f"no broker has a listener with the name or security protocol {brokers.listener}"
    return FetchError(
        what,
        where=_offered(brokers),
        remedy="set broker.listener to a listener that the brokers have",
    )


def _offered(brokers: Brokers) -> str:
    """Return a string with the path of the brokers' registrations and the listeners that they
    contain."""
    names = {
        (end, protocol)
        for one in brokers
        for end in one.endpoints
        for protocol in [dict(one.protocols).get(end.partition("://")[0], "")]
    }
    texts = [
        end if protocol in ("", end.partition("://")[0]) else f"{end} ({protocol})"
        for end, protocol in sorted(names)
    ]
    return f"{BROKER_IDS}; offered: {', '.join(texts) or 'none'}"
