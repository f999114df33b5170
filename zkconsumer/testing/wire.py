"""The broker's half of Kafka's wire protocol: requests as bytes become values, and back.

A message is a class whose attributes are fields, each with the versions that contain it.
`WireMessage` builds the coders of each version when the version is first used. Both directions
exist for every message, so that the tests can compare them.

Kafka: `clients/src/main/resources/common/message/README.md`. Tagged fields are optional in every
message: they are skipped when read, and never written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError

M = TypeVar("M", bound="WireMessage")
T = TypeVar("T")

LAST: Final = 99
"""Higher than every version of a message."""


class Coder(NamedTuple):
    """Reads and writes the values of one type."""

    read: Callable[[FieldReader], Any]  # Any: the type of a field, which the class states
    write: Callable[[bytearray, Any], object]  # Any: as above


class FieldType(NamedTuple):
    """The coders of a field's type: for old versions, and for flexible ones (KIP-482)."""

    old: Coder
    flexible: Coder


# ---- numbers -------------------------------------------------------------------------------------


def _number(form: str, kind: type[int] = int) -> FieldType:
    packer = struct.Struct(form)

    def write(out: bytearray, value: int) -> None:
        out += packer.pack(value)

    coder = Coder(lambda reader: kind(reader.number(form)), write)
    return FieldType(coder, coder)


def read_varint(reader: FieldReader) -> int:
    """Read an unsigned number of 7 bits a byte, the lowest first."""
    value = shift = 0
    while True:
        octet = reader.data[reader.skip(1)]
        value |= (octet & 127) << shift
        if octet < 128:
            return value
        shift += 7
        if shift > 63:
            raise MalformedError("a number has more than ten bytes")


