"""What can go wrong in a simulated world, what others do to its znodes, and how it is mended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from zkconsumer.admin.apply import Live
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Code
from zkconsumer.sim.plan import Action, Do, Link

if TYPE_CHECKING:
    from zkconsumer.sim.world import World

LAG_ENTRIES = 3
"""How many transactions a lagging replica stays behind: a claim, a commit and a join."""

HOSTILE = (
    b"{",
    b'{"version":1,"subscription":{"t{9999999}":1},"pattern":"white_list","timestamp":"1"}',
)
"""Registrations that no member can read, and one that costs too much to evaluate."""

_UNREADABLE = b"one"
_STRANGER = "stranger-0"

_OF_PARTITIONS = {Do.DELETE_OWNER, Do.EDIT, Do.ZOMBIE, Do.LATE, Do.MANGLE, Do.STUCK, Do.ORPHAN}
LIVES = (Live.REFUSE, Live.FORCE)
"""How an operator may apply a plan."""

_OF_THE_WORLD = {Do.GROW, Do.DELETE_TOPIC, Do.NO_BROKERS, Do.NO_QUORUM, Do.RESTART}
_BY_A_LEADER = _OF_PARTITIONS | {
    Do.EXPIRE,
    Do.DELETE_ID,
    Do.GROW,
    Do.DELETE_TOPIC,
    Do.NO_BROKERS,
    Do.HOSTILE,
    Do.REFUSE,
    Do.RESTART,
    Do.NO_QUORUM,
    Do.APPLY,
    Do.LOSE_TOOL,
}
"""What needs a quorum, or makes no sense without one."""


def possible(world: World) -> list[Action]:
    """Faults that may still happen, in a fixed order."""
    actions: list[Action] = []
    for do, left in world.faults_left.items():
        if left > 0 and not (world.wrong.no_quorum and do in _BY_A_LEADER):
            actions += _of_kind(world, do)
    return actions


def _of_kind(world: World, do: Do) -> list[Action]:
    wrong, links = world.wrong, world.links
    alive = [
        who
        for who, link in enumerate(links)
        if link.joined and not link.dead and not world.members[who].closed
    ]
    awake = [who for who in alive if not links[who].frozen]
    heard = [who for who in alive if links[who].connected and links[who].muted_at is None]
    replicas = range(world.plan.replicas)
    if do in _OF_PARTITIONS:
        return [Action(do, tp=tp) for tp in world.log_end]
    if do in _OF_THE_WORLD:
        already = {Do.NO_BROKERS: wrong.brokers_gone, Do.DELETE_TOPIC: wrong.topic_gone}
        return [] if already.get(do, do is Do.GROW and wrong.topic_gone) else [Action(do)]
    numbers: dict[Do, Iterable[int]] = {
        Do.KILL: alive,
        Do.DELETE_ID: alive,
        Do.FREEZE: awake,
        Do.LEAVE: awake,
        Do.SLOW: (who for who in alive if not links[who].slow),
        Do.COMMIT: (who for who in awake if world.members[who].feeds),
        Do.CUT: heard,
        # A frozen member cannot be told that another client has ended its session; nor is one that
        # has earlier changes of its connection to take first.
        Do.EXPIRE: (
            who for who in heard if not links[who].frozen and not world.members[who].changes
        ),
        Do.MUTE: (who for who in heard if not links[who].frozen),
        Do.HOSTILE: () if wrong.hostile else range(len(HOSTILE)),
        Do.REFUSE: () if wrong.refused else range(len(_refusals(world))),
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
        Do.APPLY: range(len(LIVES)) if is_idle else (),
        Do.LOSE_TOOL: (0,) if runs and tool is not None and tool.writes else (),
        Do.KILL_TOOL: (0,) if runs else (),
    }


def mends(world: World) -> list[Action]:
    """What would end a fault, in a fixed order; the quorum comes first, since others need it."""
    wrong = world.wrong
    if wrong.no_quorum:
        return [Action(Do.QUORUM)]
    actions = [Action(Do.REJOIN, n) for n in wrong.isolated]
    actions += [Action(Do.CATCH_UP, n) for n in wrong.lagging]
    for who, link in enumerate(world.links):
        if not link.dead:
            actions += [Action(Do.THAW, who)] if link.frozen else []
            actions += [Action(Do.UNMUTE, who)] if link.muted_at is not None else []
            actions += [Action(Do.HURRY, who)] if link.slow else []
    if world.tool is not None and world.tool.pending is None and not world.tool.is_over:
        actions += [Action(Do.APPLY_AGAIN), Action(Do.UNDO)]
    actions += [Action(Do.ALLOW)] if wrong.refused else []
    actions += [Action(Do.KAFKA_UP)] if wrong.kafka else []
    actions += [Action(Do.CREATE_TOPIC)] if wrong.topic_gone else []
    actions += [Action(Do.BROKERS)] if wrong.brokers_gone else []
    actions += [Action(Do.DISARM)] if wrong.hostile else []
    actions += [Action(Do.UNSTICK, tp=tp) for tp in wrong.stuck]
    actions += [Action(Do.MEND, tp=tp) for tp in wrong.mangled if not wrong.topic_gone]
    return actions


# ---- members, their users and connections -------------------------------------------------------


def cut(world: World, who: int) -> None:
    world.drop(who)


def mute(world: World, who: int) -> None:
    world.links[who].muted_at = world.now


def unmute(world: World, who: int) -> None:
    world.links[who].muted_at = None
    world.distribute()


def expire(world: World, who: int) -> None:
    """The server closes the connection at once, and the member takes that before anything else.

    Another client's force gives no lease time to end: until the member knows, nothing protects it.
    """
    world.zookeeper.expire(world.links[who].session)
    world.drop(who)
    world.notice(who)
    while world.members[who].changes:
        world.overtake(who)


def kill(world: World, who: int) -> None:
    """The process is gone; what it sent may still be executed, and its session goes by timeout."""
    link = world.links[who]
    link.dead, link.lost = True, False
    world.members[who].inbox.clear()


def revive(world: World, who: int) -> None:
    """The process starts again under its id, while its old session may still be alive.

    Requests of the old process that no server has executed are gone with its connection.
    """
    old = world.links[who]
    if old.session:
        world.ghosts.append(old.session)
        world.zookeeper.disconnect(old.session)
    world.members[who] = world.new_member(who)
    world.links[who] = Link(replica=old.replica)
    world.join(who)


def freeze(world: World, who: int) -> None:
    world.links[who].frozen = True


def thaw(world: World, who: int) -> None:
    """It goes on where it was; the clock has not waited for it."""
    link, member = world.links[who], world.members[who]
    link.frozen = False
    if link.connected and member.due <= world.now:
        member.wake(world.now)


def slow(world: World, who: int) -> None:
    world.links[who].slow = True


def hurry(world: World, who: int) -> None:
    world.links[who].slow = False


# ---- znodes of the group ------------------------------------------------------------------------


def delete_owner(world: World, tp: TopicPartition) -> None:
    world.zookeeper.write(rq.Delete(paths.owner(world.GROUP, tp)))


def delete_id(world: World, who: int) -> None:
    world.zookeeper.write(rq.Delete(paths.member(world.GROUP, world.members[who].name)))


def stuck(world: World, tp: TopicPartition) -> None:
    """A stranger claims a partition that nobody owns."""
    _stand_in(world, tp, rq.Create(_owner(world, tp), _STRANGER.encode(), ephemeral=True))


def orphan(world: World, tp: TopicPartition) -> None:
    """An owner znode that no session's end takes away."""
    _stand_in(world, tp, rq.Create(_owner(world, tp), _STRANGER.encode()))


