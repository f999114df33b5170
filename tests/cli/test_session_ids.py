"""Session ids are printed as ZooKeeper's servers print them."""

from __future__ import annotations

import re
from pathlib import Path

from cli.conftest import Run
from kazoo.client import KazooClient
from support.wait import LIMIT_S

from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.ports import free_port
from zkconsumer.sandbox.zookeeper import Peer

ROOT = Path(__file__).parents[2] / "zkconsumer"
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


def test_sessions_of_a_server_with_a_high_number(tmp_path: Path, call: Run) -> None:
    """The ids of a server whose number is above 127 are printed as its `dump` prints them."""
    peers = {200: Peer(free_port(), free_port())}
    settings = {"standaloneEnabled": "false"}
    with ZooKeeperServer(tmp_path, server_id=200, ensemble=peers, settings=settings) as server:
        client = KazooClient(server.connect, timeout=LIMIT_S)
        client.start(LIMIT_S)
        try:
            client.ensure_path("/brokers/ids")
            topic = b'{"version":1,"partitions":{"0":[0]}}'
            client.create("/brokers/topics/t", topic, makepath=True)
            client.create("/consumers/g/ids/g_a", REGISTRATION, ephemeral=True, makepath=True)
            client.create("/consumers/g/owners/t/0", b"g_b-0", ephemeral=True, makepath=True)
            (session,) = set(re.findall("0x[0-9a-f]{16}", server.command("dump")))
            assert session.startswith("0xc8")
            for words in (
                ("doctor", "g"),
                ("owners", "g", "-o", "json"),
            ):
                _, out, err = call(*words, "--zookeeper", server.connect)
                assert session in out + err, words
                assert "0x-" not in out + err, words
        finally:
            client.stop()
            client.close()


def test_one_function_prints_sessions() -> None:
    """No other code formats a session id: a format of Python prints high ids as negative."""
    formats = re.compile(r"(session|owner|ephemeralOwner|present)[\w.\[\]]*:#?x\}|session\w*\)?:#x")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if formats.search(line) and not line.strip().startswith('return f"0x{session & 0x')
    ]
    assert found == []
