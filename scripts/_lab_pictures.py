"""Write the README's pictures of the lab: docs/images/lab.png and docs/images/lab.svg.

The first is a screenshot of the page in Chromium. The second is an animation of a rebalance: a
member joins, and another one is killed. Both pictures show simulated groups, whose members run the
production code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from zkconsumer.lab.camera import NOBODY
from zkconsumer.lab.engine import Engine

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
CHROMIUM = "/usr/bin/chromium"
SCENE = "#scenario=a-zombie-wakes&at=44"

COLOURS = ("#0072b2", "#e69f00", "#009e73")
WORLD = {"members": 2, "spare": 1, "partitions": 6, "flow": 0, "session_s": 4}
DURATION_S = 12
WIDTH, CELL = 720, 112
NOBODY_FILL = "#d7dbe0"


def screenshot(target: Path) -> None:
    command = [sys.executable, "-m", "zkconsumer", "lab", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(
                viewport={"width": 1280, "height": 720}, reduced_motion="reduce"
            )
            page.goto(found[0] + SCENE)
            page.wait_for_selector(".picture")
            page.wait_for_timeout(500)
            page.screenshot(path=target)
            browser.close()
        process.terminate()


def frames() -> list[dict[str, Any]]:
    """Return the frames of the run that the animation shows."""
    engine = Engine()
    (opened, *_) = engine.command({"do": "open", "world": WORLD})
    run: str = opened["run"]
    found: list[dict[str, Any]] = []
    for move, seconds in (("join:2", 1.0), ("kill:1", 6.0)):
        (acted,) = engine.command({"do": "act", "run": run, "at": len(found), "move": move})
        found += acted["frames"]
        (stepped,) = engine.command({"do": "step", "run": run, "until": seconds})
        found += stepped["frames"]
    return found


def animation() -> str:
    """Return an SVG with a cell for each partition, whose colour follows its owner."""
    found = frames()
    share = 1 / len(found)
    owners: dict[int, list[tuple[float, int]]] = {
        number: [(0.0, number // 3)] for number in range(WORLD["partitions"])
    }
    words = [(0.0, "g_0 and g_1 own three partitions each")]
    for at, frame in enumerate(found):
        for number, row in frame.get("p", {}).items():
            if owners[number][-1][1] != row[0]:
                owners[number].append((at * share, row[0]))
        if frame["d"] in ("join:2", "kill:1") or "o" in frame:
            words.append((at * share, frame["l"]))
    return "\n".join(_drawn(owners, words))


def _drawn(owners: dict[int, list[tuple[float, int]]], words: list[tuple[float, str]]) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 170" role="img" '
        'font-family="sans-serif">',
        "<title>A rebalance in the lab: a member joins, another one is killed</title>",
        f'<rect width="{WIDTH}" height="170" rx="8" fill="#ffffff" stroke="#cfd5dd"/>',
    ]
    for number, spans in owners.items():
        x = 12 + number * (CELL + 5)
        fills = [COLOURS[who] if who != NOBODY else NOBODY_FILL for _, who in spans]
        times = ";".join(f"{at:.4f}" for at, _ in spans)
        parts.append(
            f'<rect x="{x}" y="60" width="{CELL}" height="62" rx="6" fill="{fills[0]}">'
            f'<animate attributeName="fill" dur="{DURATION_S}s" repeatCount="indefinite" '
            f'calcMode="discrete" values="{";".join(fills)}" keyTimes="{times}"/></rect>'
        )
        parts.append(
            f'<text x="{x + CELL / 2}" y="142" text-anchor="middle" font-size="15" '
            f'fill="#17202c">t-{number}</text>'
        )
        for who in (*range(len(COLOURS)), NOBODY):
            shown = ";".join("1" if one == who else "0" for _, one in spans)
            if "1" in shown:
                label = "no owner" if who == NOBODY else f"g_{who}"
                ink = "#ffffff" if who == 0 else "#000000"
                parts.append(
                    _text(
                        (x + CELL / 2, 97),
                        label,
                        ink=ink,
                        shown=shown,
                        times=times,
                        anchor="middle",
                    )
                )
    for place, (_, text) in enumerate(words):
        times = ";".join(f"{one:.4f}" for one, _ in words)
        shown = ";".join("1" if other == place else "0" for other in range(len(words)))
        parts.append(_text((12, 36), text, ink="#17202c", shown=shown, times=times, anchor="start"))
    return [*parts, "</svg>", ""]


def _text(
    at: tuple[float, int], text: str, *, ink: str, shown: str, times: str, anchor: str
) -> str:
    first = shown.partition(";")[0]
    return (
        f'<text x="{at[0]:g}" y="{at[1]}" text-anchor="{anchor}" font-size="18" fill="{ink}" '
        f'opacity="{first}">{escape(text)}<animate attributeName="opacity" dur="{DURATION_S}s" '
        f'repeatCount="indefinite" calcMode="discrete" values="{shown}" keyTimes="{times}"/></text>'
    )


def main() -> None:
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(__doc__ or "")
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "lab.svg").write_text(animation(), encoding="utf-8")
    screenshot(IMAGES / "lab.png")


if __name__ == "__main__":
    main()
