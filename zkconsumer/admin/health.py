"""Who uses a group, for tools: two readings for a plan, repeated readings, and sentences.

`protocol.group_health` decides; this module reads the groups. A `GroupWatch` takes the two readings
that a plan needs. A `HealthTracker` compares the readings of a tool that reads repeatedly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import groupby
from typing import Final, TypeVar

from zkconsumer.admin.findings import ranges
from zkconsumer.admin.groups import GroupImage, read_groups
from zkconsumer.errors import first_few, quoted
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import PATIENCE_S, GroupHealth, GroupReading, group_health
from zkconsumer.protocol.group_znodes import MEMBERS, OWNERS
from zkconsumer.protocol.group_znodes import last_write as write_of
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Stat
from zkconsumer.zk.client import ZooKeeperClient

# ---- sentences -----------------------------------------------------------------------------------

_NAMED = 5  # the maximum number of members, or of znodes, that a sentence names

Key = TypeVar("Key")


def last_write(health: GroupHealth, now_s: float) -> str:
    """Return a clause on a recent write that no member's registration explains, or "".

    One reading cannot tell a member that has stopped from a client that never registers.
    """
    age_s = health.write_age_s(now_s)
    if age_s is None:
        return ""
    return (
        f"; the last write was {age(age_s)} ago, by a member that has stopped or by a client"
        " without a registration"
    )


def age(seconds: float) -> str:
    """Return a duration with its unit, such as `3 s`, `12 min`, `5 h` or `40 d`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def remarks(health: GroupHealth, now_s: float) -> Iterator[str]:
    """Yield sentences on who uses a group, besides members that register as JVM consumers do."""
    if health.is_written:
        yield written(health)
    if not health.is_written and not health.live:
        yield f"no member is registered{last_write(health, now_s)}"
    if health.leftovers:
        count = len(health.leftovers)
        some, them = ("registration has", "it") if count == 1 else ("registrations have", "them")
        yield (
            f"{count} {some} no session, so no process holds {them}, and no session expiry deletes"
            f" {them}: {_some(health.leftovers)}"
        )
    if health.leftover_owners:
        yield f"owner znodes without a session block {listed(health.leftover_owners)}"
    if health.other_clients:
        count = len(health.other_clients)
        yield (
            f"{_some(sorted(health.other_clients))} own{'s' if count == 1 else ''} partitions under"
            " the consumer id without a thread number, as kafka-node and the Go library"
            " consumergroup do"
        )


def written(health: GroupHealth) -> str:
    """Return the sentence on the unregistered writers of a group that has some."""
    parts = []
    if health.writers:
        parts.append(f"commits offsets of {listed(health.writers)} ({_writes(health.writers)})")
    if health.foreign_writers:
        parts.append(
            f"writes {_some(sorted(health.foreign_writers))} ({_writes(health.foreign_writers)}),"
            " where consumers keep nothing, as Storm's spouts do"
        )
    return f"a client without a registration {', and '.join(parts)}"


def _writes(counts: Mapping[Key, int]) -> str:
    count = sum(counts.values())
    return f"{count} write{'' if count == 1 else 's'} between two readings"


def written_places(health: GroupHealth) -> str:
    """Return what the unregistered writers of a group write: partitions by topic, and paths."""
    places = [listed(health.writers)] if health.writers else []
    places += [_some(sorted(health.foreign_writers))] if health.foreign_writers else []
    return "; ".join(places)


def listed(partitions: Collection[TopicPartition]) -> str:
    """Return partitions by topic, such as `orders 0-3, 7; logs 0`."""
    return "; ".join(
        f"{topic} {ranges(tp.partition for tp in of_topic)}"
        for topic, of_topic in groupby(sorted(partitions), lambda tp: tp.topic)
    )


def _some(names: Collection[str]) -> str:
    return first_few(map(quoted, names), _NAMED)


# ---- two readings --------------------------------------------------------------------------------

NEWEST: Final = 1_000
"""Number of offsets of a group that a second reading compares: those that were written last. A
client that commits has written some of them; reading 10,000 offsets takes a second. In such a large
group, a second reading finds no new foreign znodes."""


def read_again(
    connection: ZooKeeperClient, first: Mapping[str, GroupReading]
) -> dict[str, GroupHealth]:
    """Read groups a second time; return group -> its health from both readings.

    Groups that have been deleted are left out.
    """
    large = {name: one for name, one in first.items() if len(one.writes) > NEWEST}
    images = read_groups(connection, first.keys() - large)
    readings = {name: image.reading for name, image in images.items()}
    for name, image in read_groups(connection, large, directories=(MEMBERS, OWNERS)).items():
        first_one = large[name]
        wanted = {paths.offset(name, tp): tp for tp in _last_written(first_one)}
        answers = connection.stats_allowed([*wanted, *first_one.foreign])
        stats = {path: write_of(stat) for path, stat in answers.items() if isinstance(stat, Stat)}
        readings[name] = replace(
            image.reading,
            writes={wanted[path]: one for path, one in stats.items() if path in wanted},
            foreign={path: one for path, one in stats.items() if path not in wanted},
        )
    return {name: group_health(one, first[name]) for name, one in readings.items()}


