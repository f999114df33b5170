"""Messages as lines: their values, or one JSON object for each message (`docs/schemas`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

    from zkconsumer.consumer.messages import Message


def raw_lines(messages: Iterable[Message[bytes, bytes]]) -> bytes:
    """Return the values, each with a newline."""
    # The JVM's DefaultMessageFormatter writes "null" for a message without a value, too.
    return b"".join((b"null" if one.value is None else one.value) + b"\n" for one in messages)


def json_lines(messages: Iterable[Message[bytes, bytes]]) -> bytes:
    """Return one JSON object for each message."""
    return b"".join(
        _json_line((one.topic, one.partition, one.offset, one.timestamp), one.key, one.value)
        for one in messages
    )


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
    return b"".join(_json_line(*row) for row in rows)


def _json_line(
    place: tuple[str, int, int, int | None], key: bytes | None, value: bytes | None
) -> bytes:
    document = {
        **dict(zip(("topic", "partition", "offset", "timestamp"), place, strict=True)),
        **_text("key", key),
        **_text("value", value),
    }
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
