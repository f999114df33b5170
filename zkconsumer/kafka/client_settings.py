"""librdkafka's settings, from the old consumer's properties and the registered brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError
from zkconsumer.protocol.paths import BROKER_IDS
from zkconsumer.protocol.payloads import Broker

Settings = dict[str, str | int | bool]

# Maximum number of prefetched messages; at the limit librdkafka stops fetching until the stream has
# taken some. librdkafka documents it as "per partition", but a stream has one queue for all its
# partitions. The limit bounds librdkafka's overhead for tiny messages: about 150 bytes per message,
# which the limit in bytes does not count. At two million messages a second, the highest measured
# rate, 20,000 messages last 10 ms.
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
# CPU per message of 1 KB than the system's own buffer, which grows as needed. So this value selects
# the system's buffer, and every other value is used as it is.
OLD_RECEIVE_BUFFER_BYTES: Final = 65_536


def fetch_settings(config: ConsumerConfig) -> Settings:
    """Return the settings with which one stream's consumer fetches, without the brokers' addresses.

    Two limits bound the memory of a stream. Both apply to everything prefetched for all its
    partitions: `queued.max.message.chunks` x `fetch.message.max.bytes` bytes (default 2 MiB, plus
    one response in flight), and `QUEUED_MESSAGES` messages. At either limit fetching pauses until
    the stream has taken messages.
    """
    buffer = config.socket_receive_buffer_bytes
    ahead = max(1024, config.queued_max_message_chunks * config.fetch_message_max_bytes)
    return {
        "client.id": config.client_id,
        # librdkafka requires a group; this client neither commits to it nor joins it.
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        # zkconsumer resets the offset itself, so that it knows the new position and can commit it.
        "auto.offset.reset": "error",
        # As the JVM's fetch (version 3): everything up to the high watermark, including aborted and
        # open transactions.
        "isolation.level": "read_uncommitted",
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
        # librdkafka prints only critical lines to stderr; errors arrive as events.
        "log_level": 2,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _within(lowest: int, value: int, highest: int) -> int:
    """Limit Kafka's value to librdkafka's range, which for some properties is narrower."""
    return max(lowest, min(value, highest))


# ---- brokers -------------------------------------------------------------------------------------


PLAINTEXT: Final = "PLAINTEXT://"

# Version of the registration -> the release whose protocol is used without a version request.
# Brokers before 0.10 close the connection when a client asks for their API versions (KIP-35).
# Registrations of version 3 and later come from brokers 0.10 and later, which answer the request.
_SILENT: Final = {1: "0.8.2.2", 2: "0.9.0.1"}


def broker_settings(brokers: Sequence[Broker]) -> dict[str, str | bool]:
    """Return librdkafka's `bootstrap.servers` and protocol settings for a cluster.

    The oldest broker decides the protocol: newer brokers still support it, and a rolling upgrade
    has both. Brokers without a PLAINTEXT endpoint are ignored; the JVM (`kafka.cluster.Broker`, 0.9
    to 1.1) rejects the whole cluster if it has such a broker. Raises FetchError if no broker has a
    PLAINTEXT endpoint. An empty `brokers` gives no servers: the caller waits for brokers.
    """
    found = servers(brokers)
    if brokers and not found:
        offered = ", ".join(end for one in brokers for end in one.endpoints) or "none"
        raise FetchError(
            "no broker has a PLAINTEXT endpoint, and the old consumer supports no other protocol",
            where=f"{BROKER_IDS}; offered: {offered}",
            remedy="add a PLAINTEXT listener to the brokers",
        )
    settings: dict[str, str | bool] = {"bootstrap.servers": ",".join(found)}
    release = _SILENT.get(max(1, min((one.version for one in brokers), default=3)))
    if release is None:
        settings["api.version.request"] = True
    else:
        settings["api.version.request"] = False
        settings["broker.version.fallback"] = release
    return settings


def servers(brokers: Iterable[Broker]) -> list[str]:
    """Return the `host:port` of all PLAINTEXT endpoints, each once, in their order."""
    return list(dict.fromkeys(server for one in brokers for server in _plaintext(one)))


def _plaintext(broker: Broker) -> Iterator[str]:
    """Yield the `host:port` of each PLAINTEXT endpoint, else the registered host and port."""
    listed = [end.removeprefix(PLAINTEXT) for end in broker.endpoints if end.startswith(PLAINTEXT)]
    if listed:
        yield from listed
    elif broker.host and broker.port > 0:
        # Version 1 has only these fields. Later versions fill them from their first PLAINTEXT
        # endpoint, even if its listener has another name (KIP-103).
        host = f"[{broker.host}]" if ":" in broker.host else broker.host
        yield f"{host}:{broker.port}"
