"""Writes a query's finished offsets to the group's offset znodes, for tools that monitor the group.

Offsets only move forward: a higher offset that another client wrote stays. Each write is a
compare-and-set on the znode's version, so a concurrent write of another client is never overwritten
unnoticed. While ZooKeeper is unreachable, a commit waits; `BackgroundMirror` waits on a thread of
its own, so that the query continues.

The mirror is not a group member. If the group has members, they skip messages, because they read
the mirrored offsets at their next rebalance. So the mirror logs a warning about a group with
members.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from zkconsumer.admin.groups import read_groups
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import (
    AccessDeniedError,
    CommitError,
    MalformedZnodeError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
    first_few,
    quoted,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_znodes import MEMBERS
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import encode_offset, stored_offset
from zkconsumer.protocol.requests import MAX_MULTI_WRITES, Code, Create, SetData
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk.client import ZooKeeperClient

_log = SafeLogger(logging.getLogger(__name__))

ATTEMPTS: Final = 10
"""Maximum number of attempts to write a transaction. An attempt fails if another client writes at
the same time, or if the reply is lost.
"""

MEMBER_CHECK_INTERVAL_S: Final = 60.0
"""Seconds between two checks for members of the group."""

RETRY_S: Final = 10.0
"""Seconds before a failed commit is retried. This back-off is longer than an attempt, and short
compared with the interval of a lag monitor.
"""

LAST_COMMIT_LIMIT_S: Final = 2.0
"""Time limit of the last commit at the end, in seconds. The commit takes milliseconds unless
ZooKeeper is unreachable. A container that stops gives all its processes ten seconds in total.
"""


class _Stored(NamedTuple):
    """The last known content of an offset znode; `version` is None if the znode does not exist."""

    offset: int
    version: int | None


class OffsetMirror:
    """Writes offsets of `config.group_id` to ZooKeeper; the first `commit` connects.

    Only one thread may use it at a time. `close` ends its session; the mirror has no state that
    must be saved.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._config, self._group = config, config.group_id
        self._connection: ZooKeeperClient | None = None
        self._stored: dict[TopicPartition, _Stored] = {}
        # The malformed znodes of the present commit, and the payloads that were warned about.
        self._malformed: set[TopicPartition] = set()
        self._warned: dict[TopicPartition, bytes | None] = {}
        self._existing_parents: set[str] = set()
        self._members: Sequence[str] = ()
        self._checked_at = float("-inf")

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise the stored offsets to these values, and create missing parent znodes.

        Raises:
            ZooKeeperUnreachableError: there is no session, or it was lost; some offsets may be
                written.
            AccessDeniedError: ZooKeeper's access control forbids a write.
            CommitError: other clients' writes conflicted in every attempt.
            ChrootMissingError, ConfigError: see `ZooKeeperSession.start`.
        """
        try:
            self._commit(self._connected(), offsets)
        except ZooKeeperUnreachableError:
            self.close()
            raise

    def close(self) -> None:
        """End the session; the next `commit` opens a new one."""
        connection, self._connection = self._connection, None
        self._stored.clear()
        self._existing_parents.clear()
        if connection is not None:
            connection.__exit__(None, None, None)

    def _connected(self) -> ZooKeeperClient:
        if self._connection is None:
            self._connection = ZooKeeperClient(self._config).__enter__()
        return self._connection

    def _commit(self, connection: ZooKeeperClient, offsets: Mapping[TopicPartition, int]) -> None:
        self._malformed.clear()  # an operator may have repaired them
        due = self._due(offsets)
        if not due:
            return
        self._warn_of_members(connection)
        for _ in range(ATTEMPTS):
            self._read(connection, [tp for tp in due if tp not in self._stored])
            due = self._due(due)
            left = sorted(due)
            for start in range(0, len(left), MAX_MULTI_WRITES):
                part = left[start : start + MAX_MULTI_WRITES]
                self._write(connection, {tp: due[tp] for tp in part})
            due = {tp: offset for tp, offset in due.items() if tp not in self._stored}
            if not due:
                return
        raise CommitError(
            f"{len(due)} offsets were not committed: other clients wrote them at the same time in"
            f" all {ATTEMPTS} attempts",
            where=f"{paths.offsets(self._group)}: {first_few(sorted(due), 10)}",
            remedy="find the other clients that commit offsets of this group",
        )

    def _due(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets that must still be written, except offsets whose znodes are
        malformed."""
        return {
            tp: offset
            for tp, offset in offsets.items()
            if tp not in self._malformed
            and (tp not in self._stored or self._stored[tp].offset < offset)
        }

    def _write(self, connection: ZooKeeperClient, offsets: Mapping[TopicPartition, int]) -> None:
        """Write offsets in one transaction. If it fails or its reply is lost, forget the versions
        of these znodes.
        """
        writes: list[Create | SetData] = []
        for tp, offset in offsets.items():
            path, version = paths.offset(self._group, tp), self._stored[tp].version
            data = encode_offset(offset)
            writes.append(Create(path, data) if version is None else SetData(path, data, version))
        reply = connection.write(writes)
        if reply.code is Code.NO_AUTH:
            raise AccessDeniedError(
                "ZooKeeper's access control forbids this commit",
                where=writes[int(reply.value or 0)].path,
                remedy="authenticate as a user with write permission (zookeeper.auth.*)",
            )
        if reply.code is Code.NO_NODE:
            self._existing_parents.clear()  # a parent was deleted
        for tp, offset in offsets.items():
            version = self._stored.pop(tp).version
            if reply.code is Code.OK:
                self._stored[tp] = _Stored(offset, 0 if version is None else version + 1)

    def _read(self, connection: ZooKeeperClient, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        connection.sync()
        self._create_parents(connection, {tp.topic for tp in partitions})
        found = connection.read(paths.offset(self._group, tp) for tp in partitions)
        for tp in partitions:
            path = paths.offset(self._group, tp)
            node = found.get(path)
            if node is None:
                self._stored[tp] = _Stored(-1, None)
                continue
            try:
                stored = stored_offset(node.data, where=path)
                self._stored[tp] = _Stored(-1 if stored is None else stored, node.stat.version)
            except MalformedZnodeError as error:
                self._malformed.add(tp)
                if tp not in self._warned or self._warned[tp] != node.data:
                    _log.warning(
                        "the offset znode of %s is malformed and is not overwritten: %s", tp, error
                    )
                self._warned[tp] = node.data
            else:
                self._warned.pop(tp, None)

    def _create_parents(self, connection: ZooKeeperClient, topics: Collection[str]) -> None:
        """Create the parents of offset znodes, as every member does."""
        group = self._group
        parents = [paths.CONSUMERS, paths.group(group), paths.offsets(group)]
        parents += [paths.offsets_of(group, topic) for topic in sorted(topics)]
        existing = connection.stats(one for one in parents if one not in self._existing_parents)
        for parent in parents:
            if parent in existing or parent in self._existing_parents:
                continue
            reply = connection.write([Create(parent)])
            if reply.code not in (Code.OK, Code.NODE_EXISTS, Code.BROKEN):
                raise AccessDeniedError(
                    f"ZooKeeper refused to create a parent of the offset znodes: {reply.code.name}",
                    where=parent,
                    remedy="ask ZooKeeper's administrator for permission to create it",
                )
        self._existing_parents.update(parents)

    def _warn_of_members(self, connection: ZooKeeperClient) -> None:
        now = time.monotonic()
        if now - self._checked_at < MEMBER_CHECK_INTERVAL_S:
            return
        self._checked_at = now
        image = read_groups(connection, [self._group], directories=(MEMBERS,)).get(self._group)
        members = sorted(image.health.live) if image else []
        if members and members != self._members:
            _log.warning(
                "group %s has members (%s), but this query, which is not a member, advances the"
                " group's offsets: at their next rebalance the members skip messages that the query"
                " has read; give the query its own group, or use mode=group",
                self._group,
                first_few(map(quoted, members), 5),
            )
        self._members = members


class BackgroundMirror:
    """Writes the latest offsets on a thread of its own, so that the query does not wait.

    One thread calls `follow`; any thread may call `close`. The first of several consecutive
    failures, and the recovery, are logged. A failed commit is retried every `RETRY_S`.
    """

    def __init__(self, mirror: OffsetMirror) -> None:
        self._mirror = mirror
        self._changed = threading.Condition()
        self._latest: Mapping[TopicPartition, int] = {}
        self._due: Mapping[TopicPartition, int] | None = None
        self._is_over = False
        self._thread: threading.Thread | None = None

    def follow(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write these offsets soon; return at once."""
        if offsets == self._latest:
            return
        self._latest = offsets
        with self._changed:
            self._due = offsets
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the latest offsets, for at most `LAST_COMMIT_LIMIT_S`, and end the session."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_COMMIT_LIMIT_S)

    def _run(self) -> None:
        failed = 0
        while (due := self._next(RETRY_S if failed else 0.0)) is not None:
            try:
                self._mirror.commit(due)
            except ZkConsumerError as error:
                if not failed:
                    _log.warning(
                        "mirroring offsets failed; retrying every %g s: %s",
                        RETRY_S,
                        error,
                    )
                failed += 1
                with self._changed:
                    self._due = None if self._is_over else self._due or due
            else:
                if failed:
                    _log.info("mirroring offsets works again, after %d failed attempts", failed)
                failed = 0
        self._mirror.close()

    def _next(self, pause_s: float) -> Mapping[TopicPartition, int] | None:
        """Return the offsets to write, or None when the mirror is being closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, pause_s)
            self._changed.wait_for(lambda: self._due is not None or self._is_over)
            due, self._due = self._due, None
            return due
