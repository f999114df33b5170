"""A simulated server answers random requests as a real server and as the fake one do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent
from kazoo.security import make_acl
from support.sim.contract import DIRECTORY, SimServer
from support.zk.contract import LIMIT_S, Op, Session, Stat, Watch, ZkError, is_back
from support.zk.proxies import Proxy

from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.process import until
from zkconsumer.sim.zookeeper import MAX_REQUEST_BYTES
from zkconsumer.testing import FakeZooKeeper

BASE = "/t"
BEFORE = (BASE, BASE + "/a", BASE + "/b")
SLOTS = 3
RIGHTS = ("read", "write", "create", "delete", "admin")

# ---- what is sent -------------------------------------------------------------------------------

paths = st.sampled_from(["", "/a", "/b", "/a/x", "/a/y", "/a/x/z"]).map(lambda end: BASE + end)
data = st.sampled_from([b"", b"1", b"2"])
versions = st.sampled_from([-1, -1, -1, 0, 1, 2])
kinds = st.sampled_from(["persistent", "persistent", "ephemeral"])
# All rights except one or two; with fewer rights a test could not read its tree.
acls = st.sets(st.sampled_from(RIGHTS), max_size=2).map(
    lambda denied: tuple(right for right in RIGHTS if right not in denied)
)

creates = st.builds(Op, st.just("create"), paths, data, st.just(-1), kinds)
elements = st.one_of(
    creates,
    st.builds(Op, st.just("set"), paths, data, versions),
    st.builds(Op, st.sampled_from(["delete", "check"]), paths, st.just(b""), versions),
)
multis = st.lists(elements, min_size=1, max_size=4).map(lambda ops: ("multi", *ops))
watched = st.sampled_from([True, True, True, False])
WEIGHTED = (
    (12, st.tuples(st.sampled_from(["get", "exists", "children", "children"]), paths, watched)),
    (3, st.tuples(st.sampled_from(["create", "create_ephemeral"]), paths, data)),
    (3, st.tuples(st.just("set"), paths, data, versions)),
    (4, st.tuples(st.just("delete"), paths, versions)),
    (5, multis),
    (1, st.tuples(st.sampled_from(["set_acl", "create_with_acl"]), paths, acls)),
    (1, st.sampled_from([("close",), ("expire",), ("cut",), ("sync", BASE), ("multi",)])),
)
by_weight = [strategy for weight, strategy in WEIGHTED for _ in range(weight)]
steps = st.tuples(st.integers(0, SLOTS - 1), st.sampled_from(by_weight).flatmap(lambda it: it))
# Shrink a failing example by making its steps simpler, not by leaving steps out.
stories = st.lists(steps, min_size=30, max_size=50)


class Noting(Watch):
    """Return a watch function that adds its events to the list of the session."""

    def __init__(self, fired: list[tuple[str, str, int]], label: int) -> None:
        super().__init__()
        self._fired, self._label = fired, label

    def __call__(self, event: WatchedEvent) -> None:
        if event.type != "NONE":
            self._fired.append((event.type, event.path, self._label))


# ---- two servers --------------------------------------------------------------------------------


@dataclass
class Slot:
    session: Any
    proxy: Any
    fired: list[tuple[str, str, int]]
    sent: int = 0

    def sent_since(self) -> int:
        """Return how many events have arrived since the last call."""
        before, self.sent = self.sent, self.proxy.received.count("event")
        return self.sent - before


class Real:
    """Sessions on a real server."""

    events_to_settle = 1  # `settle` causes one event, the event of its marker.

    _directories = itertools.count(1)

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address, self._stack = address, stack
        self._admin = KazooClient(address)
        self._admin.start(60)
        stack.callback(self._admin.stop)
        self._proxies = [stack.enter_context(Proxy(address)) for _ in range(SLOTS)]

    def open(self) -> list[Slot]:
        """Return a session for each proxy, in a directory that no other example has used."""
        self.directory = f"/like-real-{next(self._directories)}"
        self._admin.create(self.directory)
        return [Slot(self.session(proxy), proxy, []) for proxy in self._proxies]

    def session(self, proxy: Proxy) -> Session:
        return Session(proxy.address, self.directory, timeout_s=20.0)

    def wait(self, condition: Callable[[], bool]) -> None:
        assert until(condition, limit_s=LIMIT_S)


class Simulated:
    """Sessions on a simulated server."""

    directory = DIRECTORY
    events_to_settle = 0

    def open(self) -> list[Slot]:
        self._server = SimServer()
        proxies = [self._server.proxy() for _ in range(SLOTS)]
        return [Slot(self.session(proxy), proxy, []) for proxy in proxies]

    def session(self, proxy: Any) -> Any:
        return self._server.session_behind(proxy, timeout_s=20.0)

    def wait(self, condition: Callable[[], bool]) -> None:
        assert self._server.until(condition)


# ---- the comparison -----------------------------------------------------------------------------


class Run:
    """Return all answers of one server to a list of steps."""

    def __init__(self, side: Any) -> None:
        self._side = side
        self.answers: list[Any] = []
        self._owners = {0: "nobody"}
        self._slots: list[Slot] = side.open()
        self._name_sessions()
        for slot in self._slots:
            slot.sent_since()

    def go(self, steps: Sequence[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        try:
            for slot, path in zip(itertools.cycle(self._slots), BEFORE, strict=False):
                slot.session.create(path)
            for number, (slot, step) in enumerate(steps):
                self._step(number, self._slots[slot], step)
            self._hear(in_order=True)
        finally:
            for slot in self._slots:
                slot.session.close()
        return _with_ranks(self.answers)

    def _step(self, number: int, slot: Slot, step: tuple[Any, ...]) -> None:
        kind, *arguments = step
        if kind in ("close", "expire", "cut"):
            # The order in which ZooKeeper deletes a session's znodes is not specified.
            self._hear(in_order=True)
            getattr(self, f"_{kind}")(slot)
            self._name_sessions()
            self._hear(in_order=False)
            return
        try:
            answer = self._send(number, slot, kind, arguments)
        except ZkError as error:
            answer = error.code
        self.answers.append(self._with_names(answer))

    def _send(self, number: int, slot: Slot, kind: str, arguments: list[Any]) -> Any:
        if kind in ("get", "exists", "children"):
            path, is_watched = arguments
            arguments = [path, Noting(slot.fired, number) if is_watched else None]
        elif kind in ("set_acl", "create_with_acl"):
            path, granted = arguments
            acl = (make_acl("world", "anyone", **dict.fromkeys(granted, True)),)
            if kind == "create_with_acl":
                return slot.session.create(path, acl=acl)
            return slot.session.set_acl(path, acl)
        return getattr(slot.session, kind)(*arguments)

    def _close(self, slot: Slot) -> None:
        slot.session.close()
        slot.session = self._side.session(slot.proxy)

    def _expire(self, slot: Slot) -> None:
        slot.session.expire()

    def _cut(self, slot: Slot) -> None:
        slot.proxy.cut()
        self._side.wait(lambda: is_back(slot.session))

    def _hear(self, *, in_order: bool) -> None:
        """Add the events since the last call to the answers."""
        for slot in self._slots:
            slot.session.settle()
            sent = slot.sent_since() - self._side.events_to_settle
            fired, slot.fired[:] = list(slot.fired), []
            if not in_order:
                fired.sort()
                sent = 0  # A session may get the events of its own end, or not.
            # Clients may get the same event in any order.
            told = [sorted(same) for _, same in itertools.groupby(fired, lambda it: it[:2])]
            self.answers.append((told, sent))

    def _with_names(self, answer: Any) -> Any:
        """Return the answer with names for sessions that are the same on both servers."""
        if isinstance(answer, Stat):
            return replace(answer, ephemeral_owner=self._owners[answer.ephemeral_owner])
        if isinstance(answer, tuple):
            return tuple(self._with_names(part) for part in answer)
        return answer

    def _name_sessions(self) -> None:
        for number, slot in enumerate(self._slots):
            self._owners.setdefault(slot.session.id, f"{number}, {len(self._owners)}")


def _with_ranks(answers: list[Any]) -> list[Any]:
    """Return the answers with their zxids numbered in their order."""
    parts = [part for it in answers for part in (it if isinstance(it, tuple) else (it,))]
    stats = [part for part in parts if isinstance(part, Stat)]
    zxids = sorted({zxid for stat in stats for zxid in (stat.czxid, stat.mzxid)})

    def ranked(answer: Any) -> Any:
        if isinstance(answer, Stat):
            czxid, mzxid = zxids.index(answer.czxid), zxids.index(answer.mzxid)
            return replace(answer, czxid=czxid, mzxid=mzxid)
        return tuple(map(ranked, answer)) if isinstance(answer, tuple) else answer

    return [ranked(answer) for answer in answers]


@pytest.fixture(scope="module")
def real(zookeeper: ZooKeeperServer) -> Iterator[Real]:
    """The sandbox's server."""
    with ExitStack() as stack:
        yield Real(zookeeper.connect, stack)


