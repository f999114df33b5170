"""docs/history.md: its example runs unchanged, and its tables equal those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.zk.history_logs import LogWriter, changed, created, number
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.history import transactions as tx
from zkconsumer.history.incidents import KINDS
from zkconsumer.history.tables import TABLES
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration

PAGE = (Path(__file__).parents[2] / "docs" / "history.md").read_text(encoding="utf-8")
TP = TopicPartition("orders", 0)


def member(log: LogWriter, session: int, name: str, ms: int) -> None:
    log.add(tx.CREATE_SESSION, number(6000), session=session, ms=ms)
    data = encode_registration(Registration({"orders": 1}, timestamp_ms=1))
    path = paths.member("billing", name)
    log.add(tx.CREATE, created(path, data, ephemeral=True), session=session)
    thread = f"{name}-0".encode()
    path = paths.owner("billing", TP)
    log.add(tx.CREATE, created(path, thread, ephemeral=True), session=session)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints what the page shows, for a log with the page's events."""
    log = LogWriter()
    topic = b'{"version":1,"partitions":{"0":[1]}}'
    log.add(tx.CREATE, created(paths.topic("orders"), topic))
    member(log, 1, "billing_a", 0)
    log.add(tx.SET_DATA, changed(paths.offset("billing", TP), b"100"), session=1, ms=2000)
    log.add(tx.CLOSE_SESSION, b"", session=1, cxid=0, ms=8000)
    member(log, 2, "billing_b", 5000)
    log.add(tx.SET_DATA, changed(paths.offset("billing", TP), b"90"), session=2, ms=1000)
    log.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```console\n\$ (.*?)```", PAGE, re.DOTALL)
    command, _, shown = example.partition("\n")
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.stdout == shown


def test_the_tables() -> None:
    """The page lists every table and every kind of incident."""
    listed = set(re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE))
    assert listed >= TABLES.keys() | KINDS.keys()
