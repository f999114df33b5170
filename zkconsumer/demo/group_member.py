"""One member of the demo's group: `python -m zkconsumer.demo.group_member SETTINGS`.

Before it asks for the next batch, it records the messages it received, one line per batch. A line
is a JSON array of the time (monotonic, seconds) and of runs `[partition, first offset, count,
fencing token]`. Each line is one write to a file, so a SIGKILL loses no recorded line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from zkconsumer.frozen import dataclass

if TYPE_CHECKING:
    from zkconsumer import Message

# Seconds that a member without messages waits before it checks for signals again.
_TURN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member's settings.

    Attributes:
        zookeeper, group, topic, name: the group to join; `name` is the consumer.id.
        notes: the file for its records.
        rate: maximum number of messages per second; it makes the events visible.
        batch: number of messages to take at once.
        session_timeout_s: the session timeout, after which a killed member's znodes disappear.
    """

    zookeeper: str
    group: str
    topic: str
    name: str
    notes: str
    rate: float
    batch: int
    session_timeout_s: float

    def command(self) -> list[str]:
        """Return the command line of the member, which ends when its standard input is closed."""
        return [sys.executable, "-m", "zkconsumer.demo.group_member", json.dumps(asdict(self))]


def runs(batch: Iterable[Message[bytes, bytes]]) -> list[list[int]]:
    """Return `[partition, first offset, count, token]` of each run of consecutive offsets in a
    batch.
    """
    found: list[list[int]] = []
    last: dict[int, list[int]] = {}
    for message in batch:
        run = last.get(message.partition)
        if run and (run[1] + run[2], run[3]) == (message.offset, message.token):
            run[2] += 1
        else:
            run = [message.partition, message.offset, 1, message.token]
            last[message.partition] = run
            found.append(run)
    return found


def consume(member: Member) -> None:
    """Consume and record messages until SIGTERM, then leave the group cleanly."""
    from zkconsumer import ConsumerConfig, ConsumerConnector

    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    config = ConsumerConfig(
        group_id=member.group,
        zookeeper_connect=member.zookeeper,
        zookeeper_session_timeout_s=member.session_timeout_s,
        consumer_id=member.name,
        auto_offset_reset="smallest",
        auto_commit_interval_s=1.0,
    )
    notes = os.open(member.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({member.topic: 1})[member.topic]
        while not stopping:
            batch = stream.poll(max_messages=member.batch, timeout_s=_TURN_S)
            now = time.monotonic()
            if batch:
                os.write(notes, json.dumps([now, runs(batch)]).encode() + b"\n")
                time.sleep(len(batch) / member.rate)


def _end_with_the_parent() -> None:
    # Do not use sys.stdin: a thread must not hold its lock when the interpreter ends.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    consume(Member(**json.loads(sys.argv[1])))
