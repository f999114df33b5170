"""The command `zkconsumer history`: report, timeline, tables, damaged logs, and --follow."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Run
from jsonschema import Draft202012Validator
from support.zk.history_logs import HEADER, LogWriter, changed, created, number
from support.zk.server_logs import Client
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.history import transactions as tx
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer


class Billing(LogWriter):
    """The log of a group `billing`: its only member expires at 22:13:30, the next joins late."""

    def member(self, session: int, name: str, ms: int = 0) -> None:
        data = encode_registration(Registration({"orders": 1}, timestamp_ms=1))
        self.add(tx.CREATE_SESSION, number(6000), session=session, ms=ms)
        path = paths.member("billing", name)
        self.add(tx.CREATE, created(path, data, ephemeral=True), session=session)
        path = paths.owner("billing", TopicPartition("orders", 0))
        thread = f"{name}-0".encode()
        self.add(tx.CREATE, created(path, thread, ephemeral=True), session=session)

    def commit(self, session: int, offset: int, ms: int = 0) -> None:
        path = paths.offset("billing", TopicPartition("orders", 0))
        self.add(tx.SET_DATA, changed(path, b"%d" % offset), session=session, ms=ms)


@pytest.fixture
def billing(tmp_path: Path) -> Billing:
    log = Billing()
    topic = b'{"version":1,"partitions":{"0":[1]}}'
    log.add(tx.CREATE, created(paths.topic("orders"), topic))
    log.member(1, "billing_a")
    log.commit(1, 100, 2000)
    log.add(tx.CLOSE_SESSION, b"", session=1, cxid=0, ms=8000)
    log.member(2, "billing_b", 5000)
    log.commit(2, 90, 1000)
    log.write(tmp_path)
    return log


@pytest.fixture
def run(tmp_path: Path, billing: Billing) -> Callable[..., str]:
    def command(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["history", *words, "--data-dir", str(tmp_path)])
        assert done.exit_code == code, done.output
        return done.stdout

    return command


def test_the_report(run: Callable[..., str]) -> None:
    """The report has the group's figures, the incident and the rebalances with their reasons."""
    found = json.loads(run("report", "--output", "json"))
    (group,) = found["groups"]
    assert (group["expired"], group["unowned_s"], group["moved_back"]) == (1, 5.0, 1)
    (incident,) = found["incidents"]
    assert incident["what"] == "billing_b moved orders-0 back from 100 to 90"
    assert incident["time"] == "2023-11-14T22:13:36.000Z"
    assert [one["trigger"] for one in found["rebalances"]] == [
        "billing_a joined",
        "billing_a expired",
        "billing_b joined",
    ]


def test_the_report_for_people(run: Callable[..., str]) -> None:
    """The table has one section for groups, one for incidents and one for rebalances."""
    text = run("report")
    assert [line for line in text.splitlines() if " " not in line and line] == [
        "groups",
        "incidents",
        "rebalances",
    ]


_LARGE = """
from zkconsumer.cli import main
from zkconsumer.history import inputs
inputs.FAST_FROM = 0  # so that this small log is large enough for compiled loops
main()
"""


