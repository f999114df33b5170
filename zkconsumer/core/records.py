"""What stands in the znodes: the only module that knows payloads.

The encoders write the bytes that the JVM writes. The decoders take what the JVM takes, from
untrusted input with bounded work, and raise MalformedZnodeError and nothing else. Where the
releases differ in what they take, we take what any of them takes if it then means the same:
a member that refuses fails by itself, whatever we do. So: numbers as in 1.0-1.1 (a numeric
timestamp, a fraction in an unknown field), `pattern: null` and raw control characters as in
0.8.2-0.11. Text behind the JSON is a fault, as in 0.8.2-0.11: a topic with such text has no
partitions there, and some in 1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from zkconsumer.core import scalajson
from zkconsumer.core.javatext import MAX_INT32, parse_int32, parse_int64, scala_map_order
from zkconsumer.core.paths import shown, znode_fault
from zkconsumer.core.topics import MAX_STREAMS
from zkconsumer.errors import MalformedZnodeError

# Bytes. A ZooKeeper server takes no larger znode by default (`jute.maxbuffer`), so none of the
# JVM's payloads is larger. A larger one is refused unread.
MAX_PAYLOAD = 1 << 20

_PEER_REMEDY = (
    "the whole group waits, JVM members included, until this member is stopped or its"
    " registration is mended"
)


class Pattern(Enum):
    """How a registration names its topics; the values are those on the wire."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class Registration:
    """A member's entry below `ids`.

    Attributes:
        subscription: topic (of a list pattern: regex) -> number of streams, in the writer's order;
            of a list pattern only the first entry counts.
        pattern: how to read the keys of `subscription`.
        timestamp_ms: when it was written, milliseconds since the epoch; no reader needs it.
    """

    subscription: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's registration, versions 1 to 5.

    `host` and `port` are those of the first PLAINTEXT endpoint, or None and -1 without one;
    `endpoints` are texts such as "PLAINTEXT://host:9092", empty in version 1.
    """

    host: str | None
    port: int
    version: int
    endpoints: tuple[str, ...]


# ---- registrations ------------------------------------------------------------------------------

_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_NAME_ESCAPES = _CONTROLS | {ord('"'): '\\"', ord("\\"): "\\\\"}
_NAME_ESCAPES |= {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_REGEX_ESCAPES = _NAME_ESCAPES | {ord("/"): "\\/"}


def encode_registration(registration: Registration) -> bytes:
    """The bytes that Kafka 0.8.2-1.0.0 write (`TopicCount` through `kafka.utils.Json.encode`).

    Later releases escape regexes twice and then match nothing; earlier ones not at all. Topics are
    escaped only where the JVM's bytes would not be JSON. Needs `timestamp_ms` (else ValueError).
    """
    if registration.timestamp_ms is None:
        raise ValueError("a registration is written with its time")
    escapes = _NAME_ESCAPES if registration.pattern is Pattern.STATIC else _REGEX_ESCAPES
    entries = ",".join(
        f'"{key.translate(escapes)}":{registration.subscription[key]}'
        for key in scala_map_order(registration.subscription)
    )
    return (
        f'{{"version":1,"subscription":{{{entries}}},"pattern":"{registration.pattern.value}",'
        f'"timestamp":"{registration.timestamp_ms}"}}'
    ).encode()


def decode_registration(payload: bytes | None, *, where: str) -> Registration:
    """Read a member's registration (`TopicCount.constructTopicCount`), or MalformedZnodeError.

    An unknown pattern and an empty subscription mean static, as in the JVM. Counts are integers of
    at least 1. A topic that ZooKeeper would refuse in a path is a fault here; in the JVM it fails
    the rebalance of every member that reads the topic, which from 0.10.2 on is every member.
    """
    document = _document(payload, where, _PEER_REMEDY)
    if not isinstance(document, dict) or not {"pattern", "subscription"} <= document.keys():
        raise _malformed("a registration is no object with pattern and subscription", where)
    subscription, wire_pattern = document["subscription"], document["pattern"]
    if not isinstance(subscription, dict):
        raise _malformed("a registration's subscription is no object", where)
    if wire_pattern is not None and not isinstance(wire_pattern, str):
        raise _malformed("a registration's pattern is no string", where)
    pattern = Pattern.STATIC
    if subscription and wire_pattern in (Pattern.WHITE_LIST.value, Pattern.BLACK_LIST.value):
        pattern = Pattern(wire_pattern)
    counts = _counts(subscription, pattern, where)
    return Registration(MappingProxyType(counts), pattern, _timestamp(document.get("timestamp")))


def _counts(subscription: dict[str, object], pattern: Pattern, where: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, count in subscription.items():
        if type(count) is not int or count > MAX_INT32:
            raise _malformed(f"{shown(name)} has a stream count that is no int32", where)
        # Of a list pattern the JVM looks at the first entry only.
        if count < 1 and (pattern is Pattern.STATIC or not counts):
            raise _malformed(f"{shown(name)} has {count} streams", where)
        fault = znode_fault(name) if pattern is Pattern.STATIC else ""
        if fault:
            raise _malformed(f"{shown(name)} cannot be a topic: {fault}", where)
        counts[name] = count
    if sum(counts.values()) > MAX_STREAMS:
        raise _malformed(f"a registration asks for more than {MAX_STREAMS} streams", where)
    return counts


def _timestamp(value: object) -> int | None:
    """The time of a registration, which every JVM writes as a string and other clients may not."""
    if isinstance(value, str):
        try:
            return parse_int64(value)
        except ValueError:
            return None
    return value if type(value) is int else None


# ---- topics and brokers -------------------------------------------------------------------------

# Topics that are not decoded again as long as they have not changed. A member reads its topics at
# every rebalance, and 5,000 partitions take 16 ms; what is beyond the limit is decoded anew.
_REMEMBERED_TOPICS = 32


@lru_cache(maxsize=_REMEMBERED_TOPICS)
def decode_topic(payload: bytes | None, *, where: str) -> tuple[int, ...]:
    """The partition numbers of a topic, ascending (`ZkUtils.getPartitionAssignmentForTopics`).

    Empty or unparsable text means no partitions, silently, as in the JVM; no payload at all, wrong
    types, and partition keys that `Integer.parseInt` refuses raise MalformedZnodeError. Replicas
    are not looked at (1.1 alone checks them).
    """
    text = _text(payload, where, _TOPIC_REMEDY)
    try:
        document = scalajson.parse(text)
    except ValueError:
        return ()
    except RecursionError as error:
        raise _malformed(str(error), where, _TOPIC_REMEDY) from error
    if not isinstance(document, dict):
        raise _malformed("a topic is no object", where, _TOPIC_REMEDY)
    partitions = document.get("partitions", {})
    if not isinstance(partitions, dict):
        raise _malformed("a topic's partitions are no object", where, _TOPIC_REMEDY)
    try:
        return tuple(sorted({parse_int32(key) for key in partitions}))
    except ValueError as error:
        raise _malformed("a partition's key is no int32", where, _TOPIC_REMEDY) from error


_TOPIC_REMEDY = "the brokers write this znode: compare it with another topic's and mend it"


def decode_broker(payload: bytes | None, *, where: str) -> Broker:
    """Read a broker's registration, of any version, or MalformedZnodeError.

    An entry with neither a host and port nor an endpoint is a fault.
    """
    document = _document(payload, where, _BROKER_REMEDY)
    if not isinstance(document, dict):
        raise _malformed("a broker's registration is no object", where, _BROKER_REMEDY)
    host, port = document.get("host"), document.get("port")
    listed, version = document.get("endpoints"), document.get("version")
    endpoints = tuple(e for e in listed if isinstance(e, str)) if isinstance(listed, list) else ()
    plaintext: tuple[str | None, int] = None, -1
    if isinstance(host, str) and host and type(port) is int and 0 < port < 65536:
        plaintext = host, port
    elif not endpoints:
        raise _malformed("a broker has neither host and port nor endpoints", where, _BROKER_REMEDY)
    return Broker(*plaintext, version if type(version) is int else 1, endpoints)


_BROKER_REMEDY = "the broker writes this znode when it starts: restart it"


# ---- owners and offsets -------------------------------------------------------------------------


def encode_owner(thread_id: str) -> bytes:
    """The payload of an owner znode: the consumer thread id."""
    return thread_id.encode()


def decode_owner(payload: bytes | None, *, where: str) -> str:
    """The consumer thread id in an owner znode: any text, and "" for none.

    To the JVM, too, whatever is not its own thread id belongs to somebody else.
    """
    if payload is None:
        return ""
    return _text(payload, where, "delete the znode, if no consumer holds it")


def encode_offset(offset: int) -> bytes:
    """The payload of an offset znode, `Long.toString`: the next offset to consume."""
    return str(offset).encode()


def decode_offset(payload: bytes | None, *, where: str) -> int:
    """Read an offset znode as `Long.parseLong` does; any negative number means no offset.

    Blanks, a trailing line feed and empty payloads raise MalformedZnodeError: a JVM member's
    rebalance fails on them.
    """
    remedy = "write the next offset there as a bare decimal number, or delete the znode"
    text = _text(payload, where, remedy)
    try:
        return parse_int64(text)
    except ValueError as error:
        raise _malformed(f"{shown(text)} is no offset", where, remedy) from error


# ---- what all decoders share --------------------------------------------------------------------


def _document(payload: bytes | None, where: str, remedy: str) -> dict[str, object] | list[object]:
    text = _text(payload, where, remedy)
    try:
        return scalajson.parse(text)
    except RecursionError as error:
        raise _malformed(str(error), where, remedy) from error
    except ValueError as error:
        raise _malformed(f"{shown(text)} is not the JSON that is due", where, remedy) from error


def _text(payload: bytes | None, where: str, remedy: str) -> str:
    """Java's `new String(bytes, UTF_8)`: ill-formed sequences become U+FFFD."""
    if payload is None:
        raise _malformed("the znode has no payload", where, remedy)
    if len(payload) > MAX_PAYLOAD:
        raise _malformed(f"the payload is larger than {MAX_PAYLOAD} bytes", where, remedy)
    return payload.decode(errors="replace")


def _malformed(what: str, where: str, remedy: str = _PEER_REMEDY) -> MalformedZnodeError:
    return MalformedZnodeError(what, where=where, remedy=remedy)
