"""`zkconsumer top` on real servers: its screens, its keys, and its cost."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.terminal import Terminal
from support.internals import text_of
from support.scenes import Scene, scenes
from support.wait import LIMIT_S, soon
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.admin.lag import group_lags
from zkconsumer.admin.lag_history import LagHistory
from zkconsumer.cli import app
from zkconsumer.cli.options import Connection
from zkconsumer.cli.top_app import GROUP_COLUMNS, Rows, Top
from zkconsumer.cli.top_feed import Feed, GroupRow, ordered, row_of
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.client import ZooKeeperClient

SCREENS = Path(__file__).parent / "top"
SIZE = (110, 20)
ONCE_S = 3600.0  # `top` reads the servers only once, so that no screen changes without a key.


class World:
    """Groups on a topic of a real broker: one with a live member and lag, one idle, one empty."""

    def __init__(self, scene: Scene, topic: str) -> None:
        self.scene, self.topic = scene, topic

    def top(self, *, interval_s: float = ONCE_S) -> Top:
        return Top(Feed(Connection(zookeeper=self.scene.connect), interval_s=interval_s))

    def text(self, top: Top) -> str:
        """Return the screen without values that differ between runs: names, sessions, times."""
        text = text_of(top)
        for pattern, stead in (
            (re.escape(self.topic), "orders"),
            (r"0x[0-9a-f]+", "SESSION"),
            (r"127\.0\.0\.1:\d+", "ADDRESS"),
            (r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME"),
            (r" {2,}", "  "),
        ):
            text = re.sub(pattern, stead, text)
        return re.sub(r"\n+", "\n", text).rstrip() + "\n"


@pytest.fixture
def world(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[World]:
    """Group billing has a lag of 12 messages in three partitions, idle of 1, empty of 0."""
    topic = unique("topic")
    sandbox.create_topic(topic, partitions=3)
    for partition in range(3):
        sandbox.produce(topic, 5, partition=partition)
    with peer_of(sandbox.zookeeper_connect) as above:
        broker = above.get(paths.broker(0))[0]
        states = [above.get(paths.partition_state(topic, n))[0] for n in range(3)]
        placed = above.get(paths.topic(topic))[0]
    with scenes(sandbox.zookeeper, unique("top")) as scene:
        scene.put(paths.broker(0), broker)
        scene.settled(
            {"billing_a": {topic: 2}, "billing_b": {topic: 2}}, {topic: 3}, group="billing"
        )
        scene.put(paths.topic(topic), placed)
        for number, state in enumerate(states):
            scene.put(paths.partition_state(topic, number), state)
            scene.offset(topic, number, 1, group="billing")
        scene.offset(topic, 0, 4, group="idle")
        scene.put(paths.ids("empty"), b"")
        yield World(scene, topic)


def is_screen(request: pytest.FixtureRequest, name: str, text: str) -> None:
    """Compare a screen with its stored file; `--rewrite` writes the file."""
    file = SCREENS / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"pytest {__file__} --rewrite"


def test_screens(world: World, request: pytest.FixtureRequest) -> None:
    """The screens equal the stored ones: the list, orders, filter, a group's views, the help."""

    async def play() -> None:
        top = world.top()
        async with top.run_test(size=SIZE) as pilot:
            await soon(lambda: "(3 groups read)" in world.text(top))
            is_screen(request, "groups", world.text(top))
            await pilot.press("greater_than_sign", "greater_than_sign", "i")
            is_screen(request, "groups-by-name-inverted", world.text(top))
            await pilot.press("i", "less_than_sign", "less_than_sign")
            await pilot.press("slash", *"id", "enter")
            is_screen(request, "groups-filtered", world.text(top))
            await pilot.press("escape")
            assert "3 groups, 1 live, 13 messages behind" in world.text(top)
            await pilot.press("question_mark")
            is_screen(request, "help", world.text(top))
            await pilot.press("escape", "enter")
            await soon(lambda: "billing_b-0" in world.text(top))
            is_screen(request, "group-partitions", world.text(top))
            await pilot.press("2")
            await soon(lambda: "ADDRESS" in world.text(top))
            is_screen(request, "group-members", world.text(top))
            await pilot.press("tab")
            await soon(lambda: "no problem found" in world.text(top))
            is_screen(request, "group-findings", world.text(top))
            await pilot.press("escape")
            await soon(lambda: "Enter Open" in world.text(top))
            await pilot.press("q")
        assert top.return_value is None

    asyncio.run(play())


