"""A live group in the lab: the lab only reads, and no name becomes markup."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from lab.conftest import LIMIT_MS, LabPage, running_lab
from playwright.sync_api import expect
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer.admin.lag import PATIENCE_S, CommitWindow, PartitionLag
from zkconsumer.kafka.logs import LogRange
from zkconsumer.lab.live import Flow, GroupPicture, flow_of
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.ports import free_port
from zkconsumer.zk.observer import Change, ChangeKind

Open = Callable[..., LabPage]

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\u202egnp.exe",
    "{{constructor.constructor('alert(1)')()}}",
    "javascript:alert(1)//",
    "a" * 5000,
]


class LiveMembers:
    """The znodes of a group, written as its members write them."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client
        self.group = f"g{uuid.uuid4().hex[:8]}"
        client.ensure_path(paths.ids(self.group))
        self.topic = f"t{self.group}"
        client.ensure_path(paths.owners_of(self.group, self.topic))
        topic = b'{"version":1,"partitions":{"0":[0],"1":[0]}}'
        client.create(paths.topic(self.topic), topic, makepath=True)

    def join(self, name: str) -> None:
        payload = encode_registration(Registration({self.topic: 1}, timestamp_ms=1))
        self.client.create(paths.member(self.group, name), payload, ephemeral=True)

    def claim(self, partition: int, thread: str) -> None:
        path = paths.owner(self.group, TopicPartition(self.topic, partition))
        self.client.create(path, thread.encode(), ephemeral=True, makepath=True)

    def release(self, partition: int) -> None:
        self.client.delete(paths.owner(self.group, TopicPartition(self.topic, partition)))

    def writes(self) -> int:
        """Return the highest zxid in the group's tree."""
        found = 0
        waiting = [paths.group(self.group)]
        for path in waiting:
            children, stat = self.client.get_children(path, include_data=True)
            found = max(found, stat.mzxid, stat.pzxid)
            waiting += [f"{path}/{one}" for one in children]
        return found


@pytest.fixture
def members(zookeeper: ZooKeeperServer) -> Iterator[LiveMembers]:
    """A group of two members with two partitions."""
    with peer_of(zookeeper.connect) as client:
        group = LiveMembers(client)
        for number, name in enumerate(("a", "b")):
            group.join(f"{group.group}_{name}")
            group.claim(number, f"{group.group}_{name}-0")
        yield group


def test_the_lab_follows_a_group_without_writes(
    members: LiveMembers, zookeeper: ZooKeeperServer, open_page: Open
) -> None:
    """The page shows new owners, members and free partitions at once; the lab writes nothing."""
    before = members.writes()
    with running_lab("-z", zookeeper.connect, "-g", members.group) as lab:
        one, two = (open_page().go(lab.url) for _ in range(2))
        expect(one.page.locator(".band")).to_contain_text("LIVE")
        for page in (one, two):
            page.has(".column", 2)
            page.has(".partitions .cell.read", 2)
        assert members.writes() == before
        members.release(1)
        for page in (one, two):
            page.has(".partitions .cell.free", 1)
        members.join(f"{members.group}_c")
        members.claim(1, f"{members.group}_c-0")
        last = members.writes()
        for page in (one, two):
            page.has(".column", 3)
            page.has(".partitions .cell.read", 2)
        one.shows(f"owns {members.topic}-1")
        expect(one.page.get_by_role("tab", name="doctor")).to_be_visible(timeout=LIMIT_MS)
        expect(one.page.locator(".column .kind")).to_have_text(["unknown"] * 3, timeout=LIMIT_MS)
        one.page.locator("[data-member='0'] .head").click()
        expect(one.page.get_by_role("menuitem")).to_have_count(1)
        one.page.get_by_role("menuitem", name="which program").click()
        expect(one.page.get_by_role("status")).to_contain_text(
            "Kafka's consumer and zkconsumer both write such a registration", timeout=LIMIT_MS
        )
        assert members.writes() == last
        members.release(0)
        last = members.writes()
        one.shows(f"{members.topic}-0 has no owner")
        one.page.locator(".partitions .cell").first.click()
        one.page.get_by_role("menuitem", name="why").click()
        expect(one.page.get_by_role("status")).to_contain_text("thread 1 of 3", timeout=LIMIT_MS)
        assert members.writes() == last


