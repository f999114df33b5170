"""The behaviour that all commands share: help, version, exit codes, one line per error."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from cli.conftest import RUN_LIMIT_S, Run
from support.wait import LIMIT_S
from typer.testing import CliRunner

from zkconsumer.cli import COMMANDS, app
from zkconsumer.cli.sources import ZOOKEEPER as ENVIRONMENT
from zkconsumer.sandbox import Sandbox


def test_help(run: Run) -> None:
    """The help names every command, and each command has its own help."""
    code, out, _ = run("--help")
    assert code == 0
    for command, (_, summary) in COMMANDS.items():
        assert f"  {command} " in out
        assert summary.endswith(".")
        assert summary in " ".join(out.split())
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_version(run: Run) -> None:
    """`--version` prints the version of the package."""
    assert run("--version") == (0, f"zkconsumer {version('zkconsumer')}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("owners", "--group", "g"),
        ("owners", "--group", "a/b", "--zookeeper", "h:1"),
        ("owners", "--group", "g", "--zookeeper", "h:x"),
        ("consume", "--topic", "t", "--zookeeper", "h:1"),
        ("consume", "--topic", "a/b", "--zookeeper", "h:1", "--group", "g"),
        ("consume", "--topic", "t", "--zookeeper", "h:1", "--group", "g", "--property", "x"),
        ("consume", "--topic", "t", "--config", "/nonexistent.properties"),
        ("consume", "--topic", "t", "--threads", "0"),
        ("assign", "--assignor", "foo"),
        ("compare", "--members", "x"),
        ("compare", "--nonsense"),
        ("simulate", "--protocol", "foo"),
        ("simulate", "--protocol", "consumer", "--partitions", "1000000"),
        ("offsets", "nonsense"),
        ("consume", "--topic", "t", "--to", ""),
        ("apply", ""),
        ("trace", "show", ""),
        ("history", "report", "--data-dir", ""),
    ],
)
def test_wrong_usage(call: Run, arguments: tuple[str, ...]) -> None:
    """Wrong usage and wrong configuration give exit code 2 and a reason in one line."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("zkconsumer: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("simulate --members 0", "'--members' must be between 1 and 50, not 0"),
        ("simulate --partitions 1000000", "'--partitions' must be between 1 and 1000, not 1000000"),
        ("simulate --members x", "'--members' must be an integer between 1 and 50, not x"),
        ("simulate --seed 1.5", "'--seed' must be an integer, not 1.5"),
        ("compare --members 0", "the number of members must be between 1 and 200"),
        ("compare --partitions 1000000", "the number of partitions must be between 1 and 2000"),
        ("consume --threads 0", "'--threads' must be at least 1, not 0"),
        ("top --interval 0", "'--interval' must be at least 0.5, not 0"),
        ("simulate --member 3", "no such option: --member; did you mean --members?"),
        ("--versoin", "no such option: --versoin; did you mean --version?"),
        ("--foo groups", "no such option: --foo before the command, where only --version and"),
        ("--zookeeper h:1 groups", "put the options of a command after its name"),
        ("-x groups", "no such option: -x before the command"),
        ("--version=3", "option '--version' does not take a value"),
    ],
)
def test_the_text_of_wrong_usage(call: Run, arguments: str, message: str) -> None:
    """The line about a wrong option or number says what is allowed."""
    code, out, err = call(*arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_unreachable(call: Run) -> None:
    """An unreachable ZooKeeper gives exit code 3 and one line."""
    code, out, err = call("owners", "--group", "g", "--zookeeper", "127.0.0.1:1")
    assert (code, out) == (3, "")
    assert err.startswith(
        "zkconsumer: no ZooKeeper session within 6 s: 127.0.0.1:1: Connection refused"
    )
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("offsets", "import"),
        ("apply",),
        ("undo",),
        ("trace", "check"),
        ("owners", "-g", "g", "-z"),
        ("owners", "-z", "127.0.0.1:1", "-g"),
        ("offsets", "delete", "-z", "127.0.0.1:1", "-g", "g", "-t"),
        ("offsets", "set", "-z", "127.0.0.1:1", "-g", "g"),
    ],
)
def test_a_hostile_name(command: tuple[str, ...]) -> None:
    """An error is one line in which characters that control a terminal are escaped."""
    result = CliRunner().invoke(app, [*command, "x\x1b[31m\n\u202e/../x"], color=True)
    assert result.exit_code == (1 if command[0] == "trace" else 2)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert result.stderr.rstrip("\n").isprintable()


def test_where_zookeeper_is(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that join a group take ZooKeeper's address from the environment, as all others."""
    monkeypatch.setenv(ENVIRONMENT, "127.0.0.1:1")
    for command in (("consume", "-t", "t"), ("owners", "--timeout", "0.3")):
        code, _, err = call(
            *command, "-g", "g", "--property", "zookeeper.connection.timeout.ms=300"
        )
        assert (code, "127.0.0.1:1" in err) == (3, True), err


SWALLOWED = """
import os, signal, threading
from kazoo.client import KazooClient
from zkconsumer.cli import main

class Interrupted:
    def __init__(self, plain):
        self.plain = plain

    def send(self, data):
        os.kill(os.getpid(), signal.SIGINT)
        return self.plain.send(data)

kazoos = KazooClient._call

def call(self, *arguments):
    KazooClient._call = kazoos
    connection = self._connection
    plain = connection._write_sock
    connection._write_sock = Interrupted(plain)
    try:
        kazoos(self, *arguments)
    finally:
        connection._write_sock = plain
    threading.Event().wait(60)

KazooClient._call = call
main()
"""


def test_ctrl_c_within_a_request(sandbox: Sandbox) -> None:
    """Ctrl-C ends a command even within a request, where kazoo would ignore it and wait."""
    arguments = ("owners", "-g", "g", "-z", sandbox.zookeeper_connect)
    command = [sys.executable, "-c", SWALLOWED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_name_that_the_terminal_lacks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of Latin-1, characters of another script are escaped, and nothing fails."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    code, out, err = run("explain", "coordinator", "注文")
    assert (code, err) == (0, "")
    assert "\\u6ce8\\u6587" in out


def test_imports_are_lazy() -> None:
    """To show a command's help, neither rich nor modules of other commands are imported."""
    script = (
        "import sys; from zkconsumer.cli import app\n"
        "try: app(['owners', '--help'])\n"
        "except SystemExit: pass\n"
        "unwanted = {'rich', 'zkconsumer.zk.observer', 'zkconsumer.sandbox'}\n"
        "sys.exit(' '.join(unwanted & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=RUN_LIMIT_S)
