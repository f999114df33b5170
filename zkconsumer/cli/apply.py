"""`zkconsumer apply`: make the changes of a plan file, or finish those of a backup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zkconsumer.cli.changing import Applying, carry_out, changing
from zkconsumer.cli.options import Common

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@changing
def apply(
    common: Common,
    how: Applying,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of --plan-out, or a backup.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it.")] = False,
) -> None:
    """Apply a plan, if nothing has changed since it was made: at once, without --execute.

    A plan that was applied in part is finished; what is done already counts as done.

    Example: zkconsumer apply plan.json
    """
    from zkconsumer.admin.planfile import load  # noqa: PLC0415

    plan = load(file)
    with common.connect() as connection:
        carry_out(common, connection, plan, replace(how, execute=not dry_run))