def _owner(world: World, tp: TopicPartition) -> str:
    return paths.owner(world.GROUP, tp)


def _stand_in(world: World, tp: TopicPartition, create: rq.Create) -> None:
    if world.foreign(create).code is Code.OK:
        world.wrong.stuck += (tp,)


def unstick(world: World, tp: TopicPartition) -> None:
    world.wrong.stuck = tuple(one for one in world.wrong.stuck if one != tp)
    node = world.zookeeper.nodes.get(_owner(world, tp))
    if node is not None and node.data == _STRANGER.encode():
        world.zookeeper.write(rq.Delete(_owner(world, tp)))


def hostile(world: World, variant: int) -> None:
    """Somebody registers what members cannot read, or must not guess at."""
    path = paths.member(world.GROUP, f"{world.GROUP}_hostile")
    if world.foreign(rq.Create(path, HOSTILE[variant])).code is Code.OK:
        world.wrong.hostile = 1 + variant


def disarm(world: World) -> None:
    world.wrong.hostile = 0
    world.zookeeper.write(rq.Delete(paths.member(world.GROUP, f"{world.GROUP}_hostile")))


def edit(world: World, tp: TopicPartition) -> None:
    """An operator sets an offset back to 0 and leaves the mark that says so."""
    world.edits += 1
    world.zookeeper.write(rq.Create(paths.edits(world.GROUP)))
    _write_offset(world, tp, b"0", rq.Create(paths.edit(world.GROUP, world.edits)))


