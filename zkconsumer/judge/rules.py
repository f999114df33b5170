"""What single challenges require: what must hold at the end, and promises of their own (C)."""

from __future__ import annotations

from zkconsumer.judge.world import JudgedWorld, JudgeMonitor, Rule
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, consumer_of
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.promises import Reason, promise
from zkconsumer.sim.plan import Action
from zkconsumer.sim.promises import assigned, owners_text
from zkconsumer.sim.world import WALL_MS, World

# ---- what must hold at the end -------------------------------------------------------------------


def serves_all(monitor: JudgeMonitor, world: JudgedWorld) -> Reason:
    """Every partition has the owner that the assignor computes, and all messages are delivered."""
    return promises.group_settles.reason(monitor, world)


def is_registered(monitor: JudgeMonitor, world: JudgedWorld) -> Reason:
    """Every living member has an id znode of its session; P5 says what is in the znode."""
    if not world.settled():
        return "a member is not connected, or waits for a reply"
    for member, link in zip(world.members, world.links, strict=True):
        if link.dead or link.frozen:
            continue
        path = paths.member(world.GROUP, member.name)
        node = world.zookeeper.nodes.get(path)
        if node is None:
            return f"{member.name} has no znode {path}"
        if node.stat.owner != link.session:
            return f"{path} is not an ephemeral znode of the session of {member.name}"
    return None


def create_some_parents(world: JudgedWorld) -> None:
    """Let another client have created none, one, two or three of the id znode's parents."""
    parents = (paths.group(world.GROUP), paths.ids(world.GROUP), paths.owners(world.GROUP))
    for path in parents[: len(world.log_end) - 1]:
        world.zookeeper.write(rq.Create(path))


IDENTITIES = (("0", 1), ("2", 12), ("Z", 2), ("\u00e9", 1))
"""Suffixes and streams of the judged member of `register` and `range`. The thread `g_2-10` is
before `g_2-2`."""

PEERS = (("{}!", 1), ("f", 2), ("{}-a", 1), ("10", 1), ("\ufb01", 1))
"""Suffixes and streams of the silent peers of the challenge `range`; {} is the suffix of the judged
member. The thread `g_0!-0` is before `g_0-0`, although the consumer `g_0!` is after `g_0`; `g_Z` is
before `g_f`, `g_f` before `g_é`, and `g_10` before `g_2`. Java compares UTF-16 units. ZooKeeper
refuses the characters for which this order differs from the order of code points."""


def _peers(world: JudgedWorld) -> dict[str, dict[str, int]]:
    """Return the silent peers of a world: three, four or five, depending on the partitions."""
    count = 3 + len(world.log_end) % 3
    name = world.members[0].name
    own = name.removeprefix(f"{world.GROUP}_")
    return {f"{world.GROUP}_{suffix.format(own)}": {world.TOPIC: n} for suffix, n in PEERS[:count]}


def register_peers(world: JudgedWorld) -> None:
    """Register peers that claim nothing."""
    for path in (paths.group(world.GROUP), paths.ids(world.GROUP)):
        world.zookeeper.write(rq.Create(path))
    for name, subscription in _peers(world).items():
        payload = encode_registration(Registration(subscription, timestamp_ms=WALL_MS))
        world.zookeeper.write(rq.Create(paths.member(world.GROUP, name), payload))


def has_its_share(monitor: JudgeMonitor, world: JudgedWorld) -> Reason:
    """The member owns what the range assignor gives it beside the silent peers, and delivers it."""
    if not world.settled():
        return "a member is not connected, or waits for a reply"
    pairs = zip(world.members, world.links, strict=True)
    live = [member for member, link in pairs if not (link.dead or link.frozen)]
    if not live:
        return None
    names = {one.name for one in live}
    wanted = assigned(world, live, _peers(world))
    mine = {tp: thread for tp, thread in wanted.items() if consumer_of(thread) in names}
    owners = {tp: thread for tp, (thread, _, _) in world.owners().items()}
    if owners != mine:
        return f"owners are {owners_text(owners)}, not {owners_text(mine)}"
    left = [tp for tp in mine if monitor.delivered_below.get(tp, 0) < world.log_end[tp]]
    return f"not delivered: {', '.join(map(str, left))}" if left else None


