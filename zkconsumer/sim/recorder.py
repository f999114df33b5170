"""Records a simulated world as the entries of a trace.

The steps of zkconsumer members are the lines of a production trace; `zkconsumer trace check`
replays them. Other entries record what happens outside of the members: `scene` and `note` (of the
narrator), `writes`, `refused`, `watch`, `delivered`, `phase` (of a JVM member), `gone`.
"""

from __future__ import annotations

from itertools import groupby

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.kernel import stories as kernel
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.plan import Action
from zkconsumer.sim.world import MemberTransition, Watcher, World
from zkconsumer.sim.znodes import End, ZnodeChange
from zkconsumer.trace import Digest, header, transition

QUIET = frozenset({Code.OK, Code.BROKEN})
ROOT = paths.ids(World.GROUP).removesuffix("ids")
"""The prefix of the group's paths, which stories omit."""
_SHOWN = 40
"""Maximum number of characters of a payload in an entry; a longer payload is shown as `…`."""


class Recorder(kernel.Recorder[World], Watcher):
    """Passes every entry to `emit`."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._digests: dict[int, Digest] = {}
        self._seen = 0
        self._sessions: dict[int, str] = {}

    def begin(self, world: World) -> None:
        """Skip the changes up to now: the story begins after them."""
        self._seen = len(world.zookeeper.history)

    def note(self, world: World, text: str) -> None:
        self._written(world)
        super().note(world, text)

    def scene(self, world: World, text: str) -> None:
        self._written(world)
        super().scene(world, text)

    def transition(self, world: World, step: MemberTransition) -> None:
        who, before, event, commands = step
        self._written(world)
        has_started = before.session is None and not before.last_op
        if who not in self._digests or (has_started and who in self._gone):
            self._gone.discard(who)
            self._digests[who] = Digest()
            self._emit(header(before.settings))
        after = world.members[who].state
        digest = self._digests[who].of(after)
        self._emit(transition(before, event, after, commands, digest=digest))

    def delivered(self, world: World, message: Delivered) -> None:
        self._put(
            world,
            member=world.members[message.who].name,
            delivered=str(message.tp),
            offset=message.offset,
            token=message.epoch,
        )

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        self._written(world)
        # A refusal is usual, and not recorded, if a parent znode already exists or an offset znode
        # does not exist yet.
        is_usual = isinstance(request, rq.Create) and not request.ephemeral
        is_usual |= reply is not None and reply.code is Code.NO_NODE
        is_write = isinstance(request, rq.Multi | rq.Create | rq.SetData | rq.Delete)
        if reply is None or not is_write or is_usual or reply.code in QUIET:
            return
        write: Json = request.writes[reply.value] if isinstance(request, rq.Multi) else request
        member = world.members[who].name
        self._put(world, member=member, refused=write.path, code=reply.code.name)

    def notified(self, world: World, who: int, fired: WatchFired) -> None:
        self._put(world, member=world.members[who].name, watch=fired.kind, path=fired.path)

    def entered(self, world: World, who: int, phase: str, text: str) -> None:
        self._written(world)
        self._put(world, member=world.members[who].name, phase=phase, text=text)

    def acted(self, world: World, action: Action) -> None:
        self._written(world)
        for who, link in enumerate(world.links):
            if link.dead:
                self._ended(world, who, world.members[who].name)

    def _written(self, world: World) -> None:
        """Record the writes since the last call, one transaction at a time."""
        for link, member in zip(world.links, world.members, strict=True):
            if link.session:
                self._sessions[link.session] = member.name
        history = world.zookeeper.history
        news, self._seen = history[self._seen :], len(history)
        for _, changes in groupby(news, lambda change: change.zxid):
            self._transaction(world, list(changes))

    def _transaction(self, world: World, changes: list[ZnodeChange]) -> None:
        first = changes[0]
        ended = first.write.value if isinstance(first.write, End) else None
        extra: JsonObject = {}
        if ended is not None:
            extra = {"ended": ended, "session": first.session}
        member = "" if ended == End.EXPIRED.value else self._sessions.get(first.session, "")
        writes = [_shown(change) for change in changes if change.path]
        self._put(world, member=member, writes=writes, **extra)


def _shown(change: ZnodeChange) -> list[str]:
    sign = "+" if change.old is None else "-" if change.new is None else "="
    data = change.new.data if change.new is not None else None
    text = (data or b"").decode(errors="replace")
    return [sign, change.path, text if len(text) <= _SHOWN else "…"]
