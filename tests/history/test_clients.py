"""The clients of sessions: servers' logs and audit logs of each release, and recorded files."""

from __future__ import annotations

import gzip
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.zk.server_logs import GOLDEN, RELEASES
from support.zk.servers import release_number

from zkconsumer.errors import BadFileError, HistoryError
from zkconsumer.history.clients import Clients, name_clients, read_clients
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.history.tables import UNKNOWN, SessionClient

BEGIN_MS = round(datetime(2026, 1, 15, 12, tzinfo=UTC).timestamp() * 1000)
LAYOUT = "{time} [myid:1] - INFO  [main:ZooKeeperServer@694] - {what}\n"
ESTABLISHED = "Established session 0x{session} with negotiated timeout 6000 for client {address}"
CLOSED = "Closed socket connection for client {address} which had sessionid 0x{session}"


def log_of(*lines: tuple[str, str, str, str]) -> str:
    """Return the lines of a log: the time, a text, a session and an address."""
    return "".join(
        LAYOUT.format(time=time, what=what.format(session=session, address=address))
        for time, what, session, address in lines
    )


def read(folder: Path, text: str, *begun: tuple[int, int], name: str = "zookeeper.log") -> Clients:
    """Return the clients that a log names. `begun` are sessions with the time of their beginning,
    in seconds after noon."""
    (folder / name).write_text(text)
    lifetimes = {session: (BEGIN_MS + s * 1000, None) for session, s in begun}
    return read_clients(lifetimes, server_logs=[folder / name])


def after(seconds: float) -> int:
    return BEGIN_MS + round(seconds * 1000)


# ---- real logs -----------------------------------------------------------------------------------


def expected(release: str, level: str, user: str | None, ports: list[int]) -> tuple[bool, bool]:
    """Return whether the server's log shows the host of a client, and its last port."""
    if release_number(release) < (3, 5) or level == "debug":
        return True, True
    if release_number(release) < (3, 6):
        return False, False
    has_auth = user is not None and release_number(release) >= (3, 7)
    return has_auth or len(ports) == 2, has_auth


@pytest.mark.parametrize("level", ["info", "debug"])
@pytest.mark.parametrize("release", RELEASES)
def test_real_logs(release: str, level: str, tmp_path: Path) -> None:
    """The logs of a release show what docs/history.md says, and nothing wrong."""
    with tarfile.open(GOLDEN / f"{release}-{level}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    description = Description(find_servers([tmp_path / "version-2"]))
    description.read()
    found = description.result()
    for has_audit in (False, release_number(release) >= (3, 6)):
        logs = ["zookeeper.log", "zookeeper_audit.log"][: 1 + has_audit]
        clients = read_clients(found.lifetimes, server_logs=[tmp_path / name for name in logs])
        name_clients(found.tables, clients)
        assert not clients.unplaced
        for truth in json.loads((tmp_path / "truth.json").read_text()):
            session, user, ports = truth["session"], truth["user"], truth["ports"]
            host, port = expected(release, level, user, ports)
            first, last = (one if port else None for one in (ports[0], ports[-1]))
            known = (truth["host"] if host or has_audit else None, last)
            known += (user if has_audit else None,)
            tables = found.tables
            (row,) = (one for one in tables.sessions if f"0x{one.session % 2**64:x}" == session)
            assert (row.host, row.port, row.user) == known
            joined = [one for one in tables.members if one.session == row.session][:1]
            assert all(one.port == first for one in joined)
            written = [one for one in tables.commits if one.session == row.session]
            assert all((one.host, one.port, one.user) == known for one in written)
            assert written


# ---- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("/10.0.0.5:4711", SessionClient("10.0.0.5", 4711)),
        ("app-1.example/10.0.0.5:4711", SessionClient("10.0.0.5", 4711)),
        ("/[0:0:0:0:0:0:0:1]:4711", SessionClient("0:0:0:0:0:0:0:1", 4711)),
        ("/0:0:0:0:0:0:0:1:4711", SessionClient("0:0:0:0:0:0:0:1", 4711)),
        ("null", UNKNOWN),
    ],
)
def test_addresses(address: str, client: SessionClient, tmp_path: Path) -> None:
    """An address may have a name before it, and may be of IPv6; a closed socket has none."""
    text = log_of(("2026-01-15 12:00:01,000", ESTABLISHED, "ff00000000000001", address))
    found = read(tmp_path, text, (-0xFF_FFFF_FFFF_FFFF, 1))
    assert found.at(-0xFF_FFFF_FFFF_FFFF, after(2)) == client


