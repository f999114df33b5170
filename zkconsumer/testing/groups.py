"""What a test asks about a group: whether it has settled, who owns what, and what was delivered.

The functions read ZooKeeper at any connect string, so they serve fake and real servers alike.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import UnknownGroupError, ZooKeeperUnreachableError, first_few
from zkconsumer.protocol.model import Storage, TopicPartition
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.observer import ChangeKind, GroupPart, Observer

if TYPE_CHECKING:
    from zkconsumer.admin.api import Admin

SETTLE_LIMIT_S: Final = 60.0
"""How long `wait_until_settled` waits by default, in seconds: ten times the session timeout."""

_PAUSE_S: Final = 0.02

_END_S: Final = 5.0
"""How long the end of `Rebalances` waits for its thread, in seconds: ZooKeeper may be silent."""


def owners(zookeeper_connect: str, group: str) -> dict[TopicPartition, str]:
    """Return the consumer thread that owns each partition of a group now."""
    with Observer(zookeeper_connect, group, follow=[GroupPart.OWNERS]) as observer:
        return {tp: _thread(one) for tp, one in observer.snapshot().owners.items()}


def _thread(owner: OwnerZnode) -> str:
    return owner.thread


def committed(
    zookeeper_connect: str, group: str, *, storage: Storage = Storage.ZOOKEEPER
) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed; none for an unknown group."""
    with _admin(zookeeper_connect) as admin:
        try:
            found, _ = admin.committed([group], storage=storage)
        except UnknownGroupError:
            return {}
    return dict(found.get(group, {}))


def wait_until_settled(
    zookeeper_connect: str,
    group: str,
    *,
    members: int | Collection[str] | None = None,
    timeout_s: float = SETTLE_LIMIT_S,
) -> dict[TopicPartition, str]:
    """Wait until each partition is owned by the thread to which the members' rules assign it.

    A lost connection to ZooKeeper does not end the wait.

    Args:
        members: the number of members that the group must have, or their consumer ids; None: at
            least one member.
        timeout_s: the time limit in seconds.

    Returns:
        The owner of each partition.

    Raises:
        AssertionError: the group has not settled in time; the text says why.
    """
    deadline = time.monotonic() + timeout_s
    with ZooKeeperClient(ConnectionConfig(zookeeper_connect=zookeeper_connect)) as connection:
        while True:
            reasons, found = _reading(connection, group, members)
            if not reasons:
                return found
            if time.monotonic() > deadline:
                text = "; ".join(reasons)
                raise AssertionError(f"group {group} has not settled in {timeout_s:g} s: {text}")
            time.sleep(_PAUSE_S)


def _admin(zookeeper_connect: str) -> Admin:
    """Return the operator's functions; their import takes a third of the package's."""
    from zkconsumer.admin.api import Admin  # noqa: PLC0415 - see the docstring

    return Admin(zookeeper_connect)


def _reading(
    connection: ZooKeeperClient, group: str, members: int | Collection[str] | None
) -> tuple[list[str], dict[TopicPartition, str]]:
    """Read the group once; return why it has not settled (nothing if it has), and its owners."""
    from zkconsumer.admin.explain import examined_group, explanation  # noqa: PLC0415 - see `_admin`
    from zkconsumer.admin.verify import unsettled  # noqa: PLC0415 - see `_admin`

    try:
        examined = examined_group(connection, group)
    except UnknownGroupError:
        return ["the group does not exist"], {}
    except ZooKeeperUnreachableError as error:
        return [str(error)], {}
    reasons = [f"{one.subject}: {one.what}" for one in unsettled(examined.image, examined.topics)]
    # A member that has just joined owns nothing, although every partition has an owner.
    reasons += [
        f"{one.thread} should own partitions {[*one.partitions]} of {one.topic}, "
        f"and owns {[*one.owned]}"
        for one in explanation(examined).shares
        if {*one.partitions} != {*one.owned}
    ]
    registered = examined.image.registrations.keys()
    if isinstance(members, int):
        if len(registered) != members:
            reasons.append(f"it has {len(registered)} members, not {members}")
    elif members is not None and registered != {*members}:
        reasons.append(f"its members are {sorted(registered)}, not {sorted(members)}")
    return reasons, {tp: one.thread for tp, one in examined.image.owners.items()}


# ---- rebalances ----------------------------------------------------------------------------------


