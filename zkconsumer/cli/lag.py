"""`zkconsumer lag`: the lag of groups, once, repeatedly, or served to Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.lag_exporter import Exporting, cluster_name, clusters_of, serve
from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import (
    Addressed,
    AllGroups,
    Groups,
    Topics,
    client_cell,
    operator,
    topics_of,
)
from zkconsumer.cli.output import (
    ROWS,
    Align,
    Color,
    Column,
    Output,
    Progress,
    Row,
    Table,
    Unknown,
    say,
    say_all,
)
from zkconsumer.cli.watching import Interval, Reading, Watch, watch
from zkconsumer.errors import ConfigError, first_few, shell_word
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import session_text
from zkconsumer.protocol.paths import consumer_of, offset, owners

if TYPE_CHECKING:
    from zkconsumer.admin.exporter import ServedGroup
    from zkconsumer.admin.groups import GroupImage, Selection
    from zkconsumer.admin.lag import GroupLag, PartitionLag, Status
    from zkconsumer.config.settings import ConnectionConfig
    from zkconsumer.protocol.group_health import GroupHealth
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.clients import ClientAddresses


# ---- partitions as rows, also for `groups show` and `offsets get` --------------------------------

_COLORS: Mapping[str, Color] = {
    "OK": Color.GOOD,
    "WARNING": Color.WARNING,
    "STALLED": Color.BAD,
    "STOPPED": Color.BAD,
    "REWOUND": Color.BAD,
}


def _status_color(value: object) -> Color | None:
    return _COLORS.get(str(value))


def _faint_if_none(value: object) -> Color | None:
    return Color.FAINT if value is None or isinstance(value, Unknown) else None


GROUP = Column("group", drop_order=7)
STATUS = Column("status", color=_status_color)
STORES = (
    Column("zookeeper", align=Align.RIGHT, wide_only=True, drop_order=4),
    Column("kafka", align=Align.RIGHT, wide_only=True, drop_order=4),
)
"""The offsets in both stores. A table shows them if they differ."""

COLUMNS = (
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("offset", align=Align.RIGHT),
    Column("source", drop_order=2),
    *STORES,
    Column("log_start", align=Align.RIGHT, drop_order=1),
    Column("log_end", align=Align.RIGHT, drop_order=5),
    Column("lag", align=Align.RIGHT, color=_faint_if_none),
    Column("last_commit", drop_order=3, color=_faint_if_none),
    Column("owner", drop_order=6, color=_faint_if_none),
    Column("session", wide_only=True),
    Column("client", wide_only=True),
)


ONE_GROUP_COLUMNS = (replace(GROUP, wide_only=True), *COLUMNS)
"""The columns of one group's partitions. Formats for programs have the column `group`, too."""


def unknown(value: object) -> object:
    """Return a string as an `Unknown` with that reason, and any other value unchanged."""
    return Unknown(value) if isinstance(value, str) else value


def partition_row(
    group: str, one: PartitionLag, addresses: ClientAddresses | None = None
) -> dict[str, object]:
    """Return a partition as a row of `COLUMNS` and `GROUP`. With `addresses`, `client` is the
    address of its owner."""
    log = one.log
    kafka = one.in_kafka if isinstance(one.in_kafka, tuple) else None
    return {
        "group": group,
        "topic": one.topic,
        "partition": one.partition,
        "offset": unknown(one.committed),
        "source": source_text(one),
        "zookeeper": unknown(one.in_zookeeper),
        "kafka": unknown(one.in_kafka if kafka is None else kafka.offset),
        "log_start": Unknown(log) if isinstance(log, str) else log.start,
        "log_end": Unknown(log) if isinstance(log, str) else log.end,
        "lag": unknown(one.lag),
        "last_commit": _last_commit(one),
        "owner": Unknown(one.fault) if one.fault else one.owner,
        "session": session_text(one.session) if one.owner is not None else None,
        "client": client_cell(one.session, addresses),
    }


def source_text(one: PartitionLag) -> str | None:
    """Return the store of the offset, with the rule if both stores have one: "kafka (larger)"."""
    if one.source is None:
        return None
    return f"{one.source.value} ({one.rule})" if one.rule else one.source.value


def _last_commit(one: PartitionLag) -> object:
    if not isinstance(one.committed, int):
        return None
    if one.committed_ms is None:
        return Unknown("Kafka does not return the time of a commit")
    return of_time(one.committed_ms)


