"""Completion in real bash, zsh and fish on a real ZooKeeper, with Tab as users press it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.terminal import Terminal
from support.scenes import Scene, scenes
from support.wait import LIMIT_S, eventually

from zkconsumer.cli.completion import Shell
from zkconsumer.protocol import paths
from zkconsumer.sandbox import ZooKeeperServer

START = {
    Shell.BASH: ("bash", "--norc", "--noprofile", "-i"),
    Shell.ZSH: ("zsh", "-f", "-i"),
    Shell.FISH: ("fish", "--no-config", "-i"),
}
LOAD = {
    Shell.BASH: 'eval "$(zkconsumer completion bash)"',
    Shell.ZSH: 'autoload -Uz compinit && compinit -u -D && eval "$(zkconsumer completion zsh)"',
    Shell.FISH: "zkconsumer completion fish | source",
}
# The text before Tab, and the text after the completion.
CASES = {
    "zkconsumer gro": "groups",
    "zkconsumer offsets sh": "shift",
    "zkconsumer lag --fail": "--fail-above",
    "zkconsumer groups show complete-b": "complete-billing",
    "zkconsumer lag -g complete-b": "complete-billing",
    "zkconsumer lag -z CONNECT --topic complete-o": "complete-orders",
    "zkconsumer assign complete-billing --leave complete-billing_": "complete-billing_host-1",
    "zkconsumer context use compl": "complete-prod",
}


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Scene]:
    """A group with a member, a topic, and a context."""
    with scenes(zookeeper, unique("completion")) as one:
        group, topic = "complete-billing", "complete-orders"
        one.hold(paths.member(group, "complete-billing_host-1"), b"{}")
        one.put(paths.topic(topic), b'{"version":1,"partitions":{}}')
        yield one


@pytest.fixture
def home(tmp_path: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a user who has `zkconsumer` on PATH."""
    program = tmp_path / "bin" / "zkconsumer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zkconsumer "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", scene.connect)
    monkeypatch.chdir(tmp_path)
    add = [str(program), "context", "add", "complete-prod", "-z", "127.0.0.1:1"]
    subprocess.run(add, check=True, capture_output=True, timeout=LIMIT_S)
    return tmp_path


def type_(terminal: Terminal, text: str, until: str, *, again: str = "") -> None:
    """Type a text, and wait until the terminal shows the expected text.

    On a busy machine ZooKeeper's answer may come too late to complete anything. Then type `again`,
    as a user would.
    """
    terminal.written = b""
    terminal.type(text)
    terminal.read_until(
        lambda written: until.encode() in written, idle=lambda: terminal.type(again)
    )


def loaded(shell: Shell) -> Terminal:
    """Return a terminal whose shell has loaded its completion script."""
    one = Terminal(*START[shell], columns=200, lines=50)
    type_(one, f"{LOAD[shell]}; echo load''ed\n", "loaded")
    return one


def require(shell: Shell) -> None:
    """Skip the test if the shell is missing. CI installs all shells and permits no skipped test."""
    if shutil.which(shell.value) is None:
        pytest.skip(f"{shell.value} is not installed: scripts/test --install-docker installs it")


@pytest.fixture(params=[Shell.BASH, Shell.ZSH])
def terminal(request: pytest.FixtureRequest, home: Path) -> Iterator[Terminal]:
    """A shell that has loaded its completion script."""
    require(request.param)
    with loaded(request.param) as one:
        yield one


def test_tab_completes_names(terminal: Terminal, scene: Scene) -> None:
    """Tab completes commands, options, groups, topics, consumers and contexts."""
    # Of the commands and of the groups one case each; `test_fish` has all cases.
    for typed, found in CASES.items():
        if typed in ("zkconsumer offsets sh", "zkconsumer lag -g complete-b"):
            continue
        line = typed.replace("CONNECT", scene.connect)
        start = line.split()[-1]
        # Ctrl-A and `:` turn the completed line into a command without effect; `echo` ends the
        # line.
        type_(terminal, f"{line}\t", found.removeprefix(start), again="\t")
        type_(terminal, "\x01: \x05; echo en''ded\n", "ended")


