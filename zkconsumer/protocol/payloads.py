"""The payloads of znodes: decoders and encoders for topics, brokers, owners and offsets.

`protocol.registrations` does the same for members' registrations. No other module decodes payloads.

A decoder reads untrusted bytes with bounded work, and raises only MalformedZnodeError. The error's
attribute `thrown` names the exception that a JVM member of that release throws.

The encoders write the bytes that the JVM writes. The decoders accept the payloads that JVM members
of the release in `profile` accept. If the release is not known, they accept a payload on two
conditions: at least one release accepts it, and all releases that accept it interpret it alike.
A member of a release that rejects such a payload fails alone. For example, the decoders accept
numeric timestamps and fractions in unknown fields as Kafka 1.0-1.1 does, and `pattern: null` and
raw control characters as 0.8.2-0.11 do. They reject text after the JSON, as 0.8.2-0.11 do: with
such text, a topic has no partitions in these releases, but has partitions in 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from zkconsumer.errors import AccessDeniedError, MalformedZnodeError, quoted
from zkconsumer.frozen import dataclass
from zkconsumer.protocol import paths
from zkconsumer.protocol.java import json
from zkconsumer.protocol.java.text import MAX_INT32, MIN_INT32, parse_int32, parse_int64
from zkconsumer.protocol.model import JsonObject, ThreadId
from zkconsumer.protocol.releases import DEFAULT, Parser, Profile

if TYPE_CHECKING:
    from zkconsumer.protocol.requests import Stat

_Key = TypeVar("_Key")

# Maximum number of bytes of a payload; a larger payload counts as malformed and is not parsed. By
# default a ZooKeeper server accepts no larger znode (`jute.maxbuffer`), so no JVM payload is
# larger.
MAX_PAYLOAD: Final = 1 << 20


# Maximum number of bytes of a payload that `plain_number` examines. A serialized Long has 82 bytes;
# the number of a longer payload is not plain.
_MAX_NUMBER_BYTES: Final = 200


class JvmException(StrEnum):
    """The exceptions that abort a JVM member's rebalance."""

    KAFKA = "kafka.common.KafkaException"
    JSON = "com.fasterxml.jackson.databind.JsonMappingException"
    CAST = "java.lang.ClassCastException"
    NULL = "java.lang.NullPointerException"
    NUMBER = "java.lang.NumberFormatException"
    ASSERTION = "java.lang.AssertionError"
    ARGUMENT = "java.lang.IllegalArgumentException"
    REGEX = "java.lang.RuntimeException"
    NO_NODE = "org.I0Itec.zkclient.exception.ZkNoNodeException"


_PARSE: Final[Mapping[Parser, Callable[[str], object]]] = {
    Parser.ANY: json.parse_scala,
    Parser.SCALA: json.parse_scala_int32,
    Parser.JACKSON: json.parse_jackson,
    Parser.JACKSON_TWICE: json.parse_jackson_twice,
}
_JACKSONS: Final = frozenset({Parser.JACKSON, Parser.JACKSON_TWICE})


class Payload:
    """The payload of one znode during decoding; each step may raise MalformedZnodeError.

    Args:
        raw: the bytes, or None if the znode has no payload.
        where: the path or name of the znode, for the error.
        remedy: how to repair it, for the error.
        parser: the JSON parser to imitate.
    """

    def __init__(
        self, raw: bytes | None, *, where: str, remedy: str, parser: Parser = Parser.ANY
    ) -> None:
        self._raw, self._where, self._remedy = raw, where, remedy
        self._parser = parser
        self.is_jackson = parser in _JACKSONS

    def text(self) -> str:
        """Decode as Java's `new String(bytes, UTF_8)`: ill-formed sequences become U+FFFD."""
        if self._raw is None:
            thrown = JvmException.NULL if self.is_jackson else JvmException.KAFKA
            raise self.malformed("the znode has no payload", thrown)
        if len(self._raw) > MAX_PAYLOAD:
            raise self.malformed(f"the payload is larger than {MAX_PAYLOAD} bytes")
        return self._raw.decode(errors="replace")

    def document(self) -> object:
        """Parse the JSON; also raises ValueError if the JVM cannot parse the text."""
        text = self.text()
        try:
            return _PARSE[self._parser](text)
        except RecursionError as error:
            raise self.malformed(str(error)) from error
        except json.NotInt32Error as error:
            raise self.malformed("a number is not an int32", JvmException.KAFKA) from error

    def fields(self, value: object, what: str) -> dict[str, object]:
        """Return `value` as a JSON object; `what` describes it in the error."""
        if isinstance(value, dict):
            return value
        raise self.mistyped(f"{what} is not a JSON object", value)

    def mistyped(self, what: str, value: object) -> MalformedZnodeError:
        """Return the error for a value that the JVM cannot cast to the expected type."""
        if self.is_jackson:
            return self.malformed(what, JvmException.JSON)
        return self.malformed(what, JvmException.NULL if value is None else JvmException.CAST)

    def malformed(self, what: str, thrown: str = "") -> MalformedZnodeError:
        """Return this payload's error; `thrown` is "" if only zkconsumer refuses the payload."""
        return MalformedZnodeError(what, where=self._where, remedy=self._remedy, thrown=thrown)


