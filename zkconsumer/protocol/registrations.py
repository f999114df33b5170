"""A member's registration, as each Kafka release writes and reads it (`TopicCount`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from zkconsumer.errors import ConfigError, MalformedZnodeError, quoted
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.assignors import RoundRobinRule
from zkconsumer.protocol.java.text import MAX_INT32, MIN_INT32, parse_int64, scala_map_order
from zkconsumer.protocol.paths import MAX_STREAMS, znode_fault
from zkconsumer.protocol.payloads import JvmException, Payload
from zkconsumer.protocol.releases import DEFAULT, Layout, Profile

_REMEDY = (
    "stop this member or repair its registration: until then no member of the group rebalances,"
    " JVM members included"
)


class Pattern(Enum):
    """The way in which a registration names its topics; the znode contains the value."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class Registration:
    """A member's registration below `ids`.

    Attributes:
        subscription: topic -> number of streams, in the writer's order. With a pattern it
            has one entry: regular expression -> number of streams.
        pattern: how to interpret the keys of `subscription`.
        timestamp_ms: the time of writing, in milliseconds since the epoch; no reader uses it.
    """

    subscription: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    timestamp_ms: int | None = None


# ---- writing ------------------------------------------------------------------------------------

_NAMED: Final = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_QUOTED: Final = {ord('"'): '\\"', ord("\\"): "\\\\"}
# The escapes of Kafka's `Utils.JSONEscapeString`, followed by the escapes of Jackson.
_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    **_NAMED,
    **_QUOTED,
    ord("/"): "\\/",
}
_JACKSON: Final = {code: f"\\u{code:04X}" for code in range(0x20)} | {**_NAMED, **_QUOTED}


def encode_registration(registration: Registration, *, profile: Profile = DEFAULT) -> bytes:
    """Return the bytes that the release writes (`TopicCount.dbString`, `kafka.utils.Json.encode`).

    Other members may interpret these bytes differently; call `validate_registration` first,
    which detects this. Raises ValueError if `timestamp_ms` is None.
    """
    if registration.timestamp_ms is None:
        raise ValueError("a registration needs a timestamp")
    layout, counts = profile.layout, registration.subscription
    is_static = registration.pattern is Pattern.STATIC
    keys = {key: _escaped(key, layout, is_static=is_static) for key in scala_map_order(counts)}
    pattern, time = registration.pattern.value, registration.timestamp_ms
    if layout is Layout.SORTED:
        colon = ": " if is_static else " : "
        entries = ",".join(f'"{keys[key]}"{colon}{counts[key]}' for key in keys)
        return (
            f'{{ "pattern":"{pattern}", "subscription":{{ {entries} }}, "timestamp":"{time}",'
            ' "version":1 }'
        ).encode()
    entries = ",".join(f'"{keys[key]}":{counts[key]}' for key in keys)
    return (
        f'{{"version":1,"subscription":{{{entries}}},"pattern":"{pattern}","timestamp":"{time}"}}'
    ).encode()


def _escaped(key: str, layout: Layout, *, is_static: bool) -> str:
    if layout is Layout.ESCAPED:
        return key if is_static else key.translate(_ESCAPES)
    if layout is Layout.ESCAPED_TWICE:
        return (key if is_static else key.translate(_ESCAPES)).translate(_JACKSON)
    return key


def validate_registration(registration: Registration, *, profile: Profile) -> None:
    r"""Raise ConfigError if members of the release would misread this registration.

    0.8.0 and 0.8.1 escape nothing, so `\b` becomes a backspace. 1.0.1 and later escape regular
    expressions twice, so `\d` becomes a backslash and a d, for the writer as well.
    """
    written = Registration(registration.subscription, registration.pattern, 0)
    try:
        payload = encode_registration(written, profile=profile)
        read = decode_registration(payload, where="", profile=profile)
        fault = "" if read == written else f"as {', '.join(map(quoted, read.subscription))}"
    except MalformedZnodeError as error:
        fault = f"as an error that aborts every rebalance of the group ({error.what})"
    if fault:
        raise ConfigError(
            f"Kafka {profile.release} writes {', '.join(map(quoted, written.subscription))} so that"
            f" every member reads it {fault}",
            where="peers.release",
            remedy="use a release from 0.8.2.0 to 1.0.0, whose registrations all releases read"
            " correctly, or a filter without backslashes, quotes and slashes",
        )


