"""The views fit windows of three sizes, and a long live session needs bounded memory."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from lab.conftest import LIMIT_MS, LabPage, LabProcess, running_lab
from playwright.sync_api import CDPSession, expect
from support.wait import LIMIT_S

from zkconsumer.lab.live import MAX_MESSAGES
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer

Open = Callable[..., LabPage]

SIZES = {"laptop": (1280, 720), "4k": (3840, 2160), "phone": (390, 844)}

VIEWS = {
    "first": ("", ".picture"),
    "faults": ('#world={"members":4,"partitions":8}&moves=20,kill:1,freeze:2,40', ".column.dead"),
    "many": ('#world={"members":10,"partitions":40}&moves=20,kill:1,200', ".picture"),
    "crowd": ('#world={"members":40,"partitions":300,"flow":0}', ".picture"),
    "tour": ("#tour=split-brain&step=2", ".tour"),
    "table": ("#tour=herd&step=2", ".counted"),
    "bridge": ("#tour=bridge&step=7", ".tour"),
    "scenario": ("#scenario=a-zombie-wakes&at=60", ".picture"),
    "compare": ("#compare=join;kill g_1&protocols=zookeeper-jvm,zookeeper,consumer", ".protocol"),
}
"""Name -> the address, and the element that the page shows when it is ready."""


COVERED = """() => {
  const box = (name) => document.querySelector(name)?.getBoundingClientRect();
  const wrong = [];
  const order = [".happens", ".zookeeper", ".members", ".partitions"];
  for (let n = 1; n < order.length; n++) {
    const [one, next] = [box(order[n - 1]), box(order[n])];
    if (one && next && one.bottom > next.top + 1) wrong.push(`${order[n - 1]} covers ${order[n]}`);
  }
  const counters = box(".counters"), timeline = box(".timeline");
  if (counters && innerWidth > 760 && counters.bottom > timeline.top + 1)
    wrong.push("a counter is hidden");
  for (const one of document.querySelectorAll(".chip, .head b, .large .name"))
    if (one.clientHeight && one.scrollHeight > one.clientHeight + 2)
      wrong.push(`${one.textContent} is cut off`);
  return wrong;
}"""
"""Returns the elements that hide a part of the picture."""


@pytest.mark.parametrize("size", SIZES)
def test_every_view_fits(
    lab: LabProcess,
    open_page: Open,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    size: str,
) -> None:
    """No view needs horizontal scrolling, and no part of the picture covers another part."""
    # pytest keeps the screenshots in its temporary directory.
    width, height = SIZES[size]
    one = open_page(viewport={"width": width, "height": height})
    for name, (address, ready) in VIEWS.items():
        one.go(lab.url + address, ready)
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert not one.page.evaluate(COVERED), name
        one.page.screenshot(path=tmp_path / f"{name}-{size}.png")
    with capsys.disabled():
        sys.stdout.write(f"\npictures of the views: {tmp_path}\n")


GROWTH = 1.5
"""Limit for the growth of memory while new events replace all kept events."""

BYTES_OF_NOISE = 8_000_000


def heap(session: CDPSession) -> int:
    """Return the bytes of the page's live JavaScript objects."""
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")
    return int(used["usedSize"])


def resident(process: int) -> int:
    """Return how much memory a process uses, in bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096


def test_a_long_live_session_does_not_grow(zookeeper: ZooKeeperServer, open_page: Open) -> None:
    """When the number of kept events has reached its limit, further events need no more memory."""
    # In half an hour, a group that commits twelve partitions per second produces this number of
    # events.
    group = f"g{uuid.uuid4().hex[:8]}"
    client = KazooClient(zookeeper.connect)
    client.start(LIMIT_S)
    payload = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    client.create(paths.member(group, f"{group}_a"), payload, ephemeral=True, makepath=True)
    offsets = [paths.offset(group, TopicPartition("t", number)) for number in range(12)]
    for path in offsets:
        client.create(path, b"0", makepath=True)
    sent = 0

    def commit(one: LabPage, events: int) -> None:
        """Write offsets, and wait until the page shows the last one."""
        nonlocal sent
        while events > 0:
            sent += 1
            futures = [client.set_async(path, b"%d" % sent) for path in offsets]
            for future in futures:
                future.get(timeout=LIMIT_S)
            last = one.page.locator(".tree .data", has_text=str(sent))
            if not sent % 10:
                expect(last.last).to_be_visible(timeout=LIMIT_MS)
            events -= len(offsets)

    with running_lab("-z", zookeeper.connect, "-g", group) as lab:
        one = open_page().go(lab.url)
        session = one.page.context.new_cdp_session(one.page)
        commit(one, MAX_MESSAGES + 2_000)
        before = heap(session), resident(lab.process.pid)
        commit(one, MAX_MESSAGES)
        after = heap(session), resident(lab.process.pid)
    client.stop()
    client.close()
    for old, new in zip(before, after, strict=True):
        assert new < old * GROWTH + BYTES_OF_NOISE, (before, after)
