"""What is wrong with groups: one finding for each thing, with what mends it.

Reads many groups at once. What passes by itself, as in the middle of a rebalance, is looked at
twice, and only what is there both times is a finding.

What `doctor --fix` does: the findings' mends as a plan, to be shown and applied like any other.

Only znodes that no session holds, and only as long as each is still what was found wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from zkconsumer.admin.apply import Live
from zkconsumer.admin.checks import offsets, owners, registrations, rights
from zkconsumer.admin.findings import ExaminedGroup, Finding, Log, Severity
from zkconsumer.admin.group_changes import plan_writes
from zkconsumer.admin.groups import (
    GroupImage,
    read_allowed_groups,
    read_brokers,
    read_group_names,
    read_topic_names,
    read_topics,
    registered_brokers,
    unknown_group,
)
from zkconsumer.admin.plan import Plan
from zkconsumer.admin.verify import MALFORMED, NO_OWNER, UNREGISTERED
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import RefusedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.protocol.requests import Node
from zkconsumer.zk.client import ZooKeeperClient

Logs = Mapping[TopicPartition, Log | str]
AskLogs = Callable[[Sequence[Broker], Sequence[TopicPartition]], Logs]
MemberSettings = Callable[[str], ConsumerConfig]
"""Group name -> the settings of its members."""

PASSING = frozenset(
    {
        MALFORMED,
        NO_OWNER,
        UNREGISTERED,
        owners.STALE,
        owners.FOREIGN_OWNER,
        registrations.DISAGREEMENT,
        registrations.NO_BROKERS,
    }
)
"""Findings that a rebalance, a registration or a restart under way brings about as well."""

PATIENCE_S = 1.0
"""Seconds between the two looks. A rebalance of a healthy group takes less; a longer one is worth a
finding."""

ACCESS_DENIED = "access-denied"


def examine(case: ExaminedGroup) -> list[Finding]:
    """All that is wrong with one group as it was read; the worst first, and pure."""
    found = [
        *registrations.of_members(case),
        *registrations.of_settings(case),
        *owners.of_owners(case),
        *registrations.of_layouts(case),
        *registrations.of_agreement(case),
        *offsets.of_offsets(case),
        *rights.of_rights(case),
    ]
    severities = list(Severity)
    return sorted(found, key=lambda one: severities.index(one.severity))


def doctor(
    connection: ZooKeeperClient,
    groups: Iterable[str] | None = None,
    *,
    settings: MemberSettings | None = None,
    ask_logs: AskLogs | None = None,
    patience_s: float = PATIENCE_S,
) -> list[Finding]:
    """What is wrong with these groups, by default with all there are. Reads only.

    `settings` returns the settings of a group's members (retries, back-off, session timeout,
    strategy); without it the doctor does not check them. `ask_logs` returns the logs of partitions;
    without it the doctor does not compare offsets with logs. A finding that may pass by itself is
    examined again after `patience_s` seconds. Raises UnknownGroupError, ZooKeeperUnreachableError.
    """
    names = read_group_names(connection) if groups is None else list(groups)
    denied: list[Finding] = []
    cases = _cases(connection, names, settings, denied)
    if groups is not None:
        for name in names:
            if name not in cases and all(one.group != name for one in denied):
                raise unknown_group(name, connection)
    cases = _with_logs(connection, cases, ask_logs)
    found = {name: examine(case) for name, case in cases.items()}
    again = [name for name, all_of in found.items() if any(one.code in PASSING for one in all_of)]
    if again:
        time.sleep(patience_s)
        second = _cases(connection, again, settings, denied)
        for name in again:
            first = {(one.code, one.subject) for one in found.pop(name)}
            if name in second:
                case = replace(second[name], logs=cases[name].logs)
                found[name] = [
                    one
                    for one in examine(case)
                    if one.code not in PASSING or (one.code, one.subject) in first
                ]
    return denied + [one for name in names for one in found.get(name, ())]


def kafka_logs(limit_s: float) -> AskLogs:
    """Asks the brokers, for at most so many seconds."""

    def ask(brokers: Sequence[Broker], partitions: Sequence[TopicPartition]) -> Logs:
        from zkconsumer.kafka.logs import log_ends  # noqa: PLC0415 - loads librdkafka: 50 ms

        return log_ends(brokers, partitions, limit_s=limit_s)

    return ask


# ---- reading ------------------------------------------------------------------------------------


def _cases(
    connection: ZooKeeperClient,
    names: Sequence[str],
    settings: MemberSettings | None,
    denied: list[Finding],
) -> dict[str, ExaminedGroup]:
    topics = read_topics(connection, read_topic_names(connection))
    payloads = {name: one.node.data for name, one in topics.items()}
    brokers = read_brokers(connection)
    images = _images(connection, names, denied)
    cases = {
        name: ExaminedGroup(
            image,
            payloads,
            settings=settings(name) if settings else None,
            has_brokers=bool(brokers),
        )
        for name, image in images.items()
    }
    extra = {name: _to_read_whole(case) for name, case in cases.items()}
    nodes = connection.tree(*(path for roots in extra.values() for path in roots))
    of_group: dict[str, dict[str, Node]] = {}
    for path, node in nodes.items():
        of_group.setdefault(path.split("/")[2], {})[path] = node
    cases = {
        name: replace(case, image=replace(case.image, nodes={**case.image.nodes, **of_group[name]}))
        if name in of_group
        else case
        for name, case in cases.items()
    }
    cases = _with_rights(connection, cases, rights.places)
    return _with_rights(connection, cases, rights.more_places)


def _with_rights(
    connection: ZooKeeperClient,
    cases: dict[str, ExaminedGroup],
    places: Callable[[ExaminedGroup], list[str]],
) -> dict[str, ExaminedGroup]:
    wanted = {name: where for name, case in cases.items() if (where := places(case))}
    lists = connection.rights(path for where in wanted.values() for path in where)
    found = dict(cases)
    for name, where in wanted.items():
        known = {path: lists[path] for path in where if path in lists}
        found[name] = replace(cases[name], rights={**cases[name].rights, **known})
    return found


def _images(
    connection: ZooKeeperClient, names: Sequence[str], denied: list[Finding]
) -> dict[str, GroupImage]:
    images, secret = read_allowed_groups(connection, names)
    denied += (
        Finding(
            Severity.ERROR,
            ACCESS_DENIED,
            name,
            error.where,
            "we may not read it",
            "members that authenticate as we do here are locked out of the group",
            "authenticate as the group's members do (zookeeper.auth.*), or have its access control"
            " list changed",
        )
        for name, error in secret.items()
    )
    return images


def _to_read_whole(case: ExaminedGroup) -> Iterator[str]:
    """Foreign nodes, and what belongs to topics that are gone: to be deleted with all below."""
    yield from registrations.foreign_nodes(case)
    for parent, at in case.image.topic_rooms.items():
        if at.name not in case.topics:
            yield parent


def _with_logs(
    connection: ZooKeeperClient, cases: dict[str, ExaminedGroup], ask_logs: AskLogs | None
) -> dict[str, ExaminedGroup]:
    wanted = {name: offsets.offsets_to_compare(case) for name, case in cases.items()}
    partitions = sorted({tp for tps in wanted.values() for tp in tps})
    if ask_logs is None or not partitions:
        return cases
    brokers = registered_brokers(connection)
    logs = ask_logs(brokers, partitions)
    return {
        name: replace(case, logs={tp: logs[tp] for tp in wanted[name] if tp in logs})
        for name, case in cases.items()
    }


# ---- mending -------------------------------------------------------------------------------------


def plan_mends(connection: ZooKeeperClient, findings: Iterable[Finding]) -> Plan:
    """A plan of all that these findings' mends are; empty where they have none.

    Raises RefusedError where a znode is no longer what was found, or belongs to a session by now.
    """
    mends = {mend.path: mend for one in findings for mend in one.mends}
    plan = plan_writes(connection, "doctor", {path: one.data for path, one in mends.items()})
    changed = [
        one.path
        for one in plan.changes
        if one.before is None or one.before.mzxid != mends[one.path].mzxid
    ]
    if changed:
        raise RefusedError(
            "znodes changed since they were examined",
            where=", ".join(changed[:5]),
            remedy="nothing was written: doctor again",
        )
    return plan


def live_of(plan: Plan) -> Live:
    """How such a plan meets a group with members.

    What blocks members is taken away under their eyes: that is what it is for, and nothing of it is
    theirs. Offsets of a group with members are refused, as always.
    """
    of_offsets = any(one.path.startswith(f"{paths.offsets(one.group)}/") for one in plan.changes)
    return Live.REFUSE if of_offsets else Live.FORCE
