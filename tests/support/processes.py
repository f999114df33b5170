"""Children of a process, and their command lines, from /proc."""

from __future__ import annotations

from pathlib import Path


def children(parent: int) -> set[int]:
    """Return the pids of a process's children that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
