"""`zkconsumer topics`: list topics, show leaders and replicas, remove topics from groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli import completion
from zkconsumer.cli.apply import Changing, MaxZnodes, carry_out, changing
from zkconsumer.cli.options import (
    AllGroups,
    Common,
    OnlyOptions,
    Topics,
    operator,
    topics_of,
    whole_topics,
)
from zkconsumer.cli.output import Align, Color, Column, Row, Unknown, say
from zkconsumer.errors import Advice, RemedyOperation, ZkConsumerError

if TYPE_CHECKING:
    from zkconsumer.admin.groups import PartitionReplicas, TopicSummary
    from zkconsumer.zk.client import ZooKeeperClient


# ---- topics forget -------------------------------------------------------------------------------


@changing
def forget(
    common: Common,
    how: Changing,
    *,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC", help="Names of the topics.", autocompletion=completion.topics
        ),
    ],
    group: OnlyOptions = None,
    all_groups: AllGroups = False,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Delete the offsets and owner znodes of topics. A dry run without --execute.

    Give --group, or --all-groups. Use this when a topic was deleted, before a topic of the same
    name is created: the stored offsets refer to the deleted topic.

    Example: zkconsumer topics forget orders-old --all-groups --execute
    """
    from zkconsumer.admin.group_changes import plan_forget_topics

    remedy = "`zkconsumer offsets delete --topic TOPIC:P,P` deletes the offsets of partitions"
    names = whole_topics(topics, remedy=remedy) or []
    groups = common.groups_to_change(group, all_groups=all_groups)
    with common.connect() as connection:
        plan = plan_forget_topics(connection, names, groups=groups, max_deleted=max_znodes)
        carry_out(common, connection, plan, how, how.watch(connection, *plan.groups))


# ---- topics list, topics show --------------------------------------------------------------------


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List topics, show their leaders and replicas, and remove them from groups.",
)

NAMES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC",
        help="Topics, as with --topic; default: all.",
        autocompletion=completion.topics,
    ),
]
LIST_COLUMNS = (
    Column("topic"),
    Column("partitions", align=Align.RIGHT),
    Column("replicas", align=Align.RIGHT, drop_order=1, type="integer|string?"),
)


def _of_brokers(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


SHOW_COLUMNS = (
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column(
        "leader",
        align=Align.RIGHT,
        color=lambda leader: Color.BAD if leader is None else None,
    ),
    Column("replicas", drop_order=2, type="integers", show=_of_brokers),
    Column("isr", drop_order=3, type="integers", show=_of_brokers),
    Column(
        "out_of_sync",
        drop_order=1,
        type="integers",
        show=lambda brokers: _of_brokers(brokers) or "-",
        color=lambda brokers: Color.WARNING if brokers else None,
    ),
)


@app.command("list")
@operator()
def list_(common: Common, *, names: NAMES = None, topic: Topics = None) -> None:
    """List topics with their numbers of partitions and replicas. Changes nothing.

    Example: zkconsumer topics list -z zk1:2181/kafka
    """
    from zkconsumer.admin.groups import topics

    names = whole_topics([*(names or ()), *(topic or ())])
    with common.connect() as connection:
        found = topics(connection, names)
        common.write(map(_summary_row, found), LIST_COLUMNS)
        _check_missing(connection, names, {one.name for one in found})


@app.command("show")
@operator()
def show(common: Common, *, names: NAMES = None, topic: Topics = None) -> None:
    """Show the leader and the replicas of each partition. Changes nothing.

    Example: zkconsumer topics show orders -z zk1:2181/kafka
    """
    from zkconsumer.admin.groups import partitions, topics

    only = topics_of([*(names or ()), *(topic or ())]) or {}
    with common.connect() as connection:
        every = topics(connection, only or None)
        found = [
            one
            for one in partitions(connection, (one.name for one in every if not one.fault))
            if (some := only.get(one.topic)) is None or one.partition in some
        ]
        common.write(map(_place_row, found), SHOW_COLUMNS)
        leaderless = sum(one.leader is None for one in found)
        behind = sum(bool(one.out_of_sync) for one in found)
        if leaderless:
            say(f"{leaderless} of {len(found)} partitions have no leader")
        if behind:
            say(f"{behind} of {len(found)} partitions have replicas that are not in sync")
        for one in every:
            if one.fault:
                say(f"topic {one.name}: {one.fault}")
        _check_missing(connection, only, {one.name for one in every})


def _check_missing(
    connection: ZooKeeperClient, names: Iterable[str] | None, found: set[str]
) -> None:
    """Raise ZkConsumerError with the topics that were not found."""
    from zkconsumer.admin.groups import unknown_topic_remedy

    missing = sorted(set(names or ()) - found)
    if missing:
        raise ZkConsumerError(
            f"no such topic: {', '.join(missing)}",
            remedy=unknown_topic_remedy(missing[0], connection),
            advice=Advice(RemedyOperation.LIST_TOPICS),
        )


def _summary_row(topic: TopicSummary) -> Row:
    fewest, most = topic.replicas
    row: dict[str, object] = {"topic": topic.name, "partitions": topic.partitions}
    if topic.fault:
        return row | dict.fromkeys(("partitions", "replicas"), Unknown(topic.fault))
    return row | {"replicas": fewest if fewest == most else f"{fewest}-{most}"}


def _place_row(place: PartitionReplicas) -> Row:
    leader: object = place.leader
    if isinstance(leader, str):
        leader = Unknown(leader)
    return {
        "topic": place.topic,
        "partition": place.partition,
        "leader": leader,
        "replicas": list(place.replicas),
        "isr": list(place.isr),
        "out_of_sync": list(place.out_of_sync),
    }


app.command("forget")(forget)
