"""The URLs that a command prints for its own HTTP server."""

from __future__ import annotations

import socket

import pytest

from zkconsumer.cli.urls import listens_on_all, urls_of

NAME = socket.gethostname()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0::0", ""])
def test_all_addresses(host: str) -> None:
    """A server on all addresses is reached under localhost and under the machine's name."""
    assert listens_on_all(host)
    assert urls_of(host, 80, "/") == ["http://localhost:80/", f"http://{NAME}:80/"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/metrics"),
        ("::1", "http://[::1]:80/metrics"),
        ("lab.example", "http://lab.example:80/metrics"),
    ],
)
def test_one_address(host: str, url: str) -> None:
    """A server on one address is reached under this address."""
    assert not listens_on_all(host)
    assert urls_of(host, 80, "/metrics") == [url]