@pytest.mark.parametrize(
    "layout",
    [
        "[2026-01-15 13:00:01,000] INFO {} (org.apache.zookeeper.server.ZooKeeperServer)\n",
        "Jan 15 13:00:01 zk1 java[1]: 2026-01-15 13:00:01,000 [myid:] - INFO {}\n",
        "2026-01-15T13:00:01.000+01:00 INFO {}\n",
        "2026-01-15T12:00:01.000Z stdout INFO {}\n",
    ],
)
def test_layouts(layout: str, tmp_path: Path) -> None:
    """The time may be anywhere in the line, and may have a zone."""
    line = layout.format(ESTABLISHED.format(session="1", address="/10.0.0.5:4711"))
    found = read(tmp_path, line, (1, 1))
    assert found.at(1, after(2)) == SessionClient("10.0.0.5", 4711)
    assert str(found.at(1, after(2))) == "10.0.0.5:4711"
    assert found.at(2, after(2)) == UNKNOWN


def test_a_session_that_moves(tmp_path: Path) -> None:
    """The last connection that began counts, even if the previous one ends after this begin."""
    text = log_of(
        ("2026-01-15 12:00:10,000", ESTABLISHED, "1", "/10.0.0.5:4711"),
        ("2026-01-15 12:00:20,000", ESTABLISHED, "1", "/10.0.0.6:4712"),
        ("2026-01-15 12:00:30,000", CLOSED, "1", "/10.0.0.5:4711"),
    )
    found = read(tmp_path, text, (1, 10))
    assert found.at(1, after(15)) == SessionClient("10.0.0.5", 4711)
    assert found.at(1, after(9)) == SessionClient(
        "10.0.0.5", 4711
    )  # the line follows the transaction
    assert found.at(1, after(25)) == SessionClient("10.0.0.6", 4712)
    assert found.at(1, after(0)) == UNKNOWN  # one of two hosts


def test_a_late_end(tmp_path: Path) -> None:
    """The end of a connection is no evidence that the session has it after that."""
    text = log_of(
        ("2026-01-15 12:00:10,000", ESTABLISHED, "1", "/10.0.0.5:4711"),
        ("2026-01-15 12:00:11,000", ESTABLISHED, "2", "/10.0.0.5:4713"),
        ("2026-01-15 12:00:20,000", CLOSED, "3", "/10.0.0.7:4714"),
    )
    found = read(tmp_path, text, (1, 10), (2, 11))
    assert found.at(3, after(15)) == SessionClient("10.0.0.7")
    assert found.at(3, after(25)) == SessionClient("10.0.0.7")


def test_zones(tmp_path: Path) -> None:
    """The zone is derived for each day: it changes in spring, and a renewal is no beginning."""
    text = log_of(
        ("2026-01-15 13:00:10,000", ESTABLISHED, "1", "/10.0.0.5:1"),
        ("2026-01-15 13:00:20,000", ESTABLISHED, "2", "/10.0.0.5:2"),
        ("2026-01-15 14:00:11,000", ESTABLISHED, "3", "/10.0.0.5:3"),  # an hour after its beginning
        ("2026-07-15 14:00:10,000", ESTABLISHED, "4", "/10.0.0.5:4"),
        ("2026-07-15 14:00:40,000", ESTABLISHED, "4", "/10.0.0.5:5"),
    )
    summer = round(datetime(2026, 7, 15, 12, tzinfo=UTC).timestamp() - BEGIN_MS / 1000)
    found = read(tmp_path, text, (1, 10), (2, 20), (3, 11), (4, summer + 10))
    assert found.at(1, after(10)).port == 1
    assert found.at(3, after(20)) == SessionClient("10.0.0.5")
    assert found.at(3, after(3700)).port == 3
    assert found.at(4, after(summer + 30)).port == 4
    assert found.at(4, after(summer + 50)).port == 5


