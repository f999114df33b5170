"""A member for the judge in Python, of which one fills in `on_change`.

    from zkconsumer.judge.kit import Member, run

    class Mine(Member):
        async def on_change(self) -> None:
            await self.create(f"/consumers/{self.group}")
            ...

    if __name__ == "__main__":
        run(Mine)

The kit speaks the protocol of docs/judge.md. It awaits replies, ends everything that runs when the
connection breaks, and begins again with the next connection. It decides nothing: which znodes to
create, to watch and to delete is the task. It needs only Python's standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Generator
from dataclasses import field
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack

from zkconsumer.frozen import dataclass

Json: TypeAlias = Any  # Any: the result of `json.loads`

TICK_S = 1.0
"""Seconds between two calls of `on_tick`."""


@dataclass(frozen=True)
class Reply:
    """ZooKeeper's reply to one request; docs/judge.md describes the fields."""

    code: str
    data: str | None = None
    version: int = -1
    owner: int = 0
    czxid: int = 0
    children: tuple[str, ...] = ()
    failed: int = -1

    @property
    def ok(self) -> bool:
        return self.code == "ok"


class Options(TypedDict, total=False):
    """The fields of a request besides `op` and `path`."""

    data: str | None
    ephemeral: bool
    version: int
    watch: bool
    ops: list[dict[str, Json]]


Asking: TypeAlias = Generator[list[dict[str, Json]], list[Reply], Reply]


class Request:
    """A request that is sent when it is awaited."""

    def __init__(self, op: str, path: str | None, **options: Unpack[Options]) -> None:
        where = {} if path is None else {"path": path}
        self.fields: dict[str, Json] = {"op": op, **where, **options}

    def __await__(self) -> Asking:
        (reply,) = yield [self.fields]
        return reply


class _Several:
    def __init__(self, requests: tuple[Request, ...]) -> None:
        self._requests = requests

    def __await__(self) -> Generator[list[dict[str, Json]], list[Reply], list[Reply]]:
        return (yield [one.fields for one in self._requests])


Work: TypeAlias = Coroutine[list[dict[str, Json]], list[Reply], None]


@dataclass
class _Task:
    """Work in progress: the ids of the requests that it awaits, and the replies so far."""

    work: Work
    ids: list[int] = field(default_factory=list)
    replies: dict[int, Reply] = field(default_factory=dict)