def test_compiling_is_announced(billing: Billing, tmp_path: Path) -> None:
    """A report of large logs says that it compiles the decoder, the first time on a machine."""
    done = subprocess.run(
        [sys.executable, "-c", _LARGE, "history", "report", "--data-dir", str(tmp_path)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    note = "loading the decoder of ZooKeeper's logs; the first time on a machine, it is compiled"
    assert note in done.stderr


def test_the_page(run: Callable[..., str]) -> None:
    """The page has a lane for each partition, a bar for each ownership, and the incident."""
    page = run("report", "--output", "html")
    assert page.count("<rect ") == 2
    assert "billing orders-0" in page
    assert "moved orders-0 back from 100 to 90" in page


def test_the_timeline(run: Callable[..., str]) -> None:
    """The timeline has one line per event, sorted by time, within the requested span."""
    rows = list(csv.DictReader(io.StringIO(run("timeline", "--output", "csv"))))
    assert [row["what"] for row in rows][:4] == [
        "billing_a joined (session 0x1)",
        "a rebalance began: billing_a joined",
        "billing_a-0 claimed orders-0",
        "billing_a began to commit orders-0 at 100",
    ]
    late = run("timeline", "--output", "jsonl", "--from", "2023-11-14T22:13:36")
    assert "moved orders-0 back" in late
    assert "billing_a joined (session" not in late


def test_an_unknown_time(run: Callable[..., str], tmp_path: Path) -> None:
    """A problem before the first event of a group has no time: not in 1970, but "-"."""
    (tmp_path / "log.1").unlink()
    log = Billing(zxid=0x500)
    log.member(1, "billing_a")
    log.write(tmp_path, "log.501")
    assert json.loads(run("timeline", "-o", "jsonl", code=1).splitlines()[0])["time"] == "-"
    assert "1970" not in run("report", "-o", "html")
    command = ["history", "timeline", "--follow", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "zkconsumer", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("-  -  incident   missing: ")
        finally:
            process.kill()


def test_names_of_machines(run: Callable[..., str], tmp_path: Path) -> None:
    """Logs of a server give events a host, a port and a user, in each format."""
    established = "Established session 0x{} with negotiated timeout 6000 for client /10.0.0.{}:47"
    times = ("23:13:20", "23:13:33")  # of a server an hour east of UTC
    (tmp_path / "zookeeper.log").write_text(
        "".join(
            f"2023-11-14 {time},000 INFO {established.format(one, one)}\n"
            for one, time in enumerate(times, start=1)
        )
    )
    (tmp_path / "audit.log").write_text(
        "2023-11-14 23:13:36,000 INFO session=0x2\tuser=alice,10.0.0.2\tip=10.0.0.2\t"
        "operation=setData\tznode=/a\tresult=success\n"
    )
    logs = [f"--server-log={tmp_path}/zookeeper.log", f"--audit-log={tmp_path}/audit.log"]
    (incident,) = json.loads(run("report", "--output", "json", *logs))["incidents"]
    assert (incident["host"], incident["port"], incident["user"]) == ("10.0.0.2", 47, "alice")
    assert "<td>10.0.0.2</td><td>47</td><td>alice</td>" in run("report", "--output=html", *logs)
    assert "billing_b-0 (10.0.0.2:47, user alice), 2023" in run("report", "--output=html", *logs)
    rows = list(csv.DictReader(io.StringIO(run("timeline", "--output", "csv", *logs))))
    hosts = {(row["kind"], row["host"]) for row in rows}
    assert {("member", "10.0.0.1"), ("owner", "10.0.0.2"), ("commit", "10.0.0.2")} <= hosts
    assert ("rebalance", "") in hosts
    owners = json.loads(run("show", "ownership", "--output", "json", *logs[:1]))
    assert [(one["host"], one["user"]) for one in owners] == [
        ("10.0.0.1", None),
        ("10.0.0.2", None),
    ]
    people = run("timeline", *logs[:1])
    assert "  HOST" in people
    assert "USER" not in people
    assert "HOST" not in run("timeline") + run("report")


@pytest.mark.parametrize(
    ("table", "rows"),
    [("transactions", 10), ("sessions", 2), ("members", 3), ("ownership", 2), ("commits", 2)],
)
def test_tables(run: Callable[..., str], table: str, rows: int) -> None:
    """`show` prints all rows of a table as JSON or as JSON Lines."""
    found = json.loads(run("show", table, "--output", "json"))
    assert len(found) == rows
    assert all({"zxid", "time_ms", "file"} <= row.keys() for row in found)
    assert len(run("show", table, "--output", "jsonl").splitlines()) == rows


def test_schemas(run: Callable[..., str]) -> None:
    """The JSON of the report, of the timeline and of each table fits its published schema."""
    tables = [name.removeprefix("history-show-") for name in schemas() if "history-show" in name]
    assert len(tables) == 7
    commands = {"report": "report", "timeline": "timeline"}
    for name, words in (commands | {f"show-{one}": f"show {one}" for one in tables}).items():
        document = json.loads(run(*words.split(), "--output", "json"))
        schema = schemas()[f"history-{name}"]
        Draft202012Validator(schema).validate(document)
        sections = {name: document} if isinstance(document, list) else document
        for section, rows in sections.items():
            assert rows, (name, section)
            published = schema.get("items") or schema["properties"][section]["items"]
            assert all(set(row) == set(published["required"]) for row in rows), (name, section)


def test_other_groups_are_left_out(run: Callable[..., str]) -> None:
    """If --group names another group, the report is empty."""
    assert json.loads(run("report", "--group", "other", "--output", "json"))["groups"] == []


def test_damage(run: Callable[..., str], billing: Billing, tmp_path: Path) -> None:
    """A damaged log is read up to the damage, whose byte offset is named; exit code 1."""
    content = bytearray(billing.content())
    content[-70] ^= 1
    (tmp_path / "log.1").write_bytes(content)
    found = json.loads(run("report", "--output", "json", code=1))
    assert [one["kind"] for one in found["incidents"]] == ["damaged"]
    start = len(billing.content()) - len(billing.entries[-1])
    assert found["incidents"][0]["file"] == f"{tmp_path / 'log.1'}, byte {start}"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "owners", "-d", "."], "there is no table 'owners'"),
        (["show", "transactions", "-d", ".", "-g", "g"], "contains the operations of all programs"),
        (["report", "-d", "/nonexistent"], "the path does not exist (/nonexistent)"),
        (["report", "-d", __file__], "the name of the file is neither"),
        (["report", "-d", str(Path(__file__).parent)], "there is no transaction log"),
        (["report", "-d", ".", "--from", "noon"], "'noon' is not a date and time"),
    ],
)
def test_wrong_use(call: Run, words: list[str], text: str) -> None:
    """For wrong arguments one sentence says what is wrong; exit code 2."""
    code, _, err = call("history", *words)
    assert code == 2
    assert text in err
    assert len(err.splitlines()) == 1