def test_an_unknown_zone(tmp_path: Path) -> None:
    """If no session of a log is in the transactions, its folder is named; only hosts are known."""
    text = log_of(("2026-01-15 12:00:10,000", ESTABLISHED, "1", "/10.0.0.5:1"))
    found = read(tmp_path, text)
    assert found.unplaced == {str(tmp_path)}
    assert found.at(1, after(20)) == SessionClient("10.0.0.5")


def test_users(tmp_path: Path) -> None:
    """The audit log has the user; a port of the server's log counts while its connection exists."""
    session = "session=0x1\tuser={}\tip=10.0.0.5\toperation=setData\tznode=/a\tresult=success"
    ended = "session=0x1\tuser=zk\toperation=ephemeralZNodeDeletionOnSessionCloseOrExpire\tznode=/b"
    lines = [
        ("2026-01-15 12:00:10,100", session.format("10.0.0.5"), "", ""),
        ("2026-01-15 12:00:20,000", session.format("alice,10.0.0.5"), "", ""),
        ("2026-01-15 12:00:30,000", session.format("alice,10.0.0.5"), "", ""),
        ("2026-01-15 12:00:40,000", ended, "", ""),
    ]
    (tmp_path / "audit.log").write_text(log_of(*lines))
    text = log_of(
        ("2026-01-15 12:00:10,000", ESTABLISHED, "1", "/10.0.0.5:4711"),
        ("2026-01-15 12:00:25,000", CLOSED, "1", "/10.0.0.5:4711"),
    )
    (tmp_path / "zookeeper.out.1.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "log.1").write_bytes(b"\xff0x1")
    found = read_clients({1: (after(10), None)}, server_logs=[tmp_path])
    assert found.at(1, after(11)) == SessionClient("10.0.0.5", 4711, None)
    assert found.at(1, after(21)) == SessionClient("10.0.0.5", 4711, "alice")
    assert found.at(1, after(50)) == SessionClient("10.0.0.5", None, "alice")
    assert str(found.at(1, after(50))) == "10.0.0.5, user alice"


def test_a_large_log(tmp_path: Path) -> None:
    """Only wanted sessions are kept; the others still show the zone, and the progress is shown."""
    lines = [(f"2026-01-15 13:00:{n % 60:02},000", n) for n in range(1, 20_001)]
    text = log_of(*((time, ESTABLISHED, f"{n:x}", "/10.0.0.5:4711") for time, n in lines))
    (tmp_path / "zookeeper.log").write_text(text)
    progress: list[int] = []
    found = read_clients(
        {n: (BEGIN_MS + n * 1000, None) for n in range(1, 20)},
        server_logs=[tmp_path],
        wanted={7, 50},
        on_progress=progress.append,
    )
    assert found.connections.keys() == {7, 50}
    assert found.at(7, after(8)) == found.at(50, after(51)) == SessionClient("10.0.0.5", 4711)
    assert not found.unplaced
    assert progress == [20_000]


def test_files_that_name_no_client(tmp_path: Path) -> None:
    """A log without clients is named; a wrong path and a damaged file are errors."""
    (tmp_path / "empty.log").write_text("2026-01-15 12:00:10,000 INFO Snapshotting: 0x0\n")
    assert read_clients({}, server_logs=[tmp_path]).silent == [str(tmp_path)]
    (tmp_path / "other").mkdir()
    for path in ("missing.log", "other"):
        with pytest.raises(BadFileError, match=path):
            read_clients({}, server_logs=[tmp_path / path])
    (tmp_path / "zookeeper.log.gz").write_bytes(gzip.compress(b"0x1" * 1000)[:20])
    with pytest.raises(HistoryError, match=r"zookeeper\.log\.gz"):
        read_clients({}, server_logs=[tmp_path / "zookeeper.log.gz"])
    (tmp_path / "recorded").write_text('{"event": "connected"}\n')
    with pytest.raises(BadFileError, match="recorded, line 1"):
        read_clients({}, connections=[tmp_path / "recorded"])
