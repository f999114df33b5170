"""A simulation of members, one ZooKeeper and in-memory logs, in virtual time, with faults.

Every choice (which member continues, what the network does, which fault happens) is an index into
the list of possible actions. All choices come from one stream of decisions, which determines the
run. The stream is generated from a seed, or read from a recorded list; a shortened list gives a
shorter run.

The first half of the module lists the faults that may happen, what each fault does to the world,
and what ends it. The second half is the world itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.member import commands as cmd
from zkconsumer.member.events import Event
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import lost_data, paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.lost_data import RefusedHandshakes
from zkconsumer.protocol.model import OffsetAndMetadata, Session, TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.kernel.world import NEVER, Delivered, Relay, Transition
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import USER_ACTIONS, Action, ActiveFaults, Do, Link, Plan
from zkconsumer.sim.zookeeper import NotConnected, ReplicaBehind, SimZooKeeper

if TYPE_CHECKING:
    from zkconsumer.sim.tool import Tool

# ---- possible faults and their ends --------------------------------------------------------------


LAG_ENTRIES = 3
"""Number of transactions that a lagging replica stays behind: a claim, a commit and a join."""

BAD_REGISTRATIONS = (
    b"{",
    b'{"version":1,"subscription":{"t{9999999}":1},"pattern":"white_list","timestamp":"1"}',
)
"""A registration that no member can read, and a registration that takes too long to evaluate."""

AMBIGUOUS = rb'{"version":1,"subscription":{"t|x\\\\d+":1},"pattern":"white_list","timestamp":"1"}'
"""A registration that the JVM's releases parse differently; only worlds with an `aim` use it."""

PEER = "node"
"""The suffix of the consumer id of the client that registers empty."""

_UNREADABLE = b"one"
_STRANGER = "stranger-0"

_PARTITION_FAULTS = {
    Do.DELETE_OWNER,
    Do.EDIT,
    Do.ZOMBIE,
    Do.LATE_COMMIT,
    Do.CORRUPT_OFFSET,
    Do.STUCK,
    Do.ORPHAN,
}
APPLY_WAYS = 2
"""Number of ways to apply a plan; `sim.tool.LIVES` lists them."""

_WORLD_FAULTS = {
    Do.GROW,
    Do.DELETE_TOPIC,
    Do.NO_BROKERS,
    Do.NO_QUORUM,
    Do.RESTART,
    Do.LOSE_DATA,
}
_NEEDS_QUORUM = _PARTITION_FAULTS | {
    Do.EXPIRE,
    Do.DELETE_ID,
    Do.TAKE_ID,
    Do.GROW,
    Do.DELETE_TOPIC,
    Do.NO_BROKERS,
    Do.BAD_REGISTRATION,
    Do.REFUSE,
    Do.RESTART,
    Do.LOSE_DATA,
    Do.NO_QUORUM,
    Do.APPLY,
    Do.LOSE_TOOL,
    Do.REGISTER_EMPTY,
}
"""Faults that need a quorum, or have no meaning without one."""


def possible(world: World) -> list[Action]:
    """Return the faults that may still happen, in a fixed order."""
    actions: list[Action] = []
    for do, left in world.faults_left.items():
        if left > 0 and not (world.active_faults.no_quorum and do in _NEEDS_QUORUM):
            actions += _of_kind(world, do)
    return actions


def _of_kind(world: World, do: Do) -> list[Action]:
    wrong, links = world.active_faults, world.links
    alive = [
        who
        for who, link in enumerate(links)
        if link.joined and not link.dead and not world.members[who].closed
    ]
    awake = [who for who in alive if not links[who].frozen]
    heard = [who for who in alive if links[who].connected and links[who].black_hole_at is None]
    replicas = range(world.plan.replicas)
    if do is Do.APPLY_RETENTION:
        return world.retainable()
    if do in USER_ACTIONS:
        return [action for who in awake for action in world.user_actions(do, who)]
    if do in _PARTITION_FAULTS:
        return [Action(do, tp=tp) for tp in world.log_end]
    if do in _WORLD_FAULTS:
        already = {
            Do.NO_BROKERS: wrong.brokers_gone,
            Do.DELETE_TOPIC: wrong.topic_gone,
            # A plan names versions of znodes, and a restored znode may have such a version again.
            Do.LOSE_DATA: world.tool is not None,
        }
        return [] if already.get(do, do is Do.GROW and wrong.topic_gone) else [Action(do)]
    numbers: dict[Do, Iterable[int]] = {
        Do.KILL: alive,
        Do.DELETE_ID: alive,
        Do.TAKE_ID: (who for who in alive if who not in wrong.taken),
        Do.FREEZE: awake,
        Do.LEAVE: awake,
        Do.SLOW: (who for who in alive if not links[who].slow),
        Do.CRASH_CLIENT: (who for who in awake if world.members[who].has_client),
        Do.LOCK_OUT: (who for who in awake if not links[who].locked_out),
        Do.COMMIT: (who for who in awake if world.members[who].feeds),
        Do.CUT: heard,
        # Another client ends a session only if the member can handle the event at once: it is not
        # frozen, and no earlier change of its connection is in its inbox.
        Do.EXPIRE: (
            who for who in heard if not links[who].frozen and not world.members[who].changes
        ),
        Do.BLACK_HOLE: (who for who in heard if not links[who].frozen),
        Do.BAD_REGISTRATION: ()
        if wrong.bad_registration
        else range(len(_bad_registrations(world))),
        Do.REFUSE: () if wrong.refused else range(len(_refusals(world))),
        Do.REGISTER_EMPTY: () if wrong.peer else (0,),
        Do.REVIVE: (who for who, link in enumerate(links) if link.dead),
        **_of_the_tool(world),
        Do.KAFKA_DOWN: () if wrong.kafka else (1, 2),
        Do.LAG: (n for n in replicas if n not in wrong.lagging),
        Do.ISOLATE: (n for n in replicas if n not in wrong.isolated),
    }
    return [Action(do, number) for number in numbers[do]]


