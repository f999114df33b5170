"""`--watch` on a terminal: the screen is redrawn in place, and restored at the end."""

from __future__ import annotations

import csv
import json
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
import yaml
from cli.terminal import Terminal
from support.scenes import Scene, scenes
from support.wait import LIMIT_S

from zkconsumer.protocol import paths
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.ports import free_port

ENTER, LEAVE, HOME = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l", b"\x1b[H"
ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Scene]:
    """A group with long names. No broker is registered, so no reading waits for an answer."""
    with scenes(zookeeper, unique("watch")) as one:
        one.session.delete(paths.broker(0))
        one.settled({"g_" + "x" * 60: {"topic-" + "y" * 30: 1}}, {"topic-" + "y" * 30: 40})
        yield one


def terminal(*arguments: str, **environment: str) -> Terminal:
    """Start the command on a terminal."""
    command = (sys.executable, "-m", "zkconsumer", *arguments)
    return Terminal(*command, environ={"TERM": "xterm", **environment})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_watch_leaves_a_clean_terminal(scene: Scene, number: signal.Signals, code: int) -> None:
    """Each reading overwrites the previous one; at the end the first screen appears again."""
    watched = (
        "lag",
        "-g",
        "g",
        "-z",
        scene.connect,
        "--watch",
        "--interval",
        "0.2",
    )
    with terminal(*watched) as one:
        one.read_until(lambda written: written.count(HOME) >= 3)
        one.process.send_signal(number)
        assert one.process.wait(LIMIT_S) == code
        one.read_until(lambda written: LEAVE in written)
    before, _, after = one.written.partition(ENTER)
    assert before == b""
    pictures = after.partition(LEAVE)[0].split(HOME)[1:]
    for picture in pictures[:-1]:
        assert picture.endswith(b"\x1b[J")  # This code clears only the rest of the screen.
        lines = ESCAPE.sub(b"", picture).split(b"\r\n")
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert b"\x1b[2J" not in picture
        assert b"more lines" in picture
    assert b"Traceback" not in one.written


def test_groups_show(scene: Scene) -> None:
    """When a member joins, `groups show --watch` shows it."""
    with terminal(
        "groups",
        "show",
        "g",
        "--watch",
        "-z",
        scene.connect,
        "--interval",
        "0.2",
    ) as one:
        one.read_until(lambda written: b"1 members, 1 threads" in written)
        scene.member("g_second")
        one.read_until(lambda written: b"2 members" in written)


def test_colours_and_width(scene: Scene) -> None:
    """Output fits the terminal's 80 columns, and has colours unless they are switched off."""
    shown = ("groups", "list", "-z", scene.connect)
    with terminal(*shown) as one:
        one.read_until(lambda written: b"live\x1b[0m" in written)
        assert b"\x1b[32mlive" in one.written
    with terminal(*shown, NO_COLOR="1") as one:
        one.read_until(lambda written: b"live" in written)
        assert b"\x1b" not in one.written
    with terminal(*shown, "--no-color") as one:
        one.read_until(lambda written: b"live" in written)
        assert b"\x1b" not in one.written
    with terminal("owners", "-g", "g", "-z", scene.connect) as one:
        one.read_until(lambda written: written.count(b"xx-0") == 40)
        plain = ESCAPE.sub(b"", one.written).split(b"\r\n")
        assert max(map(len, plain)) <= 80