def _last_written(reading: GroupReading) -> list[TopicPartition]:
    newest = nlargest(NEWEST, ((write.mzxid, tp) for tp, write in reading.writes.items()))
    return [tp for _, tp in newest]


# ---- two readings for a plan ---------------------------------------------------------------------

OnWait = Callable[[Mapping[str, GroupHealth], float], None]
"""Called while a `GroupWatch` waits, with its groups and the seconds that remain."""

_TICK_S: Final = 0.5
"""Seconds between two reports of the remaining time."""

_FIRST_LOOK_S: Final = 1.0
"""Seconds until the first look of a `GroupWatch` that waits. Each later one comes after twice the
time, because a reading of a group with many partitions is long."""


class GroupWatch:
    """Watches groups between two readings, to find clients that commit without a registration.

    Create it before the plan is computed, so that the computation is part of the time between the
    readings. Groups in which no offset was written recently are not watched.

    Args:
        groups: the groups that will be changed; groups that do not exist are left out.
        patience_s: seconds between the readings.
        on_wait: called about twice a second while `writers` waits.

    Attributes:
        has_waited: whether `writers` has waited.
    """

    def __init__(
        self,
        connection: ZooKeeperClient,
        groups: Iterable[str],
        *,
        patience_s: float = PATIENCE_S,
        on_wait: OnWait = lambda groups, left_s: None,
    ) -> None:
        self._connection, self._on_wait = connection, on_wait
        self._first: dict[str, GroupReading] = {}
        self.has_waited = False
        self._due_at = 0.0
        self._patience_s = patience_s
        self.watch(groups)

    def watch(self, groups: Iterable[str]) -> None:
        """Take the first reading of more groups."""
        new = [name for name in groups if name not in self._first]
        if not new:
            return
        self._due_at = time.monotonic() + self._patience_s
        images = read_groups(self._connection, new)
        self._first |= {name: image.reading for name, image in images.items()}

    def suspects(self, groups: Iterable[str]) -> dict[str, GroupHealth]:
        """Return the groups with a recent write that no member's registration explains.

        Only the first reading is needed.
        """
        now_s = time.time()
        found = {name: group_health(self._first[name]) for name in groups if name in self._first}
        return {name: one for name, one in found.items() if one.write_age_s(now_s) is not None}

    def so_far(self, groups: Iterable[str]) -> dict[str, GroupHealth]:
        """Read groups again at once; return group -> its health from both readings."""
        known = {name: self._first[name] for name in groups if name in self._first}
        return read_again(self._connection, known) if known else {}

    def writers(self, groups: Iterable[str]) -> dict[str, GroupHealth]:
        """Return the groups with unregistered writers; wait until the last reading is due.

        The groups are read at intervals during the wait, and the first writer ends the wait. There
        is no wait if no group is suspect.
        """
        wanted = self.suspects(groups)
        found = self._writers(wanted)
        if found or not wanted:
            return found
        step_s, look_at = _FIRST_LOOK_S, time.monotonic() + _FIRST_LOOK_S
        while not found and (left_s := self._due_at - time.monotonic()) > 0:
            self.has_waited = True
            self._on_wait(wanted, left_s)
            time.sleep(min(_TICK_S, left_s))
            if time.monotonic() >= min(look_at, self._due_at):
                found = self._writers(wanted)
                step_s *= 2
                look_at = time.monotonic() + step_s
        return found

    def _writers(self, groups: Iterable[str]) -> dict[str, GroupHealth]:
        return {name: one for name, one in self.so_far(groups).items() if one.is_written}


# ---- repeated readings ---------------------------------------------------------------------------


@dataclass
class HealthTracker:
    """Compares the readings of a tool that reads groups repeatedly.

    An unregistered writer is remembered for `patience_s` seconds after a reading that showed a
    write, so that a client that commits once a minute does not seem to come and go.
    """

    patience_s: float
    _readings: dict[str, GroupReading] = field(default_factory=dict)
    _written: dict[str, dict[TopicPartition | str, tuple[float, int]]] = field(default_factory=dict)

    def observe(self, image: GroupImage, now_s: float) -> GroupHealth:
        """Record a reading at `now_s` (any clock, in seconds), and return who uses the group."""
        name, reading = image.name, image.reading
        health = group_health(reading, self._readings.get(name))
        self._readings[name] = reading
        there = {*reading.writes, *reading.foreign} - health.owned.keys()
        known = dict(self._written.get(name, {}))
        known |= {tp: (now_s, count) for tp, count in health.writers.items()}
        known |= {path: (now_s, count) for path, count in health.foreign_writers.items()}
        known = {
            key: (at_s, count)
            for key, (at_s, count) in known.items()
            if now_s - at_s <= self.patience_s and key in there
        }
        self._written[name] = known
        return replace(
            health,
            writers={k: n for k, (_, n) in known.items() if isinstance(k, TopicPartition)},
            foreign_writers={k: n for k, (_, n) in known.items() if isinstance(k, str)},
        )

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other groups."""
        wanted = set(names)
        for known in (self._readings, self._written):
            for name in known.keys() - wanted:
                del known[name]
