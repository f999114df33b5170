"""`zkconsumer undo`: put back what a change has taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zkconsumer.cli.changing import Changing, carry_out, changing
from zkconsumer.cli.options import Common

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@changing
def undo(
    common: Common,
    how: Changing,
    *,
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="As the change has written and named it.")
    ],
) -> None:
    """Put back what stood there before a change. A dry run without --execute.

    Znodes come back with their data and access control lists, also over what was written since.

    Example: zkconsumer undo zkconsumer-backup-billing-20260131T120000.000000Z-0123456789ab.json
    """
    from zkconsumer.admin.planfile import load  # noqa: PLC0415
    from zkconsumer.admin.undo import plan_undo  # noqa: PLC0415

    done = load(backup)
    with common.connect() as connection:
        store = None
        if done.kafka:
            from zkconsumer.admin.kafkastore import BrokerOffsets  # noqa: PLC0415

            store = BrokerOffsets.of(connection)
        carry_out(common, connection, plan_undo(connection, done, kafka=store), how)
