"""docs/doctor.md lists every finding, and the program on the page runs."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from support.scenes import Scene

from zkconsumer.admin import checks, doctor, verify
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def test_every_finding_is_listed() -> None:
    """The page has exactly one row for each existing code."""
    found = [one.name for one in iter_modules(checks.__path__, f"{checks.__name__}.")]
    assert len(found) >= 4
    modules = (doctor, verify, *map(import_module, found))
    codes = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and CODE.fullmatch(value)
    }
    rows = [line.split("|")[1].strip(" `") for line in PAGE.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(codes)


def test_the_program_of_the_page(
    scene: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page's program, run with another address, finds, repairs and explains faults."""
    scene.settled({"billing_a": {"orders": 1}}, {"orders": 2, "logs": 1}, group="billing")
    path = scene.put(paths.owner("billing", TopicPartition("logs", 0)), b"gone-0")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program.replace("zk1:2181/kafka", scene.connect).replace("6.0", "0.5"), {})
    printed = capsys.readouterr().out
    assert "error persistent-owner logs" in printed
    assert "billing_a-0 (0, 1)" in printed
    assert not scene.session.exists(path)
