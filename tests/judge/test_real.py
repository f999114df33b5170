"""`judge --sandbox`: the same programs on a real ZooKeeper and a real broker."""

from __future__ import annotations

import pytest
from judge.examples import EXAMPLES
from typer.testing import CliRunner

from zkconsumer.cli import app


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("solution.py", 0, "sandbox: passed"), ("naive.py", 6, "sandbox: FAILED")],
)
def test_on_real_servers(name: str, code: int, words: str) -> None:
    """The solution keeps the promises on real servers, and the naive member breaks one."""
    result = CliRunner().invoke(app, ["judge", str(EXAMPLES / name), "--sandbox"])
    assert words in result.output
    assert result.exit_code == code
