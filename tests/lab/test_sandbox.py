"""`zkconsumer lab --sandbox`: the page's actions change a real group that the lab started."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.conftest import LabPage, running_lab
from playwright.sync_api import expect
from support.processes import PATIENCE_S, assert_nothing_is_left, processes_of
from support.wait import eventually
from typer.testing import CliRunner

from zkconsumer.cli.lab import app
from zkconsumer.lab.engine import Engine
from zkconsumer.lab.sandboxed import JOINED, KINDS, PARTITIONS
from zkconsumer.lab.stage import NOBODY
from zkconsumer.sandbox.real_group import MemberKind

Open = Callable[..., LabPage]

SETTLE_MS = 120_000
"""Time limit in ms: a session must time out, a JVM member waits between its attempts, and a
busy machine is slow."""

ACTIONS = {
    "kill:1": ("[data-member='1'] .head", "kill"),
    "freeze:0": ("[data-member='0'] .head", "freeze"),
    "thaw:0": ("[data-member='0'] .head", "thaw"),
    "cut:2": ("[data-member='2'] .link", "cut the connection"),
    "join:3": (".join", "start g_3"),
    "leave:2": ("[data-member='2'] .head", "shut down"),
    "delete_owner::t~0": (".partitions .cell >> nth=0", "delete its owner znode"),
    "join:4": (".join", "start g_4"),
}
"""A move of the simulator -> the object on the page, and the menu entry that performs the move."""


class Simulated:
    """A simulated group with the members of the real one."""

    def __init__(self) -> None:
        jvm = [who for who, kind in enumerate(KINDS) if kind is MemberKind.JVM]
        world = {"members": JOINED, "jvm": jvm, "partitions": PARTITIONS}
        self.engine = Engine()
        opened, _ = self.engine.command({"do": "open", "world": world})
        self.run = opened["run"]
        self.owners = [row[1] for row in opened["scene"]["partitions"]]
        self.length = 0

    def act(self, move: str) -> list[str]:
        """Perform a move; return the owners once the group has settled."""
        self._take(
            self.engine.command({"do": "act", "run": self.run, "at": self.length, "move": move})
        )
        self._take(self.engine.command({"do": "step", "run": self.run, "until": 20.0}))
        return self.names()

    def names(self) -> list[str]:
        return ["\N{EN DASH}" if owner == NOBODY else f"g_{owner}" for owner in self.owners]

    def _take(self, events: list[dict[str, Any]]) -> None:
        (event,) = events
        for frame in event["frames"]:
            for number, row in frame.get("p", {}).items():
                self.owners[number] = row[0]
        self.length = event["from"] + len(event["frames"])


def test_the_real_group_does_what_the_simulated_one_does(open_page: Open) -> None:
    """After each action on JVM and zkconsumer members, real and simulated owners are equal."""
    simulated = Simulated()
    with running_lab("--sandbox") as lab:
        one, two = open_page().go(lab.url), open_page().go(lab.url)
        expect(one.page.locator(".band")).to_contain_text("LIVE SANDBOX")
        for page in (one, two):
            owners = page.page.locator(".partitions .owner")
            expect(owners).to_have_text(simulated.names(), timeout=SETTLE_MS)
        flow = one.page.locator(".partitions .flow")
        expect(flow).to_contain_text(["/s"] * PARTITIONS, timeout=SETTLE_MS)
        for move, (selector, entry) in ACTIONS.items():
            one.page.locator(selector).click()
            one.page.get_by_role("menuitem", name=entry).click()
            due = simulated.act(move)
            for page in (one, two):
                owners = page.page.locator(".partitions .owner")
                expect(owners).to_have_text(due, timeout=SETTLE_MS)


def test_ctrl_c_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGINT no process of the sandbox runs, and its files are gone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running_lab("--sandbox") as lab:
        eventually(lambda: len(processes_of(tmp_path)) >= 2 + JOINED, SETTLE_MS / 1000)
        lab.process.send_signal(signal.SIGINT)
        lab.process.wait(timeout=PATIENCE_S)
    assert_nothing_is_left(tmp_path)


def test_it_starts_a_group_of_its_own() -> None:
    """`--sandbox` is refused together with a cluster, a group or a trace."""
    for more in (["-z", "zk1:2181"], ["-g", "billing"], ["--trace", "x.jsonl"]):
        done = CliRunner().invoke(app, ["--sandbox", "--no-browser", *more])
        assert done.exit_code == 2, done.output
        assert "leave out the other options" in " ".join(done.output.replace("│", " ").split())
