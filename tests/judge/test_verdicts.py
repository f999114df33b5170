"""The judge: what a program may do wrong, how a failing schedule is told, and replays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from judge.examples import EXAMPLES, example
from support.wait import LIMIT_S, wait_for
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.judge.judging import GroupScore, Verdict, shortened
from zkconsumer.judge.ladders import court
from zkconsumer.judge.process import ProcessProgram
from zkconsumer.judge.program import LocalProgram, Program
from zkconsumer.lab.recorded import play as play_trace
from zkconsumer.sandbox.guard import start_time
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import InvariantViolation

Play = Callable[[str], Program]

LATER = "message['type'] != 'reset'"
DELIVER = '{"type":"deliver","partition":0,"offset":0}'


def play(
    make: Play, name: str = "claim", *, schedules: int = 3, seed: int = 1
) -> Verdict[GroupScore]:
    """Judge a program by a few schedules."""
    with court(CHALLENGES[name], make) as bench:
        return bench.judge(seed=seed, schedules=schedules, limit_s=LIMIT_S, shrink_s=1.0)


def broken(make: Play, name: str = "claim") -> InvariantViolation | None:
    """Return the promise that a program breaks in its first schedule, without the shrinking."""
    with court(CHALLENGES[name], make) as bench:
        found = bench.run(Decisions(random.Random(1)))[0].violation
        return found or bench.differs()


def process(path: Path, answer_s: float = LIMIT_S) -> Play:
    command = [sys.executable, str(path)]
    return lambda name: ProcessProgram(name, command, answer_s=answer_s)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a program: its body handles each `message`."""

    def write(body: str) -> Path:
        path = tmp_path / "program.py"
        lines = ["import json, os, signal, sys, time", "for line in sys.stdin:"]
        lines += ["    message = json.loads(line)", *(f"    {one}" for one in body.splitlines())]
        lines += ["    print(json.dumps({'type': 'done'}), flush=True)"]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def test_the_solution_passes_as_a_process() -> None:
    """The solution passes as a process; its score counts requests."""
    verdict = play(process(EXAMPLES / "solution.py"))
    assert verdict.failure is None
    assert verdict.score.requests > 0


def test_a_process_and_a_local_member_behave_alike() -> None:
    """One schedule costs the same number of requests as a process and in this process."""
    kind = example("solution").Solution
    assert play(lambda name: LocalProgram(name, kind)).score == (
        play(process(EXAMPLES / "solution.py")).score
    )


def test_the_naive_member_fails_and_is_told() -> None:
    """The naive member delivers what it has not claimed; a story tells it, a seed replays it."""
    verdict = play(process(EXAMPLES / "naive.py"), schedules=20)
    failure = verdict.failure
    assert failure is not None and failure.seed is not None
    assert failure.violation.promise == "owner_delivers"
    assert any("delivers t-" in line for line in failure.story)
    again = play(process(EXAMPLES / "naive.py"), schedules=1, seed=failure.seed)
    assert again.failure is not None
    assert again.failure.violation.promise == failure.violation.promise


@pytest.mark.parametrize(
    ("body", "promise", "words"),
    [
        ("sys.exit('out of ideas')", "P1", "out of ideas"),
        ("os.close(1); signal.pause()", "P1", "was ended by signal 9"),
        ("print('hello')", "P2", "is not JSON: hello"),
        ("""print('{"type":"dance"}')""", "P2", "has no type of a program"),
        ("""print('{"type":"deliver","partition":0,"offset":0}')""", "P2", "`deliver` to `reset`"),
        (f"if {LATER}: print('{DELIVER}')", "P2", "`deliver` is allowed"),
        ("""print('{"type":"deliver","partition":0}')""", "P2", "has no field 'offset'"),
        ("""print('{"type":"request","id":1,"op":"get","path":"x"}')""", "P2", "with a slash"),
        ("""print('{"type":"request","id":1,"op":"get","path":"/x//y"}')""", "P2", "no znode"),
        ("""print('{"type":"request","id":1,"op":"sync","path":"/"}')""", "P2", "to `reset`"),
        ('while True: print(\'{"type":"phase","phase":"x"}\')', "P2", "more than 1000"),
        ("while True: sys.stdout.write('x' * 65536)", "P2", "a line of more than"),
    ],
)
def test_what_a_program_does_wrong(
    script: Callable[[str], Path], body: str, promise: str, words: str
) -> None:
    """A crash, wrong messages and floods are verdicts that say what was wrong."""
    found = broken(process(script(body)))
    assert found is not None
    assert found.invariant == promise
    assert words in str(found)


