"""axe-core finds no violation in any view of the lab, in both themes and at three sizes.

Colour-blind people can distinguish the members' colours.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
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
    "diagram": '#world={"members":3,"partitions":4}&moves=join:3,40,cut:1,20&at=30&view=diagram',
    "many": '#world={"members":10,"partitions":40}&moves=20,kill:1',
    "crowd": '#world={"members":40,"partitions":300,"flow":0}',
    "coordinator": '#world={"protocol":"classic-eager"}&moves=30,kill:1',
    "bridge": "#tour=bridge&step=10",
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
    ready = ".diagram .event" if view == "diagram" else ".picture"
    one = open_page(color_scheme=scheme).go(lab.url + VIEWS[view], ready)
    if view == "table":
        one.has(".counted", 1)
    if view == "compare":
        one.has(".protocol", 2)
    assert violations(one, axe) == []


def test_panels_menus_and_dialogs(lab: LabProcess, open_page: Open, axe: str) -> None:
    """Neither a panel, nor a menu, nor a dialog violates a rule of axe-core."""
    one = open_page().go(lab.url + VIEWS["many"])
    one.keys("ArrowLeft", "ArrowLeft", "k")
    for name in ("next", "step", "log", "runs"):
        one.page.get_by_role("tab", name=name).click()
        assert violations(one, axe) == [], name
    one.page.locator("[data-member='0'] .head").click()
    assert violations(one, axe) == [], "menu"
    one.keys("Escape")
    for key in "wtbe?":
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


SWATCHES = """async (module) => {
  const { paint } = await import(module);
  const cells = [-2, 0, 1, 2, 3, 4, 5, 6, 7].map((who) => {
    const cell = document.createElement("div");
    cell.style.cssText = `width: 10px; height: 10px; background: ${paint(who).fill}`;
    return cell;
  });
  document.body.replaceChildren(...cells);
  document.body.style.cssText = "margin: 0; display: flex; filter: none";
}"""
"""Show the colours of another client (STRANGER, -2) and of eight members, each 10 x 10 pixels."""

PIXELS = """async (png) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const pixel = (n) => [...canvas.getImageData(10 * n + 5, 5, 1, 1).data].slice(0, 3);
  return [...Array(9).keys()].map(pixel);
}"""
"""Return the red, green and blue of each of the nine colours in a screenshot, from 0 to 255."""

DISTINCT = 10.0
"""The least distance in CIELAB (CIE 1976) of two colours that people distinguish side by side.

One just noticeable difference is about 2.3.
"""


def cielab(rgb: list[int]) -> tuple[float, float, float]:
    """Return the CIELAB coordinates of an sRGB colour, for the white point D65."""
    linear = [(v / 255 / 12.92) if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb]
    weights = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8727))
    x, y, z = (
        sum(part * value for part, value in zip(row, linear, strict=True)) for row in weights
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("deficiency", ["none", "protanopia", "deuteranopia", "tritanopia"])
def test_colour_blind_people_distinguish_members(
    lab: LabProcess, open_page: Open, deficiency: str
) -> None:
    """Chromium shows eight members in eight distinct colours to people with each deficiency."""
    page = open_page().go(lab.url).page
    page.evaluate(SWATCHES, "./colours.js")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})
    seen = page.evaluate(PIXELS, base64.b64encode(page.screenshot()).decode())
    colours = [cielab(rgb) for rgb in seen]
    distances = {
        (one - 1, other - 1): math.dist(colours[one], colours[other])
        for one, other in itertools.combinations(range(len(colours)), 2)
    }
    assert {pair: it for pair, it in distances.items() if it < DISTINCT} == {}
