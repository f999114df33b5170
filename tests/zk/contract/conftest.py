"""A server for the contract, and sessions on it that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from simcontract import SimServer
from zkcontract import Server


@pytest.fixture(params=["simulated", "sandbox", "container"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | SimServer]:
    """The simulated server, or a real one, with an empty directory for this test."""
    if request.param == "simulated":
        yield SimServer()
        return
    if request.param == "sandbox":
        address = request.getfixturevalue("zookeeper").connect
    else:
        address = request.getfixturevalue("container_zookeeper")
    with ExitStack() as stack:
        yield Server(address, stack)