# ---- values -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broker:
    """The registration of a broker, versions 1 to 5.

    `host` and `port` belong to the first PLAINTEXT endpoint; if there is none, they are None and
    -1. `endpoints` are texts such as "PLAINTEXT://host:9092"; version 1 has none. Up to version 3
    they begin with a security protocol, from version 4 on with a listener name. `protocols` are
    pairs of a listener name and its security protocol.
    """

    host: str | None
    port: int
    version: int
    endpoints: tuple[str, ...]
    protocols: tuple[tuple[str, str], ...] = ()


class PartitionState(NamedTuple):
    """The leader of a partition (-1: none), and its in-sync replicas."""

    leader: int
    isr: tuple[int, ...]


# ---- topics and brokers -------------------------------------------------------------------------

TopicPayloads = Mapping[str, "bytes | AccessDeniedError | None"]
"""Topic -> payload of its znode, or the error if this client may not read the znode."""

# Number of decoded topics in the cache. A member reads its topics at every rebalance, and decoding
# 5,000 partitions takes 16 ms. A topic that is no longer in the cache is decoded again.
_REMEMBERED_TOPICS = 32


@lru_cache(maxsize=_REMEMBERED_TOPICS)
def decode_topic(
    payload: bytes | None, *, where: str, profile: Profile = DEFAULT
) -> tuple[int, ...]:
    """Return a topic's partition numbers, ascending (`ZkUtils.getPartitionAssignmentForTopics`).

    A topic with empty or unparsable text has no partitions; as in the JVM, this is not an error. A
    znode without payload, a wrong type, and a partition key that `Integer.parseInt` rejects raise
    MalformedZnodeError. The replicas are checked only if the release is 1.0 or later.
    """
    raw = Payload(payload, where=where, remedy=_TOPIC_REMEDY, parser=profile.parser)
    try:
        document = raw.document()
    except ValueError:
        return ()
    partitions = raw.fields(document, "a topic").get("partitions", {})
    numbers = set()
    for key, replicas in raw.fields(partitions, "a topic's partitions").items():
        try:
            numbers.add(parse_int32(key))
        except ValueError as error:
            raise raw.malformed("a partition's key is not an int32", JvmException.NUMBER) from error
        if raw.is_jackson and not _are_brokers(replicas):
            raise raw.mistyped("a partition's replicas are not a list of int32", replicas)
    return tuple(sorted(numbers))


def _are_brokers(replicas: object) -> bool:
    return isinstance(replicas, list) and all(
        type(one) is int and MIN_INT32 <= one <= MAX_INT32 for one in replicas
    )


_TOPIC_REMEDY = "the brokers write this znode: compare it with another topic's znode and repair it"


def decode_broker(payload: bytes | None, *, where: str) -> Broker:
    """Decode a broker's registration of any version, or raise MalformedZnodeError.

    A registration with neither host and port nor an endpoint is malformed.
    """
    raw = Payload(payload, where=where, remedy=_BROKER_REMEDY)
    try:
        document = raw.fields(raw.document(), "a broker's registration")
    except ValueError as error:
        raise raw.malformed(f"{quoted(raw.text())} is not the expected JSON") from error
    host, port = document.get("host"), document.get("port")
    listed, version = document.get("endpoints"), document.get("version")
    endpoints = tuple(e for e in listed if isinstance(e, str)) if isinstance(listed, list) else ()
    plaintext: tuple[str | None, int] = None, -1
    if isinstance(host, str) and host and type(port) is int and 0 < port < 65536:
        plaintext = host, port
    elif not endpoints:
        raise raw.malformed("a broker has neither host and port nor endpoints")
    named = document.get("listener_security_protocol_map")
    protocols = (
        tuple((name, one) for name, one in named.items() if isinstance(one, str))
        if isinstance(named, dict)
        else ()
    )
    return Broker(*plaintext, version if type(version) is int else 1, endpoints, protocols)