def _of_the_tool(world: World) -> dict[Do, Iterable[int]]:
    tool = world.tool
    is_idle = tool is not None and tool.pending is None and tool.is_over and tool.has_work
    runs = tool is not None and tool.pending is not None
    return {
        Do.APPLY: range(APPLY_WAYS) if is_idle else (),
        Do.LOSE_TOOL: (0,) if runs and tool is not None and tool.writes else (),
        Do.KILL_TOOL: (0,) if runs else (),
    }


def repairs(world: World) -> list[Action]:
    """Return the actions that would end a fault, in a fixed order.

    Without a quorum, only the return of the quorum is possible.
    """
    wrong = world.active_faults
    if wrong.no_quorum:
        return [Action(Do.QUORUM)]
    actions = [Action(Do.REJOIN, n) for n in wrong.isolated]
    actions += [Action(Do.CATCH_UP, n) for n in wrong.lagging]
    for who, link in enumerate(world.links):
        if not link.dead:
            actions += [Action(Do.THAW, who)] if link.frozen else []
            actions += [Action(Do.END_BLACK_HOLE, who)] if link.black_hole_at is not None else []
            actions += [Action(Do.END_SLOW, who)] if link.slow else []
            actions += [Action(Do.ADMIT, who)] if link.locked_out else []
    if world.tool is not None and world.tool.pending is None and not world.tool.is_over:
        actions += [Action(Do.APPLY_AGAIN), Action(Do.UNDO)]
    actions += world.resumes()
    actions += [Action(Do.FREE_ID, who) for who in wrong.taken]
    actions += [Action(Do.ALLOW)] if wrong.refused else []
    actions += [Action(Do.KAFKA_UP)] if wrong.kafka else []
    actions += [Action(Do.CREATE_TOPIC)] if wrong.topic_gone else []
    actions += [Action(Do.BROKERS)] if wrong.brokers_gone else []
    actions += [Action(Do.DELETE_BAD_REGISTRATION)] if wrong.bad_registration else []
    actions += [Action((Do.WRITE_PAYLOAD, Do.PEER_LEAVES)[wrong.peer - 1])] if wrong.peer else []
    actions += [Action(Do.UNSTICK, tp=tp) for tp in wrong.stuck]
    actions += [Action(Do.REPAIR, tp=tp) for tp in wrong.corrupt_offsets if not wrong.topic_gone]
    return actions


# ---- members, their users and connections -------------------------------------------------------


def cut(world: World, who: int) -> None:
    world.drop(who)


def black_hole(world: World, who: int) -> None:
    world.links[who].black_hole_at = world.now


def end_black_hole(world: World, who: int) -> None:
    world.links[who].black_hole_at = None
    world.distribute()


def expire(world: World, who: int) -> None:
    """End a live session and its connection; the member handles this event before any other.

    The lease cannot protect against another client that ends the session: nothing protects the
    member's partitions until the member handles this event.
    """
    world.zookeeper.expire(world.links[who].session)
    world.drop(who)
    world.notice(who)
    while world.members[who].changes:
        world.overtake(who)


def crash_client(world: World, who: int) -> None:
    world.end_client(who, reason="a bug")


def lock_out(world: World, who: int) -> None:
    """ZooKeeper's server restarts, and refuses the member's credential from then on."""
    world.links[who].locked_out = True
    world.drop(who)


def admit(world: World, who: int) -> None:
    world.links[who].locked_out = False


def kill(world: World, who: int) -> None:
    """The process ends. Its requests on the wire may still be executed; its session times out."""
    link = world.links[who]
    link.dead, link.lost = True, False
    world.members[who].end_threads()


def revive(world: World, who: int) -> None:
    """The process starts again under its id; its old session may still be alive.

    The new registration differs from the previous one, so that code that mixes them up is detected.
    Requests of the old process that no server has executed are lost with its connection.
    """
    old = world.links[who]
    if old.session:
        world.old_sessions.append(old.session)
        world.zookeeper.disconnect(old.session)
    world.starts[who] += 1
    world.members[who] = world.new_member(who)
    world.links[who] = Link(replica=old.replica)
    world.join(who)


def freeze(world: World, who: int) -> None:
    world.links[who].frozen = True


def thaw(world: World, who: int) -> None:
    """The member continues at the point where it was frozen; the clock has advanced."""
    link, member = world.links[who], world.members[who]
    link.frozen = False
    if link.connected and member.due <= world.now:
        member.wake(world.now)


def slow(world: World, who: int) -> None:
    world.links[who].slow = True


def end_slow(world: World, who: int) -> None:
    world.links[who].slow = False


# ---- znodes of the group ------------------------------------------------------------------------


def delete_owner(world: World, tp: TopicPartition) -> None:
    world.zookeeper.write(rq.Delete(paths.owner(world.GROUP, tp)))


def delete_id(world: World, who: int) -> None:
    world.zookeeper.write(rq.Delete(paths.member(world.GROUP, world.members[who].name)))


def take_id(world: World, who: int) -> None:
    """Another client deletes a member's id znode, and registers the same subscription under the
    member's id.

    From then on the member cannot register. The other client claims no partition.
    """
    path = paths.member(world.GROUP, world.members[who].name)
    node = world.zookeeper.nodes.get(path)
    if node is None:
        return
    delete_id(world, who)
    if world.foreign(rq.Create(path, node.data or b"", ephemeral=True)).code is Code.OK:
        world.active_faults.taken += (who,)


