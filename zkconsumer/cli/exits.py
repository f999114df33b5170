"""The exit codes of the process."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from zkconsumer.errors import (
    AppliedInPartError,
    ChrootMissingError,
    ConfigError,
    RefusedError,
    TraceDiffersError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)


class Exit(IntEnum):
    """An exit code.

    FOUND is not 1: Python exits with 1 after an unexpected error, and a probe must distinguish a
    finding from a failure.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    IN_PART = 5
    FOUND = 6
    INTERRUPTED = 130


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "The command succeeded, and a check found no problem.",
    Exit.FAILED: "The command failed, or its result is incomplete.",
    Exit.USAGE: "Wrong usage or wrong configuration.",
    Exit.UNREACHABLE: "ZooKeeper cannot be reached, or the chroot does not exist.",
    Exit.REFUSED: "A safety check refused the change; nothing was written.",
    Exit.IN_PART: "The change was applied in part; the output says how to complete or undo it.",
    Exit.FOUND: "The check ran, and it found a problem.",
    Exit.INTERRUPTED: "Ctrl-C interrupted the command.",
}
"""What each exit code means; docs/operators.md contains this table."""


def exit_code(error: ZkConsumerError) -> Exit:
    """Return the exit code for an error that ends a command."""
    match error:
        case ConfigError():
            return Exit.USAGE
        case ZooKeeperUnreachableError() | ChrootMissingError():
            return Exit.UNREACHABLE
        case RefusedError():
            return Exit.REFUSED
        case AppliedInPartError():
            return Exit.IN_PART
        case TraceDiffersError():
            return Exit.FOUND
        case _:
            return Exit.FAILED