def decode_brokers(
    registrations: Mapping[str, bytes | None],
) -> dict[str, Broker | MalformedZnodeError]:
    """Return id -> broker, or id -> the error if the broker's registration is malformed."""
    found: dict[str, Broker | MalformedZnodeError] = {}
    for number, payload in registrations.items():
        try:
            found[number] = decode_broker(payload, where=paths.broker(number))
        except MalformedZnodeError as error:
            found[number] = error
    return found


def readable_brokers(found: Mapping[str, Broker | MalformedZnodeError]) -> list[Broker]:
    """Return the brokers among the results of `decode_brokers`."""
    return [one for one in found.values() if isinstance(one, Broker)]


def known_partitions(
    payload: bytes | None, *, where: str, profile: Profile = DEFAULT
) -> tuple[int, ...]:
    """Return a topic's partition numbers as `decode_topic` does, for tools.

    If no parser accepts a topic's text, the topic has no partitions for members. For tools, its
    partitions are unknown: such a text raises MalformedZnodeError.
    """
    numbers = decode_topic(payload, where=where, profile=profile)
    if not numbers:
        raw = Payload(payload, where=where, remedy=_TOPIC_REMEDY, parser=profile.parser)
        try:
            raw.document()
        except ValueError as error:
            raise raw.malformed(f"{quoted(raw.text())} is not the expected JSON") from error
    return numbers


def decode_replicas(payload: bytes | None, *, where: str) -> dict[int, tuple[int, ...]]:
    """Return the brokers that store each partition of a topic, the preferred leader first.

    The result is for display. The function rejects the payloads that `known_partitions` rejects. It
    returns a malformed list of replicas as an empty list.
    """
    numbers = known_partitions(payload, where=where)
    if not numbers:
        return {}
    raw = Payload(payload, where=where, remedy=_TOPIC_REMEDY)
    listed = raw.fields(raw.fields(raw.document(), "a topic")["partitions"], "its partitions")
    found = {parse_int32(key): replicas for key, replicas in listed.items()}
    return {number: _brokers(found[number]) for number in numbers}


def decode_partition_state(payload: bytes | None, *, where: str) -> PartitionState:
    """Decode a partition's leader and in-sync replicas, or raise MalformedZnodeError.

    Kafka 0.8.2-1.1: `kafka.utils.ZkUtils.getLeaderAndIsrForPartition`.
    """
    raw = Payload(payload, where=where, remedy="the brokers' controller writes this znode")
    try:
        fields = raw.fields(raw.document(), "a partition's state")
    except ValueError as error:
        raise raw.malformed(f"{quoted(raw.text())} is not the expected JSON") from error
    leader = fields.get("leader")
    if type(leader) is not int:
        raise raw.malformed("a partition's state names no leader")
    return PartitionState(leader, _brokers(fields.get("isr")))


def _brokers(listed: object) -> tuple[int, ...]:
    return tuple(listed) if isinstance(listed, list) and _are_brokers(listed) else ()


_BROKER_REMEDY = "the broker writes this znode when it starts: restart it"


# ---- owners and offsets -------------------------------------------------------------------------


