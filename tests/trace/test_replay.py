"""`zkconsumer trace check`: the replay of a trace equals the trace."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.internals import descriptor_of
from support.members.group import STEADY_S
from support.wait import LIMIT_S

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.errors import TraceError
from zkconsumer.member.events import Event
from zkconsumer.member.state import State
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.random_search import choose, draw_plan
from zkconsumer.sim.world import MemberTransition, Watcher, World
from zkconsumer.trace import TraceFile, Undecodable, decode, encode
from zkconsumer.trace.replay import check


class Recorder(Watcher):
    """Writes the trace of every simulated member into one or more files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[int, TraceFile] = {}
        self.steps: list[tuple[State, Event]] = []

    def transition(self, world: World, step: MemberTransition) -> None:
        who, before, event, commands = step
        if who not in self.files:
            self.files[who] = TraceFile(self.directory / f"{who}.jsonl")
        self.steps.append((before, event))
        self.files[who].write(before, event, world.members[who].state, commands)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """Write the traces of a simulated group with all kinds of faults."""
    recorder = Recorder(tmp_path_factory.mktemp("traces"))
    for seed in range(30):
        decide = Decisions(random.Random(seed))
        plan, _, rarity = draw_plan(decide)
        world = World(plan, recorder)
        recorder.files.clear()
        for _ in range(200):
            available = world.enabled()
            if not available:
                break
            world.act(choose(world, available, decide, rarity))
        for file in recorder.files.values():
            file.close()
    return recorder


@pytest.fixture
def lines(recorded: Recorder) -> list[str]:
    """Return the lines of one member's trace, which covers several runs."""
    return (recorded.directory / "0.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)


def test_traces_of_the_simulator_are_replayed(recorded: Recorder) -> None:
    """The replay reproduces each state and command of members under all kinds of faults."""
    paths = sorted(recorded.directory.glob("*.jsonl"))
    counts = [
        check(path.read_text(encoding="utf-8").splitlines(keepends=True), name=path.name)
        for path in paths
    ]
    assert sum(one.transitions for one in counts) == len(recorded.steps)
    assert counts[0].runs > 10


def test_events_survive(recorded: Recorder) -> None:
    """An event is the same after encoding and decoding."""
    for _, event in recorded.steps:
        assert decode(Event, json.loads(json.dumps(encode(event)))) == event


def test_states_survive(recorded: Recorder) -> None:
    """A whole state, and so each value in it, is the same after encoding and decoding."""
    for state, _ in recorded.steps[::20]:
        assert decode(State, json.loads(json.dumps(encode(state)))) == state


@pytest.mark.parametrize("key", ["t", "event", "from", "to", "commands", "state"])
def test_a_tampered_line_is_named(lines: list[str], key: str) -> None:
    """If a line was changed, the check rejects it by file and line."""
    number = next(n for n, line in enumerate(lines) if '"commands":[{' in line)
    entry = json.loads(lines[number])
    match entry[key]:
        case str():
            entry[key] = "waiting" if entry[key] != "waiting" else "settled"
        case float() | int():
            entry[key] += 1
        case list():
            entry[key] = entry[key][1:]
        case dict():
            entry[key]["now"] += 1.0
    lines[number] = json.dumps(entry) + "\n"
    with pytest.raises(TraceError) as found:
        check(lines, name="it")
    assert found.value.where == f"it:{number + 1}"


def test_a_line_that_is_missing_is_noticed(lines: list[str]) -> None:
    """If a line was removed, a later line does not fit, or the end of the trace differs."""
    number = next(n for n, line in enumerate(lines) if '"to":"reading"' in line)
    with pytest.raises(TraceError, match=r"it:\d+"):
        check(lines[:number] + lines[number + 1 :], name="it")


def test_a_trace_without_its_beginning(lines: list[str]) -> None:
    """If the line with the member's settings is missing, the check fails."""
    with pytest.raises(TraceError, match="the settings of member 'g_0' are missing"):
        check(lines[1:], name="it")


def test_a_last_line_that_is_torn(lines: list[str]) -> None:
    """An incomplete last line, written while the process died, is ignored."""
    whole = check(lines, name="it")
    torn = check([*lines, lines[-1][:40]], name="it")
    assert torn == whole


def test_a_start_after_a_line_that_is_torn(lines: list[str], tmp_path: Path) -> None:
    """The next start with the same file removes an incomplete line, however long it is."""
    path = tmp_path / "trace.jsonl"
    for rest in ('{"v":3,"t":1.0,"mem', '{"v":3,"event":"' + "x" * 200_000):
        path.write_text("".join(lines) + rest)
        TraceFile(path).close()
        assert path.read_text() == "".join(lines)
    path.write_text(rest)
    TraceFile(path).close()
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[]",
        "{",
        '{"v":1}',
        '{"v":3,"settings":{}}',
        '{"v":3,"event":1,"member":[]}',
        "[" * 100_000,
        '{"v":3,"settings":{"is":"State"}}',
        "\ud800",
    ],
)
def test_another_file_is_a_trace_error(line: str) -> None:
    """If a line is not part of a trace, TraceError is raised, and no other error."""
    with pytest.raises(TraceError, match="it:1"):
        check([line + "\n"], name="it")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(st.data())
