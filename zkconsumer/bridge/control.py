"""The bridge's znodes below a group: the lock of the active process, and what the operator wants.

`/consumers/GROUP/bridge` contains the goal as JSON. Its child `active` is ephemeral and names the
active process; a standby waits until it is gone. Kafka's old consumers read neither.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from zkconsumer.bridge.state import Goal
from zkconsumer.errors import (
    MalformedZnodeError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code
from zkconsumer.zk.client import ZooKeeperClient


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator wants: the goal, and the new side's share (see `Settings.share`)."""

    goal: Goal = Goal.RUN
    share: float | None = None


class Control:
    """Reads and writes the bridge's znodes of one group."""

    def __init__(self, zookeeper: ZooKeeperClient, group: str, holder: str) -> None:
        """`holder` names this process, as host and process id."""
        self._zookeeper, self._holder = zookeeper, holder
        self._path = f"{paths.group(group)}/bridge"
        self._active = f"{self._path}/active"

    def wish(self) -> Wish:
        """Return what the operator wants; the default if nobody has said anything.

        Raises MalformedZnodeError.
        """
        node = self._zookeeper.read([self._path]).get(self._path)
        if node is None or not node.data:
            return Wish()
        try:
            found = json.loads(node.data)
            return Wish(Goal(found["goal"]), found.get("share"))
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedZnodeError(
                f"not a goal of a bridge: {error}",
                where=self._path,
                remedy="set it with zkconsumer bridge pause, resume, finish or rollback",
            ) from error

    def set_wish(self, wish: Wish) -> None:
        """Store what the operator wants. Raises ZkConsumerError."""
        data = json.dumps({"goal": wish.goal.value, "share": wish.share}).encode()
        reply = self._zookeeper.write([rq.Create(self._path, data)])
        if reply.code is Code.NODE_EXISTS:
            reply = self._zookeeper.write([rq.SetData(self._path, data, -1)])
        self._check(reply)

    def begin(self, share: float | None) -> Wish:
        """Store the share for a bridge that starts, and return what it must do.

        It pursues the goal that an earlier process had not reached. Raises ZkConsumerError.
        """
        wish = Wish(self.wish().goal, share)
        self.set_wish(wish)
        return wish

    def reached(self) -> None:
        """Forget the goal, because a bridge has reached it. Raises ZkConsumerError."""
        self.set_wish(Wish())

    def holder(self) -> str:
        """Return the name of the active process; empty if none is active."""
        node = self._zookeeper.read([self._active]).get(self._active)
        return "" if node is None else (node.data or b"").decode("utf-8", "replace")

    def take(self) -> bool:
        """Become the active process; return False if another process is active."""
        reply = self._zookeeper.write(
            [rq.Create(self._active, self._holder.encode(), ephemeral=True)]
        )
        if reply.code is Code.NODE_EXISTS:
            return False
        self._check(reply)
        return True

    def keep_lock(self) -> None:
        """Stay the active process: take the lock again if ZooKeeper has ended its session.

        Raises ZkConsumerError if another process has become active meanwhile.
        """
        if self.holder() == self._holder or self.take():
            return
        raise ZkConsumerError(
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