def zombie(world: World, tp: TopicPartition) -> None:
    """A late commit of somebody who owned the partition long before."""
    _write_offset(world, tp, b"0")


def late(world: World, tp: TopicPartition) -> None:
    """A late commit of somebody who was given all that was delivered so far."""
    _write_offset(world, tp, payloads.encode_offset(world.handed.get(tp, 0)))


def mangle(world: World, tp: TopicPartition) -> None:
    if _write_offset(world, tp, _UNREADABLE) and tp not in world.wrong.mangled:
        world.wrong.mangled += (tp,)


def mend(world: World, tp: TopicPartition) -> None:
    """An operator writes a readable offset; touching the topic has members look again."""
    world.wrong.mangled = tuple(one for one in world.wrong.mangled if one != tp)
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
    """The offset coordinator moves or refuses (1), or stores what its lost replies deny (2)."""
    world.wrong.kafka = how


def kafka_up(world: World) -> None:
    world.wrong.kafka = 0


# ---- an operator -------------------------------------------------------------------------------


def apply(world: World, variant: int) -> None:
    """An operator plans to reset offsets, and applies the plan: with members, or only without."""
    assert world.tool is not None
    world.tool.begin(LIVES[variant])


def lose_tool(world: World, _: int) -> None:
    assert world.tool is not None
    world.tool.step(is_lost=True)


def kill_tool(world: World, _: int) -> None:
    assert world.tool is not None
    world.tool.kill()


def apply_again(world: World) -> None:
    assert world.tool is not None
    world.tool.again()


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
    world.wrong.topic_gone = True
    world.zookeeper.write(rq.Delete(paths.topic(world.TOPIC)))


def create_topic(world: World) -> None:
    """The topic is back; its log goes on where the old one ended (else offsets mean nothing)."""
    world.wrong.topic_gone = False
    data = world.topic_data(_partitions(world, world.TOPIC))
    world.zookeeper.write(rq.Create(paths.topic(world.TOPIC), data))


def no_brokers(world: World) -> None:
    world.wrong.brokers_gone = True
    world.zookeeper.write(rq.Delete(paths.broker(0)))


def brokers(world: World) -> None:
    world.wrong.brokers_gone = False
    world.zookeeper.write(rq.Create(paths.broker(0), world.BROKER))


# ---- ZooKeeper ----------------------------------------------------------------------------------


def _refusals(world: World) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """(paths, permissions) that an access control list may take away from everybody."""
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
    world.wrong.refused = where
    for path in where:
        world.zookeeper.forbid(path, *permissions)


def allow(world: World) -> None:
    """Rights are given back, and all connections renewed.

    A server says nothing of a change to those who may not read it, and their watch is used up: only
    a new connection has them look again.
    """
    for path in world.wrong.refused:
        world.zookeeper.forbid(path)
    world.wrong.refused = ()
    for who in range(len(world.links)):
        world.drop(who)


def lag(world: World, replica: int) -> None:
    world.wrong.lagging += (replica,)
    world.zookeeper.set_lag(replica, LAG_ENTRIES)


def catch_up(world: World, replica: int) -> None:
    world.wrong.lagging = tuple(n for n in world.wrong.lagging if n != replica)
    world.zookeeper.catch_up(replica)


def isolate(world: World, replica: int) -> None:
    world.wrong.isolated += (replica,)
    world.zookeeper.cut_off(replica)


def rejoin(world: World, replica: int) -> None:
    world.wrong.isolated = tuple(n for n in world.wrong.isolated if n != replica)
    world.zookeeper.heal(replica)


def no_quorum(world: World) -> None:
    world.wrong.no_quorum = True
    world.zookeeper.lose_quorum()


def quorum(world: World) -> None:
    world.wrong.no_quorum = False
    world.zookeeper.regain_quorum()


def restart(world: World) -> None:
    world.wrong.lagging = world.wrong.isolated = ()
    world.zookeeper.restart(world.now)
