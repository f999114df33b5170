"""The file of `zkconsumer history record`: what it contains, and what interrupts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zkconsumer.admin.connection_log import ConnectionChange, ConnectionLog
from zkconsumer.errors import BadFileError, ConfigError, HistoryError
from zkconsumer.history.clients import Clients, parts_of, read_clients
from zkconsumer.history.tables import SessionClient
from zkconsumer.zk.clients import ConnectedClient, ServerClients


def listed(server: str, **clients: int | None) -> ServerClients:
    """Return what a server lists: the name `s1` is the session 1, from the port 1001."""
    found = {
        int(name[1:]): ConnectedClient(f"10.0.0.5:{1000 + int(name[1:])}", since_ms=since_ms)
        for name, since_ms in clients.items()
    }
    return ServerClients(server, found)


def clients_of(path: Path) -> Clients:
    return read_clients({}, connections=[path])


def lines_of(path: Path) -> list[tuple[str, str | None]]:
    """Return the event and the session of each line."""
    lines = map(json.loads, path.read_text().splitlines())
    return [(one["event"], one.get("session")) for one in lines]


def test_changes_of_connections(tmp_path: Path) -> None:
    """Only new and lost connections are written, and a silent server loses none."""
    path = tmp_path / "recorded"
    with ConnectionLog(path) as log:
        assert log.add([listed("a", s1=100), listed("b", s2=None)], 500).connected == 2
        assert log.add([listed("a", s1=100), listed("b", s2=None)], 600) == ConnectionChange(
            0, 0, {}, []
        )
        silent = ServerClients("a", {}, "no quorum")
        assert log.add([silent, listed("b")], 700) == ConnectionChange(0, 1, {"a": "no quorum"}, [])
        assert log.add([silent, listed("b")], 800).silent == {}
        assert log.add([listed("a", s1=100), listed("b")], 900) == ConnectionChange(0, 0, {}, ["a"])
        assert log.add([listed("a", s1=950), listed("b")], 1000)[:2] == (1, 1)
    assert lines_of(path) == [
        ("connected", "0x1"),
        ("connected", "0x2"),
        ("silent", None),
        ("gone", "0x2"),
        ("listed", None),
        ("gone", "0x1"),
        ("connected", "0x1"),
    ]
    found = clients_of(path)
    assert found.at(1, 5000) == SessionClient("10.0.0.5", 1001)
    assert found.at(2, 650) == SessionClient("10.0.0.5", 1002)
    assert found.at(3, 650) == SessionClient()


def test_a_file_that_is_continued(tmp_path: Path) -> None:
    """A later process continues the file, and cuts off a torn line."""
    path = tmp_path / "recorded"
    with ConnectionLog(path) as log:
        log.add([listed("a", s1=100)], 500)
        with pytest.raises(ConfigError, match="another process records into this file"):
            ConnectionLog(path)
    with path.open("a") as file:
        file.write('{"event": "conn')
    assert clients_of(path).at(1, 500) == SessionClient("10.0.0.5", 1001)
    with ConnectionLog(path) as log:
        log.add([listed("a", s1=100, s2=600)], 700)
    assert [session for _, session in lines_of(path)] == ["0x1", "0x1", "0x2"]


def test_parts(tmp_path: Path) -> None:
    """A large file becomes an older part; each part names all connections; old parts go."""
    path = tmp_path / "recorded"
    with ConnectionLog(path, most_bytes=200, parts=3) as log:
        for number in range(2, 12):
            log.add([listed("a", s1=100, **{f"s{number}": 100 * number})], 100 * number)
    assert [one.name for one in parts_of(path)] == ["recorded.2", "recorded.1", "recorded"]
    assert all(("connected", "0x1") in lines_of(one) for one in parts_of(path))
    assert clients_of(path).at(11, 5000) == SessionClient("10.0.0.5", 1011)


@pytest.mark.parametrize("text", ["orders-0 7\n", "no line"])
def test_another_file(text: str, tmp_path: Path) -> None:
    """A file with another content is refused, and stays as it is."""
    path = tmp_path / "offsets"
    path.write_text(text)
    with pytest.raises(BadFileError, match="`zkconsumer history record` did not write this file"):
        ConnectionLog(path)
    assert path.read_text() == text
    with pytest.raises(HistoryError, match="cannot be written"):
        ConnectionLog(tmp_path / "missing" / "recorded")