def test_changes_and_findings(world: World) -> None:
    """A commit shows a rate, a missing owner a finding, an unreadable member unknown values."""

    async def play() -> None:
        top = world.top(interval_s=0.2)
        async with top.run_test(size=SIZE) as pilot:
            await soon(lambda: "(3 groups read)" in world.text(top))
            world.scene.put(paths.offset("idle", TopicPartition(world.topic, 0)), b"5")
            changed = r"idle  unregistered  0  3  0  2  \d"
            await soon(lambda: bool(re.search(changed, world.text(top))))
            world.scene.session.delete(paths.owner("billing", TopicPartition(world.topic, 2)))
            await pilot.press("enter", "3")
            await soon(lambda: "no-owner" in world.text(top))
            world.scene.put(paths.member("billing", "billing_c"), b"{")
            await pilot.press("2")
            await soon(lambda: "billing_c  unknown  unknown  0  unknown" in world.text(top))
            await pilot.press("escape", "end")
            for path in ("idle/offsets", "idle/owners", "idle/ids", "idle"):
                if world.scene.session.exists(f"{paths.CONSUMERS}/{path}"):
                    world.scene.session.delete(f"{paths.CONSUMERS}/{path}", recursive=True)
            await soon(lambda: "2 groups" in world.text(top))

    asyncio.run(play())


def test_many_groups() -> None:
    """With 5,000 groups `top` paints only the visible rows, and keys reach every row."""
    rows = [{"name": f"group-{n:04}", "lag": n} for n in range(5000)]

    async def play() -> None:
        top = Top(Feed(Connection(zookeeper="127.0.0.1:1", timeout=LIMIT_S), interval_s=ONCE_S))
        async with top.run_test(size=SIZE) as pilot:
            table = top.query_one(Rows)
            table.fill(GROUP_COLUMNS, rows, key="name")
            assert len(table.painted) <= SIZE[1]
            await pilot.press("end", "pageup", "k")
            assert table.painted[-1]["name"] > "group-4900"
            held = table.selected["name"]
            table.fill(GROUP_COLUMNS, rows[::-1], key="name")
            assert table.selected["name"] == held
            await pilot.press("home")
            assert table.painted[0]["name"] == "group-4999"

    asyncio.run(play())


def test_order() -> None:
    """Each order starts with the highest number, the worst status, or the live groups."""
    rows = [
        GroupRow("a", 1, 1, 5, status="OK"),
        GroupRow("b", 0, 1, 9, status="STOPPED"),
        GroupRow("c", 2),
        GroupRow("d", 3, 1, 5, rate=2.0),
    ]

    def names(by: str, *, reverse: bool = False, containing: str = "") -> str:
        found = ordered(rows, by=by, reverse=reverse, containing=containing)
        return "".join(row.name for row in found)

    assert names("lag") == "badc"
    assert names("state") == "adcb"
    assert names("status") == "bacd"
    assert names("members") == "dcab"
    assert names("rate") == "dabc"
    assert names("name", reverse=True) == "dcba"
    assert names("name", containing="B") == "b"


@pytest.mark.parametrize("words", [["top", "-z", "h:1"], ["top"], ["top", "-z", "h:x"]])
def test_without_a_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the terminal or the cluster is missing, `top` prints one line; exit code 2."""
    monkeypatch.delenv("ZKCONSUMER_ZOOKEEPER", raising=False)
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def on_a_terminal() -> Terminal:
    """Start the command, and wait until it has painted."""
    words = ("-z", "127.0.0.1:1", "--timeout", str(LIMIT_S))
    one = Terminal(sys.executable, "-m", "zkconsumer", "top", *words)
    one.read_until(lambda written: b"zkconsumer top" in written)
    return one


def test_the_command_ends_with_its_terminal() -> None:
    """The command ends when its terminal is closed, even if no SIGHUP arrives."""
    with on_a_terminal() as terminal:
        terminal.hang_up()
        assert terminal.process.wait(LIMIT_S / 2) == 0


def test_an_interrupt_from_elsewhere() -> None:
    """SIGINT from another process restores the terminal, and gives exit code 130."""
    with on_a_terminal() as terminal:
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_to_end()
        assert terminal.process.wait(LIMIT_S / 2) == 130
        assert b"\x1b[?1049l" in terminal.written


def test_the_history_of_a_group_that_is_gone_is_dropped(world: World) -> None:
    """The commits of a group are kept only while the group exists."""
    with ZooKeeperClient(world.scene.config()) as connection:
        group = group_lags(connection, ["idle"], limit_s=LIMIT_S)["idle"]
    history = LagHistory()
    row_of(group, history)
    history.keep(["idle"])
    assert history.window("idle", group.partitions[0]).commits
    history.keep([])
    row_of(group, history)
    assert history.window("idle", group.partitions[0]).rate is None