def test_a_program_that_hangs(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not answer is ended after the time limit, and that is the verdict."""
    monkeypatch.setattr("zkconsumer.judge.process.START_S", 0.5)
    found = broken(process(script("signal.pause()"), answer_s=0.5))
    assert "has not answered in time" in str(found)


def test_a_program_that_uses_much_memory(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that uses more memory than allowed is ended, and that is the verdict."""
    monkeypatch.setattr("zkconsumer.judge.process.MAX_MEMORY_BYTES", 64 << 20)
    found = broken(process(script("kept = bytes(1) * (80 << 20); signal.pause()"), answer_s=60.0))
    assert "has used more than 64 MiB of memory" in str(found)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
def test_a_program_that_allocates_at_once(script: Callable[[str], Path]) -> None:
    """The system refuses a program memory far beyond the limit; the verdict shows its words."""
    found = broken(process(script("bytes(8 << 30)")))
    assert "MemoryError" in str(found)


def test_a_written_schedule_is_replayed() -> None:
    """The schedule that a verdict has written breaks the same promise, in both of its forms."""
    kind = example("naive").Naive
    with court(CHALLENGES["lost-reply"], lambda name: LocalProgram(name, kind)) as bench:
        drawn = bench.judge(seed=1, schedules=20, limit_s=60.0, shrink_s=0.1)
        searched = bench.judge(seed=0, schedules=0, limit_s=60.0, exhaustive_s=60.0)
        for verdict, form in ((drawn, "decisions="), (searched, "actions=")):
            assert verdict.failure is not None
            assert verdict.failure.schedule.startswith(form)
            again = bench.replay(verdict.failure.schedule)
            assert again.failure is not None
            assert str(again.failure.violation) == str(verdict.failure.violation)


def test_a_killed_judge_leaves_no_program(script: Callable[[str], Path], tmp_path: Path) -> None:
    """A program that never reads its end ends nevertheless when the judge gets SIGKILL."""
    pid = tmp_path / "pid"
    body = f"""open({str(pid)!r}, 'w').write(str(os.getpid()))
while True: time.sleep(60)"""
    command = [sys.executable, "-m", "zkconsumer", "judge", str(script(body))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as judging:
        wait_for(lambda: pid.exists() and pid.read_text(), "the program's start")
        judging.kill()
    number = int(pid.read_text())
    wait_for(lambda: start_time(number) is None, "the program's end")


def test_the_examples_are_copied(tmp_path: Path) -> None:
    """`--examples` writes the programs of the page, and overwrites nothing."""
    words = ["judge", "--examples", str(tmp_path / "new")]
    assert CliRunner().invoke(app, words).exit_code == 0
    copied = {one.name: one.read_text(encoding="utf-8") for one in (tmp_path / "new").iterdir()}
    assert copied == {
        one.name: one.read_text(encoding="utf-8") for one in EXAMPLES.iterdir() if one.is_file()
    }
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "File exists" in again.output


def test_a_program_that_is_not_deterministic(script: Callable[[str], Path]) -> None:
    """Different answers to equal messages are a verdict that shows both answers."""
    body = """print(json.dumps({"type": "phase", "phase": str(time.time_ns())}))"""
    found = broken(process(script(body)), "register")
    assert found is not None
    assert found.invariant == "P3"
    assert "it answered first" in str(found)


def test_ctrl_c_ends_the_program(script: Callable[[str], Path], tmp_path: Path) -> None:
    """Ctrl-C ends the command with exit code 130, and the program with it."""
    pid = tmp_path / "pid"
    path = script(f"open({str(pid)!r}, 'w').write(str(os.getpid())); signal.pause()")
    command = [sys.executable, "-m", "zkconsumer", "judge", str(path), "--challenge", "claim"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as judging:
        wait_for(lambda: pid.exists() and pid.read_text(), "the program's start")
        judging.send_signal(signal.SIGINT)
        assert judging.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_verdicts_for_programs(tmp_path: Path) -> None:
    """The command writes verdicts that fit their schema, a trace for the lab, and exits with 6."""
    trace = tmp_path / "run.jsonl"
    words = ["--challenge", "claim", "--seed", "2", "--trace", str(trace), "-o", "json"]
    result = CliRunner().invoke(app, ["judge", str(EXAMPLES / "naive.py"), *words])
    assert result.exit_code == 6, result.output
    found = json.loads(result.stdout)
    Draft202012Validator(schemas()["judge"]).validate(found)
    assert [row["result"] for row in found] == ["failed"]
    assert play_trace([("run.jsonl", trace.read_text(encoding="utf-8"))], 1)


def test_wrong_usage(tmp_path: Path) -> None:
    """A missing program, an unknown challenge, and a file that cannot run are clear errors."""
    plain = tmp_path / "plain"
    plain.write_text("x")
    naive, claim = str(EXAMPLES / "naive.py"), ("--challenge", "claim")
    for words, said in (
        (["nowhere.py"], "there is no program 'nowhere.py'"),
        ([str(plain)], "is not executable"),
        ([], "there is no program to judge"),
        ([naive, "--schedule", "actions=0"], "a schedule needs the name of its challenge"),
        ([naive, *claim, "--schedule", "dance"], "'dance' is not a schedule"),
        ([naive, *claim, "--schedule", "actions=999"], "there is no action 999"),
        (["x", "--challenge", "dance"], "no challenge is called 'dance'"),
        (["x", "--assignor", *claim], "no challenge of the ladder assignor is called 'claim'"),
        (["x", "--ladder", "classic", *claim], "no challenge of the ladder classic is called"),
        ([naive, *claim, "--seed", "1", "--schedule", "actions=0"], "does not use --seed"),
        ([naive, "--sandbox", "--seed", "1"], "does not use --seed"),
        ([naive, "--sandbox", "--challenge", "herd"], "is not a challenge on real servers"),
    ):
        result = CliRunner().invoke(app, ["judge", *words])
        assert result.exit_code == 2
        assert said in result.output


def test_a_story_that_repeats_itself_is_shortened() -> None:
    """Of what follows the last announcement, a story has the beginning and the end."""
    lines = ["1.000  ---- g_0 starts", "once", "2.000  ---- all faults end"]
    many = [str(number) for number in range(100)]
    found = shortened(lines + many)
    assert found[:3] == lines
    assert found[3:] == [
        *many[:20],
        "… 60 lines are left out; --trace writes all of them",
        *many[80:],
    ]
    assert shortened(lines + many[:40]) == lines + many[:40]