class OwnerChange(NamedTuple):
    """A change of a partition's owner.

    Attributes:
        at_s: the time, in seconds of `time.monotonic`.
        partition: the partition.
        before: the former owner's thread; None if the partition was free.
        after: the new owner's thread; None if the partition was released.
    """

    at_s: float
    partition: TopicPartition
    before: str | None
    after: str | None


class Rebalances:
    """Records every change of a group's owners while its block runs, from outside the group.

    Args:
        timeout_s: the time limit, in seconds, of the first read of the group.

    Entering raises AssertionError if the group is not read in time. If the group can no longer be
    followed, the end of the block raises the error.
    """

    def __init__(
        self, zookeeper_connect: str, group: str, *, timeout_s: float = SETTLE_LIMIT_S
    ) -> None:
        self._group, self._timeout_s = group, timeout_s
        self._observer = Observer(zookeeper_connect, group, follow=[GroupPart.OWNERS])
        self._thread = threading.Thread(
            target=self._run, name=f"rebalances of {group}", daemon=True
        )
        self._has_begun = threading.Event()
        self._error: Exception | None = None
        self._changes: list[OwnerChange] = []

    @property
    def changes(self) -> Sequence[OwnerChange]:
        """The changes so far, without the owners that the group had at the start."""
        return tuple(self._changes)

    def owners_of(self, partition: TopicPartition) -> list[str]:
        """Return the threads that have become the owner of a partition, in their order."""
        mine = (one for one in self._changes if one.partition == partition)
        return [one.after for one in mine if one.after is not None]

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  # the thread's boundary: the block raises it
            self._error = error
        self._has_begun.set()

    def _follow(self) -> None:
        for at_s, change in self._observer.changes():
            if change.what is ChangeKind.READ:
                self._has_begun.set()
            elif change.what is ChangeKind.OWNER and self._has_begun.is_set():
                assert isinstance(change.key, TopicPartition)
                before, after = (
                    _thread(one) if isinstance(one, OwnerZnode) else None
                    for one in (change.before, change.after)
                )
                self._changes.append(OwnerChange(at_s, change.key, before, after))

    def __enter__(self) -> Self:
        self._observer.__enter__()
        try:
            self._thread.start()
            if not self._has_begun.wait(self._timeout_s):
                raise AssertionError(
                    f"group {self._group} could not be read in {self._timeout_s:g} s"
                )
            if self._error is not None:
                raise self._error
        except BaseException:
            self._observer.close()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._observer.close()
        self._thread.join(_END_S)
        if self._error is not None and error is None:
            raise self._error


# ---- deliveries ----------------------------------------------------------------------------------


class DeliveredMessage(Protocol):
    """A message as zkconsumer hands it out."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


Place = tuple[TopicPartition, int]


class Deliveries:
    """Counts the messages that a set of consumers has received; several threads may record."""

    def __init__(self) -> None:
        self._counts: Counter[Place] = Counter()
        self._changed = threading.Condition()

    def record(self, message: DeliveredMessage) -> None:
        """Count a message that a consumer has received."""
        self.record_place(message.topic, message.partition, message.offset)

    def record_place(self, topic: str, partition: int, offset: int) -> None:
        """Count a message of another client, which names its place in another way."""
        with self._changed:
            self._counts[TopicPartition(topic, partition), offset] += 1
            self._changed.notify_all()

    def __len__(self) -> int:
        """Return the number of different messages so far."""
        return len(self._counts)

    def wait_for(self, count: int, *, timeout_s: float = SETTLE_LIMIT_S) -> None:
        """Wait until `count` different messages have been recorded.

        Raises:
            AssertionError: fewer arrived within `timeout_s` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._counts) >= count, timeout_s):
                found = len(self._counts)
                raise AssertionError(f"{found} of {count} messages arrived within {timeout_s:g} s")

    def check(self, log: Iterable[Place]) -> None:
        """Check that every message of a log was delivered exactly once.

        Raises:
            AssertionError: a message was lost, delivered more than once, or is not in the log.
        """
        expected = set(log)
        with self._changed:
            counts = dict(self._counts)
        faults = [
            ("lost", sorted(expected - counts.keys())),
            ("delivered more than once", sorted(one for one, n in counts.items() if n > 1)),
            ("delivered but not in the log", sorted(counts.keys() - expected)),
        ]
        texts = [
            f"{len(places)} {what}: {first_few((f'{tp} offset {at}' for tp, at in places), 5)}"
            for what, places in faults
            if places
        ]
        if texts:
            raise AssertionError("; ".join(texts))
