"""A real group that the lab has started: its picture, and actions on it.

The page follows the group like any live group. Its actions have the names of the simulator's moves,
but they are real: signals to processes, broken connections, deleted znodes, restarted servers. The
actions affect only processes and servers that `RealGroup` has started. Members, group and topic
have the same names as in a simulated world, so the same moves can be compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import RefusedError, ZkConsumerError
from zkconsumer.lab.identify import Identity
from zkconsumer.lab.live import GroupPicture, LiveGroup
from zkconsumer.lab.texts import spoken
from zkconsumer.lab.worlds import LabMove, parse_move
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.sandbox.proxy import Wire
from zkconsumer.sandbox.real_group import MemberKind, MemberProcess, ProcessState, RealGroup
from zkconsumer.sim.world import World
from zkconsumer.zk.observer import Change

KINDS = (
    *(MemberKind.ZKCONSUMER, MemberKind.JVM, MemberKind.ZKCONSUMER),
    *(MemberKind.JVM, MemberKind.ZKCONSUMER, MemberKind.ZKCONSUMER),
)
"""The members that may join, in the order of their columns. A JVM takes about 150 MB."""

JOINED = 3
"""Members that join at the start."""

PARTITIONS = 6
SESSION_S = 6.0
"""The session timeout of all members, the same as in simulated worlds."""

POLL_INTERVAL_S = 0.1
"""Seconds between two checks of the members' processes."""

MAX_BURST = 1000
"""Upper bound of the messages that one action produces to each partition."""


def real_group() -> RealGroup:
    """Return the servers and members of the lab's sandbox; they start when the result is
    entered."""
    return RealGroup(
        KINDS, group=World.GROUP, topic=World.TOPIC, partitions=PARTITIONS, session_s=SESSION_S
    )


class SandboxPicture(GroupPicture):
    """The picture of a live group, including the state of its processes and servers."""

    def __init__(self, real: RealGroup) -> None:
        super().__init__(real.group)
        self._real = real
        for member in real.members:
            self.refresh(self._column(member.name))
        for partition in range(real.partitions):
            self._row(TopicPartition(real.topic, partition))

    def refresh(self, who: int) -> JsonObject:
        """Update and return the view of one of the lab's members."""
        member, view = self._real.members[who], self.members[who]
        state = member.state
        is_registered = paths.member(self.group, member.name) in self.tree
        view = {
            **view,
            "k": member.kind.value,
            "why": "",
            "s": state.value,
            "ph": "registered" if is_registered else "not registered",
            "c": "muted" if member.proxy.wire is Wire.SILENT else "on",
        }
        self.members[who] = view
        return view

    def identify(self, found: Mapping[str, Identity]) -> JsonObject | None:
        """Identify only members that the lab has not started."""
        own = {member.name for member in self._real.members}
        return super().identify({name: one for name, one in found.items() if name not in own})

    def change(self, change: Change) -> JsonObject | None:
        frame = super().change(change)
        for who in frame.get("m", ()) if frame else ():
            if who < len(self._real.members):
                assert frame is not None
                frame["m"][who] = self.refresh(who)
        return frame

    def zookeeper(self) -> JsonObject:
        sandbox = self._real.sandbox
        return {
            **super().zookeeper(),
            "quorum": sandbox.zookeeper.alive,
            "brokers": sandbox.broker.alive,
        }


