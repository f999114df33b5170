"""The URLs that a command prints for its own HTTP server."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

REACHABLE: Final = "Every machine in the network can reach it."
"""What a command says if its server listens on all addresses."""


def listens_on_all(host: str) -> bool:
    """Return whether a server on this address or host name listens on all addresses."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def urls_of(host: str, port: int, path: str) -> list[str]:
    """Return the URLs of a page of a server that listens on `host`; the first is for this machine.

    0.0.0.0 and :: are addresses to listen on, but not every browser can open them.
    """
    names = ["localhost", socket.gethostname()] if listens_on_all(host) else [host]
    return [f"http://{f'[{name}]' if ':' in name else name}:{port}{path}" for name in names]
