"""How ConsoleConsumer writes messages: `kafka.tools.*MessageFormatter`, 0.8.2 to 1.1."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from zkconsumer.admin.legacy import JavaError
from zkconsumer.cli.legacy.releases import Release
from zkconsumer.consumer.message import Message

Record = Message[Any, Any]
Formatter = Callable[[Record], bytes]

_NULL: Final = b"null"

# What librdkafka calls the kinds of time.
_TIMES: Final = {1: "CreateTime", 2: "LogAppendTime"}


def formatter(java: str, properties: Mapping[str, str], release: Release) -> Formatter:
    """Raises JavaError for a class that is not known here."""
    modern = release.since(Release.R0_10)
    match java:
        case "kafka.tools.DefaultMessageFormatter":
            return _default(properties, release)
        case "kafka.tools.LoggingMessageFormatter" if modern:
            # What it writes beside goes to a log that the tools switched off.
            return _default(properties, release)
        case "kafka.tools.NoOpMessageFormatter":
            return lambda message: b""
        case "kafka.tools.ChecksumMessageFormatter":
            topic = f"{properties['topic']}:" if "topic" in properties else ""
            checksum = _checksum if modern else _checksum_0
            return lambda message: f"{topic}checksum:{checksum(message)}\n".encode()
    raise JavaError("java.lang.ClassNotFoundException", java)


def _default(properties: Mapping[str, str], release: Release) -> Formatter:
    modern = release.since(Release.R0_10)

    def is_on(name: str, default: str) -> bool:
        return properties.get(name, default).strip().lower() == "true"

    tab = properties.get("key.separator", "\t").encode()
    end = properties.get("line.separator", "\n").encode()
    has_time = modern and is_on("print.timestamp", "false")
    has_key = is_on("print.key", "false")
    has_value = not release.since(Release.R0_11) or is_on("print.value", "true")
    key = _deserializer(properties.get("key.deserializer") if modern else None)
    value = _deserializer(properties.get("value.deserializer") if modern else None)

    def write(message: Record) -> bytes:
        parts = []
        if has_time:
            parts += [_time(message), tab if has_key or has_value else end]
        if has_key:
            parts += [key(_NULL if message.key is None else message.key)]
            parts += [tab if has_value else end]
        if has_value:
            parts += [value(_NULL if message.value is None else message.value), end]
        return b"".join(parts)

    return write


def _time(message: Record) -> bytes:
    kind, milliseconds = message._raw.timestamp()
    return f"{_TIMES[kind]}:{milliseconds}".encode() if kind in _TIMES else b"NO_TIMESTAMP"


# ---- deserializers ------------------------------------------------------------------------------

_PACKAGE: Final = "org.apache.kafka.common.serialization."
_NUMBERS: Final = {
    "LongDeserializer": ">q",
    "IntegerDeserializer": ">i",
    "ShortDeserializer": ">h",
}


def _deserializer(java: str | None) -> Callable[[bytes], bytes]:
    name = (java or "").removeprefix(_PACKAGE)
    if not name:
        return bytes
    if name == "StringDeserializer":
        return lambda data: data.decode(errors="replace").encode()
    if name not in _NUMBERS:
        raise JavaError("java.lang.ClassNotFoundException", java)
    form = struct.Struct(_NUMBERS[name])

    def decode(data: bytes) -> bytes:
        if len(data) != form.size:
            raise JavaError(
                "org.apache.kafka.common.errors.SerializationException",
                f"Size of data received by {name} is not {form.size}",
            )
        return str(form.unpack(data)[0]).encode()

    return decode


def _checksum(message: Record) -> int:
    """The CRC of the message as one of format 1, or 0 where it has no time (`Message.checksum`)."""
    kind, milliseconds = message._raw.timestamp()
    if kind not in _TIMES:
        return _checksum_0(message)
    return _crc(message, struct.pack(">bbq", 1, 8 if kind == 2 else 0, milliseconds))


def _checksum_0(message: Record) -> int:
    """Up to 0.9 a consumer knew of no other format."""
    return _crc(message, bytes(2))


def _crc(message: Record, head: bytes) -> int:
    return zlib.crc32(head + _sized(message.key) + _sized(message.value))


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
