"""`zkconsumer groups delete`, `copy` and `rename`."""

from __future__ import annotations

from typing import Annotated

import typer

from zkconsumer.cli.changing import Changing, MaxZnodes, beside_kafka, carry_out, changing
from zkconsumer.cli.options import Common, OneGroup, either
from zkconsumer.core.paths import validate_group
from zkconsumer.errors import ConfigError

Source = Annotated[str, typer.Argument(metavar="GROUP", help="The group there is.")]
Doomed = Annotated[str | None, typer.Argument(metavar="GROUP", help="The group there is.")]
Target = Annotated[str, typer.Argument(metavar="NEW", help="A group that does not exist yet.")]


@changing
def delete(
    common: Common, how: Changing, *, group: Doomed = None, named: OneGroup = None,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Delete all that ZooKeeper holds of a group. A dry run without --execute.

    Example: zkconsumer groups delete billing-test --execute
    """
    from zkconsumer.admin.changes import plan_delete_group  # noqa: PLC0415

    given = either(group, named)
    if given is None:  # what the file of --config names is not meant by that
        raise ConfigError("no group was named", remedy="zkconsumer groups delete GROUP")
    name = validate_group(given)
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
        plan = plan_copy_group(connection, source, target)
        carry_out(common, connection, beside_kafka(connection, plan, source), how)


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
        carry_out(common, connection, beside_kafka(connection, plan, source), how)