def test_an_offset_that_cannot_be_read_is_unknown() -> None:
    """The words of a change say that an offset is unknown, and why."""
    picture = GroupPicture("g")
    tp = TopicPartition("t", 0)
    words = []
    for before, after in ((None, 5), (5, "no right to read"), ("no right to read", None)):
        frame = picture.change(Change(ChangeKind.OFFSET, tp, before, after))
        words.append(frame["l"] if frame else None)
    assert words == [
        "the offset of t-0 is 5",
        "the offset of t-0 is unknown: no right to read",
        "t-0 has no offset",
    ]


def test_lag_and_rate_of_a_partition() -> None:
    """The page shows a partition's rate, and whether the partition is blocked or idle."""

    def reading(offset: int, end: int, written_s: float) -> PartitionLag:
        written_ms = int(written_s * 1000)
        return PartitionLag("t", 0, "g_a-0", 1, offset, written_ms, None, LogRange(0, end))

    def flow(window: CommitWindow, one: PartitionLag, now_s: float) -> Flow | None:
        window.observe(one, now_s)
        return flow_of(one, window, now_s)

    window = CommitWindow()
    found = [flow(window, reading(10 * n, 200, 1000 + n), 1000.0 + n) for n in range(6)]
    assert found[0] == (200, 0.0, "0.0/s")
    assert found[-1] == (200, 10.0, "10.0/s")
    late = flow(window, reading(50, 300, 1005), 1006 + PATIENCE_S)
    assert late is not None
    assert late.text == "blocked"
    done, stopped = CommitWindow(), reading(300, 300, 1000)
    assert flow(done, stopped, 1010.0) == (300, 0.0, "idle")
    assert flow(done, replace(stopped, log="no broker"), 1011.0) is None


DRAWINGS = """() => {
  window.drawn = window.pictures = 0;
  window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 1000);
  const count = () => { window.pictures++; requestAnimationFrame(count); };
  requestAnimationFrame(count);
  new MutationObserver(() => window.drawn++).observe(
    document.querySelector(".tree"), { subtree: true, childList: true, characterData: true });
}"""
"""Lets the browser paint once per second, and counts how often the page draws."""


def test_many_events_are_drawn_at_once(
    members: LiveMembers, zookeeper: ZooKeeperServer, open_page: Open
) -> None:
    """The page draws at most once per frame of the browser, however fast the group commits."""
    offset = paths.offset(members.group, TopicPartition(members.topic, 0))
    members.client.create(offset, b"0", makepath=True)
    with running_lab("-z", zookeeper.connect, "-g", members.group) as lab:
        one = open_page().go(lab.url)
        one.has(".partitions .cell.read", 2)
        one.page.evaluate(DRAWINGS)
        last = 1000
        for future in [members.client.set_async(offset, b"%d" % n) for n in range(last + 1)]:
            future.get(timeout=LIMIT_S)
        expect(one.page.locator(".tree .data", has_text=str(last))).to_be_visible(timeout=LIMIT_MS)
        drawn, pictures = one.page.evaluate("[window.drawn, window.pictures]")
        assert 0 < drawn <= pictures + 2


def test_hostile_names_are_text(
    members: LiveMembers, zookeeper: ZooKeeperServer, open_page: Open
) -> None:
    """Names and payloads of other clients never become markup or scripts."""
    for number, text in enumerate(HOSTILE):
        name = text[:200].replace("/", "|")
        members.client.create(f"{paths.ids(members.group)}/{name}", text.encode(), ephemeral=True)
        members.claim(10 + number, f"{text}-0")
    with running_lab("-z", zookeeper.connect, "-g", members.group) as lab:
        one = open_page().go(lab.url)
        dialogs: list[str] = []
        one.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        one.has(".partitions .cell", 2 + len(HOSTILE))
        expect(one.page.locator(".members")).to_contain_text("<img src=x", timeout=LIMIT_MS)
        one.page.get_by_role("tab", name="log").click()
        assert one.page.locator("img[src=x]").count() == 0
        assert one.page.locator("body script").count() == 0
        assert "\u202e" not in one.page.inner_text("body")
        assert not dialogs


def test_the_lab_follows_after_a_restart(
    members: LiveMembers, zookeeper: ZooKeeperServer, open_page: Open
) -> None:
    """When the lab's server has restarted, the page shows the group's present state again."""
    words = ("-z", zookeeper.connect, "-g", members.group, "--port", str(free_port()))
    with running_lab(*words) as lab:
        one = open_page().go(lab.url)
        one.has(".partitions .cell.read", 2)
    expect(one.page.locator(".lost")).to_be_visible(timeout=LIMIT_MS)
    members.release(0)
    with running_lab(*words):
        one.has(".partitions .cell", 1)
        expect(one.page.locator(".lost")).to_have_count(0)