def partition_rows(
    groups: Iterable[GroupLag],
    *,
    status_of: Callable[[str, PartitionLag], Status | None] | None = None,
    addresses: ClientAddresses | None = None,
) -> Iterator[Row]:
    """Yield the rows of groups; `status_of` adds the status of each partition, and `addresses` the
    address of its owner."""
    for group in groups:
        for one in group.partitions:
            row = partition_row(group.name, one, addresses)
            if status_of is not None:
                status = status_of(group.name, one)
                row["status"] = status.value if status else None
            yield row


def group_notes(group: GroupLag, health: GroupHealth | None = None) -> Iterator[str]:
    """Yield the notes below a group's table: on its users, on missing offsets and owners, and on
    idle threads. `health` is the answer of several readings; None: of this reading."""
    from zkconsumer.admin.groups import idle_by_design
    from zkconsumer.admin.health import remarks

    health = group.image.health if health is None else health
    if group.unreadable:
        yield from refusals(group)
    else:
        for remark in remarks(health, time.time()):
            yield f"group {group.name}: {remark}"
        if not group.image.offsets and all(one.committed is None for one in group.partitions):
            yield f"group {group.name}: no offset is committed, in ZooKeeper or in Kafka"
    for why in idle_by_design(group.requested_topics):
        yield f"group {group.name}: {why}"
    different = [
        f"{one.tp} {one.differing[0]} and {one.differing[1]}"
        for one in group.partitions
        if one.differing
    ]
    if different:
        yield (
            f"group {group.name}: ZooKeeper and Kafka have different offsets:"
            f" {first_few(different, 5)}; the lag follows the store whose offset has moved between"
            " two readings, and otherwise the larger offset"
        )
    subscribed = group.subscribed
    unowned = [
        str(one.tp)
        for one in group.partitions
        if one.tp in subscribed and one.owner is None and not one.fault
    ]
    if unowned and health.live:
        yield f"group {group.name}: {first_few(unowned, 5)} without an owner"
    yield from offset_notes(group)
    if read := [str(one.tp) for one in group.partitions if one.is_read]:
        yield (
            f"group {group.name}: no message is left of {first_few(read, 5)}: only transaction"
            " markers lie before the end of the log, and JVM members cannot move over them"
        )
    yield from _outside_the_log(group)


def offset_notes(group: GroupLag) -> Iterator[str]:
    """Yield the notes on offset znodes that only people can read, that nobody can read, or that are
    empty."""
    for one in group.partitions:
        at = f"group {group.name}: {one.topic}-{one.partition}"
        if group.image.refusal(offset(group.name, one.tp)):
            continue  # `refusals` names the znode
        if one.remark:
            repair = f"zkconsumer doctor -g {shell_word(group.name)} --fix"
            yield f"{at}: {one.remark} (`{repair}` repairs it)"
        elif isinstance(one.in_zookeeper, str):
            yield f"{at}: the offset in ZooKeeper cannot be read: {one.in_zookeeper}"


def refusals(group: GroupLag) -> Iterator[str]:
    """Yield which znodes of a group this client may not read, and what to do."""
    if denial := group.image.denial:
        yield f"group {group.name}: {denial}"


def unmatched(
    groups: Iterable[GroupLag], only: Selection | None, connection: ZooKeeperClient
) -> list[str]:
    """Return a note for each selected topic or partition that no group has a row for."""
    from zkconsumer.admin.groups import read_topic_names, unknown_topic_remedy

    there = {(one.topic, one.partition) for group in groups for one in group.partitions}
    topics = {topic for topic, _ in there}
    names = {
        name: topic
        for topic, numbers in (only or {}).items()
        for name in (
            [f"{topic}-{one}" for one in sorted(numbers) if (topic, one) not in there]
            if numbers is not None and topic in topics
            else [topic] * (topic not in topics)
        )
    }
    existing = read_topic_names(connection) if names else []
    return [
        f"{name}: no group that was read owns it, has its offset, or subscribes to it"
        + (
            " (`zkconsumer groups list --topic TOPIC` lists the groups of a topic)"
            if topic in existing
            else f", and topic {topic} does not exist: {unknown_topic_remedy(topic, connection)}:"
            " `zkconsumer topics list`"
        )
        for name, topic in names.items()
    ]


def _outside_the_log(group: GroupLag) -> Iterator[str]:
    behind, ahead = [], []
    for one in group.partitions:
        if isinstance(one.log, str) or not isinstance(one.committed, int):
            continue
        if one.committed < one.log.start:
            behind.append(f"{one.topic}-{one.partition}")
        elif one.committed > one.log.end:
            ahead.append(f"{one.topic}-{one.partition}")
    if behind:
        yield (
            f"group {group.name}: offsets before the start of the log, whose messages are deleted:"
            f" {first_few(behind, 5)}"
        )
    if ahead:
        yield f"group {group.name}: offsets beyond the end of the log: {first_few(ahead, 5)}"


