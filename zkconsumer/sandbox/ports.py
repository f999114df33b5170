"""Free ports of the loopback interface, reserved against other sandboxes."""

from __future__ import annotations

import errno
import random
import socket
import sys
from collections import deque

from zkconsumer.errors import SandboxError

HOST = "127.0.0.1"

# These ports lie below the ranges from which Linux (32768 and up) and macOS (49152 and up) take
# ports for outgoing connections. A server that restarts on its port must not find a client's
# connection there, and a client that connects to a stopped server's port must not be connected to
# itself.
RANGE = range(20_000, 32_768)

# Number of tries. A try fails if its port is in use, so 200 failures have another cause.
_TRIES = 200

_TAKEN = (errno.EADDRINUSE, errno.EACCES)


# A bound socket for each of the ports that were returned last. A server may bind its port late or
# again, as a ZooKeeper server does when it becomes leader; it must not find another sandbox there.
_held: deque[socket.socket] = deque(maxlen=64)


def free_port() -> int:
    """Return a port on which nothing listens now, and which no other sandbox received recently.

    Another process may take the port before the server does. In that case the caller should try
    again with another port.
    """
    for _ in range(_TRIES):
        port = random.choice(RANGE)
        if _hold(port) if sys.platform == "linux" else is_free(port):
            return port
    raise SandboxError(f"no free port in {RANGE.start} to {RANGE.stop - 1}")


def _hold(port: int) -> bool:
    """Reserve the port against `free_port` in all processes of this machine. Return False if it is
    in use.

    Servers set SO_REUSEADDR, so they may listen on a port that is bound by a socket which also set
    it. Only Linux allows that.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.bind((HOST, port))
    except OSError as error:
        held.close()
        if error.errno in _TAKEN:
            return False
        raise
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if len(_held) == _held.maxlen:
        _held.popleft().close()
    _held.append(held)
    return True


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Set the option as the servers do: connections of a server that has just ended are ignored.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
    return True
