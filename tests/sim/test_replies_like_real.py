"""Operations get the same replies from a kazoo session and from the simulation."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.members.group import STEADY_S
from support.wait import LIMIT_S

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Session
from zkconsumer.protocol.requests import Reply
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sim.zookeeper import SimZooKeeper
from zkconsumer.zk.session import ZooKeeperSession

MEMBERS = 2

paths = st.sampled_from(["/a", "/b", "/a/x", "/b/x", "/a/x/z"])
data = st.sampled_from([b"", b"1"])
versions = st.sampled_from([-1, -1, 0, 1])
creates = st.builds(rq.Create, paths, data, st.booleans())
writes = st.one_of(
    creates,
    st.builds(rq.SetData, paths, data, versions),
    st.builds(rq.Delete, paths, versions),
    st.builds(rq.Check, paths, versions),
)
requests = st.one_of(
    creates,
    st.builds(rq.Get, paths),
    st.builds(rq.Exists, paths),
    st.builds(rq.Children, paths),
    st.builds(rq.Listing, paths),
    st.builds(rq.SyncLeader, paths),
    st.lists(writes, max_size=4).map(lambda it: rq.Multi(tuple(it))),
    st.lists(writes, max_size=2).map(lambda it: rq.Multi(tuple(it))),
)
batches = st.tuples(st.integers(0, MEMBERS - 1), st.lists(requests, min_size=1, max_size=6))

_examples = itertools.count(1)


class Real:
    """Members' sessions on a real server."""

    def __init__(self, address: str) -> None:
        self._states: list[list[Session | None]] = [[] for _ in range(MEMBERS)]
        config = ConsumerConfig(
            group_id="g", zookeeper_connect=address, zookeeper_session_timeout_s=STEADY_S
        )
        self.sessions = [
            ZooKeeperSession(config, on_state=states.append, on_watch=lambda kind, path: None)
            for states in self._states
        ]
        for session in self.sessions:
            session.start()
        self.numbers = [states[-1].id for states in self._states if states[-1]]

    def submit(self, member: int, batch: Sequence[rq.Request]) -> Sequence[Reply]:
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sessions[member].submit(batch, replies.put)
        found: Sequence[Reply] = replies.get(timeout=LIMIT_S)
        return found


class Simulated:
    """Members' sessions on a simulated server."""

    def __init__(self) -> None:
        self._sim = SimZooKeeper()
        self.numbers = [self._sim.connect(now=0.0, timeout_s=6.0) for _ in range(MEMBERS)]

    def submit(self, member: int, batch: Sequence[rq.Request]) -> Sequence[Reply | None]:
        number = self.numbers[member]
        assert number is not None
        return [self._sim.request(number, request, 0.0) for request in batch]


@pytest.fixture(scope="module")
def real(zookeeper: ZooKeeperServer) -> Iterator[Real]:
    """Two sessions on the sandbox's server."""
    side = Real(zookeeper.connect)
    yield side
    for session in side.sessions:
        session.stop()


def _below(base: str, request: Any) -> Any:
    """Return the request with its paths moved below a directory of this example."""
    if isinstance(request, rq.Multi):
        return rq.Multi(tuple(_below(base, write) for write in request.writes))
    fields = {name: getattr(request, name) for name in request.__slots__}
    return type(request)(**fields | {"path": base + request.path})


def _replies(side: Real | Simulated, story: list[tuple[int, list[rq.Request]]]) -> list[Any]:
    base = f"/replies-{next(_examples)}"
    side.submit(0, [rq.Create(base), rq.Create(f"{base}/a")])
    found = [
        (request, reply, base)
        for member, batch in story
        for request, reply in zip(
            batch, side.submit(member, [_below(base, it) for it in batch]), strict=True
        )
    ]
    zxids = sorted({zxid for _, reply, _ in found for zxid in _zxids(reply.value)})
    return [
        (reply.code, _plain(request, reply.value, base, zxids, side.numbers))
        for request, reply, base in found
    ]


def _zxids(value: Any) -> tuple[int, ...]:
    stat = value.stat if isinstance(value, rq.Node) else value
    return stat[:2] if isinstance(stat, rq.Stat) else ()


def _plain(request: Any, value: Any, base: str, zxids: list[int], numbers: Sequence[Any]) -> Any:
    """Return a reply's value with ranks for zxids, numbers for sessions, and relative paths."""
    if isinstance(value, rq.Node):
        return value.data, _plain(request, value.stat, base, zxids, numbers)
    if isinstance(value, rq.Stat):
        czxid, mzxid, version, owner, _ = value
        place = numbers.index(owner) if owner else None
        return zxids.index(czxid), zxids.index(mzxid), version, place
    if isinstance(value, rq.ListedChildren):
        return sorted(value.names), value.cversion
    if isinstance(request, rq.Children) and not isinstance(value, str):
        return sorted(value)
    if isinstance(request, rq.Multi) and not isinstance(value, int):
        return len(value)  # The contents of the replies are not compared.
    return value.removeprefix(base) if isinstance(value, str) else value


# kazoo's threads draw jitter from `random` while a strategy draws; the strategies do not.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(story=st.lists(batches, min_size=5, max_size=15))
def test_operations_are_answered_alike(
    real: Real, story: list[tuple[int, list[rq.Request]]]
) -> None:
    """Each reply has the same code and value in both, for pipelined batches of two members."""
    assert _replies(real, story) == _replies(Simulated(), story)