# ---- the command ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LagChoice:
    """Values of the options that choose groups and topics by their names, and judge partitions."""

    allow_groups: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Read only the groups whose whole names match."),
    ] = None
    deny_groups: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Leave out the groups whose whole names match."),
    ] = None
    allow_topics: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Show only the topics whose whole names match."),
    ] = None
    deny_topics: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Leave out the topics whose whole names match."),
    ] = None
    commit_interval: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="S",
            help="auto.commit.interval.ms of the members, in seconds. A partition without a commit"
            " for twice this time counts as not committing.",
        ),
    ] = 60.0
    allowed_lag: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="A lag of up to N messages has the status OK."),
    ] = 0
    window: Annotated[
        int,
        typer.Option(
            min=2, metavar="N", help="Number of last commits from which the status is derived."
        ),
    ] = 10

    @cached_property
    def is_group(self) -> Callable[[str], bool]:
        """Whether a group is chosen. Raises InvalidFilterError."""
        return _is_chosen(self.allow_groups, self.deny_groups)

    @cached_property
    def is_topic(self) -> Callable[[str], bool]:
        """Whether a topic is chosen. Raises InvalidFilterError."""
        return _is_chosen(self.allow_topics, self.deny_topics)


def _is_chosen(allowed: str | None, denied: str | None) -> Callable[[str], bool]:
    """Return a function that says whether a name is allowed and not denied."""
    from zkconsumer.protocol.filters import matching, white_list

    filters = [None if one is None else white_list(one) for one in (allowed, denied)]

    @cache
    def is_chosen(name: str) -> bool:
        allow, deny = (
            None if one is None else bool(matching(one, [name], internal=frozenset()))
            for one in filters
        )
        return allow is not False and not deny

    return is_chosen


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator(formats=(*ROWS, Output.PROMETHEUS, Output.LEGACY), of=(Addressed, Exporting, LagChoice))
def lag(
    common: Addressed,
    exporting: Exporting,
    choice: LagChoice,
    *,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    watch_: Watch = False,
    interval: Interval = 5.0,
    fail_above: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Exit with 6 if the lag of a partition exceeds N messages or is unknown.",
        ),
    ] = None,
) -> None:
    """Show committed offsets, log ends, and the lag between them. Changes nothing.

    If no group is named, all groups are read. --output prometheus writes the metrics of
    --prometheus once. --output legacy imitates the tool of Kafka 1.1.1. Each partition has a
    status: OK, WARNING (the lag grows), STALLED (it has an owner but the offset does not advance),
    STOPPED (it has no owner and no commits), REWOUND (the offset went back). One reading sees only
    the last commit in ZooKeeper; --watch also sees changes. If ZooKeeper and Kafka have different
    offsets, the lag follows the store whose offset has moved between two readings, and otherwise
    the larger offset; SOURCE names the rule. LAST-COMMIT is unknown for offsets in Kafka. Exit code
    1: no group uses a topic or a partition that --topic names (owns it, subscribes to it, or has an
    offset for it), or ZooKeeper denied access to some of the groups' znodes. Their values are shown
    as unknown.

    Example: zkconsumer lag -z zk1:2181/kafka --group billing --watch
    """
    if (watch_ or exporting.prometheus) and fail_above is not None:
        raise ConfigError(
            "--fail-above excludes --watch and --prometheus",
            remedy="leave out --watch and --prometheus",
        )
    if exporting.cluster and not exporting.prometheus:
        raise ConfigError("--cluster needs --prometheus", remedy="add --prometheus PORT")
    # The group of the settings belongs to one cluster, so it does not limit several clusters.
    is_every = all_groups or (bool(exporting.cluster) and not group)
    names, only = common.groups(group, all_groups=is_every), topics_of(topic)
    if exporting.prometheus:
        clusters = clusters_of(common, exporting.cluster, lambda: _settings(common, names))
        serve(
            exporting,
            clusters,
            lambda settings: LagReader(settings, names, only, choice),
            interval_s=interval,
            window=choice.window,
        )
    from zkconsumer.zk.client import ZooKeeperClient

    settings = _settings(common, names)
    reader = LagReader(settings, names, only, choice)
    with ZooKeeperClient(settings) as connection:
        reader.use(connection)
        if watch_:
            watch(common, connection, lambda: reader.read_for_watch(common), interval_s=interval)
        else:
            _show(reader, common, exporting, fail_above)


