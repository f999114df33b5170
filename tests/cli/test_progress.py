"""Progress of long work: a bar on a terminal, lines in a pipe, and the report at Ctrl-C."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenes import scenes
from support.wait import LIMIT_S
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.output import Progress
from zkconsumer.sandbox import ZooKeeperServer

OFFSETS = 2_500  # one transaction cannot contain this number of changes

INTERRUPTED = """
import os, signal
from zkconsumer.cli import apply, main

class Interrupting(apply.Application):
    def advanced(self, done, total):
        super().advanced(done, total)
        if done:
            os.kill(os.getpid(), signal.SIGINT)

apply.Application = Interrupting
main()
"""


def test_ctrl_c(zookeeper: ZooKeeperServer, unique: Callable[[str], str], tmp_path: Path) -> None:
    """Ctrl-C during a change reports how many changes were made; the backup completes the rest."""
    group = unique("g")
    file = tmp_path / "offsets"
    lines = (f"/consumers/{group}/offsets/t/{number}:7\n" for number in range(OFFSETS))
    file.write_text("".join(lines))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    where = ("--zookeeper", zookeeper.connect, "--execute", "-o", "jsonl")

    def run(*program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *program, *where]
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    first = run("-c", INTERRUPTED, "offsets", "import", str(file))
    assert first.returncode == 130, first.stderr
    (done, total, left) = map(
        int,
        re.findall(
            r"interrupted: (\d+) of (\d+) changes were made, and (\d+) were not", first.stderr
        )[0],
    )
    assert 0 < done < total
    assert done + left == total > OFFSETS
    (backup,) = tmp_path.glob("zkconsumer/backups/*/*.json")
    assert f"zkconsumer apply {backup} --execute" in first.stderr
    second = run("-m", "zkconsumer", "apply", str(backup))
    assert second.returncode == 0, second.stderr
    assert f"{left} changes made, {done} had been made before" in second.stderr


def test_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe, standard error has at most one line of progress per interval."""
    monkeypatch.setattr(Progress, "DELAY_S", 0.0)
    monkeypatch.setattr(Progress, "PIPE_S", 3600.0)
    progress = Progress("changes")
    for done in (250, 500, 750, 1000):
        progress.advanced(done, 1000)
    progress.end()
    said = capsys.readouterr()
    assert said.err.splitlines() == ["zkconsumer: 250 of 1000 changes"]
    assert said.out == ""
    assert (progress.done, progress.total) == (1000, 1000)


def test_short_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Work that ends within the initial delay shows no progress."""
    progress = Progress("changes")
    progress.advanced(1, 2)
    progress.end()
    assert capsys.readouterr().err == ""


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the bar is redrawn in place, and is removed at the end."""
    monkeypatch.setattr(Progress, "DELAY_S", 0.0)
    monkeypatch.setattr(Progress, "TERMINAL_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress("groups")
    progress.advanced(1, 3)
    progress.advanced(2, 3)
    progress.end()
    first, second, last = capsys.readouterr().err.split("\r")[1:]
    assert first == f"[{'#' * 10}{'.' * 20}] 1 of 3 groups\x1b[K"
    assert second == f"[{'#' * 20}{'.' * 10}] 2 of 3 groups\x1b[K"
    assert last == "\x1b[K"


def test_reading_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    """If Ctrl-C interrupts the reading of groups, their number is reported."""
    progress = Progress("groups")
    with pytest.raises(KeyboardInterrupt), progress.until_done():
        progress.advanced(500, 5000)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "zkconsumer: interrupted: 500 of 5000 groups were read\n"


def test_an_export_is_interrupted(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during an export reports how many groups were read, and no offset is written."""
    advanced = Progress.advanced

    def interrupted(self: Progress, done: int, total: int) -> None:
        advanced(self, done, total)
        if done == 2:
            raise KeyboardInterrupt

    with scenes(zookeeper, unique("export")) as scene:
        for group in ("g1", "g2", "g3"):
            scene.offset("t", 0, 7, group)
        words = ["offsets", "export", "--zookeeper", scene.connect]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        monkeypatch.setattr(Progress, "advanced", interrupted)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert done.stdout == ""
    said = "zkconsumer: interrupted: 2 of 3 groups were read; no offset was exported"
    assert said in done.stderr.splitlines()
