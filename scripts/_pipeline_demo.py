"""A Spark query and a JVM consumer share a legacy group, on a real ZooKeeper and a real broker.

Messages are produced during the whole demo. The query writes Parquet: its rows, and their number
per second and partition. A JVM consumer (Kafka 1.1.1) joins the group. The query is killed in the
middle of a batch, restarted on its checkpoint, and joins the group again. At the end everything
that was written is compared with the topic. The demo fails if a message is missing or wrong, if the
count of a window is wrong, or if a message was redelivered that was not in the batch in flight when
the query was killed.

Everything is in a temporary directory and on the loopback interface, and is removed at the end,
also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict

from _pipeline_run import DemoRun, Result
from rich.console import Console
from rich.table import Table

from zkconsumer.cli import was_interrupted
from zkconsumer.demo.group import view
from zkconsumer.errors import SandboxError


def show(result: Result) -> None:
    """Print the tables at the end to standard error."""
    console = Console(stderr=True)
    events = Table("event", title="Time to settle", title_justify="left")
    events.add_column("settled after", justify="right")
    for event in result.events:
        events.add_row(event.text, f"{event.settled_s:.2f} s")
    console.print(events)
    found = result.verdict
    table = Table("messages", title="Messages", title_justify="left")
    table.add_column("", justify="right")
    for name, count in (
        ("produced", found.produced),
        ("in the query's Parquet", found.spark),
        ("read by the JVM consumer", found.jvm),
        ("lost", found.lost),
        ("different in the Parquet and the topic", found.wrong),
        ("redelivered", found.duplicates),
        ("  of these, in the batch in flight at the kill", found.in_flight),
        ("windows of one second and partition", found.windows),
        ("  of these, with a wrong count", found.wrong_windows),
    ):
        table.add_row(name, f"{count:,}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/pipeline_demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=20_000,
        help="number of messages before the demo starts (default 20,000)",
    )
    parser.add_argument(
        "--partitions", type=int, default=8, help="number of partitions of the topic (default 8)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="also print the result as one JSON object on the last line",
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    try:
        with view() as shown:
            play = DemoRun(messages=given.messages, partitions=given.partitions, view=shown)
            result = play.run()
    except (Exception, KeyboardInterrupt) as error:
        if was_interrupted(error):
            sys.stderr.write("zkconsumer: interrupted\n")
            return 130
        if not isinstance(error, SandboxError):
            raise
        sys.stderr.write(f"zkconsumer: {error}\n")
        return 1
    show(result)
    if given.json:
        events = {event.name: event.settled_s for event in result.events}
        print(json.dumps({**asdict(result.verdict), "settled_s": events}))
    return 0 if result.verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