def free_id(world: World, who: int) -> None:
    world.active_faults.taken = tuple(one for one in world.active_faults.taken if one != who)
    path = paths.member(world.GROUP, world.members[who].name)
    node = world.zookeeper.nodes.get(path)
    if node is not None and world.is_foreign(node.stat.owner):
        world.zookeeper.write(rq.Delete(path))


def stuck(world: World, tp: TopicPartition) -> None:
    """Another client's session claims a partition that has no owner."""
    _stand_in(world, tp, rq.Create(_owner(world, tp), _STRANGER.encode(), ephemeral=True))


def orphan(world: World, tp: TopicPartition) -> None:
    """Another client creates a persistent owner znode."""
    _stand_in(world, tp, rq.Create(_owner(world, tp), _STRANGER.encode()))


def _owner(world: World, tp: TopicPartition) -> str:
    return paths.owner(world.GROUP, tp)


def _stand_in(world: World, tp: TopicPartition, create: rq.Create) -> None:
    if world.foreign(create).code is Code.OK:
        world.active_faults.stuck += (tp,)


def unstick(world: World, tp: TopicPartition) -> None:
    world.active_faults.stuck = tuple(one for one in world.active_faults.stuck if one != tp)
    node = world.zookeeper.nodes.get(_owner(world, tp))
    if node is not None and node.data == _STRANGER.encode():
        world.zookeeper.write(rq.Delete(_owner(world, tp)))


def bad_registration(world: World, variant: int) -> None:
    """Another client registers a payload that members cannot read, evaluate, or agree on."""
    path = paths.member(world.GROUP, f"{world.GROUP}_hostile")
    if world.foreign(rq.Create(path, _bad_registrations(world)[variant])).code is Code.OK:
        world.active_faults.bad_registration = 1 + variant


def _bad_registrations(world: World) -> tuple[bytes, ...]:
    if world.plan.is_ambiguous:
        return (AMBIGUOUS,)
    return BAD_REGISTRATIONS if world.plan.aim is None else (*BAD_REGISTRATIONS, AMBIGUOUS)


def delete_bad_registration(world: World) -> None:
    world.active_faults.bad_registration = 0
    world.zookeeper.write(rq.Delete(paths.member(world.GROUP, f"{world.GROUP}_hostile")))


def register_empty(world: World, _: int) -> None:
    """Another client registers as kafka-node does: it creates its id znode without a payload.

    The client is a member from the moment when it writes the payload. It claims no partition.
    """
    path = paths.member(world.GROUP, f"{world.GROUP}_{PEER}")
    if world.foreign(rq.Create(path, None, ephemeral=True)).code is Code.OK:
        world.active_faults.peer = 1


def write_payload(world: World) -> None:
    world.active_faults.peer = 2
    payload = encode_registration(Registration({world.TOPIC: 1}, timestamp_ms=WALL_MS))
    path = paths.member(world.GROUP, f"{world.GROUP}_{PEER}")
    world.zookeeper.write(rq.SetData(path, payload, -1))


def peer_leaves(world: World) -> None:
    world.active_faults.peer = 0
    world.zookeeper.write(rq.Delete(paths.member(world.GROUP, f"{world.GROUP}_{PEER}")))


def edit(world: World, tp: TopicPartition) -> None:
    """An operator sets an offset to 0, and creates the znode that marks the write as an edit."""
    world.edits += 1
    world.zookeeper.write(rq.Create(paths.edits(world.GROUP)))
    _write_offset(world, tp, b"0", rq.Create(paths.edit(world.GROUP, world.edits)))


def zombie(world: World, tp: TopicPartition) -> None:
    """A former owner commits a much lower offset."""
    _write_offset(world, tp, b"0")


def late_commit(world: World, tp: TopicPartition) -> None:
    """A former owner commits the offset of everything delivered so far."""
    _write_offset(world, tp, payloads.encode_offset(world.handed_out.get(tp, 0)))


def corrupt_offset(world: World, tp: TopicPartition) -> None:
    if _write_offset(world, tp, _UNREADABLE) and tp not in world.active_faults.corrupt_offsets:
        world.active_faults.corrupt_offsets += (tp,)


def repair(world: World, tp: TopicPartition) -> None:
    """An operator writes a readable offset, and touches the topic so that members read again."""
    world.active_faults.corrupt_offsets = tuple(
        one for one in world.active_faults.corrupt_offsets if one != tp
    )
    node = world.zookeeper.nodes.get(paths.offset(world.GROUP, tp))
    if node is not None and node.data == _UNREADABLE:
        _write_offset(world, tp, b"0")
    world.zookeeper.write(_topic(world, tp.topic))


def _write_offset(world: World, tp: TopicPartition, data: bytes, *more: rq.Write) -> bool:
    path = paths.offset(world.GROUP, tp)
    if path not in world.zookeeper.nodes:
        return False
    world.zookeeper.write(rq.SetData(path, data, -1), *more)
    return True


def kafka_down(world: World, how: int) -> None:
    """Make the offset coordinator fail in one of two ways.

    `how` 1: it moves or refuses commits. `how` 2: it stores commits, and its replies are lost.
    """
    world.active_faults.kafka = how


def kafka_up(world: World) -> None:
    world.active_faults.kafka = 0


# ---- an operator's tool --------------------------------------------------------------------------


