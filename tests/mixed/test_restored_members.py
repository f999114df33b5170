"""Offsets are restored to what the members of a group, of both kinds, had recorded themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.jvm.member import JvmMember
from support.scenes import Clients, connect_clients
from support.wait import wait_for

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.admin.apply import apply
from zkconsumer.admin.group_changes import plan_delete_group, plan_offsets
from zkconsumer.admin.restore import plan_restore
from zkconsumer.history.inputs import find_servers
from zkconsumer.history.offsets import Choice, Point, read_past
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

ROUNDS, PARTITIONS = 40, 2
LIMIT_S = 5.0

Offsets = dict[TopicPartition, int]


@dataclass
class Past:
    """A group, what its members say that they have committed, and the recorded moments.

    A moment is the server's time, and the offsets in effect then.
    """

    sandbox: Sandbox
    clients: Clients
    group: str
    topic: str
    folder: Path
    now: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)  # of the logs
    moments: list[tuple[int, Offsets]] = field(default_factory=list)
    joined: int = 0

    def record(self) -> None:
        """Record the offsets of this moment; what follows has a later millisecond."""
        self.clients.other.ensure_path("/restored-clock")
        stat = self.clients.other.set("/restored-clock", b"")
        self.moments.append((stat.mtime, dict(self.now)))
        while self.clients.other.set("/restored-clock", b"").mtime == stat.mtime:
            pass

    def stored(self) -> Offsets:
        return {tp: int(value) for tp, value in self.clients.stored(self.group).items()}

    def consume(self, dice: random.Random) -> None:
        """Let a member of either kind take new messages, and leave or be killed."""
        for placed in self.sandbox.produce(self.topic, dice.randint(1, 5)):
            self.ends[TopicPartition(self.topic, placed.partition)] = placed.offset + 1
        self.joined += 1
        if dice.random() < 0.7:
            self._with_zkconsumer(dice)
        else:
            self._with_jvm(is_killed=dice.random() < 0.5)

    def _with_zkconsumer(self, dice: random.Random) -> None:
        """A member commits each batch that it takes, and leaves at the end of the logs."""
        config = ConsumerConfig(
            group_id=self.group,
            zookeeper_connect=self.sandbox.zookeeper_connect,
            auto_offset_reset="smallest",
            auto_commit_enable=False,
        )
        with ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams({self.topic: 1})[self.topic]
            while self.now != self.ends:
                for message in stream.poll(timeout_s=1.0):
                    tp = TopicPartition(message.topic, message.partition)
                    self.now[tp] = message.offset + 1
                connector.commit_offsets()
                if dice.random() < 0.5:
                    self.record()

    def _with_jvm(self, *, is_killed: bool) -> None:
        """A JVM member commits what it takes; if it is killed, its session expires."""
        name = f"m{self.joined}"
        member = JvmMember(
            "1.1.1",
            self.sandbox.zookeeper_connect,
            self.group,
            name=name,
            directory=self.folder,
            topics=[self.topic],
        )
        try:
            wait_for(lambda: self.stored() == self.ends, "the member's commits")
            wait_for(lambda: self._taken(member) == self.ends, "the member's record")
            self.now = self._taken(member)
            if not is_killed:
                member.leave()
        finally:
            member.end()
        path = paths.member(self.group, f"{self.group}_{name}")
        wait_for(lambda: not self.clients.other.exists(path), "the end of the member's session")

    def _taken(self, member: JvmMember) -> Offsets:
        """Return the offsets after what a JVM member has written down."""
        return self.now | {one.partition: one.offset + 1 for one in member.delivered}

    def edit(self, dice: random.Random) -> None:
        """Edit, delete or lose offsets, while no member is there."""
        tp = TopicPartition(self.topic, dice.randrange(PARTITIONS))
        match dice.choice(["nothing", "set", "delete", "delete group", "rmr"]):
            case "set":
                plan = plan_offsets(self.clients.tools, "offsets set", {self.group: {tp: 1}})
                apply(self.clients.tools, plan, backup_dir=self.folder)
                self.now[tp] = 1
            case "delete" if tp in self.now:
                self.clients.other.delete(paths.offset(self.group, tp))
                del self.now[tp]
            case "delete group" if self.now:
                plan = plan_delete_group(self.clients.tools, self.group)
                apply(self.clients.tools, plan, backup_dir=self.folder)
                self.now.clear()
            case "rmr" if self.now:
                self.clients.other.delete(paths.group(self.group), recursive=True)
                self.now.clear()


@contextmanager
def past_of(sandbox: Sandbox, group: str, topic: str, folder: Path) -> Iterator[Past]:
    sandbox.create_topic(topic, partitions=PARTITIONS)
    with connect_clients(sandbox.zookeeper_connect) as clients:
        yield Past(sandbox, clients, group, topic, folder)


@pytest.mark.timeout(1200)
def test_what_members_recorded(
    sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """After 40 edits and faults, each restoration gives what the members had recorded then."""
    dice = random.Random(37)
    with past_of(sandbox, unique("group"), unique("topic"), tmp_path) as past:
        for _ in range(ROUNDS):
            past.consume(dice)
            past.record()
            past.edit(dice)
            past.record()
        servers = [sandbox.zookeeper.directory / "data"]
        wrong = {}
        for time_ms, offsets in dice.sample(past.moments, ROUNDS):
            if past.stored():
                past.clients.other.delete(paths.group(past.group), recursive=True)
            if not offsets:
                continue
            then = read_past(
                find_servers(servers), Point(Choice.TIME, time_ms), groups=[past.group]
            )
            found = plan_restore(past.clients.tools, then, limit_s=LIMIT_S)
            apply(past.clients.tools, found.plan, backup_dir=tmp_path)
            if past.stored() != offsets:
                wrong[time_ms] = (offsets, past.stored())
        assert wrong == {}
