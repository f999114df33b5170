"""The command `offsets restore`: its rows, and its answers to wrong input."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from cli.conftest import Run
from jsonschema import Draft202012Validator
from kazoo.client import KazooClient
from support.zk.history_logs import LogWriter, changed, created, number

from zkconsumer.cli.schema import schemas
from zkconsumer.history import transactions as tx
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer

PATH = paths.offset("restored", TopicPartition("orders", 0))


def test_the_command(call: Run, zookeeper: ZooKeeperServer, client: KazooClient) -> None:
    """The rows fit the schema and say who wrote the offset; without --execute nothing changes."""
    client.create(PATH, b"7", makepath=True)
    zxid = client.exists(PATH).mzxid
    client.set(PATH, b"2")
    words = ("offsets", "restore", "restored", "-z", zookeeper.connect, "--timeout", "0.3")
    words += ("--data-dir", str(zookeeper.directory / "data"))
    code, out, err = call(*words, "--before-zxid", hex(zxid + 1), "-o", "json")
    assert code == 0, err
    (row,) = json.loads(out)
    Draft202012Validator(schemas()["offsets-restore"]).validate([row])
    assert (row["now"], row["then"], row["action"], row["skipped"]) == (2, 7, "set", 5)
    assert (row["zxid"], row["session"]) == (hex(zxid), hex(client.client_id[0]))
    assert "topic orders does not exist" in err
    assert client.get(PATH)[0] == b"2"


def test_compiling_is_announced(
    call: Run, zookeeper: ZooKeeperServer, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restoration from large logs says that it compiles the decoder, as `history` does."""
    path = paths.offset("announced", TopicPartition("orders", 0))
    client.create(path, b"7", makepath=True)
    monkeypatch.setattr("zkconsumer.history.inputs.FAST_FROM", 0)
    monkeypatch.setattr("zkconsumer.cli.compile.SILENT_S", 0.0)
    monkeypatch.setattr("zkconsumer.loops.load", lambda loops: join_timers())
    words = ("offsets", "restore", "announced", "-z", zookeeper.connect, "--timeout", "0.3")
    words += ("--data-dir", str(zookeeper.directory / "data"))
    _, _, err = call(*words, "--before-zxid", hex(client.exists(path).mzxid + 1))
    note = "loading the decoder of ZooKeeper's logs; the first time on a machine, it is compiled"
    assert note in err


def join_timers() -> None:
    """Wait for the timers that run, as a slow compilation does."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


def test_who_wrote_it(
    call: Run, zookeeper: ZooKeeperServer, client: KazooClient, tmp_path: Path
) -> None:
    """The plan names host, port and user of the writer, and of the edit that is undone."""
    path = paths.offset("named", TopicPartition("orders", 0))
    log = LogWriter()
    log.add(tx.CREATE_SESSION, number(6000), session=7)
    log.add(tx.CREATE, created(path, b"5"), session=7)
    log.add(tx.CREATE_SESSION, number(6000), session=8, ms=1000)
    log.add(tx.SET_DATA, changed(path, b"2"), session=8)
    log.write(tmp_path)
    line = "2023-11-14 22:13:{},000 Established session 0x{} with timeout 1 for client /{}\n"
    (tmp_path / "zookeeper.log").write_text(
        line.format(20, 7, "10.0.0.7:47") + line.format(21, 8, "10.0.0.8:48")
    )
    audit = (
        "2023-11-14 22:13:20,000 session=0x7\tuser=alice,10.0.0.7\tip=10.0.0.7\toperation=create\n"
    )
    (tmp_path / "audit.log").write_text(audit)
    words = ("offsets", "restore", "named", "-z", zookeeper.connect, "--data-dir", str(tmp_path))
    words += ("--server-log", str(tmp_path / "zookeeper.log"), "--log-chroot", "/")
    words += ("--audit-log", str(tmp_path / "audit.log"), "-o", "json")
    code, out, err = call(*words, "--undo-session", "0x8")
    (row,) = json.loads(out)
    assert (row["host"], row["port"], row["user"]) == ("10.0.0.7", 47, "alice"), err
    assert "undoes the edit of session 0x8 from 10.0.0.8:48, last at" in err
    code, out, err = call(*words[:-2], "--undo-session", "0x8", "--tables", str(tmp_path))
    assert code == 2
    assert "two sources of ZooKeeper's transactions are given, files and tables" in err


def test_unknown_offsets(call: Run, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """If transactions before the moment are missing, the offset is unknown, and the code is 1."""
    log = LogWriter()
    path = paths.offset("gap", TopicPartition("orders", 0))
    log.add(tx.CREATE, created(path, b"5"), ms=1)
    log.write(tmp_path)
    log.zxid, log.entries = 4, []
    log.add(tx.SET_DATA, changed("/other", b""), ms=1)
    log.write(tmp_path, "log.5")
    words = ("offsets", "restore", "gap", "-z", zookeeper.connect, "--data-dir", str(tmp_path))
    code, out, err = call(*words, "--before-zxid", "0x5", "-o", "json")
    (row,) = json.loads(out)
    assert (code, row["then"], row["action"]) == (1, None, "left")
    assert "the logs lack transactions before the moment" in row["unknown"]["then"]
    assert "missing: " in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "0 moments or edits are given"),
        (("--at", "03:00", "--undo-tool"), "2 moments or edits are given"),
        (("--before-zxid", "100000001"), "is not a hexadecimal number"),
        (("--undo-session", "0xxyz"), "is not a hexadecimal number"),
        (("--at", "soon"), "is not a date and time"),
    ],
)
def test_wrong_input(call: Run, words: tuple[str, ...], text: str) -> None:
    """A wrong moment ends the command with code 2 before it reads anything."""
    given = ("offsets", "restore", "g", "-z", "127.0.0.1:1", "--data-dir", "/nowhere")
    code, _, err = call(*given, *words)
    assert code == 2
    assert text in err
