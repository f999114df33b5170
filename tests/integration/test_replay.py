"""The replay of real runs detects violations that were planted into a correct run's records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.members.crew import Crew, frozen
from support.members.replay import Record, Replay

from zkconsumer.errors import TraceError
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sim.kernel.world import InvariantViolation

Plant = Callable[[Replay], Replay]


@pytest.fixture(scope="module")
def run(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """Return a run without faults: one member joins another, and both leave."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("run")
        crew = Crew(sandbox.zookeeper_connect, sandbox.bootstrap, "replayed", directory, stack)
        sandbox.create_topic("replayed", partitions=8)
        crew.feed("replayed", 8)
        first = crew.join()
        crew.settle(first)
        crew.flowing(first)
        second = crew.join()
        crew.settle(first, second)
        crew.flowing(first, second)
        assert crew.finish().duplicates() == 0
        return crew.replay()


def _logged(
    run: Replay, change: Callable[[dict[str, Any]], dict[str, Any] | None], who: int = 1
) -> Replay:
    """Return the run with changed lines in the log of a member's user; None removes a line."""
    entries = (change({**entry}) for entry in run.records[who].logged)
    logged = [entry for entry in entries if entry is not None]
    records = [replace(one) for one in run.records]
    records[who].logged = logged
    return run.again(records=records)


def _moved(run: Replay) -> tuple[str, int, int]:
    """Return (topic, partition, first member's token) of partitions that the second took over."""
    (taken, *_) = next(e["runs"] for e in run.records[1].logged if e["event"] == "delivered")
    topic, number = taken[:2]
    return next(
        (topic, number, one[2])
        for e in run.records[0].logged
        if e["event"] == "delivered"
        for one in e["runs"]
        if one[:2] == [topic, number]
    )


def _a_message_is_lost(run: Replay) -> Replay:
    first = next(entry for entry in run.records[0].logged if entry["event"] == "delivered")
    return _logged(run, lambda entry: None if entry == first else entry, who=0)


def _a_message_comes_twice(run: Replay) -> Replay:
    given: dict[tuple[str, int], int] = {}

    def change(entry: dict[str, Any]) -> dict[str, Any]:
        if entry["event"] == "delivered":
            topic, number, token, offsets = entry["runs"][0]
            if given.setdefault((topic, number), offsets[0]) < offsets[0]:
                entry["runs"] = [[topic, number, token, [offsets[0] - 1]]]
        return entry

    return _logged(run, change)


def _the_old_owner_goes_on(run: Replay) -> Replay:
    topic, number, token = _moved(run)
    taken_over = min(
        e["t"]
        for e in run.records[1].logged
        if e["event"] == "delivered"
        for one in e["runs"]
        if one[:2] == [topic, number]
    )
    offset = max(
        one[3][-1]
        for e in run.records[0].logged
        if e["event"] == "delivered"
        for one in e["runs"]
        if one[:2] == [topic, number]
    )
    # Without a freeze, a message that comes a second after the end of its ownership breaks I3. A
    # freeze excuses one message of the only stream, and here come two.
    late = [
        {
            "event": "delivered",
            "t": taken_over + 0.001 * n,
            "runs": [[topic, number, token, [offset + n]]],
        }
        for n in (1, 2)
    ]
    records = [replace(one) for one in run.records]
    records[0].logged = [*records[0].logged, *late]
    records[0].frozen = [(records[0].logged[0]["t"], taken_over)]
    return run.again(records=records)


def _nothing_was_finished(run: Replay) -> Replay:
    return _logged(run, lambda e: None if e["event"] == "finished" else e, who=0)


def _an_offset_goes_back(run: Replay) -> Replay:
    return _written(run, "offsets", lambda data: b"0", last=True)


def _owned_under_another_s_name(run: Replay) -> Replay:
    return _written(run, "owners", lambda data: b"somebody_else-0", last=False)


def _written(run: Replay, directory: str, data: Callable[[bytes], bytes], *, last: bool) -> Replay:
    """Return ZooKeeper's log with another payload in one write below a directory of the group."""
    found = [
        number
        for number, one in enumerate(run.writes)
        if one.change
        and f"/{directory}/" in one.change.path
        and isinstance(one.change.write, rq.SetData if directory == "offsets" else rq.Create)
        and one.change.path.rpartition("/")[2].isdigit()
    ]
    writes, at = list(run.writes), found[-1 if last else 0]
    change = writes[at].change
    assert change is not None
    other = replace(change.write, data=data(change.write.data))
    writes[at] = writes[at]._replace(change=change._replace(write=other))
    return run.again(writes=writes)


