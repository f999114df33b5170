"""`zkconsumer verify`: has the group settled?"""

from __future__ import annotations

from typing import Annotated

import typer

from zkconsumer.cli.options import Common, OneGroup, operator
from zkconsumer.cli.output import Align, Column, Output, say

COLUMNS = (
    Column("code", "FINDING"),
    Column("subject", "TOPIC OR MEMBER"),
    Column("what"),
    Column("partitions", wide_only=True, align=Align.LEFT),
    Column("remedy", wide_only=True),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator
def verify(
    common: Common,
    *,
    group: OneGroup = None,
    internal: Annotated[
        bool,
        typer.Option("--internal-topics", help="With exclude.internal.topics=false."),
    ] = False,
) -> None:
    """Check that a group has settled: every partition that its members ask for has an owner node,
    of a thread that a member registered for the topic. Reads only.

    Exit code 0: it has; 1: it has not, and the findings are written. What VerifyConsumerRebalance
    meant to check, which says "failed" of every group in 0.8.2 to 0.10.0.0.

    Example: zkconsumer verify --zookeeper zk1:2181/kafka --group billing
    """
    from zkconsumer.admin.verify import verify as verified  # noqa: PLC0415
    from zkconsumer.cli import Exit  # noqa: PLC0415

    name = common.group(group)
    with common.connect(name) as connection:
        found = verified(connection, name, exclude_internal=not internal)
    rows = [
        {
            "code": one.code, "subject": one.subject, "what": one.what,
            "partitions": list(one.partitions), "remedy": one.remedy,
        }
        for one in found
    ]  # fmt: skip
    if found or common.output not in (Output.TABLE, Output.WIDE):
        common.write(rows, COLUMNS)
    if found:
        raise typer.Exit(Exit.PROBLEM)
    say(f"group {name} has settled")
