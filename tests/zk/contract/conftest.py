"""A server for the contract, and sessions on it that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from zkcontract import Server


@pytest.fixture
def server(any_zookeeper: str) -> Iterator[Server]:
    """A real server, with an empty directory for this test."""
    with ExitStack() as stack:
        yield Server(any_zookeeper, stack)
