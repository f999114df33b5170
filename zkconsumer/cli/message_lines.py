"""Messages as lines: their values, or one JSON object for each message (`docs/schemas`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow

Shown: TypeAlias = Any  # Any: a `Message[bytes, bytes]`, or another object with its fields

Lines = Callable[[Iterable[Shown]], bytes]
"""A function from messages to the text that the command writes."""


def raw_lines(messages: Iterable[Shown]) -> bytes:
    """Return the values, each with a newline."""
    # The JVM's DefaultMessageFormatter writes "null" for a message without a value, too.
    return b"".join((b"null" if one.value is None else one.value) + b"\n" for one in messages)


def hex_lines(messages: Iterable[Shown]) -> bytes:
    """Return the values in hexadecimal, each with a newline; "null" for a missing value."""
    return b"".join(
        (b"null" if one.value is None else one.value.hex().encode()) + b"\n" for one in messages
    )


def json_lines(messages: Iterable[Shown]) -> bytes:
    """Return one JSON object for each message; `headers` only if the message has headers."""
    return b"".join(
        _json_line(_place(one), one.key, _text("value", one.value), one.headers) for one in messages
    )


def parsed_lines(messages: Iterable[Shown]) -> bytes:
    """Return what `json_lines` returns, with the values that are JSON as JSON."""
    return b"".join(
        _json_line(_place(one), one.key, _parsed(one.value), one.headers) for one in messages
    )


def _place(one: Shown) -> tuple[str, int, int, int | None]:
    return one.topic, one.partition, one.offset, one.timestamp


def _parsed(value: bytes | None) -> dict[str, object]:
    """Return a value that is JSON as JSON. Others remain text: what no reader of the line could
    parse (NaN, infinite numbers, halves of a surrogate pair) or nest as deeply."""
    if value is None:
        return {"value": None}
    try:
        found = json.loads(value)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {**_text("value", value)}
    return {"value": found}


def json_lines_of_columns(batch: pyarrow.RecordBatch) -> bytes:
    """Return one JSON object for each message of a batch of columns."""
    times = [
        None if time is None else time // 1000
        for time in batch["timestamp"].cast("int64").to_pylist()
    ]
    topics, partitions, offsets = (
        batch[name].to_pylist() for name in ("topic", "partition", "offset")
    )
    places = zip(topics, partitions, offsets, times, strict=True)
    rows = zip(places, batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return b"".join(_json_line(place, key, _text("value", value)) for place, key, value in rows)


def _json_line(
    place: tuple[str, int, int, int | None],
    key: bytes | None,
    value: Mapping[str, object],
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> bytes:
    document: dict[str, object] = {
        **dict(zip(("topic", "partition", "offset", "timestamp"), place, strict=True)),
        **_text("key", key),
        **value,
    }
    if headers:
        document["headers"] = [{"name": name, **_text("value", data)} for name, data in headers]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as a JSON field: text under `name` if they are UTF-8, else base64 under
    `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
