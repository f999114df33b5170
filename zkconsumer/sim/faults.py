"""What can go wrong in a simulated world, and what others do to its znodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkconsumer.core import paths, records
from zkconsumer.core.machine import next_deadline
from zkconsumer.core.model import TopicPartition
from zkconsumer.sim.plan import Action, Do
from zkconsumer.zk import requests as rq

if TYPE_CHECKING:
    from zkconsumer.sim.world import World


def possible(world: World) -> list[Action]:
    """Faults that may still happen, in a fixed order."""
    actions: list[Action] = []
    for do, left in world.faults_left.items():
        if left > 0:
            actions += _of_kind(world, do)
    return actions


def _of_kind(world: World, do: Do) -> list[Action]:
    alive = [
        who
        for who, link in enumerate(world.links)
        if link.joined and not link.dead and not world.members[who].closed
    ]
    match do:
        case Do.CUT | Do.EXPIRE:
            return [Action(do, who) for who in alive if world.links[who].connected]
        case Do.FREEZE:
            return [Action(do, who) for who in alive if not world.links[who].frozen]
        case Do.KILL | Do.LEAVE | Do.DELETE_ID:
            return [Action(do, who) for who in alive]
        case Do.COMMIT:
            return [Action(do, who) for who in alive if world.members[who].feeds]
        case Do.DELETE_OWNER | Do.EDIT | Do.ZOMBIE:
            return [Action(do, tp=tp) for tp in world.log_end]
        case Do.GROW:
            return [Action(do)]
    raise ValueError(f"{do} is no fault")


def cut(world: World, who: int) -> None:
    world.drop(who)


def expire(world: World, who: int) -> None:
    world.zookeeper.close(world.links[who].session, world.now)
    world.drop(who)
    world.distribute()


def kill(world: World, who: int) -> None:
    """The process is gone; its session and znodes stay until the timeout."""
    link = world.links[who]
    link.dead = True
    world.members[who].inbox.clear()
    world.members[who].wire.clear()


def freeze(world: World, who: int) -> None:
    world.links[who].frozen = True


def thaw(world: World, who: int) -> None:
    """It goes on where it was; the clock has not waited for it."""
    link, member = world.links[who], world.members[who]
    link.frozen = False
    if link.connected and next_deadline(member.state) <= world.now:
        member.tick(world.now)


def delete_owner(world: World, tp: TopicPartition) -> None:
    world.admin(rq.Multi((rq.Delete(paths.owner(world.GROUP, tp)),)))
    world.distribute()


def delete_id(world: World, who: int) -> None:
    world.admin(rq.Multi((rq.Delete(paths.member(world.GROUP, world.members[who].name)),)))
    world.distribute()


def edit(world: World, tp: TopicPartition) -> None:
    """An operator sets an offset back to 0 and leaves the mark that says so."""
    world.edits += 1
    edits = paths.edits(world.GROUP)
    world.admin(rq.Create(edits))
    _write_offset(world, tp, 0, rq.Create(paths.edit(world.GROUP, world.edits)))


def zombie(world: World, tp: TopicPartition) -> None:
    """A late commit of somebody who owned the partition before."""
    _write_offset(world, tp, 0)


def _write_offset(world: World, tp: TopicPartition, offset: int, *more: rq.Write) -> None:
    path, data = paths.offset(world.GROUP, tp), records.encode_offset(offset)
    seen = world.admin(rq.Exists(path)).value
    if seen is not None:
        world.admin(rq.Multi((rq.SetData(path, data, seen.version), *more)))
        world.distribute()


def grow(world: World) -> None:
    number = len(world.log_end)
    path = paths.topic(world.TOPIC)
    version = world.admin(rq.Exists(path)).value.version
    world.log_end[TopicPartition(world.TOPIC, number)] = world.plan.messages
    world.admin(rq.Multi((rq.SetData(path, world.topic_data(number + 1), version),)))
    world.distribute()