def apply(world: World, variant: int) -> None:
    """An operator plans a reset of offsets and applies it, with or without members registered."""
    assert world.tool is not None
    world.tool.begin(variant)


def lose_tool(world: World, _: int) -> None:
    assert world.tool is not None
    world.tool.step(is_lost=True)


def kill_tool(world: World, _: int) -> None:
    assert world.tool is not None
    world.tool.kill()


def apply_again(world: World) -> None:
    assert world.tool is not None
    world.tool.apply_again()


def undo(world: World) -> None:
    assert world.tool is not None
    world.tool.undo()


# ---- topics and brokers -------------------------------------------------------------------------


def grow(world: World) -> None:
    number = _partitions(world, world.TOPIC)
    world.log_end[TopicPartition(world.TOPIC, number)] = world.plan.messages
    world.zookeeper.write(_topic(world, world.TOPIC))


def _partitions(world: World, topic: str) -> int:
    return sum(tp.topic == topic for tp in world.log_end)


def _topic(world: World, topic: str) -> rq.SetData:
    return rq.SetData(paths.topic(topic), world.topic_data(_partitions(world, topic)), -1)


def delete_topic(world: World) -> None:
    world.active_faults.topic_gone = True
    world.zookeeper.write(rq.Delete(paths.topic(world.TOPIC)))


def create_topic(world: World) -> None:
    """Create the topic again. Its log continues at the end of the old log, so that the checks can
    compare old and new offsets.
    """
    world.active_faults.topic_gone = False
    data = world.topic_data(_partitions(world, world.TOPIC))
    world.zookeeper.write(rq.Create(paths.topic(world.TOPIC), data))


def no_brokers(world: World) -> None:
    world.active_faults.brokers_gone = True
    world.zookeeper.write(rq.Delete(paths.broker(0)))


def brokers(world: World) -> None:
    world.active_faults.brokers_gone = False
    world.zookeeper.write(rq.Create(paths.broker(0), world.BROKER))


# ---- ZooKeeper ----------------------------------------------------------------------------------


def _refusals(world: World) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return (paths, permissions) pairs that an access control list may take from every client."""
    group = world.GROUP
    offsets = tuple(paths.offset(group, tp) for tp in world.log_end)
    return (
        ((paths.owners_of(group, world.TOPIC),), ("create",)),
        ((paths.owners_of(group, world.TOPIC),), ("delete",)),
        ((paths.owners_of(group, world.TOPIC),), ("read",)),
        ((*offsets, paths.offsets_of(group, world.TOPIC)), ("write", "create")),
        (offsets, ("read",)),
        ((paths.ids(group),), ("create",)),
        ((paths.ids(group),), ("read",)),
        ((paths.topic(world.TOPIC),), ("read",)),
    )


def refuse(world: World, variant: int) -> None:
    where, permissions = _refusals(world)[variant]
    world.active_faults.refused = where
    for path in where:
        world.zookeeper.forbid(path, *permissions)


def allow(world: World) -> None:
    """Restore the rights, and renew all connections.

    A server does not report a change to clients that may not read the znode, and the change ends
    their watches. Clients read again only after they have reconnected.
    """
    for path in world.active_faults.refused:
        world.zookeeper.forbid(path)
    world.active_faults.refused = ()
    for who in range(len(world.links)):
        world.drop(who)


def lag(world: World, replica: int) -> None:
    world.active_faults.lagging += (replica,)
    world.zookeeper.set_lag(replica, LAG_ENTRIES)


def catch_up(world: World, replica: int) -> None:
    world.active_faults.lagging = tuple(n for n in world.active_faults.lagging if n != replica)
    world.zookeeper.catch_up(replica)


def isolate(world: World, replica: int) -> None:
    world.active_faults.isolated += (replica,)
    world.zookeeper.cut_off(replica)


def rejoin(world: World, replica: int) -> None:
    world.active_faults.isolated = tuple(n for n in world.active_faults.isolated if n != replica)
    world.zookeeper.heal(replica)


def no_quorum(world: World) -> None:
    world.active_faults.no_quorum = True
    world.zookeeper.lose_quorum()


def quorum(world: World) -> None:
    world.active_faults.no_quorum = False
    world.zookeeper.regain_quorum()


def lose_data(world: World) -> None:
    """All servers restart with the data of a backup. The brokers register again, and the controller
    writes the topics again.

    The backup was made before the group existed. The end of the old data also ends the faults that
    consisted of znodes or access control lists.
    """
    wrong = ActiveFaults(kafka=world.active_faults.kafka)
    world.active_faults = wrong
    for who in range(len(world.links)):
        world.drop(who)
    world.zookeeper.lose_data(world.now)
    world.forget_stranger()
    for topic in sorted({tp.topic for tp in world.log_end}):
        world.zookeeper.write(_topic(world, topic))


def restart(world: World) -> None:
    world.active_faults.lagging = world.active_faults.isolated = ()
    world.zookeeper.restart(world.now)


HANDLERS: dict[Do, Callable[..., None]] = {
    Do.CUT: cut,
    Do.BLACK_HOLE: black_hole,
    Do.EXPIRE: expire,
    Do.KILL: kill,
    Do.FREEZE: freeze,
    Do.SLOW: slow,
    Do.DELETE_OWNER: delete_owner,
    Do.DELETE_ID: delete_id,
    Do.EDIT: edit,
    Do.ZOMBIE: zombie,
    Do.LATE_COMMIT: late_commit,
    Do.CORRUPT_OFFSET: corrupt_offset,
    Do.GROW: grow,
    Do.DELETE_TOPIC: delete_topic,
    Do.NO_BROKERS: no_brokers,
    Do.BAD_REGISTRATION: bad_registration,
    Do.STUCK: stuck,
    Do.ORPHAN: orphan,
    Do.REFUSE: refuse,
    Do.LAG: lag,
    Do.ISOLATE: isolate,
    Do.NO_QUORUM: no_quorum,
    Do.RESTART: restart,
    Do.REVIVE: revive,
    Do.KAFKA_DOWN: kafka_down,
    Do.APPLY: apply,
    Do.LOSE_TOOL: lose_tool,
    Do.KILL_TOOL: kill_tool,
    Do.CRASH_CLIENT: crash_client,
    Do.LOCK_OUT: lock_out,
    Do.LOSE_DATA: lose_data,
    Do.TAKE_ID: take_id,
    Do.REGISTER_EMPTY: register_empty,
    Do.THAW: thaw,
    Do.END_BLACK_HOLE: end_black_hole,
    Do.END_SLOW: end_slow,
    Do.REPAIR: repair,
    Do.CREATE_TOPIC: create_topic,
    Do.BROKERS: brokers,
    Do.DELETE_BAD_REGISTRATION: delete_bad_registration,
    Do.UNSTICK: unstick,
    Do.ALLOW: allow,
    Do.CATCH_UP: catch_up,
    Do.REJOIN: rejoin,
    Do.QUORUM: quorum,
    Do.KAFKA_UP: kafka_up,
    Do.APPLY_AGAIN: apply_again,
    Do.UNDO: undo,
    Do.ADMIT: admit,
    Do.FREE_ID: free_id,
    Do.WRITE_PAYLOAD: write_payload,
    Do.PEER_LEAVES: peer_leaves,
}
"""The functions for actions that are not methods of `World`."""


# ---- world ---------------------------------------------------------------------------------------


WALL_MS = 1_400_000_000_000
"""Milliseconds of the virtual wall clock at virtual second 0. Members write the wall clock into
znodes, and never compare it.
"""

STEP_S = 0.001
"""Seconds by which the clock advances with each action."""

PATIENCE = 2 / 3
"""A client that receives nothing for this fraction of the session timeout drops the connection, as
kazoo does."""

MORE_PARTITIONS = 2
"""Partitions of each topic except the first one."""


MemberTransition: TypeAlias = Transition[State, Event, cmd.Command]
"""A step of a member's state machine."""


