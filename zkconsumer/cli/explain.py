"""`zkconsumer explain GROUP`: why each thread owns its partitions."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, TypeAlias

import typer
from typer.core import TyperGroup

from zkconsumer.cli import explain_placement
from zkconsumer.cli.options import Common, OneGroup, Topics, operator, topics_of
from zkconsumer.cli.output import Align, Column, Output, safe, say, say_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zkconsumer.admin.explain import Explanation, Share
    from zkconsumer.admin.groups import Selection

Click: TypeAlias = Any
"""A context or a command of click. typer's own copy of click is not public."""

_WIDTH = 80
"""Characters per line of a paragraph if standard output is not a terminal."""


class _GroupByDefault(TyperGroup):
    """Runs the command `group` if the first argument names no other command."""

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        is_help = bool(args) and args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_help else self._with_command(args))

    def resolve_command(self, ctx: Click, args: list[str]) -> Click:
        return super().resolve_command(ctx, self._with_command(args))

    def _with_command(self, args: list[str]) -> list[str]:
        return args if args and args[0] in self.commands else ["group", *args]


app = typer.Typer(
    cls=_GroupByDefault,
    add_completion=False,
    rich_markup_mode=None,
    help="Explain why each thread of a group owns its partitions: `zkconsumer explain GROUP`.\n\n"
    "The other commands show where Kafka puts coordinators, keys and replicas.",
)
explain_placement.add_to(app)


def _columns() -> tuple[Column, ...]:
    from zkconsumer.admin.findings import ranges

    def short(numbers: Iterable[int]) -> str:
        return ranges(numbers) or "-"

    return (
        Column("position", "#", align=Align.RIGHT),
        Column("thread"),
        Column("partitions", show=short),
        Column("owned", "OWNS NOW", show=short, drop=1),
        Column("why"),
    )


@app.command("group")
@operator()
def explain(
    common: Common,
    *,
    group: OneGroup = None,
    topic: Topics = None,
) -> None:
    """Explain in words how the members of a live group compute who owns what. Changes nothing.

    The owner znodes show the strategy and the release (docs/releases.md). If no partition has an
    owner, partition.assignment.strategy of --config is used. Exit code 6: the assignment fails for
    a member. Exit code 1: no member subscribes to a topic of --topic.

    Example: zkconsumer explain group billing --zookeeper zk1:2181/kafka
    """
    from zkconsumer.admin.explain import explain as explained
    from zkconsumer.cli import Exit

    name = common.group(group)
    only = topics_of(topic)
    settings = common.settings(name)
    with common.connect(name) as connection:
        found = explained(connection, name, settings=settings)
    wanted = set(only or found.topics)
    unknown = sorted(wanted - found.topics.keys())
    say_all(f"no member subscribes to topic {one}" for one in unknown)
    _write(common, found, wanted, only or {})
    for consumer, why in found.failures.items():
        say(f"member {consumer} would fail: {why}")
    if found.failures:
        raise typer.Exit(Exit.FOUND)
    if unknown:
        raise typer.Exit(Exit.FAILED)


def _has_any(share: Share, partitions: frozenset[int] | None) -> bool:
    """Return whether a thread has or owns one of the partitions; None means all partitions."""
    return partitions is None or bool(partitions & {*share.partitions, *share.owned})


def _write(common: Common, found: Explanation, wanted: set[str], only: Selection) -> None:
    rows = [
        {
            "topic": one.topic,
            "position": one.position,
            "thread": one.thread,
            "partitions": list(one.partitions),
            "owned": list(one.owned),
            "why": one.why,
        }
        for one in found.shares
        if one.topic in wanted and _has_any(one, only.get(one.topic))
    ]
    if common.output in (Output.JSON, Output.YAML):
        topics = {name: text for name, text in found.topics.items() if name in wanted}
        document = {
            "group": found.group,
            "rules": found.rules,
            "words": list(found.words),
            "topics": topics,
            "threads": rows,
            "failures": found.failures,
        }
        common.write_document(document)
        return
    columns = _columns()
    if common.output in (Output.JSONL, Output.CSV):
        common.write(rows, (Column("topic"), *columns))
        return
    width = common.screen.width or _WIDTH
    print("\n\n".join(textwrap.fill(safe(text), width) for text in found.words))
    for name, text in found.topics.items():
        if name not in wanted:
            continue
        print(f"\n{safe(name)}\n{textwrap.fill(safe(text), width)}")
        common.write([row for row in rows if row["topic"] == name], columns)
