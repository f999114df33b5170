"""The old consumer's properties in librdkafka's words.

From the brokers registered in ZooKeeper to the settings with which librdkafka reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError
from zkconsumer.protocol.paths import BROKER_IDS
from zkconsumer.protocol.payloads import Broker

Settings = dict[str, str | int | bool]

# Messages fetched ahead: librdkafka's second limit, after which it stops asking for more until the
# stream takes some; over all partitions of the stream, whose queue is one, though its own words are
# "per partition". It keeps its bookkeeping (about 150 bytes a message, which the limit in bytes
# does not count) in bounds for tiny messages. At two million a second, the most that was seen, it
# lasts 10 ms.
QUEUED_MESSAGES: Final = 20_000

# A full queue is looked at again after so long (unit: ms). librdkafka's own second would starve a
# fast reader of a bounded queue, and one of two million a second waits for 5 ms, too; each look
# costs, while the user does not read: 1 % of a CPU at 3 ms, 3 % at 1 ms.
QUEUE_BACKOFF_MS: Final = 3

# Longest response a broker may send before the connection is given up, in bytes. Up to 0.10.0 a
# fetch has no limit over all partitions: it brings up to `fetch.message.max.bytes` for each of
# them, and librdkafka's own 100 MB would break on the 101st partition.
RECEIVE_BYTES: Final = 1_000_000_000

# The old default of `socket.receive.buffer.bytes`. Fixed at that, the buffer costs a quarter more
# CPU per message of 1 KB than the system's own, which grows with the flow; so the default means
# the system's own here, and any other value what it says.
OLD_RECEIVE_BUFFER_BYTES: Final = 65_536


def fetch_settings(config: ConsumerConfig) -> Settings:
    """How one stream's consumer fetches, without the brokers' addresses.

    Memory of a stream is bounded by two limits on what is fetched ahead, over all its partitions:
    in bytes `queued.max.message.chunks` x `fetch.message.max.bytes` (default 2 MiB; one response
    more may be under way), in messages `QUEUED_MESSAGES`. When either is reached fetching pauses
    until the stream has taken some.
    """
    buffer = config.socket_receive_buffer_bytes
    ahead = max(1024, config.queued_max_message_chunks * config.fetch_message_max_bytes)
    return {
        "client.id": config.client_id,
        # librdkafka wants a group; nothing is ever committed or joined under it.
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        # The policy is ours, so that the position it leads to is known and can be committed.
        "auto.offset.reset": "error",
        # What the JVM's fetch (version 3) gets: everything up to the high watermark, of aborted
        # transactions and of those under way too.
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
        # A dead broker is tried again at least so often: it must not be longer away than it is.
        "reconnect.backoff.max.ms": 1000,
        # librdkafka's own lines on stderr: only what is critical; errors come as events.
        "log_level": 2,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _within(lowest: int, value: int, highest: int) -> int:
    """Kafka's value within librdkafka's range, which is narrower for some properties."""
    return max(lowest, min(value, highest))


# ---- brokers -------------------------------------------------------------------------------------


PLAINTEXT: Final = "PLAINTEXT://"

# Version of the registration -> the release whose protocol is spoken without asking. Brokers before
# 0.10 close the connection when they are asked which versions they know (KIP-35), so they must not
# be asked. Registrations from version 3 on come from 0.10 and later, which answer.
_SILENT: Final = {1: "0.8.2.2", 2: "0.9.0.1"}


def broker_settings(brokers: Sequence[Broker]) -> dict[str, str | bool]:
    """librdkafka's `bootstrap.servers` and protocol settings for a cluster.

    The oldest broker decides the protocol: newer ones still speak it, and a rolling upgrade has
    both. Brokers without a PLAINTEXT endpoint are left out; the JVM (`kafka.cluster.Broker`, 0.9
    to 1.1) refuses the whole cluster for one of them. Raises FetchError when no broker has one;
    an empty `brokers` is the caller's waiting state and gives no servers.
    """
    found = servers(brokers)
    if brokers and not found:
        offered = ", ".join(end for one in brokers for end in one.endpoints) or "none"
        raise FetchError(
            "no broker has a PLAINTEXT endpoint, and the old consumer speaks nothing else",
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
    """The `host:port` of all PLAINTEXT endpoints, each once, in their order."""
    return list(dict.fromkeys(server for one in brokers for server in _plaintext(one)))


def _plaintext(broker: Broker) -> Iterator[str]:
    """The `host:port` of each PLAINTEXT endpoint; of `host` and `port` where none is listed."""
    listed = [end.removeprefix(PLAINTEXT) for end in broker.endpoints if end.startswith(PLAINTEXT)]
    if listed:
        yield from listed
    elif broker.host and broker.port > 0:
        # Version 1 has nothing else; later ones fill these from their first PLAINTEXT endpoint,
        # also when the listener has another name (KIP-103).
        host = f"[{broker.host}]" if ":" in broker.host else broker.host
        yield f"{host}:{broker.port}"