def topic_config(config: Mapping[str, object] | None) -> JsonObject:
    """Return the content of a topic's configuration znode; Kafka writes Booleans in lower case."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (config or {}).items()
    }
    return {"version": 1, "config": texts}


def encode_owner(thread_id: str) -> bytes:
    """Encode the payload of an owner znode: the consumer thread id."""
    return thread_id.encode()


def decode_owner(payload: bytes | None, *, where: str) -> str:
    """Return the consumer thread id in an owner znode: any text, and "" for no payload.

    A JVM member also treats every text except its own thread id as another owner's thread id.
    """
    if payload is None:
        return ""
    remedy = "delete the znode if no consumer owns it"
    return Payload(payload, where=where, remedy=remedy).text()


@dataclass(frozen=True, slots=True)
class OwnerZnode:
    """A decoded owner znode.

    Attributes:
        thread: the consumer thread id that claims the partition; "" with a `fault`.
        session: the session that owns the znode; 0 for a persistent znode, which no session
            expiry deletes.
        czxid: the ZooKeeper transaction that created the znode.
        fault: why the payload is not a thread id.
    """

    thread: ThreadId
    session: int
    czxid: int
    fault: str = ""


def owner_znode(payload: bytes | None, *, session: int, czxid: int, where: str) -> OwnerZnode:
    """Decode an owner znode; a payload that is not a thread id becomes its `fault`."""
    try:
        return OwnerZnode(decode_owner(payload, where=where), session, czxid)
    except MalformedZnodeError as error:
        return OwnerZnode("", session, czxid, error.what)


def encode_offset(offset: int) -> bytes:
    """Encode the payload of an offset znode, the next offset to read, as `Long.toString` does."""
    return str(offset).encode()


def decode_offset(payload: bytes | None, *, where: str) -> int:
    """Decode an offset znode as `Long.parseLong` does; a negative number means no offset.

    Blanks, a trailing line feed and an empty payload raise MalformedZnodeError, because the
    rebalance of a JVM member fails on them.
    """
    remedy = "write the next offset there as a bare decimal number, or delete the znode"
    raw = Payload(payload, where=where, remedy=remedy)
    text = raw.text()
    try:
        return parse_int64(text)
    except ValueError as error:
        raise raw.malformed(f"{quoted(text)} is not an offset", JvmException.NUMBER) from error


def stored_offset(payload: bytes | None, *, where: str) -> int | None:
    """Return the offset in an offset znode, or None if the znode holds no offset.

    A negative number means no offset, as in the JVM. An empty znode also has no offset, although a
    JVM member fails on it: Curator creates the znode empty before it reads it (Flink's
    `ZookeeperOffsetHandler`). Any other payload that `decode_offset` rejects raises
    MalformedZnodeError.
    """
    if not payload:
        return None
    offset = decode_offset(payload, where=where)
    return offset if offset >= 0 else None


# What ZkClient's default serializer writes for a string, and Java for a Long and an Integer (Java
# Object Serialization Specification, version 5): magic and version, then the class, then the value.
_JAVA_STRING: Final = b"\xac\xed\x00\x05t"
_JAVA_NUMBER: Final = re.compile(
    rb"\xac\xed\x00\x05sr\x00(?:\x0ejava\.lang\.Long|\x11java\.lang\.Integer).{8}\x02\x00\x01[JI]"
    rb"\x00\x05valuexr\x00\x10java\.lang\.Number.{8}\x02\x00\x00xp(.{8}|.{4})",
    re.DOTALL,
)
_MARKS: Final = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_ENCODINGS: Final = ("utf-8", "utf-16-le", "utf-16-be")  # without a byte order mark
# C programs write a string's final NUL with it; Java's String.trim removes NUL as it does blanks.
_AROUND: Final = re.compile(r"[\s\0]*([\"']?)\s*([+-]?[0-9]+)\s*\1[\s\0]*")


def plain_number(payload: bytes | None) -> int | None:
    """Return the number that an offset znode plainly contains although `decode_offset` rejects it.

    White space, NUL characters or quotation marks may surround the number. Its text may be UTF-8 or
    UTF-16, with or without a byte order mark, and Java may have serialized it. No JVM member reads
    such a payload. None for any other payload.
    """
    data = payload or b""
    if len(data) > _MAX_NUMBER_BYTES:
        return None
    if number := _JAVA_NUMBER.fullmatch(data):
        return int.from_bytes(number[1], "big", signed=True)
    if data.startswith(_JAVA_STRING) and data[5:7] == (len(data) - 7).to_bytes(2, "big"):
        data = data[7:]
    marked = [name for mark, name in _MARKS.items() if data.startswith(mark)]
    for encoding in marked or _ENCODINGS:
        with suppress(ValueError):  # not text, or beyond 64 bits
            if found := _AROUND.fullmatch(data.decode(encoding)):
                return parse_int64(found[2])
    return None


# ---- edit marks ---------------------------------------------------------------------------------


def marked(mzxids: Mapping[_Key, int], marks: Iterable[Stat | None]) -> frozenset[_Key]:
    """Return the partitions whose offset was last written by an operator's tool.

    A tool writes the offset and creates a mark in one transaction, so the offset's mzxid equals
    the mark's czxid.

    Args:
        mzxids: the mzxid of each offset znode.
        marks: the group's marks below `paths.edits`; None for a mark that has been deleted.
    """
    edits = {mark.czxid for mark in marks if mark is not None}
    return frozenset(key for key, mzxid in mzxids.items() if mzxid in edits)
