"""`Admin`: the operators' operations on groups as methods of one object.

Each recipe of docs/operators.md needs one or two calls. A method whose name begins with `plan_`
writes nothing and returns a Plan. `apply` executes a plan, and `undo` reverts it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from zkconsumer.admin import group_changes, migrate, offset_plans
from zkconsumer.admin.apply import Live, Report, apply
from zkconsumer.admin.broker_offsets import BrokerOffsets
from zkconsumer.admin.doctor import doctor, kafka_logs, live_of, plan_fixes
from zkconsumer.admin.explain import Explanation, explain
from zkconsumer.admin.findings import Finding
from zkconsumer.admin.group_changes import plan_undo
from zkconsumer.admin.groups import (
    GroupSummary,
    MemberReport,
    Selection,
    TopicSummary,
    groups,
    members,
    topics,
)
from zkconsumer.admin.health import GroupWatch
from zkconsumer.admin.inventory import IDLE_S, Inventory, inventory
from zkconsumer.admin.lag import GroupLag, group_lags
from zkconsumer.admin.migrate import Direction, Migration
from zkconsumer.admin.offset_files import (
    FileFormat,
    Offsets,
    importable,
    read_file,
    write_offsets,
)
from zkconsumer.admin.offset_plans import Reset
from zkconsumer.admin.past_sources import OnProgress, PastSources, no_progress
from zkconsumer.admin.plan import Plan, load_plan
from zkconsumer.admin.restore import Restoration
from zkconsumer.admin.verify import verify
from zkconsumer.admin.what_if import PredictedOwner, live_group, places, what_if
from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
from zkconsumer.errors import AccessDeniedError
from zkconsumer.history.offsets import Point
from zkconsumer.kafka.logs import KeptLogs
from zkconsumer.protocol import arguments
from zkconsumer.protocol.group_assignment import assign_each_member
from zkconsumer.protocol.group_health import PATIENCE_S
from zkconsumer.protocol.model import Storage, TopicPartition
from zkconsumer.protocol.release_detection import detect
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.clients import client_addresses

BROKER_LIMIT_S: Final = 6.0
"""Seconds per request to the brokers. If a broker takes longer, its values are reported as
unknown."""


class Admin:
    """Reads, changes and repairs the groups of one ZooKeeper. Use the object in a `with` block:

        with Admin("zk1:2181/kafka", backup_dir=Path("backups")) as admin:
            print(admin.lag(["billing"]))

    Use it from one thread. `lag` and `doctor` keep their client of the brokers. To ask every few
    seconds, call them again on the same object.

    Args:
        config: `host:port,.../chroot`, or settings with authentication and TLS. If it is a
            ConsumerConfig, `doctor` and `explain` take it as the settings of the groups' members.
        backup_dir: directory of the backups that `apply` writes before the first change.
        patience_s: seconds between two readings of a group. Only the second reading shows a client
            that commits without a registration. `doctor` and `apply` wait this long if the first
            reading leaves such a client possible.
        broker_limit_s: seconds per request to the brokers.

    Raises:
        ConfigError: `config` or `broker_limit_s` is not valid.
        ZooKeeperUnreachableError, AccessDeniedError: at the start of the `with` block, and in every
            method.
        ChrootMissingError: at the start of the `with` block.
    """

    def __init__(
        self,
        config: str | ConnectionConfig,
        *,
        backup_dir: Path = Path(),
        broker_limit_s: float = BROKER_LIMIT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if isinstance(config, str):
            config = ConnectionConfig(zookeeper_connect=config)
        broker_limit_s = arguments.finite_limit(broker_limit_s, "broker_limit_s")
        patience_s = arguments.finite_limit(patience_s, "patience_s")
        if not broker_limit_s:
            right = "a positive number of seconds"
            raise arguments.wrong(0, "a time limit", where="broker_limit_s", right=right)
        self.config = config
        self._backup_dir = _path(backup_dir, "backup_dir")
        self._limit_s, self._patience_s = broker_limit_s, patience_s
        self._connection = ZooKeeperClient(config)
        self._logs = KeptLogs(limit_s=broker_limit_s)

    def __enter__(self) -> Self:
        self._connection.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._logs.close()
        self._connection.__exit__()

    @property
    def connection(self) -> ZooKeeperClient:
        """The client that the methods use; call it on the same thread."""
        return self._connection

    # ---- read ------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> list[TopicSummary]:
        """Return topics sorted by name; None means all, and missing topics are left out."""
        asked = None if names is None else arguments.names(names, "names")
        return topics(self._connection, asked)

    def groups(self, *, topics: Selection | None = None) -> list[GroupSummary]:
        """Return all groups, or those with offsets or owners of selected partitions; sorted by
        name."""
        return groups(self._connection, topics=arguments.selection(topics))

    def members(
        self,
        names: Iterable[str],
        *,
        on_denied: Callable[[str, AccessDeniedError], None] | None = None,
    ) -> dict[str, list[MemberReport]]:
        """Return group -> its registered members; groups that do not exist are left out.

        `on_denied` is called with each group that this client may not read entirely, and with an
        error that names the znodes. The result has the readable members; a group whose
        registrations cannot be listed is left out. Without `on_denied`, the first error is raised.
        """
        asked = arguments.names(names, "names")
        found = members(self._connection, asked, on_denied=on_denied)
        return {name: reports for name, (_, reports) in found.items()}

    def lag(self, names: Iterable[str], *, topics: Selection | None = None) -> dict[str, GroupLag]:
        """Return group -> committed offsets, log ends and lag of its partitions.

        An unknown value is a string with the reason. `GroupLag.unreadable` names the znodes that
        this client may not read. Groups that do not exist are left out.
        """
        reading = self._logs.reading()
        return group_lags(
            self._connection,
            arguments.names(names, "names"),
            limit_s=self._limit_s,
            only=arguments.selection(topics),
            logs=reading.ends,
            kafka=reading.committed,
        )

    def committed(
        self,
        names: Iterable[str],
        *,
        topics: Selection | None = None,
        storage: Storage = Storage.ZOOKEEPER,
    ) -> tuple[Offsets, list[str]]:
        """Return group -> partition -> committed offset, and notes on offsets that are unreadable.

        Raises UnknownGroupError; ConfigError for an unknown topic.
        """
        return offset_plans.read_committed(
            self._connection,
            arguments.names(names, "names"),
            topics=arguments.selection(topics),
            limit_s=self._limit_s,
            storage=storage,
        )

    def inventory(self, *, idle_s: float = IDLE_S) -> Inventory:
        """Return every group in ZooKeeper, and what must happen to it before Kafka 4.

        A group without members may be deleted if its last commit is older than `idle_s` seconds.
        """
        return inventory(
            self._connection,
            limit_s=self._limit_s,
            idle_s=arguments.finite_limit(idle_s, "idle_s"),
            patience_s=self._patience_s,
            addresses=lambda: client_addresses(self.config),
        )

    def verify(self, group: str) -> list[Finding]:
        """Return why a group has not settled; empty if it has settled, or has no members.

        Raises UnknownGroupError.
        """
        return verify(self._connection, arguments.name(group, "group"))

    def doctor(self, names: Iterable[str] | None = None) -> list[Finding]:
        """Return what is wrong with groups; None means all groups.

        If a finding of a group may be temporary, or a client may commit without a registration, the
        group is examined again after `patience_s`. Raises UnknownGroupError.
        """
        known = self.config.for_group if isinstance(self.config, ConsumerConfig) else None
        return doctor(
            self._connection,
            None if names is None else arguments.names(names, "names"),
            settings=known,
            ask_logs=self._logs.ends,
            patience_s=self._patience_s,
        )

    def explain(self, group: str) -> Explanation:
        """Return why each thread of a group owns its partitions. Raises UnknownGroupError."""
        settings = self.config if isinstance(self.config, ConsumerConfig) else None
        return explain(self._connection, arguments.name(group, "group"), settings=settings)

    def what_if(self, group: str, wishes: Iterable[str]) -> list[PredictedOwner]:
        """Return each partition with its present owner, and its owner after hypothetical changes.

        Each of `wishes` is a change: `+MEMBER:2` (a member with two threads joins),
        `+MEMBER:T=2,U=1` (a member with its own subscription joins), `-MEMBER` (a member leaves) or
        `TOPIC=+8` (eight partitions are added). Members whose assignment fails own nothing. Raises
        UnknownGroupError; ConfigError for an impossible change.
        """
        now, owners = live_group(self._connection, arguments.name(group, "group"))
        rules = detect(now, owners).profile
        return places(
            assign_each_member(what_if(now, arguments.names(wishes, "wishes")), rules), owners
        )

    # ---- plan (writes nothing) -------------------------------------------------------------------

    def plan_reset(
        self,
        group: str,
        reset: Reset,
        *,
        topics: Selection | None = None,
        storage: Storage = Storage.ZOOKEEPER,
    ) -> Plan:
        """Plan new offsets, as `kafka-consumer-groups --reset-offsets` computes them.

        `topics` None means all partitions for which the group has offsets or owners. Raises
        UnknownGroupError; ConfigError for an unknown topic or partition; RefusedError if a new
        offset cannot be determined.
        """
        moved = offset_plans.plan_reset(
            self._connection,
            arguments.name(group, "group"),
            reset,
            topics=arguments.selection(topics),
            limit_s=self._limit_s,
            storage=storage,
        )
        return moved.plan

    def plan_import(self, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> Plan:
        """Plan to set offsets in ZooKeeper exactly as given; missing groups are created."""
        right = "{'billing': {TopicPartition('orders', 0): 43}}"
        if not isinstance(offsets, Mapping):
            raise arguments.wrong(offsets, "offsets of groups", where="offsets", right=right)
        for group, one in offsets.items():
            arguments.by_partition(one, f"offsets of {group}", "43")
        return offset_plans.plan_import(self._connection, offsets)

    def plan_restore(
        self,
        sources: PastSources,
        point: Point,
        groups: Iterable[str] = (),
        *,
        topics: Selection | None = None,
        on_progress: OnProgress = no_progress,
    ) -> Restoration:
        """Plan to restore offsets from servers' logs, and describe each partition.

        Each store gets back the offsets that it had.

        Args:
            sources: what contains the offsets of the past, such as
                `PastSources(data_dirs=["/var/lib/zookeeper"])`.
            point: the moment, or the edit that is to be undone, such as
                `Point(Choice.TIME, milliseconds)`.
            groups: names of groups; none means all groups below the chroot.
            topics: partitions to restore; None means all.
            on_progress: called with what is read, the amount, and the total (0: unknown).

        Raises:
            ConfigError: the sources have no such group, session or edit, or contradict each other;
                BadFileError for the paths.
            RefusedError: the sources do not contain the moment.
            HistoryError: a file cannot be read. FetchError: the brokers do not answer.
        """
        if not isinstance(sources, PastSources):
            right = "PastSources(data_dirs=['/var/lib/zookeeper'])"
            raise arguments.wrong(sources, "sources", where="sources", right=right)
        chosen = arguments.selection(topics)
        names = arguments.names(groups, "groups")
        past = sources.read(
            self._connection, point, names, limit_s=self._limit_s, on_progress=on_progress
        )
        return past.plan(self._connection, topics=chosen, limit_s=self._limit_s)

    def plan_delete_offsets(self, group: str, topics: Mapping[str, Collection[int] | None]) -> Plan:
        """Plan to delete offsets in ZooKeeper. Raises UnknownGroupError, ConfigError."""
        return group_changes.plan_delete_offsets(
            self._connection,
            arguments.name(group, "group"),
            topics=arguments.selection(topics) or {},
        )

    def plan_copy_group(self, source: str, target: str) -> Plan:
        """Plan to copy a group's offsets to a new group.

        Raises UnknownGroupError; RefusedError if the target exists.
        """
        return group_changes.plan_copy_group(
            self._connection,
            arguments.name(source, "source"),
            arguments.name(target, "target"),
        )

    def plan_rename_group(self, source: str, target: str) -> Plan:
        """Plan to copy a group and to delete the old one.

        Raises what `plan_copy_group` raises, and RefusedError if the group has members.
        """
        return group_changes.plan_rename_group(
            self._connection,
            arguments.name(source, "source"),
            arguments.name(target, "target"),
        )

    def plan_delete_group(self, *groups: str) -> Plan:
        """Plan to delete the znodes of groups, except those of live sessions.

        Raises UnknownGroupError.
        """
        return group_changes.plan_delete_group(
            self._connection, *(arguments.name(one, "groups") for one in groups)
        )

    def plan_forget_topics(
        self, names: Sequence[str], *, groups: Collection[str] | None = None
    ) -> Plan:
        """Plan to delete the owner and offset znodes of topics; `groups` None means all groups.

        Raises UnknownGroupError; ConfigError if no group has such znodes.
        """
        return group_changes.plan_forget_topics(
            self._connection,
            arguments.names(names, "names"),
            groups=None if groups is None else arguments.names(groups, "groups"),
        )

    def plan_migration(
        self, group: str, direction: Direction, *, topics: Selection | None = None
    ) -> Migration:
        """Plan to copy a group's offsets from ZooKeeper to Kafka or back. Apply the result's
        `plan`.

        Raises UnknownGroupError; RefusedError if the group has members that do not commit to both
        stores, or if Kafka does not return every offset.
        """
        return migrate.plan_migration(
            self._connection,
            arguments.name(group, "group"),
            direction,
            topics=arguments.selection(topics),
            ask_kafka=migrate.kafka_offsets(self._limit_s),
            ask_logs=kafka_logs(self._limit_s),
        )

    def plan_undo(self, backup: Path) -> Plan:
        """Plan to restore every znode of a backup that `apply` wrote, even if members have written
        since. Raises BadFileError."""
        done = load_plan(_path(backup, "backup"))
        kafka = BrokerOffsets.of(self._connection) if done.kafka else None
        return plan_undo(self._connection, done, kafka=kafka)

    # ---- change ----------------------------------------------------------------------------------

    def apply(
        self,
        plan: Plan,
        *,
        live: Live = Live.REFUSE,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Report:
        """Write a backup, then make a plan's changes. Apply an interrupted plan again to finish it.

        Args:
            live: with Live.FORCE, a group is changed even if it has members.
            on_progress: called after each transaction with the number of changes made and their
                total number.

        Raises:
            RefusedError: a znode has changed since the plan was made, the group has members, or a
                client commits without a registration; nothing was written.
            AppliedInPartError: after the first write, a znode changed, a member joined, or the
                connection was lost.
            ConfigError: the backup cannot be written; nothing was changed.
        """
        kafka = BrokerOffsets.of(self._connection) if plan.needs_kafka else None
        return apply(
            self._connection,
            plan,
            backup_dir=self._backup_dir,
            live=live,
            watch=None
            if live is Live.FORCE
            else GroupWatch(self._connection, plan.groups, patience_s=self._patience_s),
            kafka=kafka,
            on_progress=on_progress,
        )

    def fix(self, findings: Iterable[Finding]) -> Report:
        """Make the fixes of the doctor's findings, with a backup.

        The group may have members, unless a fix changes offsets. Raises what `apply` raises, and
        RefusedError if a znode has changed since its examination.
        """
        plan = plan_fixes(self._connection, findings)
        return self.apply(plan, live=live_of(plan))

    def undo(self, backup: Path) -> Report:
        """Restore every znode of a backup. Raises what `plan_undo` and `apply` raise."""
        return self.apply(self.plan_undo(backup))

    # ---- files -----------------------------------------------------------------------------------

    def export_offsets(
        self, names: Iterable[str], file: Path, *, to: FileFormat = FileFormat.JSON
    ) -> list[str]:
        """Write the committed offsets of groups to a file; return notes on those left out."""
        committed, unreadable = self.committed(names)
        offsets, notes = importable(committed)
        file.write_text(write_offsets(offsets, to), encoding="utf-8")
        return unreadable + notes

    @staticmethod
    def read_offsets(file: Path, *, group: str | None = None) -> Offsets:
        """Return the offsets of a file in any format. Raises BadFileError.

        `group` is the group of a file that names none; a file that names another group is an error.
        """
        return read_file(file, group=group)


def _path(given: object, where: str) -> Path:
    """Return a path; raise ConfigError unless the argument is a path or a text."""
    if not isinstance(given, str | Path):
        raise arguments.wrong(given, "a path", where=where, right="Path('backups')")
    return Path(given)