def _settings(common: Addressed, names: Sequence[str] | None) -> ConnectionConfig:
    return common.connection_settings(names[0] if names else None)


class LagReader:
    """Reads groups of one cluster repeatedly, and keeps what the readings show.

    Call `use` before the first reading, and with each new connection.
    """

    def __init__(
        self,
        settings: ConnectionConfig,
        names: Sequence[str] | None,
        only: Selection | None,
        choice: LagChoice,
    ) -> None:
        from zkconsumer.admin.lag_history import LagHistory

        self._connection: ZooKeeperClient | None = None
        self._names, self.only, self._choice = names, only, choice
        self._limit_s = settings.zookeeper_connection_timeout_s
        self.missing: list[str] = []
        self.history = LagHistory(
            patience_s=2 * choice.commit_interval,
            allowed_lag=choice.allowed_lag,
            window=choice.window,
        )

    def use(self, connection: ZooKeeperClient) -> None:
        """Read over this connection from now on."""
        self._connection = connection

    @property
    def connection(self) -> ZooKeeperClient:
        """The connection of the last call of `use`."""
        assert self._connection is not None
        return self._connection

    def read(self) -> list[GroupLag]:
        """Read and return the groups that exist, as far as this client may read them.

        Raises ZooKeeperUnreachableError; AccessDeniedError if it may not list the groups.
        """
        from zkconsumer.admin.groups import in_slices, read_group_names, read_readable_parts
        from zkconsumer.admin.lag import lags_of

        connection, is_topic = self.connection, self._choice.is_topic
        every = read_group_names(connection) if self._names is None else self._names
        names = list(filter(self._choice.is_group, every))
        images: dict[str, GroupImage] = {}
        progress = Progress("groups")
        with progress.until_done():
            for some in in_slices(names, progress.advanced):
                images |= read_readable_parts(connection, some)
            # The brokers are asked once for all groups, because silent brokers use up a time limit.
            found = lags_of(
                connection,
                images,
                limit_s=self._limit_s,
                only=self.only,
                tails=self.history.tails,
                stores=self.history.stores,
            )
        self.missing = [name for name in names if self._names and name not in images]
        return [
            replace(group, partitions=tuple(p for p in group.partitions if is_topic(p.topic)))
            for group in found.values()
        ]

    def check_names(self) -> None:
        """Raise UnknownGroupError if the last reading has not found a group that was named."""
        from zkconsumer.admin.groups import unknown_group

        if self.missing:
            raise unknown_group(self.missing[0], self.connection)

    def unread(self, groups: Iterable[GroupLag]) -> list[str]:
        """Return a note for each group that has znodes that this client may not read."""
        return [word for group in groups for word in refusals(group)]

    def observe(self) -> list[GroupLag]:
        """Read the groups, and add the reading to the history. Raises what `read` raises."""
        groups, now_s = self.read(), time.time()
        self.history.keep(group.name for group in groups)
        for group in groups:
            self.history.observe(group, now_s)
        return groups

    def unmatched(self, groups: Iterable[GroupLag]) -> list[str]:
        """Return a note for each selected topic or partition that no group has a row for."""
        return unmatched(groups, self.only, self.connection)

    def served(self, groups: Sequence[GroupLag]) -> list[ServedGroup]:
        """Return the groups of the last reading as the exporter serves them."""
        from zkconsumer.admin.exporter import ServedGroup

        history = self.history
        return [
            ServedGroup(
                group,
                history.health(group),
                {
                    one.tp: tuple(history.window(group.name, one).commits)
                    for one in group.partitions
                },
                {one.tp: history.status(group.name, one) for one in group.partitions},
            )
            for group in groups
        ]

    def read_for_watch(self, common: Addressed) -> Reading:
        """Return the title, the table and the notes of one reading, for `--watch`."""
        groups = self.observe()
        self.check_names()
        groups.sort(key=lambda group: not _is_beyond(group))
        columns = (*_columns(groups), STATUS)
        history = self.history
        addresses = common.shown_addresses(self.connection.config)
        rows = list(partition_rows(groups, status_of=history.status, addresses=addresses))
        words = [word for group in groups for word in group_notes(group, history.health(group))]
        words += self.unmatched(groups)
        return _title(groups), Table(rows, columns), words


