"""A program of a user whose numba does not finish compiling: a member reads all messages.

tests/brokers/test_idle_topics.py starts it with an empty cache of compiled loops. It prints one
JSON object.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from numba.core import event

from brokers.columnar_program import arrow_places, one_stream

begun, never = threading.Event(), threading.Event()


class Held(event.Listener):  # type: ignore[misc]  # numba has no types
    """Lets no thread compile a function; a thread that only looks into the cache may continue."""

    def on_start(self, event: Any) -> None:
        begun.set()
        never.wait()

    def on_end(self, event: Any) -> None: ...


def main(connect: str, topic: str, group: str, count: int, way: str) -> None:
    found: list[tuple[int, int]] = []
    with one_stream(connect, topic, group) as (connector, stream):
        while len(found) < count:
            if way == "poll":
                found += [(one.partition, one.offset) for one in stream.poll(timeout_s=0.5)]
            else:
                found += arrow_places(stream, timeout_s=0.5)
        begun.wait(60)  # the second large response has made a thread load numba
        connector.commit_offsets()
    sys.stdout.write(json.dumps({"found": sorted(found), "compiling": begun.is_set()}))


if __name__ == "__main__":
    server, read, name, least, asked = sys.argv[1:]
    with event.install_listener("numba:run_pass", Held()):
        main(server, read, name, int(least), asked)
