"""`judge --sandbox`: the same programs on a real ZooKeeper and a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from judge.examples import EXAMPLES
from typer.testing import CliRunner

from zkconsumer.cli import app


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