class Member:
    """One member. The kit sets the attributes; the subclass changes only `positions`.

    Attributes:
        name, group, topic, streams, session_s, wall_ms: as in the message `reset`.
        now: the virtual time in seconds.
        session: the id of the present or last session; 0 before the first one.
        is_connected: whether the client has a connection.
        positions: the partitions that the member delivers, each with the offset of its next
            message. The kit delivers a message of the lowest partition that has one.
        fired: the paths whose watches have fired since `on_change` was called last.
    """

    def __init__(self, reset: dict[str, Json]) -> None:
        self.name: str = reset["member"]
        self.group: str = reset["group"]
        self.topic: str = reset["topic"]
        self.streams: int = reset["streams"]
        self.session_s: float = reset["session_s"]
        self.wall_ms: int = reset["wall_ms"]
        self.now = 0.0
        self.session: int = 0
        self.is_connected = False
        self.positions: dict[int, int] = {}
        self.fired: set[str] = set()
        self._out: list[dict[str, Json]] = []
        self._tasks: dict[str, _Task] = {}
        self._is_wanted = self._is_closing = self._is_closed = False
        self._ids = 0

    # ---- for you to fill in ----------------------------------------------------------------------

    async def on_change(self) -> None:
        """Do what the group needs now.

        The kit calls it after each connection, after each watch event, and after `change`; never
        twice at the same time. A change that comes while it runs causes another call.
        """
        raise NotImplementedError

    async def on_tick(self) -> None:
        """Do what is due once a second, beside `on_change`. Only called while connected."""

    async def on_close(self) -> None:
        """Leave: the session ends when it returns. `on_change` has ended, and is not called."""

    def on_disconnected(self) -> None:
        """React to a broken connection: all requests have ended, and no watch is left."""

    def may_deliver(self) -> bool:
        """Return whether the user may get a message now."""
        return True

    # ---- for you to call -------------------------------------------------------------------------

    def create(self, path: str, **options: Unpack[Options]) -> Request:
        return Request("create", path, **options)

    def set(self, path: str, data: str, *, version: int = -1) -> Request:
        return Request("set", path, data=data, version=version)

    def delete(self, path: str, **options: Unpack[Options]) -> Request:
        return Request("delete", path, **options)

    def check(self, path: str, **options: Unpack[Options]) -> Request:
        return Request("check", path, **options)

    def get(self, path: str, **options: Unpack[Options]) -> Request:
        return Request("get", path, **options)

    def exists(self, path: str, **options: Unpack[Options]) -> Request:
        return Request("exists", path, **options)

    def children(self, path: str, **options: Unpack[Options]) -> Request:
        return Request("children", path, **options)

    def sync(self, path: str) -> Request:
        return Request("sync", path)

    def multi(self, *writes: Request) -> Request:
        """Return a transaction of `create`, `set`, `delete` and `check`: all or none."""
        return Request("multi", None, ops=[one.fields for one in writes])

    def together(self, *requests: Request) -> _Several:
        """Return requests that are sent at once; awaiting them gives all replies, in order."""
        return _Several(requests)

    def change(self) -> None:
        """Let the kit call `on_change` (again)."""
        self._is_wanted = True

    def phase(self, word: str, text: str = "") -> None:
        """Write a word for the story."""
        self._out.append({"type": "phase", "phase": word, "text": text})

    # ---- the protocol ----------------------------------------------------------------------------

    def answer(self, message: dict[str, Json]) -> list[dict[str, Json]]:
        """Return the answer to a message of the judge."""
        self._out = []
        self.now = message.get("now", 0.0)
        more: dict[str, Json] = {}
        getattr(self, f"_on_{message['type']}")(message, more)
        self._continue()
        if self._is_closed:
            more["closed"] = True
        return [*self._out, {"type": "done", **more}]

    def _on_reset(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        pass

    def _on_connected(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        self.is_connected, self.session = True, message["session"]
        self.change()
        more["tick_s"] = TICK_S

    def _on_disconnected(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        self.is_connected = False
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.work.close()
        self.fired.clear()
        self.on_disconnected()

    def _on_watch(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        self.fired.add(message["path"])
        self.change()

    def _on_tick(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        if self.is_connected and not self._is_closing:
            self._begin("tick", self.on_tick())
        more["tick_s"] = TICK_S

    def _on_close(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        self._is_closing = True

    def _on_poll(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        ends = message["ends"]
        if self._is_closing or not self.may_deliver():
            return
        for partition, offset in sorted(self.positions.items()):
            if partition < len(ends) and offset < ends[partition]:
                self.positions[partition] = offset + 1
                self._out.append({"type": "deliver", "partition": partition, "offset": offset})
                return

    def _on_reply(self, message: dict[str, Json], more: dict[str, Json]) -> None:
        fields = {key: value for key, value in message.items() if key not in ("type", "now", "id")}
        fields["children"] = tuple(fields.get("children", ()))
        for name, task in list(self._tasks.items()):
            if message["id"] in task.ids:
                task.replies[message["id"]] = Reply(**fields)
                if len(task.replies) == len(task.ids):
                    self._step(name, task, [task.replies[one] for one in task.ids])

    def _continue(self) -> None:
        """Begin `on_change` or `on_close` if it is due."""
        if not self.is_connected or self._is_closed or "change" in self._tasks:
            return
        if self._is_closing:
            if "close" not in self._tasks:
                self._begin("close", self._closed())
        elif self._is_wanted:
            self._is_wanted = False
            self._begin("change", self.on_change())
            self._continue()

    async def _closed(self) -> None:
        await self.on_close()
        self._is_closed = True

    def _begin(self, name: str, work: Work) -> None:
        if name in self._tasks:
            work.close()  # the earlier call still runs
            return
        self._tasks[name] = _Task(work)
        self._step(name, self._tasks[name], None)

    def _step(self, name: str, task: _Task, replies: list[Reply] | None) -> None:
        """Let work continue until it awaits replies or ends."""
        try:
            # A coroutine begins with None.
            asked = task.work.send(replies)  # type: ignore[arg-type]
        except StopIteration:
            self._tasks.pop(name, None)
            return
        task.ids, task.replies = [], {}
        for fields in asked:
            self._ids += 1
            task.ids.append(self._ids)
            self._out.append({"type": "request", "id": self._ids, **fields})
        if not asked:
            self._step(name, task, [])


class Speaker(Protocol):
    """Answers the judge's messages after the `reset`, in any vocabulary."""

    def answer(self, message: dict[str, Json], /) -> list[dict[str, Json]]: ...


def run(kind: Callable[[dict[str, Json]], Speaker]) -> None:
    """Speak with the judge until it closes the pipe; each `reset` makes a new member.

    `kind` makes a member of the message `reset`, for instance a subclass of `Member`.
    """
    member: Speaker | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "reset":
            member = kind(message)
        assert member is not None, "the judge begins with `reset`"
        for answer in member.answer(message):
            sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