class Watcher:
    """Observes a run; each method is called after its event. A monitor overrides the methods."""

    def transition(self, world: World, step: MemberTransition) -> None:
        """A member's state machine has made a step."""

    def delivered(self, world: World, message: Delivered) -> None:
        """A user has got a message."""

    def finished(self, world: World, who: int, tp: TopicPartition, offset: int) -> None:
        """A user has finished all messages of a partition below this offset."""

    def repositioned(
        self, world: World, who: int, tp: TopicPartition, *, epoch: int, offset: int, is_seek: bool
    ) -> None:
        """A user's seek or `auto.offset.reset` has changed a position."""

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        """A server has executed a member's request; `reply` is None if it does not answer."""

    def notified(self, world: World, who: int, fired: WatchFired) -> None:
        """A member's watch has fired."""

    def entered(self, world: World, who: int, phase: str, text: str) -> None:
        """A JVM member has entered another phase."""

    def acted(self, world: World, action: Action) -> None:
        """An action has ended."""


class Watchers(Relay[Watcher], Watcher):
    """Passes each call to several watchers, in their order."""


class World:
    """One run: `enabled` lists the possible actions, and `act` performs one."""

    GROUP, TOPIC = "g", "t"
    BROKER = b'{"host":"h","port":9092,"version":1,"timestamp":"0","jmx_port":-1}'

    def __init__(self, plan: Plan, watcher: Watcher | None = None) -> None:
        self.plan = plan
        self.now = 0.0
        self.step_s = STEP_S
        self.messages_per_advance = plan.messages_per_advance
        self.watcher = watcher or Watcher()
        # The last replica serves all clients that are not members, and never fails.
        self.zookeeper = SimZooKeeper(replicas=plan.replicas + 1)
        self.faults_left = dict(plan.faults)
        self.log_end: dict[TopicPartition, int] = {}
        self.log_start: dict[TopicPartition, int] = {}
        self.handed_out: dict[TopicPartition, int] = {}
        self.kafka: dict[TopicPartition, OffsetAndMetadata] = {}
        self.old_sessions: list[int] = []  # sessions of members that have started again
        self.edits = 0
        self.ticket = 0  # the ticket of the request that a server executes
        self.active_faults = ActiveFaults()
        self._stranger = 0
        self._build_cluster()
        self.starts = [0] * plan.members  # how often each member has started again
        self.members = [self.new_member(who) for who in range(plan.members)]
        self.links = [Link(replica=n % plan.replicas) for n in range(plan.members)]
        if Do.LOSE_DATA in plan.faults:
            self.zookeeper.back_up()
        self.tool = self._new_tool() if plan.has_tool else None
        if plan.stored and self.tool:
            self._build_offsets(plan.stored)
            self.tool.begin(0)

    def _new_tool(self) -> Tool:
        from zkconsumer.sim.tool import Tool  # noqa: PLC0415 - `admin` imports kazoo

        return Tool(self)

    def new_member(self, who: int) -> SimMember:
        """Return a new member process."""
        plan = self.plan
        return SimMember(self._settings(who), self._transition, aim=plan.aim, rare=plan.rare)

    def _settings(self, number: int) -> Settings:
        settings = self.plan.settings(
            Settings(
                group=self.GROUP,
                consumer=f"{self.GROUP}_{number}",
                subscription={self.TOPIC: 1},
                auto_commit_s=5.0,
            )
        )
        more = self.starts[number] % 2
        subscription = {name: count + more for name, count in settings.subscription.items()}
        return replace(settings, subscription=subscription)

    def _build_cluster(self) -> None:
        for path in (paths.BROKERS, paths.BROKER_IDS, paths.TOPICS, paths.CONSUMERS):
            self.zookeeper.write(rq.Create(path))
        self.zookeeper.write(rq.Create(paths.broker(0), self.BROKER))
        topic = self.topic_data(self.plan.partitions)
        self.zookeeper.write(rq.Create(paths.topic(self.TOPIC), topic))
        for number in range(self.plan.partitions):
            self.log_end[TopicPartition(self.TOPIC, number)] = self.plan.messages
        for name in self.plan.topics:
            self.zookeeper.write(rq.Create(paths.topic(name), self.topic_data(MORE_PARTITIONS)))
            for number in range(MORE_PARTITIONS):
                self.log_end[TopicPartition(name, number)] = self.plan.messages

    def _build_offsets(self, stored: int) -> None:
        for path in (paths.group(self.GROUP), paths.ids(self.GROUP), paths.offsets(self.GROUP)):
            self.zookeeper.write(rq.Create(path))
        for topic in sorted({tp.topic for tp in self.log_end}):
            self.zookeeper.write(rq.Create(paths.offsets_of(self.GROUP, topic)))
        for tp in self.log_end:
            offset = payloads.encode_offset(stored)
            self.zookeeper.write(rq.Create(paths.offset(self.GROUP, tp), offset))

    def topic_data(self, partitions: int) -> bytes:
        entries = ",".join(f'"{n}":[0]' for n in range(partitions))
        return f'{{"version":1,"partitions":{{{entries}}}}}'.encode()

    def foreign(self, request: rq.Request) -> Reply:
        """Send the request of a client that is not a member; its session never expires."""
        if not self.zookeeper.is_connected(self._stranger):
            replica = self.plan.replicas
            session = self.zookeeper.connect(
                now=self.now, timeout_s=1e9, replica=replica, session=self._stranger
            )
            assert session is not None
            self._stranger = session
        reply = self.zookeeper.request(self._stranger, request, self.now)
        assert reply is not None
        return reply

    def forget_stranger(self) -> None:
        """Let the client that is not a member begin a new session, because its session is lost."""
        self._stranger = 0

    def is_foreign(self, session: int) -> bool:
        """Return whether this is the session of the client that is not a member."""
        return session == self._stranger

    def _transition(
        self, member: SimMember, before: State, event: Event, commands: tuple[cmd.Command, ...]
    ) -> None:
        who = int(member.name.rpartition("_")[2])
        self.watcher.transition(self, Transition(who, before, event, commands))

    # ---- possible actions ------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """Return all actions that are possible now, in a fixed order.

        The list is empty only when the world is at rest.
        """
        actions = self.enabled_now()
        if any(moment < NEVER for moment in self._moments()):
            actions.append(Action(Do.TIME))
        return actions

    def enabled_now(self) -> list[Action]:
        """Return the actions that need no time."""
        actions: list[Action] = []
        for who, (member, link) in enumerate(zip(self.members, self.links, strict=True)):
            if link.joined:
                self._of_member(actions, who, member, link)
            elif self._reachable(link):
                actions.append(Action(Do.JOIN, who))
        if self.tool and self.tool.pending is not None and not self.active_faults.no_quorum:
            actions.append(Action(Do.TOOL))
        return actions

    def _of_member(self, actions: list[Action], who: int, member: SimMember, link: Link) -> None:
        if member.wire and link.connected and link.black_hole_at is None:
            actions.append(Action(Do.SERVE, who))
        if link.frozen or link.dead:
            return
        if link.lost:
            actions.append(Action(Do.NOTICE, who))
            if member.unread:
                actions.append(Action(Do.READ, who))
        elif self._may_connect(link, member):
            actions.append(Action(Do.CONNECT, who))
        if member.inbox:
            actions.append(Action(Do.RECEIVE, who))
            if member.may_overtake:
                actions.append(Action(Do.OVERTAKE, who))
        if member.may_post(self.now):
            actions.append(Action(Do.POST, who))
        self._of_reader(actions, who)

    def _of_reader(self, actions: list[Action], who: int) -> None:
        """Add the actions with which the user gets or finishes a message."""
        member = self.members[who]
        if not self.links[who].slow and member.feeds and self._has_work(member):
            actions.append(Action(Do.NEXT_MESSAGE, who))

    def user_actions(self, do: Do, who: int) -> list[Action]:
        """Return the actions of this kind that a member's users may do; see `sim.stream_world`."""
        return []

    def retainable(self) -> list[Action]:
        """Return the actions that delete messages by retention."""
        return []

    def resumes(self) -> list[Action]:
        """Return the actions that resume paused partitions."""
        return []

    def _may_connect(self, link: Link, member: SimMember) -> bool:
        is_over = link.connected or member.closed or not member.has_client
        return not is_over and self._reachable(link)

    def _reachable(self, link: Link) -> bool:
        wrong = self.active_faults
        return not (
            wrong.no_quorum
            or link.black_hole_at is not None
            or len(wrong.isolated) == self.plan.replicas
        )

    def _has_work(self, member: SimMember) -> bool:
        """Return whether the user could get a message or finish one."""
        is_open = member.may_ask(self.now)
        for tp, feed in member.feeds.items():
            if feed.unfinished or (
                is_open and not feed.asked and (feed.delivered or 0) < self.log_end[tp]
            ):
                return True
        return False

    # ---- performing an action --------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Perform one action; the clock advances by `step_s`."""
        self.now += self.step_s
        do = action.do
        if do in self.faults_left:
            self.faults_left[do] -= 1
        own = getattr(self, f"_do_{do.value}", None)
        handler = own or partial(HANDLERS[do], self)
        subject = action.tp if action.tp is not None else action.who
        handler() if subject == -1 else handler(subject)
        self.zookeeper.tick(self.now)
        self.distribute()
        self.watcher.acted(self, action)

    def join(self, who: int) -> None:
        """Start a member's process."""
        self.links[who].joined = True
        self._do_connect(who)

    _do_join = join

    def _do_connect(self, who: int, *, after_loss: bool = False) -> None:
        """Try the replicas in turn; resume the old session if it still lives.

        `after_loss` tells the member that the servers have lost its session with their data.

        If the server refuses the credential, the client stops for good.
        """
        link, member = self.links[who], self.members[who]
        if link.locked_out:
            self.end_client(who, reason="no such user", refused=True)
            return
        refused_by: int | None = None
        for turn in range(self.plan.replicas):
            replica = (link.replica + turn) % self.plan.replicas
            try:
                session = self._session_at(replica, link.session, self.plan.session_of(who))
            except NotConnected as error:
                refused_by = replica if isinstance(error, ReplicaBehind) else refused_by
                continue
            link.session, link.replica, link.connected = session, replica, True
            link.refusals = None
            self.zookeeper.take_events(session)
            granted = Session(session, self.plan.session_of(who), after_loss)
            member.connect(granted, self.now, self._wall_ms())
            return
        if Do.LOSE_DATA in self.plan.faults:  # otherwise a refusal ends with the replica's lag
            self._refused(who, refused_by)

    def _refused(self, who: int, replica: int | None) -> None:
        """Let a client that a replica refuses try a second session there (`protocol.lost_data`)."""
        link, zookeeper, timeout_s = self.links[who], self.zookeeper, self.plan.session_of(who)
        if replica is None:
            link.refusals = None
            return
        refusals = link.refusals or RefusedHandshakes(self.now)
        link.refusals = refusals
        if not refusals.is_due(self.now, timeout_s=timeout_s):
            return
        seen = zookeeper.seen(link.session)
        link.refusals = refusals.tried(self.now)
        try:
            second = zookeeper.connect(now=self.now, timeout_s=timeout_s, replica=replica)
        except NotConnected:
            return
        assert second is not None
        zookeeper.close(second, self.now)
        link.refusals = link.refusals.granted()
        if lost_data.is_lost(refusals, seen=seen, last=zookeeper.last_zxid):
            link.session, link.refusals = 0, None
            self._do_connect(who, after_loss=True)

    def _session_at(self, replica: int, session: int, timeout_s: float) -> int:
        for wanted in (session, 0):
            got = self.zookeeper.connect(
                now=self.now, timeout_s=timeout_s, replica=replica, session=wanted
            )
            if got is not None:
                return got
        raise AssertionError("a new session was refused")

    def _wall_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    def _do_serve(self, who: int) -> None:
        """A server executes one request; the watch events that it causes precede its reply."""
        link, member = self.links[who], self.members[who]
        ticket, request = member.wire.popleft()
        if isinstance(request, rq.OffsetRequest):
            member.replied(ticket, self._kafka(request))
            return
        self.ticket = ticket
        reply = self.zookeeper.request(link.session, request, self.now)
        self.watcher.served(self, who, request, reply)
        self.distribute()
        if reply is None or link.dead:
            return
        if reply.code is Code.BROKEN:
            self.drop(who)
            return
        member.replied(ticket, reply)

    def _kafka(self, request: rq.OffsetRequest) -> Reply:
        """Answer a request for offsets in Kafka; the last commit wins."""
        if isinstance(request, rq.FetchOffsets):
            if self.active_faults.kafka:
                return Reply(Code.OTHER, "the offset coordinator does not answer")
            known = {tp: self.kafka[tp] for tp in request.partitions if tp in self.kafka}
            return Reply(Code.OK, known)
        if self.active_faults.kafka != 1:
            self.kafka |= request.offsets
        failed = dict.fromkeys(
            request.offsets if self.active_faults.kafka else (), "no coordinator"
        )
        return Reply(Code.OK, rq.NotStored({}, failed))

    def distribute(self) -> None:
        """Put watch events into the inboxes of connected members; drop connections that servers
        closed.
        """
        zookeeper = self.zookeeper
        for who, link in enumerate(self.links):
            if not link.connected or link.black_hole_at is not None:
                continue
            if not zookeeper.has_news(link.session):
                continue
            for event in zookeeper.take_events(link.session):
                fired = WatchFired(*event)
                if not link.dead:
                    self.members[who].watch(fired)
                self.watcher.notified(self, who, fired)
            if not zookeeper.is_connected(link.session):
                self.drop(who)

    def _do_receive(self, who: int) -> None:
        self.members[who].receive(self.now)
        self._after(who)

    def overtake(self, who: int) -> None:
        """A member takes the first item that is neither a reply nor a watch event."""
        self.members[who].overtake(self.now)
        self._after(who)

    _do_overtake = overtake

    def _do_post(self, who: int) -> None:
        self.members[who].run_thread()

    def _do_read(self, who: int) -> None:
        self.members[who].read()

    def _after(self, who: int) -> None:
        """End the session of a member that has closed, if it is connected."""
        link = self.links[who]
        if self.members[who].closed and not link.dead:
            link.dead, link.lost = True, False
            if link.connected and link.black_hole_at is None:
                link.connected = False
                self.zookeeper.close(link.session, self.now)

    def _do_ask(self, who: int) -> None:
        member = self.members[who]
        for tp, feed in member.feeds.items():
            if feed.unfinished:
                self.watcher.finished(self, who, tp, feed.delivered or 0)
        member.finish_all(self.now)
        for tp in sorted(member.feeds):
            if member.deliverable(tp, self.log_end[tp], self.now):
                offset, epoch = member.deliver(tp)
                self.handed_out[tp] = max(self.handed_out.get(tp, 0), offset + 1)
                self.watcher.delivered(self, Delivered(self.now, who, tp, offset, epoch))
                break
        self._after(who)

    def _do_leave(self, who: int) -> None:
        self.members[who].leave(self.now)
        self._after(who)

    def _do_commit(self, who: int) -> None:
        self.members[who].commit(self.now)

    def notice(self, who: int) -> None:
        """A member's client notices that its connection is broken."""
        self.links[who].lost = False
        self.members[who].disconnect(self.now)

    _do_notice = notice

    def _do_tool(self) -> None:
        assert self.tool is not None
        self.tool.step()

    def _do_time(self) -> None:
        """Advance to the next moment at which something is due, and let it happen."""
        self.now = max(self.now, self.next_moment())
        if self.messages_per_advance:
            for tp in self.log_end:
                self.log_end[tp] += self.messages_per_advance
        for who, (member, link) in enumerate(zip(self.members, self.links, strict=True)):
            if not link.joined or link.dead or link.frozen:
                continue
            if link.connected and link.black_hole_at is None:
                self.zookeeper.ping(link.session, self.now)
            elif link.connected and self._given_up_at(who) <= self.now:
                self.drop(who)
            if member.due <= self.now:
                member.wake(self.now)
                self._after(who)

    def _given_up_at(self, who: int) -> float:
        black_hole_at = self.links[who].black_hole_at
        assert black_hole_at is not None
        return black_hole_at + self.plan.session_of(who) * PATIENCE

    def next_moment(self) -> float:
        """Return the next time at which a timer is due, or a silent session may expire."""
        return min(self._moments(), default=NEVER)

    def _moments(self) -> Iterator[float]:
        silent = any(one in self.zookeeper.sessions for one in self.old_sessions)
        for who, (member, link) in enumerate(zip(self.members, self.links, strict=True)):
            if not link.joined:
                continue
            if not (link.dead or link.frozen):
                yield member.due
                if member.post_at > self.now:
                    yield member.post_at
                if link.connected and link.black_hole_at is None:
                    continue
                if link.refusals is not None:
                    yield link.refusals.due_at(self.plan.session_of(who))
                if link.connected:
                    yield self._given_up_at(who)
            silent = silent or link.session in self.zookeeper.sessions
        if silent:  # a session whose client is gone ends only by its timeout
            yield self.next_look_at_sessions()

    def next_look_at_sessions(self) -> float:
        """Return when to look next whether a session whose client is gone has expired."""
        return self.now + self.plan.session_s / 2

    def drop(self, who: int) -> None:
        """Break a member's connection: requests and replies are lost, and the member has not
        noticed it yet.
        """
        link = self.links[who]
        if link.connected:
            link.connected, link.lost = False, not link.dead
            link.replica = (link.replica + 1) % self.plan.replicas
            self.zookeeper.disconnect(link.session)

    def end_client(self, who: int, *, reason: str, refused: bool = False) -> None:
        """End a member's ZooKeeper client for good, and its connection with it."""
        self.drop(who)
        self.links[who].lost = False
        self.members[who].client_died(self.now, reason=reason, refused=refused)

    # ---- queries ---------------------------------------------------------------------------------

    def owners(self) -> dict[TopicPartition, tuple[str, int, int]]:
        """Return partition -> (thread id, session, czxid) of its owner znode."""
        found = {tp: self.owner(tp) for tp in self.log_end}
        return {tp: owner for tp, owner in found.items() if owner is not None}

    def owner(self, tp: TopicPartition) -> tuple[str, int, int] | None:
        node = self.zookeeper.nodes.get(paths.owner(self.GROUP, tp))
        if node is None:
            return None
        return (node.data or b"").decode(), node.stat.owner, node.stat.czxid

    def committed(self) -> dict[TopicPartition, int]:
        nodes = self.zookeeper.nodes
        found = {tp: nodes.get(paths.offset(self.GROUP, tp)) for tp in self.log_end}
        return {
            tp: payloads.decode_offset(node.data, where="")
            for tp, node in found.items()
            if node is not None
        }

    def settled(self) -> bool:
        """Return whether every live member is settled and nothing is in progress."""
        return all(
            link.dead or link.frozen or (m.is_at_rest and link.connected and m.unposted is None)
            for m, link in zip(self.members, self.links, strict=True)
        )

    def copy(self, watcher: Watcher) -> Self:
        """Return a second world that continues independently from here."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.watcher = watcher
        twin.zookeeper = self.zookeeper.copy()
        twin.faults_left, twin.log_end = dict(self.faults_left), dict(self.log_end)
        twin.handed_out, twin.active_faults = dict(self.handed_out), replace(self.active_faults)
        twin.log_start = dict(self.log_start)
        twin.kafka, twin.old_sessions = dict(self.kafka), list(self.old_sessions)
        twin.starts = list(self.starts)
        twin.members = [twin._copy_of(member) for member in self.members]
        twin.links = [replace(link) for link in self.links]
        return twin

    def _copy_of(self, member: SimMember) -> SimMember:
        """Return a copy of another world's member, which reports to this world."""
        return member.copy(self._transition)