def test_fish(home: Path, scene: Scene) -> None:
    """fish completes the same names; for Tab, fish calls `complete -C`."""
    require(Shell.FISH)
    for typed, found in CASES.items():
        line = typed.replace("CONNECT", scene.connect)
        script = f"{LOAD[Shell.FISH]}; complete -C '{line}'"
        deadline = time.monotonic() + LIMIT_S
        shown: list[str] = []
        while shown != [found]:
            assert time.monotonic() < deadline, (line, shown)
            done = subprocess.run(
                ["fish", "--no-config", "-c", script],
                capture_output=True,
                text=True,
                check=True,
                timeout=LIMIT_S,
            )
            assert done.stderr == ""
            shown = [one.split("\t")[0] for one in done.stdout.splitlines()]


@pytest.mark.parametrize("described", ["", ":"])
def test_a_name_that_a_shell_would_execute_is_not_completed(
    home: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch, described: str
) -> None:
    """Groups, topics and consumers whose names are not plain words are left out."""
    bad = ("complete-x;touch y", "complete-$(touch y)", "complete-a b", "complete-\u202ey")
    for name in bad:
        scene.put(paths.group(name), b"")
        scene.put(paths.topic(name), b'{"version":1,"partitions":{}}')
        scene.hold(paths.member("complete-billing", name), b"{}")
    monkeypatch.setenv("_ZKCONSUMER_COMPLETE", "complete_bash")
    monkeypatch.setenv("_ZKCONSUMER_DESCRIBED", described)
    answers: list[list[str]] = []

    def is_completed() -> bool:
        done = subprocess.run(
            ["zkconsumer"], check=True, capture_output=True, text=True, timeout=LIMIT_S
        )
        answers.append(done.stdout.splitlines())
        return any(answers[-1])

    for typed, found in (
        ("zkconsumer lag -g complete-", "complete-billing"),
        ("zkconsumer lag -t complete-", "complete-orders"),
        ("zkconsumer assign complete-billing --leave complete-", "complete-billing_host-1"),
    ):
        monkeypatch.setenv("_ZKCONSUMER_LINE", typed)
        # On a busy machine ZooKeeper's answer may come too late. Then nothing is completed.
        eventually(is_completed)
        assert answers[-1] == [found]


def test_descriptions(home: Path) -> None:
    """zsh and fish show descriptions of commands and options; bash shows only the values."""
    require(Shell.ZSH)
    require(Shell.FISH)
    summary = "List, show, copy, rename or delete groups."
    script = f"{LOAD[Shell.FISH]}; complete -C 'zkconsumer gro'; complete -C 'zkconsumer lag --fa'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    command, option = done.stdout.splitlines()
    assert command == f"groups\t{summary}"
    assert option.startswith("--fail-above\t")
    with loaded(Shell.ZSH) as one:
        type_(one, "zkconsumer co\t", "-- Compare the cost of joins")  # the list of five commands
    line = {"_ZKCONSUMER_COMPLETE": "complete_bash", "_ZKCONSUMER_LINE": "zkconsumer gro"}
    done = subprocess.run(
        [sys.executable, "-m", "zkconsumer"],
        env={**os.environ, **line},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.strip() == "groups"


@pytest.mark.parametrize("connect", ["127.0.0.1:1", "nohost.invalid:2181", "h:x", ""])
def test_without_zookeeper_nothing_is_printed(home: Path, connect: str) -> None:
    """Without ZooKeeper no name is completed and nothing is printed; the exit code is 0."""
    variables = {
        "ZKCONSUMER_ZOOKEEPER": connect,
        "_ZKCONSUMER_COMPLETE": "complete_bash",
        "_ZKCONSUMER_LINE": "zkconsumer groups show x",
    }
    done = subprocess.run(
        [sys.executable, "-m", "zkconsumer"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
