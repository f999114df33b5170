"""`zkconsumer sandbox`: servers that keep running after the command has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.wait import LIMIT_S
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.sandbox import ZOOKEEPER_RELEASES, Sandbox
from zkconsumer.sandbox.guard import start_time

Command = Callable[..., subprocess.CompletedProcess[str]]


def fits(name: str, document: object) -> None:
    Draft202012Validator(schemas()[name]).validate(document)


def _zkconsumer(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run `zkconsumer sandbox WORDS...`; only what starts or stops servers needs a process."""
    if words[0] not in ("up", "down") or "--help" in words:
        result = CliRunner().invoke(app, ["sandbox", *words], input=typed)
        return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)
    return subprocess.run(
        [sys.executable, "-m", "zkconsumer", "sandbox", *words],
        input=typed,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a sandbox, which is stopped before and after the test."""
    path = tmp_path_factory.mktemp("sandbox")
    yield path
    sandbox = Sandbox(path)
    sandbox.attach()
    sandbox.stop()


@pytest.fixture(scope="module")
def command(home: Path) -> Command:
    """Run `zkconsumer sandbox WORDS... --directory HOME` with `typed` as standard input."""

    def run(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return _zkconsumer(*words, "--directory", str(home), typed=typed)

    return run


def _ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_down_at_first(command: Command) -> None:
    """Before `up`, status exits with 6, down has no effect, and `topic create` names the remedy."""
    status = command("status")
    assert (status.returncode, "down" in status.stdout) == (6, True)
    assert "no server was running" in _ok(command("down"))
    topic = command("topic", "create", "t")
    assert topic.returncode == 1
    assert "the sandbox is not running" in topic.stderr
    assert "run `zkconsumer sandbox up`" in topic.stderr
    assert len(topic.stderr.splitlines()) == 1


def test_up_down_and_up_again(command: Command) -> None:
    """Addresses and data survive `down` and `up`, and in the end no process is left."""
    first = json.loads(_ok(command("up", "--output", "json")))
    fits("sandbox", first)
    births = {server["pid"]: start_time(server["pid"]) for server in first["servers"]}
    assert None not in births.values()

    again = command("up", "--output", "json")
    assert json.loads(_ok(again)) == first
    assert "already running" in again.stderr
    assert json.loads(_ok(command("status", "--output", "json"))) == first
    lines = _ok(command("status", "--output", "jsonl")).splitlines()
    assert [json.loads(line) for line in lines] == first["servers"]
    assert _ok(command("status", "-o", "csv", "--columns", "server")).split() == [
        "server,unknown",
        "ZooKeeper,",
        "broker",
        "0,",
    ]
    shown = _ok(command("status"))
    assert f"zookeeper  {first['zookeeper']}" in shown
    assert f"bootstrap  {first['bootstrap']}" in shown

    table = _ok(command("topic", "create", "orders", "--partitions", "3")).splitlines()
    assert [line.split() for line in table] == [
        ["PARTITION", "REPLICAS", "LEADER"],
        *([str(partition), "0", "0"] for partition in range(3)),
    ]
    fits("sandbox-topic-create", json.loads(_ok(command("topic", "create", "o2", "-o", "json"))))
    words = ("topic", "produce", "orders", "--output", "json")
    placed = json.loads(_ok(command(*words, "--key", "k", "one", "two")))["messages"]
    assert [(m["key"], m["offset"]) for m in placed] == [("k", 0), ("k", 1)]
    typed = json.loads(_ok(command(*words, "--key-separator", ":", typed="k:three\nfour\n")))
    fits("sandbox-topic-produce", typed)
    assert typed["messages"][0] == {"key": "k", "partition": placed[0]["partition"], "offset": 2}
    assert typed["messages"][1]["key"] is None

    assert "stopped: broker 0, ZooKeeper" in _ok(command("down"))
    assert all(start_time(pid) is None for pid in births)
    assert command("status").returncode == 6

    stopped = json.loads(_ok(command("down", "--output", "json")))
    fits("sandbox-down", stopped)
    assert stopped["stopped"] == []

    second = json.loads(_ok(command("up", "--output", "json")))
    assert (second["zookeeper"], second["bootstrap"]) == (first["zookeeper"], first["bootstrap"])
    kept = json.loads(_ok(command(*words, "--key", "k", "five")))["messages"]
    # The message without a key may be in any partition.
    beside = typed["messages"][1]["partition"] == placed[0]["partition"]
    assert kept[0]["offset"] == 3 + beside
    _ok(command("down"))


def test_half_a_sandbox(command: Command, home: Path) -> None:
    """If one server is missing, status fails and `up` starts only that server."""
    whole = json.loads(_ok(command("up", "--output", "json")))["servers"]
    sandbox = Sandbox(home)
    assert sandbox.attach()
    sandbox.broker.stop()
    assert command("status").returncode == 6
    mended = json.loads(_ok(command("up", "--output", "json")))["servers"]
    assert (mended[0], mended[1]["pid"] != whole[1]["pid"]) == (whole[0], True)
    _ok(command("down"))


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("words", [("up", "--brokers", "1"), ("down",)])
def test_brokers_beyond_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], is_running: bool
) -> None:
    """`up` with fewer brokers stops the others that run, and `down` stops every broker."""
    for method in ("start", "detach"):  # no server needs to run
        monkeypatch.setattr(Sandbox, method, lambda _: None)
    monkeypatch.setattr(Sandbox, "attach", lambda _: is_running)
    folder = tmp_path / "broker-2"
    folder.mkdir()
    with subprocess.Popen(["sleep", "600"]) as broker:
        record = {"pid": broker.pid, "born": start_time(broker.pid), "port": 1}
        (folder / "server.json").write_text(json.dumps(record))
        try:
            done = CliRunner().invoke(app, ["sandbox", *words, "--directory", str(tmp_path)])
            assert start_time(broker.pid) is None
        finally:
            broker.kill()
    assert "broker 2" in done.output


def test_the_zookeeper_release_is_kept(tmp_path: Path) -> None:
    """`up --zookeeper-release` starts this release, and so does a later `up` without it."""
    where = ("--directory", str(tmp_path))
    release = ("--zookeeper-release", ZOOKEEPER_RELEASES[0])
    try:
        for words in (("up", *release), ("up",)):
            _ok(_zkconsumer(*words, *where))
            sandbox = Sandbox(tmp_path)
            assert sandbox.attach()
            assert f"version: {ZOOKEEPER_RELEASES[0]}-" in sandbox.zookeeper.command("srvr")
            _ok(_zkconsumer("down", *where))
    finally:
        sandbox = Sandbox(tmp_path)
        sandbox.attach()
        sandbox.stop()


def test_port_in_use(command: Command, zookeeper_port: int) -> None:
    """If a port is in use, there is one line and exit code 1, and no server keeps running."""
    done = command("up", "--zookeeper-port", str(zookeeper_port))
    assert done.returncode == 1
    assert f"port {zookeeper_port} for ZooKeeper is in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert command("status").returncode == 6


@pytest.fixture
def zookeeper_port(sandbox: Sandbox) -> int:
    """A port that another sandbox uses."""
    return sandbox.zookeeper.port


@pytest.mark.parametrize(
    "words", [("up",), ("status",), ("down",), ("topic", "create"), ("topic", "produce")]
)
def test_help_has_an_example(words: tuple[str, ...]) -> None:
    """The help of each command has an example."""
    assert "Example: zkconsumer sandbox" in _ok(_zkconsumer(*words, "--help"))
