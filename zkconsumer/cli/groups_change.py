"""`zkconsumer groups delete`, `copy` and `rename`."""

from __future__ import annotations

from typing import Annotated

import typer

from zkconsumer.cli.changing import Changing, MaxZnodes, carry_out, changing
from zkconsumer.cli.options import Common
from zkconsumer.core.paths import validate_group

Source = Annotated[str, typer.Argument(metavar="GROUP", help="The group there is.")]
Target = Annotated[str, typer.Argument(metavar="NEW", help="A group that does not exist yet.")]


@changing
def delete(
    common: Common, how: Changing, *, group: Source, max_znodes: MaxZnodes = 10_000
) -> None:
    """Delete all that ZooKeeper holds of a group. A dry run without --execute.

    Example: zkconsumer groups delete billing-test --execute
    """
    from zkconsumer.admin.changes import plan_delete_group  # noqa: PLC0415

    name = validate_group(group)
    with common.connect(name) as connection:
        carry_out(
            common, connection, plan_delete_group(connection, name, max_deleted=max_znodes), how
        )


@changing
def copy(common: Common, how: Changing, *, group: Source, new: Target) -> None:
    """Give a new group all offsets of another. A dry run without --execute.

    Example: zkconsumer groups copy billing billing-test --execute
    """
    from zkconsumer.admin.changes import plan_copy_group  # noqa: PLC0415

    source, target = validate_group(group), validate_group(new)
    with common.connect(source) as connection:
        carry_out(common, connection, plan_copy_group(connection, source, target), how)


@changing
def rename(
    common: Common, how: Changing, *, group: Source, new: Target, max_znodes: MaxZnodes = 10_000
) -> None:
    """Give all offsets of a group to a new one, and delete it. A dry run without --execute.

    Example: zkconsumer groups rename billing billing-v2 --execute
    """
    from zkconsumer.admin.changes import plan_rename_group  # noqa: PLC0415

    source, target = validate_group(group), validate_group(new)
    with common.connect(source) as connection:
        plan = plan_rename_group(connection, source, target, max_deleted=max_znodes)
        carry_out(common, connection, plan, how)
