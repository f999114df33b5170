"""Free ports of the loopback interface, and who asks for one that is not free."""

from __future__ import annotations

import errno
import random
import socket
import sys
from collections import deque

from zkconsumer.errors import SandboxError

HOST = "127.0.0.1"

# Below the ranges from which Linux (32768 up) and macOS (49152 up) take ports for outgoing
# connections: a server that restarts on its port must not find a client's connection there, and a
# client that knocks at a stopped server's port must not be connected to itself.
_RANGE = range(20_000, 32_768)

# Each try misses with the share of ports in use; 200 misses mean that something else is wrong.
_TRIES = 200

_TAKEN = (errno.EADDRINUSE, errno.EACCES)


# Ports that were given out last, each as a socket that is bound to it. Who binds a port late or
# anew, as a server of ZooKeeper does when it begins to lead, must not find another sandbox on it.
_held: deque[socket.socket] = deque(maxlen=64)


def free_port() -> int:
    """A port nothing listens on at this moment, and which no other sandbox has been given lately.

    Somebody else may take it before the server does: whoever starts the server tries again with
    another.
    """
    for _ in range(_TRIES):
        port = random.choice(_RANGE)
        if _hold(port) if sys.platform == "linux" else is_free(port):
            return port
    raise SandboxError(f"no free port in {_RANGE.start} to {_RANGE.stop - 1}")


def _hold(port: int) -> bool:
    """Hold the port against `free_port` anywhere on this machine; False if somebody else has it.

    Servers set SO_REUSEADDR, and may listen where nobody does who set it, too. Linux alone allows
    that.
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
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections of a server that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
    return True
