"""The exit codes of the process."""

from __future__ import annotations

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

    Attributes:
        OK: the command succeeded, and a check found no problem.
        FAILED: the command failed, or its result is incomplete.
        USAGE: wrong usage or wrong configuration.
        UNREACHABLE: ZooKeeper cannot be reached, or the chroot does not exist.
        REFUSED: a safety check refused the change; nothing was written.
        IN_PART: the change was applied in part.
        FOUND: the check ran, and it found a problem.
        INTERRUPTED: Ctrl-C interrupted the command.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    IN_PART = 5
    FOUND = 6
    INTERRUPTED = 130


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
