"""The simulator's JVM member sends the same requests in the same order as the real one.

The captures are of Kafka 1.1.1. Two things are not compared: the order of claims and reads of
sibling partitions, which is that of a Scala hash map; and in `expiry` the order of reads that two
threads of the real member make at the same time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from support.captures import captured

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.jvm_member import MixedWorld
from zkconsumer.sim.plan import Do, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ZooKeeperDirector
from zkconsumer.sim.world import Watcher, Watchers, World

OPS = {
    rq.Get: "getData",
    rq.Exists: "exists",
    rq.Children: "getChildren",
    rq.Listing: "getChildren",
    rq.Create: "create",
    rq.SetData: "setData",
    rq.Delete: "delete",
}
CODES = {Code.OK: "ok", Code.NO_NODE: "NONODE", Code.NODE_EXISTS: "NODEEXISTS"}
WRITES = {"create", "setData", "delete"}


class Op(NamedTuple):
    """One request and its reply; `data` only for offsets and owners."""

    op: str
    path: str
    data: str
    watch: bool
    reply: str


class Sniffer(Watcher):
    """Records the requests of members, as the proxy that made the captures did."""

    def __init__(self) -> None:
        self.ops: dict[int, list[Op]] = {0: [], 1: [], 2: []}

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        assert reply is not None and not isinstance(request, rq.Multi)
        code = CODES[reply.code]
        if isinstance(request, rq.Exists):
            code = "ok" if reply.value is not None else "NONODE"
        data = getattr(request, "data", b"") or b""
        op = Op(
            OPS[type(request)], request.path, data.decode(), getattr(request, "watch", False), code
        )
        self.ops[who].append(op)


def captured_requests(scenario: str, *, until: str) -> dict[int, list[Op]]:
    """Return each member's requests up to a mark of the driver, with simulated names."""
    found: dict[int, list[Op]] = {0: [], 1: [], 2: []}
    for entry in captured("sequences"):
        if entry["scenario"] != scenario:
            continue
        if "mark" in entry:
            if entry["mark"] == until:
                break
        elif entry["op"] != "closeSession":
            op = Op(
                entry["op"],
                _named(entry["path"]),
                _named(entry.get("data") or ""),
                entry.get("watch", False),
                entry["reply"],
            )
            found["ABC".index(entry["member"])].append(op)
    return found


def _named(text: str) -> str:
    text = re.sub(r"\bseqg\w*_([ABC])", lambda m: f"g_{'ABC'.index(m[1])}", text)
    text = re.sub(r"/consumers/seqg\w*", "/consumers/g", text)
    return re.sub(r"(/topics/|/owners/|/offsets/|\")seq(cf)?\b", r"\1t", text)


def normal(ops: Iterable[Op]) -> Iterator[Op]:
    """Return the requests without timestamps, and without payloads of parents (null in the JVM)."""
    for op in ops:
        is_leaf = re.search(r"/(owners|offsets)/t/\d+$", op.path)
        yield op if is_leaf else op._replace(data="")


def masked(ops: Iterable[Op]) -> list[Op]:
    """Return the requests with one name for all siblings, because members choose the order."""
    siblings = re.compile(r"/(owners/t|offsets/t|ids)/\w+$")
    in_order = ("setData", "delete")
    return [
        op
        if op.op in in_order or (op.op == "create" and "/offsets/" in op.path)
        else op._replace(path=siblings.sub(r"/\1/#", op.path))
        for op in normal(ops)
    ]


def all_of(ops: Iterable[Op]) -> Counter[Op]:
    """Return all requests; the first claim of all members is tried twice."""
    return Counter(op for op in normal(ops) if op.reply != "NONODE" or "/owners/t/" not in op.path)


def assert_alike(real: dict[int, list[Op]], ours: dict[int, list[Op]]) -> None:
    for who, ops in real.items():
        assert masked(ops) == masked(ours[who]), f"member {who}"
        assert all_of(ops) == all_of(ours[who]), f"member {who}"


def writes(ops: dict[int, list[Op]]) -> dict[int, list[Op]]:
    return {who: [op for op in some if op.op in WRITES] for who, some in ops.items()}


class JvmGroup(ZooKeeperDirector):
    """A group that has only JVM members, and is driven like the real group."""

    def __init__(
        self, *, retries: int = 4, session_s: float = 6.0, auto_commit_s: float | None = 60.0
    ) -> None:
        self.sniffer = Sniffer()
        plan = Plan(
            members=3,
            partitions=4,
            messages=0,
            session_s=session_s,
            settings=lambda one: replace(
                one, auto_commit_s=auto_commit_s, retries=retries, backoff_s=0.7
            ),
        )
        recorder = Recorder(lambda entry: None)
        self.jvm = MixedWorld(plan, Watchers(recorder, self.sniffer), jvm=frozenset(range(3)))
        super().__init__(self.jvm, recorder)

    def consume(self, who: int, partition: int, messages: int) -> None:
        for _ in range(messages):
            self.jvm.jvm_member(who).deliver(TopicPartition("t", partition))


def test_a_group_whose_members_join_and_leave() -> None:
    """Join, consume, commit, a second member, leave: all requests of both members are equal."""
    on = JvmGroup()
    on.join(0)
    on.wait(2.0)
    on.consume(0, 1, 3)
    on.consume(0, 2, 5)
    on.do(Do.COMMIT, 0)
    on.wait(1.0)
    on.consume(0, 1, 2)
    on.consume(0, 3, 2)
    on.join(1)
    on.wait(1.0)
    on.consume(1, 3, 2)
    on.do(Do.LEAVE, 0)
    on.wait(1.0)
    on.do(Do.LEAVE, 1)
    assert_alike(captured_requests("static", until="end"), on.sniffer.ops)


def test_a_jvm_member_gives_up_after_three_attempts() -> None:
    """If an owner hangs, a member tries three times; a third member's join wakes it again."""
    on = JvmGroup(retries=3, session_s=60.0, auto_commit_s=None)
    on.join(0)
    on.wait(1.0)
    on.do(Do.FREEZE, 0)
    on.join(1)
    on.wait(4.0)
    assert on.jvm.jvm_member(1).connector.gave_up
    on.do(Do.THAW, 0)
    on.wait(1.0)
    assert {tp.partition for tp in on.world.owners()} == {0, 1}, "two partitions must stay unowned"
    on.join(2)
    on.wait(1.0)
    assert len(on.world.owners()) == 4
    assert_alike(captured_requests("conflict", until="C joined"), on.sniffer.ops)


def test_a_session_that_expires() -> None:
    """After an expiry the member claims again, rebalances twice, and stores offsets of 0."""
    on = JvmGroup()
    on.join(0)
    on.wait(1.0)
    on.do(Do.FREEZE, 0)
    on.until(lambda: not on.world.owners(), "the session's end")
    on.do(Do.THAW, 0)
    on.wait(2.0)
    real = captured_requests("expiry", until="A consumes 5")
    assert_alike(writes(real), writes(on.sniffer.ops))


@pytest.mark.parametrize("scenario", ["static", "conflict", "expiry"])
def test_the_captures_are_there(scenario: str) -> None:
    """Each capture contains all that the tests compare."""
    assert sum(map(len, captured_requests(scenario, until="end").values())) > 80
