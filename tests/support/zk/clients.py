"""The address of a client, from the text that a server prints for people."""

from __future__ import annotations

import re

from kazoo.client import KazooClient

from zkconsumer.sandbox import ZooKeeperServer


def address_of(server: ZooKeeperServer, client: KazooClient) -> str:
    """Return `HOST:PORT` of a client's connection to this server."""
    session = int(client.client_id[0])
    lines = server.command("cons").splitlines()
    (line,) = (one for one in lines if f"sid=0x{session:x}," in one)
    found = re.search(r"/([\d.]+:\d+)\[", line)
    assert found is not None, line
    return found[1]
