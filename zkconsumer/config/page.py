"""Writes docs/configuration.md from the table, to standard output."""

from __future__ import annotations

import sys

from zkconsumer.config.property_types import DerivedDefault, MillisOrNever, Required, Setting
from zkconsumer.config.settings import EXEMPT, NO_EFFECT, TABLE


def configuration_page() -> str:
    """The whole page."""
    head = (
        "# Configuration",
        "",
        "Written by `python -m zkconsumer.config.page`; do not edit. A JVM consumer's properties",
        "file is taken as it is. Durations are whole milliseconds in a file, and float seconds in",
        'Python. "Ours" marks the properties that the JVM consumer does not have.',
        "",
        "| Property | Python | Default | Allowed | Effect |",
        "|---|---|---|---|---|",
    )
    rows = (
        f"| `{row.name}` | `{row.attribute}` | {_default(row)} | {row.kind.allowed}"
        f" | {row.effect} |"
        for row in TABLE
    )
    tail = (
        "",
        f"Accepted without effect: {', '.join(f'`{one}*`' for one in NO_EFFECT)}.",
        f"Names that begin with `{EXEMPT}` are yours. Any other name gives a warning, as in the",
        "JVM: `Property … is not valid`. What a file sets is logged at INFO:",
        "`Property … is overridden to …`, and where that has no effect here, this is said.",
        "",
        "librdkafka has limits where the JVM has none; what is beyond is the limit: 300 s of",
        "`socket.timeout.ms`, `offsets.channel.socket.timeout.ms`, `fetch.wait.max.ms` and",
        "`refresh.leader.backoff.ms` (10 ms at least of the first two), 100 MB of",
        "`socket.receive.buffer.bytes` and `fetch.min.bytes`, 1 GB of `fetch.message.max.bytes`.",
    )
    return "\n".join((*head, *rows, *tail, ""))


def _default(row: Setting) -> str:
    match row.default, row.kind:
        case Required(), _:
            return "required"
        case DerivedDefault(by=by), _:
            return by
        case None, MillisOrNever():
            return "-1"
        case None, _:
            return "none"
        case float(seconds), _:
            return str(round(seconds * 1000))
        case value, _:
            return str(value).lower()


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
