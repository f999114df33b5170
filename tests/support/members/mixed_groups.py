"""Groups of zkconsumer and JVM members, or of JVM members alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.jvm.member import PROPERTIES, JvmMember
from support.kafka.traffic import Traffic
from support.members.crew import MemberProcess
from support.members.evidence import Delivery
from support.members.program import Request
from support.members.replay import Record
from support.wait import LIMIT_S, wait_for
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.errors import ZooKeeperUnreachableError
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.protocol.releases import DEFAULT, Profile, profile
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings
from zkconsumer.testing import wait_until_settled
from zkconsumer.zk.observer import ALL, Observer

SESSION_S = int(PROPERTIES["zookeeper.session.timeout.ms"]) / 1000
# The settings of zkconsumer members that correspond to the JVM members' `PROPERTIES`.
SETTINGS: Mapping[str, Any] = {
    "auto_offset_reset": "smallest",
    "auto_commit_interval_s": int(PROPERTIES["auto.commit.interval.ms"]) / 1000,
    "rebalance_backoff_s": int(PROPERTIES["rebalance.backoff.ms"]) / 1000,
    "zookeeper_session_timeout_s": SESSION_S,
    "zookeeper_connection_timeout_s": LIMIT_S,
}
# A change causes two or three rebalances. If no log line comes for this number of seconds, no
# further rebalance follows.
QUIET_S = 0.7
# Seconds between two checks of a group, because a check needs a dozen requests.
LOOK_S = 0.25

NEWEST_BROKER = "3.9.1"

Someone = MemberProcess | JvmMember


@dataclass(frozen=True)
class GroupSetup:
    """The variant of a scenario; the JVM members use these releases in turn.

    With a pattern, all members subscribe by it except those in `by_name`.
    """

    releases: tuple[str, ...]
    strategy: Strategy = Strategy.RANGE
    pattern: Pattern = Pattern.STATIC
    broker: str = NEWEST_BROKER
    # The release of ZooKeeper; if it is empty, the servers are those that all tests share.
    zookeeper: str = ""
    by_name: frozenset[str] = frozenset()

    def __str__(self) -> str:
        words = ["-and-".join(self.releases), self.strategy.value]
        words += ["wildcard"] * (self.pattern is not Pattern.STATIC)
        words += ["and-static"] * bool(self.by_name)
        words += [f"on-{self.broker}"] * (self.broker != NEWEST_BROKER)
        words += [f"on-zookeeper-{self.zookeeper}"] * bool(self.zookeeper)
        return "-".join(words)

    @property
    def profile(self) -> Profile:
        """The rules that these releases have in common, or the default profile."""
        return profile(self.releases[0]) if self.strategy is Strategy.ROUND_ROBIN else DEFAULT


class Topics:
    """The topics that all groups of a scenario consume, and the messages for them."""

    def __init__(self, sandbox: Sandbox, topics: Iterable[str], stack: ExitStack) -> None:
        self.sandbox, self.topics = sandbox, tuple(topics)
        cluster = client_settings(sandbox.zookeeper_connect)
        self.flow = Traffic(cluster, burst=10, pace_s=0.02)
        self.counts = self.flow.counts
        stack.callback(self.flow.stop)

    def create(self, topic: str, partitions: int) -> None:
        self.sandbox.create_topic(topic, partitions=partitions)
        self.flow.feed(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self.sandbox.add_partitions(topic, partitions=partitions)
        self.flow.feed(topic, partitions)


class Group:
    """A group; `ours` has the names of its zkconsumer members."""

    def __init__(
        self,
        stage: Topics,
        setup: GroupSetup,
        name: str,
        *,
        ours: Iterable[str],
        directory: Path,
        stack: ExitStack,
    ) -> None:
        self.stage, self.setup, self.name = stage, setup, name
        self.ours = frozenset(ours)
        self.members: dict[str, Someone] = {}
        self.live: set[str] = set()
        self.settled: dict[str, float] = {}
        self._directory, self._stack = directory / name, stack
        self._directory.mkdir()
        self.observer = stack.enter_context(
            Observer(stage.sandbox.zookeeper_connect, name, follow=ALL)
        )

    # ---- faults and changes ----------------------------------------------------------------------

    def prepare(self, names: Iterable[str]) -> None:
        """Start the JVMs of all JVM members, which join later."""
        jvms = [name for name in names if name not in self.ours]
        for number, name in enumerate(jvms):
            release = self.setup.releases[number % len(self.setup.releases)]
            self._add(name, self._jvm(name, release))

    def prepared(self) -> None:
        for member in self.members.values():
            member.wait("booted")

    def join(self, name: str) -> None:
        if name in self.ours:
            self._add(name, self._our(name))
        else:
            self.members[name].tell("join")
        self.live.add(name)

    def leave(self, name: str) -> None:
        member = self.members[name]
        if isinstance(member, JvmMember):
            wait_for(lambda: member.quiet_s > QUIET_S, f"{name} of {self.name} to have settled")
        member.leave()
        self.live.remove(name)

    def kill(self, name: str) -> None:
        self.members[name].kill()
        self.live.remove(name)

    def expire(self, name: str) -> None:
        """End the member's session on the server; the member reconnects in a new session."""
        member = self.members[name]
        if isinstance(member, JvmMember):
            known = len(member.of("session"))
            member.tell("session")
            member.wait("session", after=known)
        member.expire(self.stage.sandbox.zookeeper_connect)

    def freeze(self, name: str) -> None:
        self.members[name].freeze()
        self.live.remove(name)

    def thaw(self, name: str) -> None:
        self.members[name].thaw()
        self.live.add(name)

    # ---- the group's state -----------------------------------------------------------------------

    def consumer(self, name: str) -> str:
        return f"{self.name}_{name}"

    def _is_settled(self) -> bool:
        """Wait until the live members own their assignment; return whether all serve it.

        The strategy and the release are known here, and the owner znodes alone may fit others.
        """
        where, names = self.stage.sandbox.zookeeper_connect, map(self.consumer, self.live)
        owners = wait_until_settled(where, self.name, members={*names}, timeout_s=LIMIT_S)
        ours = [self.members[name] for name in self.live & self.ours]
        return owners == self._wanted() and all(one.serves(owners) for one in ours)

    def _wanted(self) -> dict[TopicPartition, str]:
        counts = dict.fromkeys(self.stage.topics, 1)
        return assign(
            self.setup.strategy,
            subscriptions={self.consumer(name): counts for name in self.live},
            partitions={topic: range(n) for topic, n in self.stage.counts.items()},
            key_form=self.setup.profile.key_form,
            variant=self.setup.profile.variant,
        )

    def settle(self, after: str) -> None:
        """Wait until the group is settled, and has committed all messages produced so far.

        `settled` gets the number of seconds after which the group was settled.
        """
        since = boottime()
        what = f"{self.name} to settle, {after}: {sorted(self.live)}"
        wait_for(self._is_settled, what, look_s=LOOK_S)
        self.settled[after] = boottime() - since
        ends = self.stage.flow.ends
        wait_for(
            lambda: self._has_committed(ends),
            lambda: f"all consumed, {what}{self._stacks()}",
            look_s=LOOK_S,
        )

    def _stacks(self) -> str:
        """Return the stacks of the live zkconsumer members."""
        found = ((name, self.members[name]) for name in sorted(self.live))
        return "".join(
            f"\n{name}: {one.stacks()}" for name, one in found if isinstance(one, MemberProcess)
        )

    def _has_committed(self, wanted: Mapping[TopicPartition, int]) -> bool:
        try:
            stored = self.observer.snapshot().offsets
        except ZooKeeperUnreachableError:
            return False
        return all(stored.get(tp, 0) >= offset for tp, offset in wanted.items())

    @property
    def deliveries(self) -> list[Delivery]:
        """Return all deliveries to the group, sorted by time."""
        return sorted(one for member in self.members.values() for one in member.delivered)

    def records(self) -> list[Record]:
        """Return the records of the zkconsumer members."""
        ours = ((name, self.members[name]) for name in sorted(self.ours & self.members.keys()))
        return [
            Record(name, self._trace(name), one.events, one.frozen, one.gone_at)
            for name, one in ours
        ]

    def trouble(self) -> dict[str, list[str]]:
        """Return the failed rebalances that each JVM member logged, by the member's name."""
        jvms = {n: m for n, m in self.members.items() if isinstance(m, JvmMember)}
        return {name: found for name, member in jvms.items() if (found := member.trouble())}

    # ---- members ---------------------------------------------------------------------------------

    def _regex(self, name: str) -> str:
        """Return the pattern for the topics; empty for a static subscription."""
        is_static = self.setup.pattern is Pattern.STATIC or name in self.setup.by_name
        return "" if is_static else "|".join(self.stage.topics)

    def _add(self, name: str, member: Someone) -> None:
        self.members[name] = member
        self._stack.callback(member.end)

    def _trace(self, name: str) -> Path:
        return self._directory / f"{name}.trace"

    def _our(self, name: str) -> MemberProcess:
        regex = self._regex(name)
        request = Request(
            zookeeper=self.stage.sandbox.zookeeper_connect,
            group=self.name,
            topics={} if regex else dict.fromkeys(self.stage.topics, 1),
            white_list=regex,
            settings={
                **SETTINGS,
                "consumer_id": name,
                "partition_assignment_strategy": self.setup.strategy.value,
                "peers_release": self.setup.profile.release,
                "trace_file": str(self._trace(name)),
            },
        )
        return MemberProcess(name, request, self._directory)

    def _jvm(self, name: str, release: str) -> JvmMember:
        regex = self._regex(name)
        return JvmMember(
            release,
            self.stage.sandbox.zookeeper_connect,
            self.name,
            name=name,
            directory=self._directory,
            topics=() if regex else self.stage.topics,
            pattern=("Whitelist", regex) if regex else None,
            properties={"partition.assignment.strategy": self.setup.strategy.value},
            starts="booted",
        )
