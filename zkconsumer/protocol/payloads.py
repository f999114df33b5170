"""What all decoders of znodes share: text, JSON in a release's dialect, and the one error.

Every decoder reads untrusted bytes with bounded work and raises MalformedZnodeError and nothing
else. `MalformedZnodeError.thrown` names what a JVM member of that release throws.

What stands in the znodes: this module and `protocol.registrations` alone know payloads.

The encoders write the bytes that the JVM writes. The decoders take what the JVM takes: members of
the release that `profile` says, and where nobody said, of any release, if it then means the same:
a member that refuses fails by itself, whatever we do. So: numbers as in 1.0-1.1 (a numeric
timestamp, a fraction in an unknown field), `pattern: null` and raw control characters as in
0.8.2-0.11. Text behind the JSON is then a fault, as in 0.8.2-0.11: a topic with such text has no
partitions there, and some in 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeVar

from zkconsumer.errors import MalformedZnodeError, shown
from zkconsumer.protocol import paths
from zkconsumer.protocol.java import json
from zkconsumer.protocol.java.text import MAX_INT32, MIN_INT32, parse_int32, parse_int64
from zkconsumer.protocol.model import ThreadId
from zkconsumer.protocol.releases import DEFAULT, Parser, Profile
from zkconsumer.protocol.requests import Stat

_Key = TypeVar("_Key")

# Bytes. A ZooKeeper server takes no larger znode by default (`jute.maxbuffer`), so none of the
# JVM's payloads is larger. A larger one is refused unread.
MAX_PAYLOAD: Final = 1 << 20


class Thrown(StrEnum):
    """The exceptions that end a JVM member's attempt to rebalance."""

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
    """One znode's payload on its way to a value; each step raises MalformedZnodeError.

    Args:
        raw: the bytes, or None if the znode has none.
        where: its path or name, for the error.
        remedy: what to do about a fault, for the error.
        parser: whose JSON it is.
    """

    def __init__(
        self, raw: bytes | None, *, where: str, remedy: str, parser: Parser = Parser.ANY
    ) -> None:
        self._raw, self._where, self._remedy = raw, where, remedy
        self._parser = parser
        self.is_jackson = parser in _JACKSONS

    def text(self) -> str:
        """Java's `new String(bytes, UTF_8)`: ill-formed sequences become U+FFFD."""
        if self._raw is None:
            thrown = Thrown.NULL if self.is_jackson else Thrown.KAFKA
            raise self.malformed("the znode has no payload", thrown)
        if len(self._raw) > MAX_PAYLOAD:
            raise self.malformed(f"the payload is larger than {MAX_PAYLOAD} bytes")
        return self._raw.decode(errors="replace")

    def document(self) -> object:
        """The JSON in it; raises ValueError as well, where the JVM cannot parse the text."""
        text = self.text()
        try:
            return _PARSE[self._parser](text)
        except RecursionError as error:
            raise self.malformed(str(error)) from error
        except json.NotInt32Error as error:
            raise self.malformed("a number is no int32", Thrown.KAFKA) from error

    def fields(self, value: object, what: str) -> dict[str, object]:
        """`value` as an object; `what` names it."""
        if isinstance(value, dict):
            return value
        raise self.mistyped(f"{what} is no object", value)

    def mistyped(self, what: str, value: object) -> MalformedZnodeError:
        """The error of a value that has another type than the JVM takes it for."""
        if self.is_jackson:
            return self.malformed(what, Thrown.JSON)
        return self.malformed(what, Thrown.NULL if value is None else Thrown.CAST)

    def malformed(self, what: str, thrown: str = "") -> MalformedZnodeError:
        """The error of this payload; `thrown` is "" where only we refuse it."""
        return MalformedZnodeError(what, where=self._where, remedy=self._remedy, thrown=thrown)


# ---- records -------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads a partition (-1: nobody), and which replicas have all of it."""

    leader: int
    isr: tuple[int, ...]


# ---- topics and brokers -------------------------------------------------------------------------

# Topics that are not decoded again as long as they have not changed. A member reads its topics at
# every rebalance, and 5,000 partitions take 16 ms; what is beyond the limit is decoded anew.
_REMEMBERED_TOPICS = 32


