"""`judge --sandbox`: the same programs on a real ZooKeeper and a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import cast

import pytest
from confluent_kafka import Consumer
from judge.examples import EXAMPLES
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.judge.real import GROUP, TOPIC, Run
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import session
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.testing import FakeZooKeeper


@pytest.mark.parametrize(
    ("name", "course", "code", "words"),
    [
        ("solution.py", "", 0, "sandbox: passed"),
        ("naive.py", "", 6, "sandbox: FAILED"),
        ("solution.py", "session", 0, "sandbox: passed"),
        ("solution.py", "zombie", 0, "sandbox: passed"),
        ("late_commit.py", "zombie", 6, "goes back from"),
        ("solution.py", "mixed", 0, "sandbox: passed"),
    ],
)
def test_on_real_servers(name: str, course: str, code: int, words: str) -> None:
    """On real servers, the solution passes each course; the naive and the late member fail."""
    challenge = ["--challenge", course] if course else []
    result = CliRunner().invoke(app, ["judge", str(EXAMPLES / name), "--sandbox", *challenge])
    assert words in result.output
    assert result.exit_code == code


def test_an_offset_that_nobody_can_read() -> None:
    """An offset that is no decimal number is the broken promise of a verdict, and no error."""
    with FakeZooKeeper() as fake, session(fake.connect) as client, ExitStack() as stack:
        node = paths.offset(GROUP, TopicPartition(TOPIC, 0))
        fake.create(node, b'{"offset": 3}')
        run = Run([], cast(Sandbox, fake), client, cast(Consumer, None), say=print, stack=stack)
        with pytest.raises(InvariantViolation, match="is not an offset"):
            run._check_offsets()
        with pytest.raises(InvariantViolation, match="is not an offset"):
            run._uncommitted()


def test_ctrl_c_ends_the_course() -> None:
    """Ctrl-C ends the command with exit code 130 before the course has ended."""
    command = [sys.executable, "-m", "zkconsumer", "judge", str(EXAMPLES / "solution.py")]
    with subprocess.Popen([*command, "--sandbox"], stderr=subprocess.PIPE, text=True) as judging:
        assert judging.stderr is not None
        assert any("g_0 joins" in line for line in judging.stderr)
        judging.send_signal(signal.SIGINT)
        rest = judging.stderr.read()
        assert judging.wait(60) == 130
    assert "leaves" not in rest
