"""The bridge's znodes below a group: the lock of the active process, and what the operator wants.

`/consumers/GROUP/bridge` contains the goal as JSON, the number of the bridge's consumers, and its
topics. Its child `active` is ephemeral and names the active process; a standby waits until it is
gone. Kafka's old consumers read neither.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final
from uuid import uuid4

from zkconsumer.bridge.state import Goal
from zkconsumer.errors import (
    MalformedZnodeError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)
from zkconsumer.frozen import dataclass
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code
from zkconsumer.zk.client import ZooKeeperClient

STANDBY_S: Final = 0.5
"""How often, in seconds, a standby looks whether the active bridge is gone."""

RECREATE_S: Final = 5.0
"""Seconds before a ZooKeeper client that has failed for good is replaced."""


def process_name() -> str:
    """Return a name for this process: its host, its process id, and a random part.

    Processes in containers may have one host name and one process id.
    """
    return f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator wants, and what a process needs in order to continue another one's work.

    Attributes:
        goal: what the bridge must do.
        share: the new side's share; see `Settings.share`.
        consumers: how many consumers the bridge ran last; a process that starts while the bridge is
            paused runs as many. None: no bridge has stored it.
        topics: the topics that the bridge shared last; a process that starts when no old member is
            left shares them. Empty: no bridge has stored them.
    """

    goal: Goal = Goal.RUN
    share: float | None = None
    consumers: int | None = None
    topics: tuple[str, ...] = ()


class ReplacedError(ZkConsumerError):
    """Another process has become the active bridge of the group, so this one ends at once."""


class Control:
    """Reads and writes the bridge's znodes of one group."""

    def __init__(self, zookeeper: ZooKeeperClient, group: str, holder: str) -> None:
        """`holder` names this process, and no other one; see `process_name`."""
        self._zookeeper, self._holder = zookeeper, holder
        self._path = f"{paths.group(group)}/bridge"
        self._active = f"{self._path}/active"

    def wish(self) -> Wish:
        """Return what the operator wants; the default if nobody has said anything.

        Raises MalformedZnodeError.
        """
        return self._read()[0]

    def _read(self) -> tuple[Wish, int | None]:
        """Return what the operator wants, and the znode's version; None: there is no znode."""
        node = self._zookeeper.read([self._path]).get(self._path)
        if node is None or not node.data:
            return Wish(), None if node is None else node.stat.version
        try:
            return _decode(node.data), node.stat.version
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedZnodeError(
                f"not a goal of a bridge: {error}",
                where=self._path,
                remedy=f'write {{"goal": "{Goal.RUN.value}"}} into the znode',
            ) from error

    def change(self, change: Callable[[Wish], Wish]) -> Wish:
        """Replace what is stored by the result of `change`, and return it.

        An operator's command and the active process may write at the same time. The second one
        reads again, so neither overwrites what the other has changed. Raises ZkConsumerError.
        """
        while True:
            before, version = self._read()
            after = change(before)
            data = json.dumps({**asdict(after), "goal": after.goal.value}).encode()
            write: rq.Write = rq.Create(self._path, data)
            if version is not None:
                write = rq.SetData(self._path, data, version)
            reply = self._zookeeper.write([write])
            if reply.code not in (Code.NODE_EXISTS, Code.BAD_VERSION):
                self._check(reply)
                return after

    def begin(self, share: float | None) -> Wish:
        """Store the share for a bridge that starts, and return what it must do.

        It pursues the goal that an earlier process had not reached. Raises ZkConsumerError.
        """
        return self.change(lambda wish: replace(wish, share=share))

    def reached(self) -> None:
        """Forget the goal, because a bridge has reached it. Raises ZkConsumerError."""
        self.change(lambda _: Wish())

    def holder(self) -> str:
        """Return the name of the active process; empty if none is active."""
        node = self._zookeeper.read([self._active]).get(self._active)
        return "" if node is None else (node.data or b"").decode("utf-8", "replace")

    def wait(self, say: Callable[[str], None]) -> bool:
        """Become the active process as soon as no other one is; return whether another one was.

        A standby also waits while ZooKeeper is unreachable, because the active process may lose its
        session then. `say` shows the operator what it waits for. Raises ZkConsumerError.
        """
        other, is_away = "", False
        while True:
            try:
                if self.take():
                    return bool(other)
                holder = self.holder()
                if holder and (holder != other or is_away):
                    say(f"standby: {holder} is active")
                other, is_away = holder or other, False
            except ZooKeeperUnreachableError as error:
                if not is_away:
                    say(f"standby: waits for ZooKeeper: {error.what}")
                is_away = True
            time.sleep(STANDBY_S)
            if self._zookeeper.death is not None:
                time.sleep(RECREATE_S)  # a server may lock a user who logs in too often
                self._zookeeper.recreate()

    def take(self) -> bool:
        """Become the active process; return False if another process is active.

        If the answer to an earlier request was lost, this process may have the lock already.
        """
        reply = self._zookeeper.write(
            [rq.Create(self._active, self._holder.encode(), ephemeral=True)]
        )
        if reply.code is Code.NODE_EXISTS:
            return self.holder() == self._holder
        self._check(reply)
        return True

    def keep_lock(self) -> None:
        """Stay the active process: take the lock again if ZooKeeper has ended its session.

        Raises ReplacedError if another process has become active meanwhile, and ZkConsumerError.
        """
        if self.holder() == self._holder or self.take():
            return
        raise ReplacedError(
            "this process has lost its ZooKeeper session, and ends;"
            f" {self.holder() or 'another process'} is active",
            where=self._active,
        )

    def _check(self, reply: rq.Reply) -> None:
        if reply.code is Code.BROKEN:
            raise ZooKeeperUnreachableError(
                "the connection was lost during a write", where=self._path, remedy="try again"
            )
        if reply.code is not Code.OK:
            raise ZkConsumerError(
                f"ZooKeeper refused to write the bridge's znode: {reply.code.name}",
                where=self._path,
                remedy="check that the group exists in ZooKeeper, and ask for write access to it",
            )


def _decode(data: bytes) -> Wish:
    """Return the wish that a znode's data describes. Raises ValueError, KeyError or TypeError."""
    found = json.loads(data)
    goal, share, consumers = Goal(found["goal"]), found.get("share"), found.get("consumers")
    if not (share is None or 0 < share < 1):
        raise ValueError(f"the share {share}")
    if not (consumers is None or (type(consumers) is int and consumers >= 0)):
        raise ValueError(f"{consumers} consumers")
    topics = found.get("topics", [])
    if not (isinstance(topics, list) and all(isinstance(one, str) for one in topics)):
        raise ValueError(f"the topics {topics}")
    return Wish(goal, share, consumers, tuple(topics))
