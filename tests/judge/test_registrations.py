"""The challenge `register` finds each wrong registration that harms the other members."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.judge.kit import Member
from zkconsumer.judge.ladders import court
from zkconsumer.judge.program import LocalProgram
from zkconsumer.judge.promises import registers_for_every_release
from zkconsumer.sim.kernel.search import Decisions

Fields = dict[str, Any]


class Plain(Member):
    """Registers correctly, and does nothing else."""

    async def on_change(self) -> None:
        root = f"/consumers/{self.group}"
        await self.create(root)
        await self.create(f"{root}/ids")
        fields = {
            "version": 1,
            "subscription": {self.topic: self.streams},
            "pattern": "static",
            "timestamp": str(self.wall_ms),
        }
        await self.register(f"{root}/ids/{self.name}", json.dumps(fields))

    async def register(self, me: str, payload: str) -> None:
        await self.create(me, data=payload, ephemeral=True)


def reasons(kind: type[Plain]) -> set[str]:
    """Return the promises that the schedules break; "" stands for a schedule without one."""
    with court(CHALLENGES["register"], lambda one: LocalProgram(one, kind)) as bench:
        runs = [bench.run(Decisions(random.Random(seed)))[0].violation for seed in range(1, 9)]
    return {"" if one is None else one.promise for one in runs}


WRONG = {registers_for_every_release.name}


def writing(payload: Callable[[Fields], str]) -> type[Plain]:
    """Return a member that registers with this payload."""

    class Planted(Plain):
        async def register(self, me: str, payload_: str) -> None:
            await super().register(me, payload(json.loads(payload_)))

    return Planted


def changed(**new: Any) -> Callable[[Fields], str]:
    """Return a function that writes a registration with these fields instead."""
    return lambda fields: json.dumps({**fields, **new})


def without(name: str) -> Callable[[Fields], str]:
    """Return a function that writes a registration without a field."""
    return lambda fields: json.dumps({one: fields[one] for one in fields if one != name})


def counted(count: Any) -> Callable[[Fields], str]:
    """Return a function that writes a registration with another number of streams."""
    return lambda fields: json.dumps({**fields, "subscription": {"t": count}})


PAYLOADS: dict[str, Callable[[Fields], str]] = {
    "no payload": lambda fields: "",
    "no JSON": str,
    "text after the JSON": lambda fields: json.dumps(fields) + ";",
    "a list": lambda fields: json.dumps([fields]),
    "a byte order mark": lambda fields: "\ufeff" + json.dumps(fields),
    "no pattern": without("pattern"),
    "a pattern that is null": changed(pattern=None),
    "a pattern that is a number": changed(pattern=1),
    "a white list": changed(pattern="white_list"),
    "a black list": changed(pattern="black_list"),
    "no subscription": without("subscription"),
    "a list of topics": changed(subscription=["t"]),
    "an empty subscription": changed(subscription={}),
    "another topic": changed(subscription={"T": 1}),
    "a second topic": lambda fields: json.dumps(
        {**fields, "subscription": {**fields["subscription"], "u": 1}}
    ),
    "another number of streams": counted(3),
    "no streams": counted(0),
    "streams as a text": counted("1"),
    "streams as a decimal": counted(1.0),
    "streams as a list": counted([0]),
    "streams as true": counted(True),
    "streams as null": counted(None),
    "a timestamp that is a number": changed(timestamp=1400000000001),
    "a version that is a decimal": changed(version=1.0),
}
"""Payloads that members of some release cannot read, or read as another subscription."""


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_that_others_misread_fails(payload: str) -> None:
    """A registration that JVM members of one release misread breaks a promise in each schedule."""
    assert reasons(writing(PAYLOADS[payload])) == WRONG


HARMLESS: dict[str, Callable[[Fields], str]] = {
    "no version": without("version"),
    "no timestamp": without("timestamp"),
    "another order": lambda fields: json.dumps(dict(reversed(fields.items()))),
    "white space": lambda fields: json.dumps(fields, indent=4),
    "one field more": changed(client="mine"),
    "an unknown pattern, which all releases read as static": changed(pattern="topics"),
}
"""Payloads that members of all releases read as the same subscription."""


@pytest.mark.parametrize("payload", HARMLESS)
def test_a_payload_that_others_read_passes(payload: str) -> None:
    """A registration in another form that means the same in all releases passes."""
    assert reasons(writing(HARMLESS[payload])) == {""}


class Persistent(Plain):
    """Creates a persistent id znode."""

    async def register(self, me: str, payload: str) -> None:
        await self.create(me, data=payload)


class Filled(Plain):
    """Creates an empty id znode, and writes the registration afterwards."""

    async def register(self, me: str, payload: str) -> None:
        await super().register(me, "")
        await self.set(me, payload)


class Rewritten(Plain):
    """Changes its subscription, which JVM members do not watch."""

    async def register(self, me: str, payload: str) -> None:
        await super().register(me, payload)
        await self.set(me, payload.replace('{"t":', '{"u": 1, "t":'))


class Twice(Plain):
    """Registers also without the group's name, as a member that does not exist."""

    async def register(self, me: str, payload: str) -> None:
        await super().register(me, payload)
        await super().register(me.replace("/g_", "/"), payload)


class Nested(Plain):
    """Registers below a persistent znode, which the others read as a registration."""

    async def register(self, me: str, payload: str) -> None:
        await super().register(me, payload)
        await self.create("/consumers/g/ids/g")
        await super().register(me.replace("/g_", "/g/"), payload)


class Unnamed(Plain):
    """Registers without the group's name."""

    async def register(self, me: str, payload: str) -> None:
        await super().register(me.replace("/g_", "/"), payload)


class Thread(Plain):
    """Registers a thread id instead of its consumer id."""

    async def register(self, me: str, payload: str) -> None:
        await super().register(f"{me}-0", payload)


@pytest.mark.parametrize("kind", [Persistent, Filled, Rewritten, Twice, Nested, Unnamed, Thread])
def test_znodes_that_mislead_the_others_fail(kind: type[Plain]) -> None:
    """A wrong znode below `ids` breaks a promise, even beside or before the right one."""
    assert reasons(kind) == WRONG


@pytest.mark.parametrize("parent", ["owners", "offsets", "owners/t", "offsets/t"])
def test_an_ephemeral_parent_fails(parent: str) -> None:
    """An ephemeral parent breaks a promise: no member can create a znode below it."""

    ancestors = parent.split("/")[:-1]

    class Temporary(Plain):
        async def register(self, me: str, payload: str) -> None:
            await super().register(me, payload)
            for path in ancestors:
                await self.create(f"/consumers/g/{path}")
            await self.create(f"/consumers/g/{parent}", ephemeral=True)

    assert reasons(Temporary) >= WRONG


def test_a_constant_number_of_streams_fails() -> None:
    """A member that always registers one stream fails as soon as it has another number."""
    found = reasons(writing(lambda fields: json.dumps({**fields, "subscription": {"t": 1}})))
    assert found >= WRONG


def test_without_a_registration_the_group_does_not_settle() -> None:
    """A member that creates only the parents fails at the end of each schedule."""

    class Absent(Plain):
        async def register(self, me: str, payload: str) -> None:
            """Create nothing."""

    assert reasons(Absent) == {"group_settles"}