@pytest.mark.parametrize("examples", [8, 60])
def test_random_requests_are_answered_alike(real: Real, examples: int) -> None:
    """Results, refusals, stats and watch events are the same on both servers at each step."""
    _compare(real, examples)


# kazoo's threads draw jitter from `random` while a strategy draws; the strategies do not.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
def test_random_requests_reach_the_simulator_through_the_fake_server() -> None:
    """The fake server's codecs change neither results nor events of the simulator behind it."""
    with FakeZooKeeper() as server, ExitStack() as stack:
        _compare(Real(server.connect, stack), examples=10)


def _compare(other: Real, examples: int) -> None:
    """Send random requests to a server and to a simulated one, and compare the answers."""

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(steps=stories)
    def compare(steps: list[tuple[int, tuple[Any, ...]]]) -> None:
        expected = Run(other).go(steps)
        for number, pair in enumerate(zip(expected, Run(Simulated()).go(steps), strict=True)):
            assert pair[0] == pair[1], f"answer {number}"

    compare()


@pytest.mark.parametrize("name", ["real", "simulated"])
def test_the_largest_request_has_the_same_size(real: Real, name: str) -> None:
    """Both servers accept a write of the same maximum size, and refuse one more byte."""
    side = real if name == "real" else Simulated()
    slots = side.open()
    session = slots[0].session
    session.create("/a")
    # Besides path and data there are 8 bytes of header, 12 bytes of lengths and version, and 18
    # bytes around each element.
    room = MAX_REQUEST_BYTES - 20 - len(f"{side.directory}/a")
    for write, size in (
        (lambda data: session.set("/a", data), room),
        (lambda data: session.multi(Op("set", "/a", data)), room - 18),
    ):
        write(b"x" * size)
        assert len(session.get("/a")[0]) == size
        with pytest.raises(ZkError, match="ConnectionLoss"):
            write(b"x" * (size + 1))
        side.wait(lambda: is_back(session))
    for slot in slots:
        slot.session.close()