def test_following(billing: Billing, tmp_path: Path) -> None:
    """With --follow, lines appear for transactions that a server writes during the command."""
    command = ["history", "timeline", "--follow", "--data-dir", str(tmp_path), "-o", "jsonl"]
    with subprocess.Popen(
        [sys.executable, "-m", "zkconsumer", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "billing_a joined" in json.loads(process.stdout.readline())["what"]
            billing.add(tx.CLOSE_SESSION, b"", session=2, cxid=0, ms=3000)
            billing.write(tmp_path, zeros=100)
            assert any("billing_b expired" in line for line in process.stdout)
        finally:
            process.kill()


def test_a_file_that_comes_late_while_following(billing: Billing, tmp_path: Path) -> None:
    """With --follow, the events of an older log that appears later are shown, and it is named."""
    (tmp_path / "log.1").unlink()
    old = HEADER + b"".join(billing.entries[:6])
    new = HEADER + b"".join(billing.entries[6:])
    (tmp_path / f"log.{7:x}").write_bytes(new)
    command = ["history", "timeline", "--follow", "--data-dir", str(tmp_path), "-o", "jsonl"]
    with subprocess.Popen(
        [sys.executable, "-m", "zkconsumer", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert any("billing_b joined" in line for line in process.stdout)
            (tmp_path / "log.1").write_bytes(old)
            assert any("billing_a joined" in line for line in process.stdout)
            assert any("log.1 came late" in line for line in process.stderr)
        finally:
            process.kill()


def test_recorded_connections(zookeeper: ZooKeeperServer, call: Run, tmp_path: Path) -> None:
    """`record` writes a real server's connections, and `--connections` names a member by them."""
    file = tmp_path / "connections.jsonl"
    client = Client(zookeeper.connect, "127.0.0.2")
    data = encode_registration(Registration({"orders": 1}, timestamp_ms=1))
    path = paths.member("recorded", "recorded_a")
    client.kazoo.create(path, data, ephemeral=True, makepath=True)
    words = ("history", "record", "-z", zookeeper.connect, "--file", str(file))
    code, _, err = call(*words, "--interval", "0.1", "--duration", "0.3")
    client.close()
    assert code == 0, err
    words = ("--data-dir", str(zookeeper.directory / "data"), "--group", "recorded")
    code, out, _ = call("history", "timeline", *words, "--connections", str(file), "-o", "json")
    joined = next(row for row in json.loads(out) if row["kind"] == "member")
    assert (joined["host"], [joined["port"]]) == ("127.0.0.2", client.ports)
    code, _, err = call("history", "record", "-z", "127.0.0.1:1", "--file", str(file))
    assert code != 0
    assert "no server lists its clients: 127.0.0.1:1: there is no answer to `cons`" in err