def _title(groups: Sequence[GroupLag]) -> str:
    lags = [one.messages for group in groups for one in group.partitions]
    known = [lag for lag in lags if isinstance(lag, int) and lag >= 0]
    names = f"group {groups[0].name}" if len(groups) == 1 else f"{len(groups)} groups"
    unknown = len(lags) - len(known)
    partitions = "1 partition" if unknown == 1 else f"{unknown} partitions"
    hidden = [group.name for group in groups if group.image.has_unknown_partitions]
    parts = [f"{sum(known)} messages behind"] if known or not (unknown or hidden) else []
    parts += [f"lag of {partitions} unknown"] if unknown else []
    parts += [f"there may be other partitions of {first_few(hidden, 5)}"] if hidden else []
    return f"{names}: {'; '.join(parts)}"


def _is_beyond(group: GroupLag) -> bool:
    """Return whether an offset of the group is beyond the end of its log; the group comes first."""
    return any(isinstance(one.lag, int) and one.lag < 0 for one in group.partitions)


def _columns(groups: Sequence[GroupLag]) -> tuple[Column, ...]:
    columns = (GROUP, *COLUMNS) if len(groups) > 1 else ONE_GROUP_COLUMNS
    if not any(one.differing for group in groups for one in group.partitions):
        return columns
    return tuple(replace(one, wide_only=False) if one in STORES else one for one in columns)


def _show(
    reader: LagReader, common: Addressed, exporting: Exporting, fail_above: int | None
) -> None:
    groups = reader.observe()
    reader.check_names()
    if common.output is Output.PROMETHEUS:
        from zkconsumer.admin.exporter import exposition

        name = cluster_name(common, reader.connection.config)
        print(exposition(reader.served(groups), names=exporting.names, cluster=name), end="")
    elif common.output is Output.LEGACY:
        for group in groups:
            for line in legacy_lines(group):
                print(line)
    else:
        groups.sort(key=lambda group: not _is_beyond(group))
        addresses = common.shown_addresses(reader.connection.config)
        rows = partition_rows(groups, status_of=reader.history.status, addresses=addresses)
        common.write(rows, (*_columns(groups), STATUS))
        say_all(word for group in groups for word in group_notes(group))
        say_all(_title([group]) for group in groups if group.partitions)
    unread = reader.unread(groups)
    if common.output in (Output.PROMETHEUS, Output.LEGACY):
        say_all(unread)
    missing = reader.unmatched(groups)
    say_all(missing)
    if fail_above is not None:
        _check(groups, fail_above)
    if missing or unread:
        raise typer.Exit(Exit.FAILED)


def _check(groups: Iterable[GroupLag], fail_above: int) -> None:
    failing = [
        f"{group.name} {one.topic}-{one.partition}"
        for group in groups
        for one in group.partitions
        if not isinstance(one.messages, int) or not 0 <= one.messages <= fail_above
    ]
    if failing:
        some = first_few(failing, 5)
        are = "partition is" if len(failing) == 1 else "partitions are"
        say(f"{len(failing)} {are} more than {fail_above} messages behind, or unknown: {some}")
        raise typer.Exit(Exit.FOUND)


# ---- --output legacy ----------------------------------------------------------------------------


def legacy_lines(group: GroupLag) -> Iterator[str]:
    """Yield the table of `kafka.admin.ConsumerGroupCommand` 1.1.1 `--describe --zookeeper`.

    Like the original, it shows only topics that have a directory of owners; members that own no
    partition follow.
    """
    from zkconsumer.admin.lag import Source

    owned = group.image.listed.get(owners(group.name), ())
    # The original prefers an offset in Kafka to the offset in ZooKeeper.
    partitions = [replace(one, moved=Source.KAFKA) for one in group.partitions]
    rows = [
        (
            one.topic,
            str(one.partition),
            _or_dash(one.committed),
            "-" if isinstance(one.log, str) else str(one.log.end),
            _or_dash(one.lag),
            consumer_of(one.owner) if one.owner else "-",
        )
        for one in partitions
        if one.topic in owned
    ]
    busy = {row[5] for row in rows}
    rows += [
        ("-", "-", "-", "-", "-", member.consumer)
        for member in group.members
        if member.consumer not in busy
        for _ in member.subscription
    ]
    topic = max(15, *(len(row[0]) for row in rows), 0)
    consumer = max(15, *(len(row[5]) for row in rows), 0)
    head = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")
    yield ""
    for cells in (head, *rows):
        yield (
            f"{cells[0]:<{topic}} {cells[1]:<10} {cells[2]:<15} {cells[3]:<15} {cells[4]:<15}"
            f" {cells[5]:<{consumer}} "
        )


def _or_dash(value: int | str | None) -> str:
    return str(value) if isinstance(value, int) else "-"
