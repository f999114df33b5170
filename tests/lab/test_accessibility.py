"""axe-core finds no violation in any view of the lab, in both themes and at three sizes."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.conftest import LabPage, LabProcess, running_lab
from lab.test_recorded import history, traces

Open = Callable[..., LabPage]

AXE = "4.14.1"
AXE_SHA512 = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)

VIEWS = {
    "first": "",
    "tour": "#tour=split-brain&step=2",
    "table": "#tour=herd&step=2",
    "many": '#world={"members":10,"partitions":40}&moves=20,kill:1',
    "crowd": '#world={"members":40,"partitions":300,"flow":0}',
    "coordinator": '#world={"protocol":"classic-eager"}&moves=30,kill:1',
    "compare": "#compare=join;kill g_1&protocols=zookeeper,consumer",
}


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which npm downloads and verifies by a pinned hash."""
    if shutil.which("npm") is None:
        assert not os.environ.get("CI"), "CI needs npm"
        pytest.skip("there is no npm")
    directory = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", "--ignore-scripts", f"axe-core@{AXE}"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    archive: Path = next(directory.glob("*.tgz"))
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert found == AXE_SHA512
    with tarfile.open(archive) as package:
        member = package.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def violations(one: LabPage, axe: str) -> list[str]:
    one.page.evaluate(axe)
    found = one.page.evaluate("async () => (await axe.run()).violations")
    return [f"{it['id']}: {it['help']}: {it['nodes'][0]['html'][:200]}" for it in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view(lab: LabProcess, open_page: Open, axe: str, view: str, scheme: str) -> None:
    """A view violates no rule of axe-core."""
    one = open_page(color_scheme=scheme).go(lab.url + VIEWS[view])
    if view == "table":
        one.has(".counted", 1)
    if view == "compare":
        one.has(".protocol", 2)
    assert violations(one, axe) == []


def test_panels_menus_and_dialogs(lab: LabProcess, open_page: Open, axe: str) -> None:
    """Neither a panel, nor a menu, nor a dialog violates a rule of axe-core."""
    one = open_page().go(lab.url + VIEWS["many"])
    one.keys("ArrowLeft", "ArrowLeft", "k")
    for name in ("next", "log", "runs"):
        one.page.get_by_role("tab", name=name).click()
        assert violations(one, axe) == [], name
    one.page.locator("[data-member='0'] .head").click()
    assert violations(one, axe) == [], "menu"
    one.keys("Escape")
    for key in "wte?":
        one.keys(key)
        one.has("dialog[open]", 1)
        assert violations(one, axe) == [], key
        one.keys("Escape")
        one.has("dialog", 0)


def test_recorded_runs(tmp_path: Path, open_page: Open, axe: str) -> None:
    """Two traces side by side and the page of a history violate no rule of axe-core."""
    logs = tmp_path / "logs"
    logs.mkdir()
    group = history(logs)
    for name in ("a-consumer-dies", "a-consumer-leaves"):
        (tmp_path / name).mkdir()
        traces(name, tmp_path / name)
    two = [str(tmp_path / "a-consumer-dies"), "--trace", str(tmp_path / "a-consumer-leaves")]
    for options in (["--trace", *two], ["--history", str(logs), "--group", group]):
        with running_lab(*options) as lab:
            for scheme in ("light", "dark"):
                one = open_page(color_scheme=scheme).go(lab.url)
                one.keys("End")
                assert violations(one, axe) == [], (options[0], scheme)


def test_on_a_phone(lab: LabProcess, open_page: Open, axe: str) -> None:
    """On a phone every view needs only vertical scrolling, and violates no rule."""
    one = open_page(viewport={"width": 390, "height": 844}).go(lab.url + VIEWS["tour"])
    assert violations(one, axe) == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