# ---- reading ------------------------------------------------------------------------------------


def decode_registration(
    payload: bytes | None, *, where: str, profile: Profile = DEFAULT
) -> Registration:
    """Decode a member's registration as members of the release do, or raise MalformedZnodeError.

    This function rejects two more faults than `read_registration`. The first is a regular
    expression without streams. The second, from 0.10.2 on, is a topic name that ZooKeeper rejects
    in a path, because all members read all topics. Each fault aborts the rebalance of every member
    that uses the registration.
    """
    found = read_registration(payload, where=where, profile=profile)
    raw = Payload(payload, where=where, remedy=_REMEDY)
    for name, count in found.subscription.items():
        if count < 1:
            raise raw.malformed(f"{quoted(name)} has no streams", JvmException.ASSERTION)
        fault = znode_fault(name) if found.pattern is Pattern.STATIC else ""
        if fault and profile.variant is RoundRobinRule.SKIPPING:
            raise raw.malformed(f"{quoted(name)} cannot be a topic: {fault}", JvmException.ARGUMENT)
    return found


def read_registration(
    payload: bytes | None, *, where: str, profile: Profile = DEFAULT
) -> Registration:
    """Parse a registration (`TopicCount.constructTopicCount`), or raise MalformedZnodeError.

    An unknown pattern and an empty subscription count as Pattern.STATIC. Each topic has at least 1
    stream.
    """
    raw = Payload(payload, where=where, remedy=_REMEDY, parser=profile.parser)
    try:
        document = raw.document()
    except ValueError as error:
        what = f"{quoted(raw.text())} is not the expected JSON"
        raise raw.malformed(what, JvmException.KAFKA) from error
    fields = raw.fields(document, "a registration")
    if "pattern" not in fields:
        raise raw.malformed("a registration has no pattern", JvmException.KAFKA)
    wire_pattern = fields["pattern"]
    if not isinstance(wire_pattern, str) and (wire_pattern is not None or raw.is_jackson):
        raise raw.mistyped("a registration's pattern is not a string", wire_pattern)
    if "subscription" not in fields:
        raise raw.malformed("a registration has no subscription", JvmException.KAFKA)
    subscription = raw.fields(fields["subscription"], "a registration's subscription")
    if raw.is_jackson:
        for name, count in subscription.items():
            _count(raw, name, count)
    pattern = Pattern.STATIC
    if subscription and wire_pattern in (Pattern.WHITE_LIST.value, Pattern.BLACK_LIST.value):
        pattern = Pattern(wire_pattern)
    counts = _counts(raw, subscription, pattern)
    return Registration(MappingProxyType(counts), pattern, _timestamp(fields.get("timestamp")))


def _counts(raw: Payload, subscription: dict[str, object], pattern: Pattern) -> dict[str, int]:
    if pattern is not Pattern.STATIC:
        # Kafka uses only `Map.head` and ignores the other entries.
        head = scala_map_order(subscription)[0]
        return {head: _count(raw, head, subscription[head])}
    counts = {name: count for name, count in subscription.items() if type(count) is int}
    if len(counts) < len(subscription) or not all(0 < n <= MAX_INT32 for n in counts.values()):
        # The JVM fails at the first fault in the order of its map.
        for name in scala_map_order(subscription):
            if _count(raw, name, subscription[name]) < 1:
                raise raw.malformed(f"{quoted(name)} has no streams", JvmException.ASSERTION)
    if sum(counts.values()) > MAX_STREAMS:
        raise raw.malformed(f"a registration has more than {MAX_STREAMS} streams")
    return counts


def _count(raw: Payload, name: str, count: object) -> int:
    if count is None and not raw.is_jackson:
        return 0  # `BoxesRunTime.unboxToInt`
    if type(count) is not int or not MIN_INT32 <= count <= MAX_INT32:
        raise raw.mistyped(f"{quoted(name)} has a stream count that is not an int32", count)
    return count


def _timestamp(value: object) -> int | None:
    """Return the timestamp; the JVM writes it as a string, other clients may write a number."""
    if isinstance(value, str):
        try:
            return parse_int64(value)
        except ValueError:
            return None
    return value if type(value) is int else None
