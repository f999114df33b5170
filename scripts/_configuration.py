"""Write docs/configuration.md and the docstring of ConsumerConfig.

Both are generated from the table of properties. Editors read the docstring in the source, so it
cannot be made when the module is imported. Tests compare both with what the command would write.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from zkconsumer.config.kafka_properties import ALWAYS_REFUSED, BY_BOTH, BY_LIBRDKAFKA, PREFIX
from zkconsumer.config.property_types import (
    DerivedDefault,
    Integer,
    MillisOrNever,
    Required,
    Setting,
)
from zkconsumer.config.settings import EXEMPT, NO_EFFECT, SETTINGS, ConsumerConfig

PAGE = ROOT / "docs" / "configuration.md"
SOURCE = ROOT / "zkconsumer" / "config" / "settings.py"


def configuration_page() -> str:
    """Return the whole page."""
    head = (
        "# Configuration",
        "",
        "`scripts/configuration` writes this page; do not edit it. zkconsumer reads a",
        "JVM consumer's properties file unchanged. Durations are whole milliseconds in a file, and",
        'float seconds in Python. "zkconsumer only" marks properties that the JVM consumer does',
        "not have.",
        "",
        "| Property | Python | Default | Allowed | Effect |",
        "|---|---|---|---|---|",
    )
    rows = (
        f"| `{row.name}` | `{row.attribute}` | {_default(row)} | {row.kind.allowed}"
        f" | {row.effect} |"
        for row in SETTINGS
    )
    tail = (
        "",
        f"Accepted without effect: {', '.join(f'`{one}*`' for one in NO_EFFECT)}.",
        f"Names that begin with `{EXEMPT}` are reserved for your own code. Any other unknown name",
        "causes the warning `Property … is not valid`, as in the JVM. Each property that a file",
        "sets is logged at INFO: `Property … is overridden to …`. The line also says if the",
        "property has no effect.",
        "",
        "librdkafka limits some values that the JVM does not limit. zkconsumer reduces a larger",
        "value to the limit:",
        "",
        "| Property | Limit |",
        "|---|---|",
        "| `socket.timeout.ms`, `offsets.channel.socket.timeout.ms` | 10 ms to 300 s |",
        "| `fetch.wait.max.ms`, `refresh.leader.backoff.ms` | 300 s |",
        "| `socket.receive.buffer.bytes`, `fetch.min.bytes` | 100 MB |",
        "| `fetch.message.max.bytes` | 1 GB |",
    )
    return "\n".join((*head, *rows, *tail, *_kafka_section(), ""))


def arguments_docstring() -> str:
    """Return the docstring of ConsumerConfig, which describes each argument, as in the source."""
    lines = [
        "The configuration of one consumer and of its connections; immutable.",
        "",
        "    The constructor is that of `ConnectionConfig`. Each argument is followed by its",
        "    property in a JVM consumer's file, its unit and its default.",
        "",
        "    Args:",
        "        properties: A mapping of the properties' names, such as `group.id`, to values.",
        "        kafka: A mapping of librdkafka's own properties, such as `ssl.ca.location`.",
    ]
    for row in SETTINGS:
        effect = re.sub(r"\[(\w+)\.md\]\(\S+?\)", r"`zkconsumer docs \1`", row.effect)
        facts = f"{row.name}; {_unit(row)}{_python_default(row)}"
        lines += textwrap.wrap(
            f"{row.attribute}: {effect} ({facts})",
            100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, "    "])


def _unit(row: Setting) -> str:
    if row.attribute.endswith("_s"):
        return "in seconds, "
    return "in bytes, " if isinstance(row.kind, Integer) and row.kind.unit == "bytes" else ""


def _python_default(row: Setting) -> str:
    """Return the default of an argument as Python writes it."""
    match row.default:
        case Required():
            return "required"
        case DerivedDefault(by=by):
            named = {one.name: f"the value of {one.attribute}" for one in SETTINGS}
            return f"default: {named.get(by, by)}"
        case value:
            return f"default: {value!r}"


def _kafka_section() -> tuple[str, ...]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, refusal in ALWAYS_REFUSED.items():
        reasons.setdefault(refusal, []).append(f"`{name}`")
    return (
        "",
        "## Properties of librdkafka",
        "",
        f"A property with the prefix `{PREFIX}` is passed on to librdkafka without the prefix, for",
        "every connection to a broker: `kafka.ssl.ca.location=/etc/ca.pem` sets librdkafka's",
        "`ssl.ca.location`. In Python the keyword argument `kafka` takes a mapping without the",
        'prefix: `kafka={"ssl.ca.location": "/etc/ca.pem"}`. librdkafka\'s',
        "[list of properties](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md)",
        "describes them. The connector checks the names and values when it is created.",
        "[security.md](security.md#brokers) shows the properties for TLS and SASL.",
        "",
        "If you set no `kafka.client.rack`, zkconsumer sets `client.rack` to a name that no broker",
        "has, because librdkafka without a rack cannot read short topic names from old brokers.",
        "",
        "librdkafka and zkconsumer's columnar reader (`fetch.engine`) honour these properties in",
        "the same way:",
        "",
        "| Property of librdkafka | Values that both readers honour |",
        "|---|---|",
        *(f"| `{name}` | {_values(allowed)} |" for name, allowed in sorted(BY_BOTH.items())),
        "",
        "Only librdkafka honours the following properties, other values of the properties above,",
        "and properties that zkconsumer does not know. If one of them is set, `fetch.engine=auto`",
        "reads through librdkafka, and a line of the log says so; `fetch.engine=columns` refuses",
        "the property by its name.",
        "",
        *(f"- {', '.join(names)}" for names in _groups()),
        "",
        "zkconsumer refuses these properties:",
        "",
        "| Property of librdkafka | Why it is refused | Instead |",
        "|---|---|---|",
        *(
            f"| {', '.join(names)} | {reason} | {instead} |"
            for (reason, instead), names in reasons.items()
        ),
        "| callbacks such as `error_cb`, except `oauth_cb` | zkconsumer needs librdkafka's"
        " callbacks itself | remove it |",
        "",
        "zkconsumer sets these properties of librdkafka, because a promise depends on them:",
        "",
        "| Setting | Promise | Releases of brokers that obey it |",
        "|---|---|---|",
        *(f"| {setting} | {promise} | {brokers} |" for setting, promise, brokers in _PROMISES),
    )


def _values(allowed: frozenset[str] | None) -> str:
    return "all" if allowed is None else ", ".join(sorted(allowed))


def _groups() -> Iterator[list[str]]:
    """Yield the properties that only librdkafka honours, grouped by the first word of the name."""
    for _, names in groupby(sorted(BY_LIBRDKAFKA), lambda name: name.partition(".")[0]):
        yield [f"`{name}`" for name in names]


_PROMISES: Final = (
    (
        "`allow.auto.create.topics=false`",
        "Reading creates no topic.",
        "0.11 and later. Older brokers with `auto.create.topics.enable` create each topic that a"
        " client names, even one that was just deleted. On them `fetch.engine=auto` reads through"
        " the columnar reader, which asks for all topics and names none. librdkafka still creates"
        " topics there in three cases: with `fetch.engine=librdkafka`; without the extra `fast`;"
        " and with a property that only librdkafka honours.",
    ),
    (
        "`client.rack=zkconsumer-has-no-rack`",
        "Partitions are read from their leaders.",
        "all; before 2.4, brokers let clients read from leaders only",
    ),
    (
        "`isolation.level`",
        "By default, a member reads what the group's JVM members read; with `read_committed`, only"
        " messages of committed transactions.",
        "all: brokers before 0.11 have no transactions",
    ),
    (
        "`fetch.max.bytes`",
        "The memory of a stream is bounded.",
        "0.10.1 and later; older brokers return up to `fetch.message.max.bytes` for each partition",
    ),
    (
        "`api.version.request=false`, `broker.version.fallback`",
        "librdkafka reads from brokers of 0.8 and 0.9.",
        "set only for those brokers; librdkafka 3 will drop them",
    ),
    (
        "`check.crcs`, `auto.offset.reset=error`, `enable.auto.commit=false`,"
        " `enable.auto.offset.store=false`, `queued.min.messages`, `queued.max.messages.kbytes`,"
        " `receive.message.max.bytes`",
        "No damaged message is delivered. Only zkconsumer resets and commits offsets. The memory of"
        " a stream is bounded.",
        "librdkafka itself obeys them, so the release does not matter",
    ),
)
"""librdkafka's settings that zkconsumer sets, the promise that rests on them, and the brokers that
obey them."""


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
        case bool(value), _:
            return str(value).lower()
        case value, _:
            return str(value)


if __name__ == "__main__":
    PAGE.write_text(configuration_page(), encoding="utf-8")
    source, old = SOURCE.read_text(encoding="utf-8"), str(ConsumerConfig.__doc__)
    assert source.count(old) == 1
    SOURCE.write_text(source.replace(old, arguments_docstring()), encoding="utf-8")
