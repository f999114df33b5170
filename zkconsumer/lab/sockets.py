"""The lab's listening socket, which the command opens before it imports the server.

A browser that connects to it waits until the server is there, so both start at the same time.
"""

from __future__ import annotations

import socket

from zkconsumer.errors import ConfigError

DEFAULT_PORT = 8642


def listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket: on `port`, or on DEFAULT_PORT or, if that is taken, any other.

    Raises ConfigError if the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [DEFAULT_PORT, 0] if port is None else [port]:
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            continue
        sock.listen(128)
        return sock
    raise ConfigError(
        f"the lab cannot listen: {reason}",
        where=f"{host}:{port or DEFAULT_PORT}",
        remedy="choose another --port or --host",
    )


def address_of(sock: socket.socket) -> str:
    """Return the address of the page."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