def write_varint(out: bytearray, value: int) -> None:
    """Write an unsigned number of 7 bits a byte, the lowest first."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


BOOL: Final = _number(">?", bool)
INT8: Final = _number(">b")
INT16: Final = _number(">h")
INT32: Final = _number(">i")
INT64: Final = _number(">q")


# ---- values with a length ------------------------------------------------------------------------


# How a length is written; -1 is the length of a null.
_SHORT: Final = INT16.old
_LONG: Final = INT32.old
_COMPACT: Final = Coder(
    lambda reader: read_varint(reader) - 1, lambda out, size: write_varint(out, size + 1)
)


def _sized(length: Coder, decode: Callable[[bytes], T], encode: Callable[[T], bytes]) -> Coder:
    def read(reader: FieldReader) -> T | None:
        size = length.read(reader)
        if size < 0:
            return None
        at = reader.skip(size)
        return decode(bytes(reader.data[at : at + size]))

    def write(out: bytearray, value: T | None) -> None:
        if value is None:
            length.write(out, -1)
            return
        data = encode(value)
        length.write(out, len(data))
        out += data

    return Coder(read, write)


def _decode(data: bytes) -> str:
    # Bytes that are no UTF-8 return unchanged, because a broker stores a group's metadata so.
    return data.decode(errors="surrogateescape")


def _encode(value: str) -> bytes:
    return value.encode(errors="surrogateescape")


STRING: Final = FieldType(_sized(_SHORT, _decode, _encode), _sized(_COMPACT, _decode, _encode))
OCTETS: Final = FieldType(_sized(_LONG, bytes, bytes), _sized(_COMPACT, bytes, bytes))

NO_ID: Final = bytes(16)
"""The topic id of a topic that is not named by its id."""


def _read_uuid(reader: FieldReader) -> bytes:
    at = reader.skip(16)
    return bytes(reader.data[at : at + 16])


_UUID_CODER: Final = Coder(_read_uuid, lambda out, value: out.extend(value))
UUID: Final = FieldType(_UUID_CODER, _UUID_CODER)


_EMPTY: Final[Mapping[FieldType, object]] = {
    BOOL: False,
    **dict.fromkeys((INT8, INT16, INT32, INT64), 0),
    STRING: "",
    OCTETS: b"",
    UUID: NO_ID,
}


def _array(length: Coder, coder: Coder) -> Coder:
    def read(reader: FieldReader) -> list[object] | None:
        size = length.read(reader)
        if size > len(reader.data) - reader.at:
            raise MalformedError(f"an array of {size} elements exceeds its message")
        return None if size < 0 else [coder.read(reader) for _ in range(size)]

    def write(out: bytearray, values: Sequence[object] | None) -> None:
        if values is None:
            length.write(out, -1)
            return
        length.write(out, len(values))
        for value in values:
            coder.write(out, value)

    return Coder(read, write)


# ---- messages ------------------------------------------------------------------------------------


class Field(NamedTuple):
    """A field of a message, in the versions from `since` to `until`."""

    kind: FieldType | type[WireMessage]
    is_array: bool
    default: object
    since: int
    until: int

    def coder(self, version: int, *, flexible: bool) -> Coder:
        """Return the coder of this field in one version."""
        if isinstance(self.kind, FieldType):
            coder = self.kind.flexible if flexible else self.kind.old
        else:
            coder = _coder(self.kind, version, flexible=flexible)
        if self.is_array:
            return _array(_COMPACT if flexible else _LONG, coder)
        return coder


def field(
    kind: FieldType | type[WireMessage], *, default: object = ..., since: int = 0, until: int = LAST
) -> Any:  # Any: the annotation of the attribute states the type
    """Describe a field; `default` is its value in the versions that do not have it.

    A number is 0 by default, a text or bytes empty, and a message null.
    """
    if default is ...:
        default = _EMPTY[kind] if isinstance(kind, FieldType) else None
    return Field(kind, False, default, since, until)


def array(
    kind: FieldType | type[WireMessage], *, since: int = 0, until: int = LAST
) -> Any:  # Any: the annotation of the attribute states the type
    """Describe a field that is an array; it is empty by default."""
    return Field(kind, True, (), since, until)


@dataclass_transform(eq_default=False, kw_only_default=True)
class WireMessage:
    """A request, a response, or an element of an array in one.

    A field that a version does not have has its default value.
    """

    fields: ClassVar[Mapping[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        cls.fields = {name: one for name, one in vars(cls).items() if isinstance(one, Field)}
        for name, one in cls.fields.items():
            setattr(cls, name, one.default)

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{type(self).__name__}({', '.join(values)})"


def skip_tags(reader: FieldReader) -> None:
    """Skip the tagged fields of a message or of a header."""
    for _ in range(read_varint(reader)):
        read_varint(reader)
        reader.skip(read_varint(reader))


_CODERS: Final[dict[tuple[type[WireMessage], int, bool], Coder]] = {}


def _coder(message: type[WireMessage], version: int, *, flexible: bool) -> Coder:
    """Return the coder of a message in one version; it is made once."""
    key = message, version, flexible
    if key not in _CODERS:
        _CODERS[key] = _new_coder(message, version, flexible=flexible)
    return _CODERS[key]


def _new_coder(message: type[WireMessage], version: int, *, flexible: bool) -> Coder:
    parts = [
        (name, *one.coder(version, flexible=flexible))
        for name, one in message.fields.items()
        if one.since <= version <= one.until
    ]

    def read(reader: FieldReader) -> WireMessage:
        found = message(**{name: reads(reader) for name, reads, _ in parts})
        if flexible:
            skip_tags(reader)
        return found

    def write(out: bytearray, value: WireMessage) -> None:
        for name, _, writes in parts:
            writes(out, getattr(value, name))
        if flexible:
            out.append(0)

    return Coder(read, write)


def decode(message: type[M], version: int, reader: FieldReader, *, flexible: bool) -> M:
    """Read a message of this version. Raises MalformedError."""
    found: M = _coder(message, version, flexible=flexible).read(reader)
    return found


def encode(value: WireMessage, version: int, *, flexible: bool) -> bytes:
    """Return a message of this version as bytes."""
    out = bytearray()
    _coder(type(value), version, flexible=flexible).write(out, value)
    return bytes(out)
