"""What lets Spark's JVM go on with a task at once.

It sends a task's command and then its partition, each in a write of its own and without
`TCP_NODELAY` (Spark 4.3: `org.apache.spark.api.python.BasePythonRunner`). So Nagle's algorithm
holds the partition back until the command is acknowledged, and Linux puts that off for up to 40 ms,
as nothing is sent the other way meanwhile: most of what a short task takes.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress


def acknowledge() -> None:
    """Have this process's TCP connections acknowledge now what they have received.

    Which of them is Spark's no interface tells; others are none the worse for it. Where there is no
    `TCP_QUICKACK` (tcp(7)) or no `/proc`, nothing is done.
    """
    option: int | None = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not os.path.isdir("/proc/self/fd"):
        return
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or no TCP
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    one.setsockopt(socket.IPPROTO_TCP, option, 1)
