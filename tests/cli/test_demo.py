"""`zkconsumer demo`: a whole run, the run's verdict, and the clean-up."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Spawn
from cli.terminal import Terminal
from jsonschema import Draft202012Validator
from support.processes import PATIENCE_S, assert_nothing_is_left, processes_of

from zkconsumer.cli.schema import schemas
from zkconsumer.demo.group import ranges
from zkconsumer.demo.group_judge import (
    ObservedOwner,
    Tally,
    double_ownership,
    unowned_partition_seconds,
)
from zkconsumer.protocol.payloads import OwnerZnode

A, B = (OwnerZnode(f"demo_{name}-0", session, session) for name, session in (("a", 1), ("b", 2)))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files, which each process of the run has in its command line."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_run(home: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """A demo loses no message, sees no double owner, prints its result last, and cleans up."""
    code, out, err = run("demo", "--messages", "8000", "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    Draft202012Validator(schemas()["demo"]).validate(result)
    events = result.pop("events")
    assert [event["name"] for event in events] == ["start", "join", "leave", "kill"]
    for event in events:
        assert event.keys() == {"name", "settled_s", "unowned_partition_seconds"}
        assert event["settled_s"] >= 0
    # The group waits until the session of the killed member ends.
    assert events[-1]["settled_s"] > 2
    # Their number depends on the time since the killed member's last commit.
    assert result.pop("duplicates") >= 0
    assert result.pop("produced") == result.pop("delivered") > 8_000
    assert result == {"lost": 0, "double_owned": 0}
    assert_nothing_is_left(home)


@pytest.mark.parametrize("sight", ["creating topic", "three members join", "m2 is killed"])
def test_ctrl_c(home: Path, spawn: Spawn, sight: str) -> None:
    """Ctrl-C at any time gives exit code 130 and leaves no process and no directory."""
    process = spawn("demo", "--messages", "20000")
    assert process.stderr is not None
    assert any(sight.encode() in line for line in process.stderr)
    assert processes_of(home)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE_S) == 130
    assert b"Traceback" not in process.stderr.read()
    assert_nothing_is_left(home)


def test_sigkill(home: Path, spawn: Spawn) -> None:
    """Even after a SIGKILL of the demo, no process and no directory is left."""
    process = spawn("demo", "--messages", "20000")
    assert process.stderr is not None
    assert any(b"settled after" in line for line in process.stderr)
    assert processes_of(home)
    process.kill()
    process.wait()
    assert_nothing_is_left(home)


def test_a_terminal(home: Path) -> None:
    """On a terminal the demo shows owners and progress; Ctrl-C leaves no process and no file."""
    command = (sys.executable, "-m", "zkconsumer", "demo", "--messages", "1000")
    with Terminal(*command, columns=100, lines=40, environ={"TERM": "xterm"}) as terminal:
        terminal.read_until(lambda written: b"a fourth member joins" in written)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_to_end()
        assert terminal.process.wait(timeout=PATIENCE_S) == 130
    for text in ("partition", "owner", "m3", "delivered"):
        assert text.encode() in terminal.written
    assert_nothing_is_left(home)


# ---- the judge ----------------------------------------------------------------------------------


def test_counting() -> None:
    """Each offset counts once: if it is repeated it is a duplicate, and if missing it is lost."""
    tally = Tally(2)
    tally.add("a", 1.0, [0, 0, 10, 1])
    tally.add("b", 2.0, [0, 5, 10, 2])
    tally.add("b", 3.0, [1, 2, 1, 3])
    assert (tally.delivered, tally.duplicates, tally.unique) == (16, 5, [15, 1])
    assert tally.lost([15, 3]) == 2
    assert tally.lost([16, 4]) == 4


def test_unowned_partition_seconds() -> None:
    """For each partition, only time without an owner between start and end is counted."""
    log = [
        ObservedOwner(1.0, 0, A),
        ObservedOwner(2.0, 1, A),
        ObservedOwner(5.0, 0, None),
        ObservedOwner(6.5, 0, B),
    ]
    found = unowned_partition_seconds(log, 3, start_s=1.5, end_s=6.0)
    # Partition 1 has an owner until 2.0 s, partition 0 from 5.0 s on, and partition 2 always.
    assert found == pytest.approx(0.5 + 1.0 + 4.5)


@pytest.mark.parametrize(
    ("deliveries", "log", "reason"),
    [
        (
            [("a", 1.0, 1), ("b", 2.0, 2)],
            [ObservedOwner(0.5, 0, A), ObservedOwner(1.5, 0, B)],
            None,
        ),
        ([("a", 1.0, 1), ("b", 2.0, 2), ("a", 2.1, 1)], [], "token 1 after deliveries under 2"),
        ([("a", 1.0, 1), ("b", 2.0, 1)], [], "under token 1"),
        (
            [("b", 1.0, 1)],
            [ObservedOwner(0.5, 0, A), ObservedOwner(1.5, 0, None)],
            "while demo_a-0 owned it",
        ),
        (
            [("a", 1.0, 1), ("a", 1.6, 1)],
            [ObservedOwner(0.5, 0, A), ObservedOwner(1.5, 0, None)],
            "was deleted",
        ),
    ],
)
def test_double_ownership(
    deliveries: list[tuple[str, float, int]], log: list[ObservedOwner], reason: str | None
) -> None:
    """Overlapping tokens, shared tokens, a foreign owner and a late delivery are all found."""
    tally = Tally(1)
    for number, (member, time_s, token) in enumerate(deliveries):
        tally.add(member, time_s, [0, number, 1, token])
    found = list(double_ownership(tally, log, group="demo"))
    assert [partition for partition, _ in found] == ([] if reason is None else [0])
    assert reason is None or reason in found[0][1]


def test_ranges() -> None:
    """Consecutive numbers are printed as ranges."""
    assert ranges([3, 1, 2, 7, 9, 10]) == "1-3,7,9-10"
    assert ranges([]) == ""