def test_any_json_in_any_place(recorded: Recorder, data: st.DataObject) -> None:
    """Whatever JSON value a field has, the event is decoded, or Undecodable is raised."""
    _, event = data.draw(st.sampled_from(recorded.steps[:300]))
    entry = json.loads(json.dumps(encode(event)))
    key = data.draw(st.sampled_from(sorted(entry)))
    entry[key] = data.draw(JSON)
    with contextlib.suppress(Undecodable):
        decode(Event, entry)


def test_a_real_member(
    sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path, run: Any
) -> None:
    """The trace of a real connector that reads, rebalances and leaves passes the check."""
    topic = unique("topic")
    sandbox.create_topic(topic, partitions=4)
    # Two partitions have five messages left, whichever member owns these partitions.
    for partition in range(4):
        sandbox.produce(topic, 15, partition=partition)
    path = tmp_path / "trace.jsonl"

    def config(**more: Any) -> ConsumerConfig:
        return ConsumerConfig(
            group_id=topic,
            zookeeper_connect=sandbox.zookeeper_connect,
            auto_offset_reset="smallest",
            consumer_timeout_s=LIMIT_S,
            zookeeper_session_timeout_s=STEADY_S,
            **more,
        )

    with ConsumerConnector(config(trace_file=str(path))) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for _ in range(20):
            next(stream)
        connector.commit_offsets()
        # The member reads back its owner znodes a little after it has settled.
        assert until(lambda: '"is":"Verified"' in path.read_text("utf-8"), limit_s=LIMIT_S)
        with ConsumerConnector(config()) as other:
            (second,) = other.create_message_streams({topic: 1})[topic]
            for _ in range(5):
                next(second)
    code, out, err = run("trace", "check", str(path))
    assert (code, err) == (0, "")
    assert "of 1 runs reproduced" in out and out.endswith(": closed\n")
    code, story, err = run("trace", "show", str(path))
    assert (code, err) == (0, "")
    assert re.search(rf"settled +has read back {topic}-1\.\.3\n", story)
    assert f"delivers no more of {topic}" in story
    written = path.read_text(encoding="utf-8")
    path.write_text(written.replace('"to":"settled"', '"to":"waiting"', 1), encoding="utf-8")
    number = written[: written.index('"to":"settled"')].count("\n") + 1
    code, out, err = run("trace", "check", str(path))
    assert (code, out) == (6, "") and f"({path}:{number})" in err


def test_a_full_disk_ends_the_trace_and_not_the_member(
    sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """After a write error, which is counted, the trace ends and the member continues."""
    topic = unique("topic")
    sandbox.create_topic(topic, partitions=1)
    config = ConsumerConfig(
        group_id=topic,
        zookeeper_connect=sandbox.zookeeper_connect,
        trace_file=str(tmp_path / "trace.jsonl"),
        auto_offset_reset="smallest",
        consumer_timeout_s=LIMIT_S,
        zookeeper_session_timeout_s=STEADY_S,
    )
    with ConsumerConnector(config) as connector, open("/dev/full", "w") as full:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        os.dup2(full.fileno(), descriptor_of(tmp_path / "trace.jsonl"))
        assert until(lambda: "trace_failed" in connector.metrics(), limit_s=LIMIT_S)
        sandbox.produce(topic, 1)
        assert next(stream).offset == 0
        connector.commit_offsets()
        assert connector.metrics()["trace_failed"] == 1
        assert connector.status().error is None
