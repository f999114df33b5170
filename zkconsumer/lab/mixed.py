"""Worlds with JVM members that can be copied.

The programs of a JVM member are generators, and Python cannot copy generators. But a member's state
depends only on the calls of its methods, and while no program runs, it consists of values. A
`CopyableJvmMember` keeps the values from before its programs started, and all calls since then. A
copy begins with these values and gets the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Concatenate, ParamSpec, Self, TypeAlias, TypeVar, cast

from zkconsumer.member.state import Settings
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.sim.jvm_member import JvmMember, MixedWorld, OnPhase
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import Plan
from zkconsumer.sim.world import Watcher, World

_P = ParamSpec("_P")
_T = TypeVar("_T")

Values: TypeAlias = dict[str, object]
"""Name -> value of attributes."""

_NOT_VALUES = frozenset(
    {
        "connector",
        "wire",
        "inbox",
        "_threads",
        "_events",
        "on_phase",
        "_before",
        "_calls",
        "in_call",
    }
)
"""Attributes of a member that a copy does not take over as values; `wire` and `inbox` are copied
after the calls."""


def _kept(
    method: Callable[Concatenate[CopyableJvmMember, _P], _T],
) -> Callable[Concatenate[CopyableJvmMember, _P], _T]:
    """Return a method that keeps its calls, except those from another such method (`wake` calls
    `commit`)."""

    def call(member: CopyableJvmMember, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if member.in_call:
            return method(member, *args, **kwargs)
        member.keep(lambda twin: call(twin, *args, **kwargs))
        member.in_call = True
        try:
            return method(member, *args, **kwargs)
        finally:
            member.in_call = False

    return call


class CopyableJvmMember(JvmMember):
    """A JVM member that can be copied.

    Attributes:
        on_phase: is called when the member enters another phase.
        in_call: whether one of the methods below runs that keep their calls.
    """

    def __init__(self, settings: Settings, on_phase: OnPhase) -> None:
        super().__init__(settings, self._entered)
        self.on_phase = on_phase
        self.in_call = False
        self._before = self._values()
        self._calls: list[Callable[[CopyableJvmMember], object]] = []

    def _entered(self, member: JvmMember, phase: str, text: str) -> None:
        self.on_phase(member, phase, text)

    # The calls that change more than `wire` and `inbox`.
    connect = _kept(JvmMember.connect)
    disconnect = _kept(JvmMember.disconnect)
    wake = _kept(JvmMember.wake)
    commit = _kept(JvmMember.commit)
    leave = _kept(JvmMember.leave)
    finish_all = _kept(JvmMember.finish_all)
    deliver = _kept(JvmMember.deliver)

    def receive(self, now: float) -> None:
        self._receive(self.inbox.popleft(), now)

    @_kept
    def _receive(self, item: object, now: float) -> None:
        self.inbox.appendleft(item)
        super().receive(now)

    @property
    def _is_idle(self) -> bool:
        """Whether no program runs or waits to be started."""
        return not (self._threads or self._events)

    def keep(self, call: Callable[[CopyableJvmMember], object]) -> None:
        """Keep a call; if no program runs, keep the values too, and drop the earlier calls."""
        if self._is_idle:
            self._before, self._calls = self._values(), []
        self._calls.append(call)

    def _values(self) -> tuple[Values, Values]:
        """Return the values of the member and of its connector."""
        return _copied(vars(self), _NOT_VALUES), _copied(
            vars(self.connector), frozenset({"_enter"})
        )

    def copy(self, _: object) -> CopyableJvmMember:
        """Return a copy, which continues independently. It reports no phases until `on_phase` is
        set."""
        if self._is_idle:
            self._before, self._calls = self._values(), []
        twin = CopyableJvmMember(self.settings, lambda *_: None)
        own, connector = self._before
        vars(twin).update(_copied(own))
        vars(twin.connector).update(_copied(connector))
        for call in self._calls:
            call(twin)
        twin.wire, twin.inbox = self.wire.copy(), self.inbox.copy()
        return twin


def _copied(values: Mapping[str, object], without: frozenset[str] = frozenset()) -> Values:
    return {
        name: value.copy() if isinstance(value, dict) else value
        for name, value in values.items()
        if name not in without
    }


class CopyableMixedWorld(MixedWorld):
    """A world in which some members are JVM members; it can be copied."""

    def __init__(self, plan: Plan, watcher: Watcher | None = None, *, jvm: frozenset[int]) -> None:
        self.jvm = jvm  # `new_member` reads it during the initialisation
        super().__init__(plan, watcher, jvm=jvm)
        for who in jvm:
            self.members[who] = self.new_member(who)

    def new_member(self, who: int) -> SimMember:
        """Return a new process of a member; a JVM member that starts again is a JVM member."""
        member = super().new_member(who)
        if who not in self.jvm:
            return member
        streams = max(member.settings.subscription.values())
        static = replace(
            member.settings, subscription={self.TOPIC: streams}, pattern=Pattern.STATIC
        )
        return cast(SimMember, CopyableJvmMember(static, self._entered))

    def copy(self, watcher: Watcher) -> Self:
        twin = World.copy(self, watcher)
        for who in self.jvm:
            cast(CopyableJvmMember, twin.members[who]).on_phase = twin._entered
        return twin