def _released_while_delivered(run: Replay) -> Replay:
    """Return the run in which the first member's owner znodes are deleted before all else."""
    joined = run.records[1].steps()[0].t
    early = round((joined + run.ahead_s) * 1000)
    writes = [
        one._replace(t_ms=early)
        if one.change and "/owners/" in one.change.path and isinstance(one.change.write, rq.Delete)
        else one
        for one in run.writes
    ]
    writes.sort(key=lambda one: one.t_ms)
    return run.again(writes=writes)


@pytest.mark.parametrize(
    ("plant", "number"),
    [
        (_a_message_is_lost, "I5"),
        (_a_message_comes_twice, "I4"),
        (_the_old_owner_goes_on, "I2"),
        (_nothing_was_finished, "I6"),
        (_an_offset_goes_back, "I7"),
        (_owned_under_another_s_name, "I1"),
        (_released_while_delivered, "I9"),
    ],
)
def test_a_planted_violation_is_caught(run: Replay, plant: Plant, number: str) -> None:
    """The recorded run passes the replay, but with one changed record it fails."""
    run.again().run()
    with pytest.raises(InvariantViolation) as caught:
        plant(run.again()).run()
    assert caught.value.invariant == number


def test_a_trace_that_does_not_conform(run: Replay, tmp_path: Path) -> None:
    """If a trace has a line that the machine would not write, the replay detects it."""
    lines = run.records[0].trace.read_text().splitlines(keepends=True)
    path = tmp_path / "trace"
    path.write_text("".join(lines[:5] + lines[6:]))
    with pytest.raises(TraceError):
        run.again(records=[replace(run.records[0], trace=path), run.records[1]])


def test_a_group_that_has_not_converged(run: Replay) -> None:
    """While the second member joins, the group does not count as settled."""
    joining = run.records[1].steps()[3].t
    with pytest.raises(InvariantViolation, match="I12"):
        run.again().run(rest_at=joining)


def test_a_freeze_that_is_not_recorded(crew: Crew, topic: str) -> None:
    """A recorded freeze excuses one late message of its process; without it, none is excused."""
    assert crew.counts == {topic: 8}
    first, second = crew.join(), crew.join(work_s=0.0003)
    crew.settle(first, second)
    for partition in sorted(second.owned):
        crew.traffic.burst(partition, 500)
    crew.flowing(first, second)
    with frozen(second):
        crew.settle(first)
        crew.flowing(first)
    crew.settle(first, second)
    evidence = crew.finish()
    in_flight = len([one for one in evidence.late if one.overlap_s > 0])
    # The same run, in which the frozen member also logs messages after the next owner's first.
    run = crew.replay()
    frozen_at, thawed_at = second.frozen[0]
    own = next(
        one
        for entry in reversed(second.of("delivered"))
        for one in entry["runs"]
        if entry["t"] < frozen_at
    )
    topic_, number, token, _ = own
    tp = TopicPartition(topic_, number)
    # The message that was being processed at the freeze may be logged after it.
    last = max(
        one.offset for one in evidence.deliveries if (one.partition, one.token) == (tp, token)
    )
    newer = min(one.t for one in evidence.deliveries if one.partition == tp and one.token > token)

    def with_late(count: int, **other: Any) -> Replay:
        more = [
            {
                "event": "delivered",
                "t": max(thawed_at, newer) + 0.001 * n,
                "runs": [[topic_, number, token, [last + n]]],
            }
            for n in range(1, count - in_flight + 1)
        ]
        records = [replace(one) for one in run.records]
        logged = sorted([*records[1].logged, *more], key=lambda one: one["t"])
        records[1] = replace(records[1], logged=logged, **other)
        return run.again(records=records)

    with_late(1).run()
    with pytest.raises(InvariantViolation, match=r"I2|I3"):
        with_late(1, frozen=()).run()
    with pytest.raises(InvariantViolation, match=r"I2|I4"):
        with_late(2).run()


def test_writes_of_other_clients_are_recognised(crew: Crew, topic: str, admin: KazooClient) -> None:
    """Writes of other clients are recognised by the sessions that made them."""
    member = crew.join()
    crew.settle(member)
    crew.flowing(member)
    tp = min(member.owned)
    admin.delete(paths.owner(crew.group, tp))
    crew.settle(member)
    crew.flowing(member)
    crew.finish()
    run = crew.replay()
    run.run()
    assert run.monitor.by_hand == {tp}
    assert run.monitor.harmed


def test_all_of_a_record_counts(run: Replay) -> None:
    """The monitor counts exactly the messages that the users have logged."""
    run = run.again()
    run.run()
    logged = sum(_count(one) for one in run.records)
    assert run.monitor.deliveries == logged > 0
    assert run.monitor.rebalances >= 3


def _count(record: Record) -> int:
    return sum(len(handed.messages) for handed in record.handed())
