"""`zkconsumer topics forget`: take a topic out of groups."""

from __future__ import annotations

from typing import Annotated

import typer

from zkconsumer.cli.changing import Changing, MaxZnodes, carry_out, changing
from zkconsumer.cli.options import Common, Groups
from zkconsumer.core.paths import validate_group, validate_topic


@changing
def forget(
    common: Common,
    how: Changing,
    *,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics, as named.")],
    group: Groups = None,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Delete topics' offsets and owners of groups. A dry run first.

    Without --group, of all groups. For topics that were deleted, and before one of that name is
    made again: stored offsets would belong to the old one.

    Example: zkconsumer topics forget orders-old --execute
    """
    from zkconsumer.admin.changes import plan_forget_topics  # noqa: PLC0415

    names = list(dict.fromkeys(map(validate_topic, topics)))
    groups = None if group is None else list(dict.fromkeys(map(validate_group, group)))
    with common.connect() as connection:
        plan = plan_forget_topics(connection, names, groups=groups, max_deleted=max_znodes)
        carry_out(common, connection, plan, how)
