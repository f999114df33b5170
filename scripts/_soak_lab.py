"""A live group in the lab for a long time: the memory of the page and of the server must not grow.

Members join and leave, owners change, and offsets are committed, on a real ZooKeeper. The page is
open in a real Chromium. The lab and the page keep a limited number of events; once they keep that
many, further events must not need more memory.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _bench_lab import LIMIT_MS
from _engine import chromium
from kazoo.client import KazooClient
from lab.conftest import running_lab
from playwright.sync_api import Browser, Page, sync_playwright

from zkconsumer.lab.live import MAX_MESSAGES
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer

PARTITIONS, MEMBERS = 12, 4
TURN_S = 0.5
"""Seconds between two rounds of commits: 24 events per second, more than 40,000 in half an hour."""

REBALANCE_S = 5.0
"""Seconds between two rebalances: one member leaves and another one joins."""

SAMPLES = 30
"""Number of measurements in a run, at equal intervals."""

DRAWN_LIMIT_MS = 300_000
"""Limit for the page to draw a commit. A busy machine is slow; a page that falls behind never does
it."""

GROWTH, NOISE_BYTES = 1.1, 4_000_000
"""Limit: the last measurements are at most this factor, plus these bytes, above the first ones."""

MEASURES = ("page_heap", "page_nodes", "browser_resident", "server_resident")


@dataclass(frozen=True)
class Sample:
    """One measurement: sizes in bytes, the number of DOM nodes, and the seconds until the page had
    drawn the last commit.
    """

    seconds: float
    events: int
    drawn_s: float
    page_heap: int
    page_nodes: int
    browser_resident: int
    server_resident: int


def resident(process: int) -> int:
    """Return the bytes of memory that a process uses."""
    return int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1]) * 4096


class Group:
    """A group whose znodes are written as its members write them."""

    def __init__(self, client: KazooClient, seed: int) -> None:
        self._client, self._random = client, random.Random(seed)
        self.name, self.topic = "soak", "t"
        self.events = self._joined = 0
        self._members: list[str] = []
        for path in (paths.ids(self.name), paths.owners_of(self.name, self.topic)):
            client.ensure_path(path)
        for tp in self._partitions():
            client.create(paths.offset(self.name, tp), b"0", makepath=True)
        for _ in range(MEMBERS):
            self._join()
        self._claim()

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def _join(self) -> None:
        name = f"{self.name}_{self._joined}"
        payload = encode_registration(Registration({self.topic: 1}, timestamp_ms=1))
        self._client.create(paths.member(self.name, name), payload, ephemeral=True)
        self._members.append(name)
        self._joined += 1
        self.events += 1

    def _claim(self) -> None:
        for tp in self._partitions():
            owner = f"{self._members[tp.partition % len(self._members)]}-0"
            self._client.create(paths.owner(self.name, tp), owner.encode(), ephemeral=True)
        self.events += PARTITIONS

    def rebalance(self) -> None:
        """Let one member leave and another one join; all partitions get a new owner znode."""
        gone = self._members.pop(self._random.randrange(len(self._members)))
        self._client.delete(paths.member(self.name, gone))
        for tp in self._partitions():
            self._client.delete(paths.owner(self.name, tp))
        self.events += 1 + PARTITIONS
        self._join()
        self._claim()

    def commit(self, offset: int) -> None:
        """Commit this offset for every partition."""
        written = [
            self._client.set_async(paths.offset(self.name, tp), b"%d" % offset)
            for tp in self._partitions()
        ]
        for one in written:
            one.get(timeout=30)
        self.events += PARTITIONS


class Meter:
    """Measures the memory of the page, of its browser and of the lab's server."""

    def __init__(self, browser: Browser, page: Page, server: int) -> None:
        self._of_page = page.context.new_cdp_session(page)
        self._of_browser = browser.new_browser_cdp_session()
        self._server = server
        self._started = time.monotonic()

    def sample(self, events: int, drawn_s: float) -> Sample:
        self._of_page.send("HeapProfiler.collectGarbage")
        processes = self._of_browser.send("SystemInfo.getProcessInfo")["processInfo"]
        renderers = [one["id"] for one in processes if one["type"] == "renderer"]
        return Sample(
            seconds=round(time.monotonic() - self._started, 1),
            events=events,
            drawn_s=round(drawn_s, 3),
            page_heap=int(self._of_page.send("Runtime.getHeapUsage")["usedSize"]),
            page_nodes=int(self._of_page.send("Memory.getDOMCounters")["nodes"]),
            browser_resident=sum(map(resident, renderers)),
            server_resident=resident(self._server),
        )


def run(seconds: float, seed: int, report: Callable[[Sample], None]) -> list[Sample]:
    """Follow a live group for this time, and return the measurements."""
    with TemporaryDirectory() as directory, ZooKeeperServer(directory) as zookeeper:
        client = KazooClient(zookeeper.connect)
        client.start()
        group = Group(client, seed)
        with (
            running_lab("-z", zookeeper.connect, "-g", group.name) as lab,
            sync_playwright() as playwright,
        ):
            options = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]
            browser = playwright.chromium.launch(executable_path=chromium(), args=options)
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(lab.url)
            page.wait_for_selector(".partitions .cell.read", timeout=LIMIT_MS)
            meter = Meter(browser, page, lab.process.pid)
            found = _follow(group, page, meter, seconds, report)
            browser.close()
        client.stop()
        client.close()
    return found


def _follow(
    group: Group, page: Page, meter: Meter, seconds: float, report: Callable[[Sample], None]
) -> list[Sample]:
    found: list[Sample] = []
    pace = threading.Event()
    started = time.monotonic()
    rebalance_at, turn = REBALANCE_S, 0
    while (now := time.monotonic() - started) < seconds:
        turn += 1
        group.commit(turn)
        if now >= rebalance_at:
            rebalance_at += REBALANCE_S
            group.rebalance()
        if now >= seconds * (len(found) + 1) / (SAMPLES + 1):
            committed = time.monotonic()
            page.wait_for_function(
                "(offset) => [...document.querySelectorAll('.tree .data')]"
                ".some((one) => one.textContent.includes(offset))",
                arg=str(turn),
                timeout=DRAWN_LIMIT_MS,
            )
            found.append(meter.sample(group.events, time.monotonic() - committed))
            report(found[-1])
        pace.wait(max(0.0, started + turn * TURN_S - time.monotonic()))
    return found


def growths(samples: Sequence[Sample]) -> list[str]:
    """Return a sentence for each measure that grew after the limit of kept events was reached."""
    full = [one for one in samples if one.events > MAX_MESSAGES]
    if len(full) < 4:
        return ["the run was too short: the lab did not reach its limit of kept events"]
    part = len(full) // 4
    broken = []
    for name in MEASURES:
        values = [getattr(one, name) for one in full]
        first, last = statistics.median(values[:part]), statistics.median(values[-part:])
        if last > first * GROWTH + NOISE_BYTES * (name != "page_nodes"):
            broken.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    return broken


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the counts of a record: events, and each measure at the limit and at the end."""
    full = [one for one in samples if one.events > MAX_MESSAGES] or list(samples)
    return {
        "events": samples[-1].events,
        "kept_events": MAX_MESSAGES,
        "drawn_s": statistics.median(one.drawn_s for one in samples),
        **{name: [getattr(full[0], name), getattr(full[-1], name)] for name in MEASURES},
        "samples": [asdict(one) for one in samples],
    }