@contextmanager
def exporter(*arguments: str) -> Iterator[Callable[..., str]]:
    """Run `lag --prometheus ARGUMENTS` until the end of the block, which interrupts it.

    Yields a function that returns the page of the metrics as soon as it matches all patterns.
    """
    port = free_port()
    command = [sys.executable, "-m", "zkconsumer", "lag", "--prometheus", str(port)]
    process = subprocess.Popen(
        [*command, "--interval", "0.2", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def page_with(*patterns: str) -> str:
        page, deadline = "", time.monotonic() + LIMIT_S
        while not all(re.search(pattern, page) for pattern in patterns):
            assert time.monotonic() < deadline, page
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    page = answer.read().decode()
            except OSError:
                select.select([], [], [], 0.05)
        return page

    try:
        yield page_with
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    finally:
        process.kill()
        process.wait()


def test_prometheus(scene: Scene) -> None:
    """`--prometheus` serves a sample for each known value, and counts the unknown ones."""
    with exporter("-g", "gone", "-g", "g", "-z", scene.connect) as page_with:
        page = page_with("zkconsumer_group_offset[{]")
        assert 'zkconsumer_group_members{group="g",kind="registered"} 1.0' in page
        assert f'partition="39",topic="topic-{"y" * 30}"}} 5.0' in page
        assert "zkconsumer_group_lag{" not in page
        assert 'zkconsumer_group_unknown_partitions{group="g"} 40.0' in page
        assert "zkconsumer_group_read_failures 0.0" in page


def test_clusters_of_which_one_is_down(scene: Scene) -> None:
    """The exporter serves several clusters, and says which one it cannot read."""
    scene.offset("orders", 0, 1, "denied")
    scene.offset("hidden", 0, 1, "g")
    named = ("--cluster", f"up={scene.connect}", "--cluster", f"down=127.0.0.1:{free_port()}")
    chosen = ("--deny-groups", "den.*", "--deny-topics", "hidden")
    with exporter(*named, *chosen, "--metric-names", "kafka_exporter") as page_with:
        # On a busy machine, the cluster that is up may answer too late for one reading.
        page = page_with(
            'zkconsumer_group_read_failures[{]cluster="down"} [1-9]',
            'zkconsumer_group_read_success[{]cluster="up"} 1.0',
        )
        assert 'zkconsumer_group_read_success{cluster="down"} 0.0' in page
        assert 'kafka_consumergroup_members{cluster="up",consumergroup="g"} 1.0' in page
        assert "denied" not in page
        assert "hidden" not in page


def test_an_exporter_starts_before_zookeeper(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """While the chroot is missing, the metrics say that nothing was read; then they have groups."""
    chroot = unique("later")
    with exporter("-z", f"{zookeeper.connect}/{chroot}") as page_with:
        page_with("zkconsumer_group_read_success 0.0")
        with scenes(zookeeper, chroot) as scene:
            scene.offset("orders", 0, 1)
            # The exporter may first read the chroot, and only then the offset.
            page = page_with('zkconsumer_group_offset{group="g",partition="0",topic="orders"} 1.0')
            assert "zkconsumer_group_read_success 1.0" in page


def test_watch_in_a_pipe(scene: Scene) -> None:
    """In a pipe, formats for programs print each reading with its time."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "zkconsumer",
            "lag",
            "-g",
            "g",
            "-z",
            scene.connect,
            "--watch",
            "--interval",
            "0.1",
            "-o",
            "jsonl",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(80)]
        assert rows[0]["partition"] == rows[40]["partition"] == 0
        assert rows[0]["at"] == rows[39]["at"] < rows[40]["at"]
        process.send_signal(signal.SIGINT)
        process.stdout.read()  # An open pipe that is full would stop the command.
        assert process.wait(LIMIT_S) == 130
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("output", ["json", "yaml", "csv"])
@pytest.mark.parametrize("words", [("members", "g"), ("groups", "list"), ("doctor", "--no-logs")])
def test_a_stream_that_parses(scene: Scene, words: tuple[str, ...], output: str) -> None:
    """With `--watch` JSON becomes JSON Lines, YAML documents, and CSV has its header once."""
    scene.offset("gone", 0, 1, "g")  # `doctor` finds something in this group.
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "zkconsumer",
            *words,
            "-z",
            scene.connect,
            "--watch",
            "--interval",
            "0.1",
            "-o",
            output,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while len(lines) < 40 or lines.count("---\n") in (1, 2):  # two whole YAML documents
            lines.append(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
    if output == "json":
        times = {json.loads(line)["at"] for line in lines}
    elif output == "csv":
        times = {row["at"] for row in csv.DictReader(lines)} - {"at"}
    else:
        whole = "".join(lines).rpartition("---\n")[0]
        times = {row["at"] for document in yaml.safe_load_all(whole) for row in document or ()}
    assert len(times) > 1
    assert all(datetime.fromisoformat(one) for one in times)


def test_what_cannot_be_repeated(scene: Scene) -> None:
    """If a format cannot be repeated, `--watch` refuses it."""
    for output in ("legacy", "prometheus"):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "zkconsumer",
                "lag",
                "g",
                "-z",
                scene.connect,
                "--watch",
                "-o",
                output,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot be repeated" in done.stderr


def test_debug(scene: Scene) -> None:
    """`--debug` logs the requests to ZooKeeper, which are not logged otherwise."""
    command = [sys.executable, "-m", "zkconsumer", "groups", "list", "-z", scene.connect]
    quiet, loud = (
        subprocess.run(command + more, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        for more in ([], ["--debug"])
    )
    assert quiet.stderr == ""
    assert "/consumers" in loud.stderr
    assert "kazoo" in loud.stderr
    assert loud.stdout == quiet.stdout