class SandboxGroup(LiveGroup):
    """A live group whose page may act on it."""

    def __init__(self, real: RealGroup) -> None:
        self._real = real
        self._looks = SandboxPicture(real)
        config = ConnectionConfig(zookeeper_connect=real.connect)
        super().__init__(config, real.group, picture=self._looks)
        self._acting = threading.Lock()
        self._seen = [member.state for member in real.members]
        self._actions: dict[str, Callable[[LabMove], None]] = {
            "join": lambda move: self._member(move).start(),
            "revive": lambda move: self._member(move).start(),
            "leave": lambda move: self._member(move).leave(),
            "kill": lambda move: self._member(move).kill(),
            "freeze": lambda move: self._member(move).freeze(),
            "thaw": lambda move: self._member(move).thaw(),
            "cut": lambda move: self._member(move).proxy.cut(),
            "lose_reply": lambda move: self._member(move).proxy.lose_next_reply(),
            "mute": lambda move: self._wire(move, Wire.SILENT),
            "unmute": lambda move: self._wire(move, Wire.PASS),
            "delete_id": lambda move: self._real.delete(
                paths.member(self.group, self._member(move).name)
            ),
            "delete_owner": lambda move: self._real.delete(
                paths.owner(self.group, self._partition(move))
            ),
            "set_offset": self._set_offset,
            "produce": self._produce,
            "grow": lambda move: self._real.add_partition(),
            "restart": lambda move: self._real.sandbox.zookeeper.restart(),
            "quorum_lost": lambda move: self._real.sandbox.zookeeper.kill(),
            "quorum": lambda move: self._real.sandbox.zookeeper.start(),
            "no_brokers": lambda move: self._real.sandbox.broker.kill(),
            "brokers": lambda move: self._real.sandbox.broker.start(),
        }

    def __enter__(self) -> SandboxGroup:
        super().__enter__()
        for work in (self._join, self._look):
            threading.Thread(target=work, name=f"lab {work.__name__}", daemon=True).start()
        return self

    def about(self) -> JsonObject:
        return {"kind": "live", "group": self.group, "sandbox": sorted(self._actions)}

    def words(self) -> str:
        return (
            "Real servers and members on this machine, which the lab has started. Actions are real."
        )

    # ---- actions ---------------------------------------------------------------------------------

    def command(self, command: JsonObject) -> list[JsonObject]:
        """Perform an action on the group, or answer the command as for any live group."""
        if command.get("do") != "act":
            return super().command(command)
        try:
            self.act(str(command.get("move", "")))
        except ZkConsumerError as error:
            return [{"event": "error", "text": str(error)}]
        return []

    def act(self, token: str) -> None:
        """Perform one action. Raises ZkConsumerError if it is unknown or impossible now."""
        do = token.partition(":")[0]
        if do not in self._actions:
            raise RefusedError("impossible on a real group", where=token[:60])
        move = LabMove(do) if do == "quorum_lost" else parse_move(token)
        with self._acting:
            self._actions[do](move)
            self._report(move)

    def _report(self, move: LabMove) -> None:
        """Send a frame that describes the action."""
        name = self._real.members[move.who].name if self._is_member(move.who) else ""
        do = "no_quorum" if move.do == "quorum_lost" else move.do
        words = spoken(move._replace(do=do), name)
        with self._news:
            self._looks.advance(time.monotonic() - self._started)
            views = {move.who: self._looks.refresh(move.who)} if name else {}
            self._frames([self._looks.frame(words, m=views, d=str(move))])

    def _is_member(self, who: int) -> bool:
        return 0 <= who < len(self._real.members)

    def _member(self, move: LabMove) -> MemberProcess:
        if not self._is_member(move.who):
            raise RefusedError(f"the lab has not started member {move.who}")
        return self._real.members[move.who]

    def _partition(self, move: LabMove) -> TopicPartition:
        if move.tp is None:
            raise RefusedError("name a partition")
        return move.tp

    def _wire(self, move: LabMove, wire: Wire) -> None:
        self._member(move).proxy.wire = wire

    def _set_offset(self, move: LabMove) -> None:
        if move.value < 0:
            raise RefusedError("an offset is not negative")
        path = paths.offset(self.group, self._partition(move))
        self._real.write_offset(path, int(move.value))

    def _produce(self, move: LabMove) -> None:
        if not 0 < move.value <= MAX_BURST:
            raise RefusedError(f"give 1 to {MAX_BURST} messages")
        self._real.producer.produce(int(move.value))

    # ---- processes -------------------------------------------------------------------------------

    def _join(self) -> None:
        """Let the first members join while the page is open, so that the page shows how the group
        begins."""
        try:
            for who in range(JOINED):
                if not self._closed.is_set():
                    self.act(f"join:{who}")
        except ZkConsumerError as error:
            self._send([{"event": "error", "text": str(error)}])

    def _look(self) -> None:
        """Report processes that have ended, until the lab is closed."""
        while not self._closed.wait(POLL_INTERVAL_S):
            for who, member in enumerate(self._real.members):
                before, state = self._seen[who], member.state
                if state is before:
                    continue
                self._seen[who] = state
                if state is ProcessState.LEFT or state is ProcessState.DEAD:
                    self._ended(who)

    def _ended(self, who: int) -> None:
        with self._news:
            self._looks.advance(time.monotonic() - self._started)
            words = f"the process of {self._real.members[who].name} has ended"
            self._frames([self._looks.frame(words, m={who: self._looks.refresh(who)})])
