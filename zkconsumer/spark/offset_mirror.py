"""A query's finished offsets in the group's offset znodes, where monitors of the group look.

Only forward: what stands there and is further is somebody's, and stays. Each write is a
compare-and-set on the znode's own version, so nobody's write in between is overwritten unseen.

With ZooKeeper away a commit waits for it. `BackgroundMirror` does that on a thread of its own, for
what must go on meanwhile.

It is no membership. Offsets that move on under a group with members make these skip messages at
their next rebalance, in which they read them again; so a group with members is told of.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import (
    AccessDeniedError,
    CommitError,
    MalformedZnodeError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
    shown,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import decode_offset, encode_offset
from zkconsumer.protocol.requests import MAX_MULTI_WRITES, Code, Create, SetData
from zkconsumer.zk.client import ZooKeeperClient

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""How often a transaction is sent that others' writes, or lost replies, are in the way of."""

MEMBERS_S: Final = 60.0
"""Seconds between two looks for members of the group."""

RETRY_S: Final = 10.0
"""Seconds until a commit is tried again that ZooKeeper failed: some more than a try takes, and few
beside what a monitor of lag looks at."""

LAST_S: Final = 2.0
"""Longest wait for the last commit at the end, in seconds. It takes milliseconds, or ZooKeeper is
away; a container that stops gives ten seconds to all its processes together."""


class _Stored(NamedTuple):
    """An offset znode as it was last seen; `version` is None where there is none."""

    offset: int
    version: int | None


class OffsetMirror:
    """Writes offsets of `config.group_id` into ZooKeeper; connects at the first `commit`.

    To be used from one thread at a time. Nothing that must be kept is lost with it: `close` is all.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._config, self._group = config, config.group_id
        self._connection: ZooKeeperClient | None = None
        self._stored: dict[TopicPartition, _Stored] = {}
        self._malformed: set[TopicPartition] = set()
        self._rooms: set[str] = set()
        self._members: Sequence[str] = ()
        self._looked_at = float("-inf")

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Bring these offsets up to these values; parents that are missing are made.

        Raises:
            ZooKeeperUnreachableError: no session, or lost; some may be written.
            AccessDeniedError: ZooKeeper's access control forbids it.
            CommitError: others' writes were in the way again and again.
            ChrootMissingError, ConfigError: as `ZooKeeperSession.start`.
        """
        try:
            self._commit(self._connected(), offsets)
        except ZooKeeperUnreachableError:
            self.close()
            raise

    def close(self) -> None:
        """End the session; the next `commit` begins a new one."""
        connection, self._connection = self._connection, None
        self._stored.clear()
        self._rooms.clear()
        if connection is not None:
            connection.__exit__(None, None, None)

    def _connected(self) -> ZooKeeperClient:
        if self._connection is None:
            self._connection = ZooKeeperClient(self._config).__enter__()
        return self._connection

    def _commit(self, connection: ZooKeeperClient, offsets: Mapping[TopicPartition, int]) -> None:
        due = self._due(offsets)
        if not due:
            return
        self._tell_of_members(connection)
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
            f"{len(due)} offsets were not committed: others write them, too, again and again",
            where=f"{paths.offsets(self._group)}: {', '.join(map(str, sorted(due)[:10]))}",
            remedy="see who else commits for the group",
        )

    def _due(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those that are not known to be written already, and can be."""
        return {
            tp: offset
            for tp, offset in offsets.items()
            if tp not in self._malformed
            and (tp not in self._stored or self._stored[tp].offset < offset)
        }

    def _write(self, connection: ZooKeeperClient, offsets: Mapping[TopicPartition, int]) -> None:
        """One transaction; of one that is refused, or not known of, nothing is known any more."""
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
                remedy="authenticate as somebody who may (zookeeper.auth.*)",
            )
        if reply.code is Code.NO_NODE:
            self._rooms.clear()  # somebody has deleted a parent
        for tp, offset in offsets.items():
            version = self._stored.pop(tp).version
            if reply.code is Code.OK:
                self._stored[tp] = _Stored(offset, 0 if version is None else version + 1)

    def _read(self, connection: ZooKeeperClient, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        connection.sync(paths.CONSUMERS)
        self._make_rooms(connection, {tp.topic for tp in partitions})
        found = connection.read(paths.offset(self._group, tp) for tp in partitions)
        for tp in partitions:
            path = paths.offset(self._group, tp)
            node = found.get(path)
            if node is None:
                self._stored[tp] = _Stored(-1, None)
                continue
            try:
                self._stored[tp] = _Stored(decode_offset(node.data, where=path), node.stat.version)
            except MalformedZnodeError as error:
                self._malformed.add(tp)
                _log.warning("%s is left as it is: %s", tp, error)

    def _make_rooms(self, connection: ZooKeeperClient, topics: Collection[str]) -> None:
        """The parents of offset znodes, as every member makes them."""
        group = self._group
        rooms = [paths.CONSUMERS, paths.group(group), paths.offsets(group)]
        rooms += [paths.offsets_of(group, topic) for topic in sorted(topics)]
        there = connection.stats(room for room in rooms if room not in self._rooms)
        for room in rooms:
            if room in there or room in self._rooms:
                continue
            reply = connection.write([Create(room)])
            if reply.code not in (Code.OK, Code.NODE_EXISTS, Code.BROKEN):
                raise AccessDeniedError(
                    f"ZooKeeper refused to create this: {reply.code.name}",
                    where=room,
                    remedy="ask for the right to create it",
                )
        self._rooms.update(rooms)

    def _tell_of_members(self, connection: ZooKeeperClient) -> None:
        now = time.monotonic()
        if now - self._looked_at < MEMBERS_S:
            return
        self._looked_at = now
        room = paths.ids(self._group)
        members = connection.children([room]).get(room, ())
        if members and members != self._members:
            _log.warning(
                "group %s has members (%s), and this query, which is none, moves its offsets on: at"
                " their next rebalance they skip what it has read; give the query a group of its"
                " own, or mode=group",
                self._group,
                ", ".join(map(shown, members[:5])),
            )
        self._members = members


class BackgroundMirror:
    """A mirror that follows as it can: nobody waits for it, and only the latest offsets count.

    `follow` belongs to one thread, `close` to any. What ZooKeeper refuses is told when that begins
    and when it is over, and tried again every `RETRY_S`.
    """

    def __init__(self, mirror: OffsetMirror) -> None:
        self._mirror = mirror
        self._changed = threading.Condition()
        self._latest: Mapping[TopicPartition, int] = {}
        self._due: Mapping[TopicPartition, int] | None = None
        self._is_over = False
        self._thread: threading.Thread | None = None

    def follow(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Have these written soon; returns at once."""
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
        """Have the last ones written, which may take `LAST_S`, and end the session."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _run(self) -> None:
        failed = 0
        while (due := self._next(RETRY_S if failed else 0.0)) is not None:
            try:
                self._mirror.commit(due)
            except ZkConsumerError as error:
                if not failed:
                    _log.warning(
                        "offsets are not mirrored, which is tried again every %g s: %s",
                        RETRY_S,
                        error,
                    )
                failed += 1
                with self._changed:
                    self._due = None if self._is_over else self._due or due
            else:
                if failed:
                    _log.info("offsets are mirrored again, after %d tries that failed", failed)
                failed = 0
        self._mirror.close()

    def _next(self, pause_s: float) -> Mapping[TopicPartition, int] | None:
        """What is to be written; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, pause_s)
            self._changed.wait_for(lambda: self._due is not None or self._is_over)
            due, self._due = self._due, None
            return due
