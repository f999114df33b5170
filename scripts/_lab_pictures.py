"""Write the README's pictures of the lab: docs/images/lab.png and docs/images/lab.svg.

The first is a screenshot of the page in Chromium; it shows a simulated group, whose members run the
production code. The second is an animation of a real group with real servers: a member joins, and a
JVM member is killed. The owners change at the times at which the owner znodes changed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from html import escape
from pathlib import Path

from _bench_lab import lab
from _engine import chromium
from playwright.sync_api import sync_playwright

from zkconsumer.lab.stage import NOBODY
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.sandbox.real_group import MemberKind, RealGroup
from zkconsumer.zk.observer import ChangeKind, Observer

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
SCENE = "#scenario=a-zombie-wakes&at=44"

COLOURS = ("#0072b2", "#e69f00", "#009e73")
KINDS = (MemberKind.ZKCONSUMER, MemberKind.JVM, MemberKind.ZKCONSUMER)
GROUP, TOPIC, PARTITIONS = "g", "t", 6
SESSION_S = 6.0
# Seconds for which the animation shows each state of rest, and after which a run has failed.
PAUSE_S, LIMIT_S = 2.0, 120.0
WIDTH, CELL = 720, 112
NOBODY_FILL = "#d7dbe0"


def screenshot(target: Path) -> None:
    with lab() as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
        page.goto(address + SCENE)
        page.wait_for_selector(".picture")
        page.wait_for_timeout(500)
        page.screenshot(path=target)
        browser.close()


class Recording:
    """The owners of a real group's partitions over time, and what happens to its members.

    Attributes:
        owners: partition -> the moments, in seconds, at which its owner changed, and the new owner.
        words: the moments at which something happens, and a sentence for each.
    """

    def __init__(self, observer: Observer) -> None:
        self.owners: dict[int, list[tuple[float, int]]] = {}
        self.words: list[tuple[float, str]] = []
        self._begun = time.monotonic()
        self._now = {number: NOBODY for number in range(PARTITIONS)}
        self._changed = threading.Condition()
        threading.Thread(target=self._follow, args=(observer,), daemon=True).start()

    def _follow(self, observer: Observer) -> None:
        for _, change in observer.changes():
            if change.what is not ChangeKind.OWNER:
                continue
            tp, owner = change.key, change.after
            assert isinstance(tp, TopicPartition)
            thread = owner.thread if isinstance(owner, OwnerZnode) else None
            who = int(consumer_of(thread).rpartition("_")[2]) if thread else NOBODY
            with self._changed:
                self._now[tp.partition] = who
                self.owners.setdefault(tp.partition, []).append((self.seconds, who))
                self._changed.notify_all()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def begin(self, words: str) -> None:
        """Forget what has happened so far."""
        with self._changed:
            self._begun = time.monotonic()
            self.owners = {number: [(0.0, who)] for number, who in self._now.items()}
            self.words = [(0.0, words)]

    def say(self, words: str) -> None:
        self.words.append((self.seconds, words))

    def wait_until_shared(self, *members: int) -> float:
        """Wait until these members own equally many partitions; return the time that it takes."""
        started, wanted = (
            time.monotonic(),
            Counter({who: PARTITIONS // len(members) for who in members}),
        )
        with self._changed:
            if not self._changed.wait_for(lambda: Counter(self._now.values()) == wanted, LIMIT_S):
                raise SystemExit(f"the members {members} do not share the partitions: {self._now}")
        return time.monotonic() - started


def record(group: RealGroup, recording: Recording) -> None:
    """Let a member join a real group, and kill a JVM member."""
    first, jvm, joining = group.members
    first.start()
    jvm.start()
    recording.wait_until_shared(0, 1)
    recording.begin("g_0 (zkconsumer) and g_1 (JVM) own three partitions each")
    time.sleep(PAUSE_S)
    joining.start()
    recording.say("the process of g_2 (zkconsumer) starts")
    needed_s = recording.wait_until_shared(0, 1, 2)
    recording.say(f"{needed_s:.1f} s later, each member owns two partitions")
    time.sleep(PAUSE_S)
    jvm.kill()
    recording.say(f"g_1 is killed; its session of {SESSION_S:g} s has not expired yet")
    needed_s = recording.wait_until_shared(0, 2)
    recording.say(f"{needed_s:.1f} s later, g_0 and g_2 own three partitions each")
    time.sleep(PAUSE_S)


def animation() -> str:
    """Return an SVG with a cell for each partition, whose colour follows its owner."""
    group = RealGroup(KINDS, group=GROUP, topic=TOPIC, partitions=PARTITIONS, session_s=SESSION_S)
    with group, Observer(group.connect, GROUP, timeout_s=LIMIT_S) as observer:
        recording = Recording(observer)
        record(group, recording)
        length_s = recording.seconds
        owners = {
            number: [(at / length_s, who) for at, who in spans]
            for number, spans in sorted(recording.owners.items())
        }
        words = [(at / length_s, text) for at, text in recording.words]
    return "\n".join(_drawn(owners, words, length_s))


def _drawn(
    owners: dict[int, list[tuple[float, int]]], words: list[tuple[float, str]], length_s: float
) -> list[str]:
    """Return the lines of the SVG; times are shares of the length."""
    duration = f"{length_s:.1f}s"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 170" role="img" '
        'font-family="sans-serif">',
        "<title>Two rebalances of a real group: a member joins, a JVM member is killed</title>",
        f'<rect width="{WIDTH}" height="170" rx="8" fill="#ffffff" stroke="#cfd5dd"/>',
    ]
    for number, spans in owners.items():
        x = 12 + number * (CELL + 5)
        fills = [COLOURS[who] if who != NOBODY else NOBODY_FILL for _, who in spans]
        times = ";".join(f"{at:.4f}" for at, _ in spans)
        parts.append(
            f'<rect x="{x}" y="60" width="{CELL}" height="62" rx="6" fill="{fills[0]}">'
            f'<animate attributeName="fill" dur="{duration}" repeatCount="indefinite" '
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
                        duration=duration,
                    )
                )
    for place, (_, text) in enumerate(words):
        times = ";".join(f"{one:.4f}" for one, _ in words)
        shown = ";".join("1" if other == place else "0" for other in range(len(words)))
        parts.append(
            _text(
                (12, 36),
                text,
                ink="#17202c",
                shown=shown,
                times=times,
                anchor="start",
                duration=duration,
            )
        )
    return [*parts, "</svg>", ""]


def _text(
    at: tuple[float, int],
    text: str,
    *,
    ink: str,
    shown: str,
    times: str,
    anchor: str,
    duration: str,
) -> str:
    first = shown.partition(";")[0]
    return (
        f'<text x="{at[0]:g}" y="{at[1]}" text-anchor="{anchor}" font-size="18" fill="{ink}" '
        f'opacity="{first}">{escape(text)}<animate attributeName="opacity" dur="{duration}" '
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