# ---- promises of single challenges ---------------------------------------------------------------


@promise("C1")
def reads_within_the_budget(reads: int, members: int) -> Reason:
    """The members read the list of members and the registrations at most 2 n² + 2 n times.

    n is the number of members, which join one after the other. Each member may list the members at
    each join, and read each registration once.
    """
    budget = 2 * members * members + 2 * members
    if reads <= budget:
        return None
    return f"{reads} reads below ids in a group of {members} members; the budget is {budget}"


@promise("C2")
def keeps_what_stays(name: str, tp: TopicPartition, *, stays: bool) -> Reason:
    """A member releases a partition only if another member gets it, or if it leaves."""
    return f"{name} releases {tp}, which stays assigned to it" if stays else None


@promise("C3")
def stores_what_it_has_delivered(monitor: JudgeMonitor) -> Reason:
    """A member that its user has closed has stored the offset after each delivered message."""
    left = [tp for tp, end in monitor.delivered_below.items() if monitor.stored.get(tp, 0) < end]
    return f"not stored: {', '.join(map(str, left))}" if left else None


class ReadBudget(Rule):
    """Counts the reads of the members' registrations (C1)."""

    def __init__(self) -> None:
        self._reads = 0

    def copy(self) -> ReadBudget:
        twin = ReadBudget()
        twin._reads = self._reads
        return twin

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        if not isinstance(request, rq.Get | rq.Exists | rq.Children):
            return
        kind = paths.locate(request.path).kind
        self._reads += kind in (ZnodeKind.IDS, ZnodeKind.MEMBER)
        reads_within_the_budget.check(self._reads, len(world.members))


class Incremental(Rule):
    """Compares each release with the assignments since the group was last quiet (C2).

    A member may act on an assignment that has changed meanwhile. So a release counts as needless
    only if the partition was assigned to the member in all these assignments.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._assignments: list[dict[TopicPartition, str]] = []

    def copy(self) -> Incremental:
        twin = Incremental()
        twin._seen, twin._assignments = self._seen, list(self._assignments)
        return twin

    def acted(self, world: World, action: Action) -> None:
        assert isinstance(world, JudgedWorld)
        history = world.zookeeper.history
        for change in history[self._seen :]:
            at = paths.locate(change.path) if change.path else None
            if at is None:
                continue
            if at.kind in (ZnodeKind.MEMBER, ZnodeKind.TOPIC):
                self._assignments.append(_present(world))
            elif at.kind is ZnodeKind.OWNER and isinstance(change.write, rq.Delete):
                self._released(world, change.session, TopicPartition(at.name, at.partition))
        self._seen = len(history)
        if len(self._assignments) > 1 and _is_quiet(world):
            del self._assignments[:-1]

    def _released(self, world: JudgedWorld, session: int, tp: TopicPartition) -> None:
        for who, link in enumerate(world.links[: len(world.programs)]):
            member = world.program_member(who)
            if link.session == session and not member.leaving:
                owners = {consumer_of(one.get(tp, "")) for one in self._assignments}
                keeps_what_stays.check(member.name, tp, stays=owners == {member.name})


def _present(world: JudgedWorld) -> dict[TopicPartition, str]:
    """Return the assignment to the members that are registered now."""
    nodes = world.zookeeper.nodes
    there = [it for it in world.members if paths.member(world.GROUP, it.name) in nodes]
    return assigned(world, there) if there else {}


def _is_quiet(world: JudgedWorld) -> bool:
    """Return whether no member waits for a reply or has an unread watch event."""
    pairs = zip(world.members, world.links, strict=True)
    return all(member.settled or link.dead for member, link in pairs if link.joined)
