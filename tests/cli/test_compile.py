"""`zkconsumer compile` without what it needs; tests/kafka/columns/test_loops.py compiles."""

from __future__ import annotations

import pytest
from cli.conftest import Run

from zkconsumer import errors


def test_without_the_extra(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `fast`, one sentence says what is missing and how to install it."""
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name == "numba" else name)
    code, out, err = call("compile")
    assert (code, out) == (2, "")
    assert "zkconsumer compile needs numba" in err
    assert "pip install 'zkconsumer[fast]'" in err