@lru_cache(maxsize=_REMEMBERED_TOPICS)
def decode_topic(
    payload: bytes | None, *, where: str, profile: Profile = DEFAULT
) -> tuple[int, ...]:
    """The partition numbers of a topic, ascending (`ZkUtils.getPartitionAssignmentForTopics`).

    Empty or unparsable text means no partitions, silently, as in the JVM; no payload at all, wrong
    types, and partition keys that `Integer.parseInt` refuses raise MalformedZnodeError. Replicas
    are looked at where the release is 1.0 or later.
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
            raise raw.malformed("a partition's key is no int32", Thrown.NUMBER) from error
        if raw.is_jackson and not _are_brokers(replicas):
            raise raw.mistyped("a partition's replicas are no list of int32", replicas)
    return tuple(sorted(numbers))


def _are_brokers(replicas: object) -> bool:
    return isinstance(replicas, list) and all(
        type(one) is int and MIN_INT32 <= one <= MAX_INT32 for one in replicas
    )


_TOPIC_REMEDY = "the brokers write this znode: compare it with another topic's and mend it"


def decode_broker(payload: bytes | None, *, where: str) -> Broker:
    """Read a broker's registration, of any version, or MalformedZnodeError.

    An entry with neither a host and port nor an endpoint is a fault.
    """
    raw = Payload(payload, where=where, remedy=_BROKER_REMEDY)
    try:
        document = raw.fields(raw.document(), "a broker's registration")
    except ValueError as error:
        raise raw.malformed(f"{shown(raw.text())} is not the JSON that is due") from error
    host, port = document.get("host"), document.get("port")
    listed, version = document.get("endpoints"), document.get("version")
    endpoints = tuple(e for e in listed if isinstance(e, str)) if isinstance(listed, list) else ()
    plaintext: tuple[str | None, int] = None, -1
    if isinstance(host, str) and host and type(port) is int and 0 < port < 65536:
        plaintext = host, port
    elif not endpoints:
        raise raw.malformed("a broker has neither host and port nor endpoints")
    return Broker(*plaintext, version if type(version) is int else 1, endpoints)


def decode_brokers(
    registrations: Mapping[str, bytes | None],
) -> dict[str, Broker | MalformedZnodeError]:
    """Return each broker by its id, or the error that says why its registration is malformed."""
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


def decode_replicas(payload: bytes | None, *, where: str) -> dict[int, tuple[int, ...]]:
    """The brokers that keep each partition of a topic, the preferred leader first.

    For people to look at: what `decode_topic` refuses is refused, a list that is none is empty.
    """
    numbers = decode_topic(payload, where=where)
    if not numbers:
        return {}
    raw = Payload(payload, where=where, remedy=_TOPIC_REMEDY)
    listed = raw.fields(raw.fields(raw.document(), "a topic")["partitions"], "its partitions")
    found = {parse_int32(key): replicas for key, replicas in listed.items()}
    return {number: _brokers(found[number]) for number in numbers}


def decode_partition_state(payload: bytes | None, *, where: str) -> PartitionState:
    """Read what the controller last said of a partition, or MalformedZnodeError.

    `kafka.utils.ZkUtils.getLeaderAndIsrForPartition`, 0.8.2 to 1.1.
    """
    raw = Payload(payload, where=where, remedy="the brokers' controller writes this znode")
    try:
        fields = raw.fields(raw.document(), "a partition's state")
    except ValueError as error:
        raise raw.malformed(f"{shown(raw.text())} is not the JSON that is due") from error
    leader = fields.get("leader")
    if type(leader) is not int:
        raise raw.malformed("a partition's state names no leader")
    return PartitionState(leader, _brokers(fields.get("isr")))


def _brokers(listed: object) -> tuple[int, ...]:
    return tuple(listed) if isinstance(listed, list) and _are_brokers(listed) else ()


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
    remedy = "delete the znode, if no consumer holds it"
    return Payload(payload, where=where, remedy=remedy).text()


@dataclass(frozen=True, slots=True)
class OwnerZnode:
    """A decoded owner znode.

    Attributes:
        thread: the consumer thread id that claims the partition; "" with a `fault`.
        session: the session that holds the znode; 0 for a persistent znode, which no session
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
    """The payload of an offset znode, `Long.toString`: the next offset to consume."""
    return str(offset).encode()


def decode_offset(payload: bytes | None, *, where: str) -> int:
    """Read an offset znode as `Long.parseLong` does; any negative number means no offset.

    Blanks, a trailing line feed and empty payloads raise MalformedZnodeError: a JVM member's
    rebalance fails on them.
    """
    remedy = "write the next offset there as a bare decimal number, or delete the znode"
    raw = Payload(payload, where=where, remedy=remedy)
    text = raw.text()
    try:
        return parse_int64(text)
    except ValueError as error:
        raise raw.malformed(f"{shown(text)} is no offset", Thrown.NUMBER) from error


# ---- edit marks ---------------------------------------------------------------------------------


def marked(mzxids: Mapping[_Key, int], marks: Iterable[Stat | None]) -> frozenset[_Key]:
    """Return those offsets that an operator's tool was the last to write.

    A tool writes the offset and creates a mark in one transaction, so the offset's mzxid equals
    the mark's czxid.

    Args:
        mzxids: the mzxid of each offset znode.
        marks: the group's marks below `paths.edits`; None for a mark that has been deleted.
    """
    edits = {mark.czxid for mark in marks if mark is not None}
    return frozenset(key for key, mzxid in mzxids.items() if mzxid in edits)
