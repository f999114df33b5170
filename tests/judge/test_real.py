"""`judge --sandbox`: the same programs on a real ZooKeeper and a real broker."""

from __future__ import annotations

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
