"""Inject the faults of an hour into a real group within minutes, and read the group's history on
Spark.

A group of zkconsumer members and JVM consumers (Kafka 1.1.1) consumes a topic, on an ensemble of
three ZooKeeper servers. If a fault occurs every 90 s, an hour has 40 faults. The demo does not wait
that long between them: they follow each other within seconds. Members join, leave, are killed and
paused; connections break, are silent and lose replies; the leader is killed; another client deletes
owner znodes and offsets, sets offsets back, and blocks a partition.

Then the pipeline runs on a standalone Spark cluster: it reads the servers' transaction logs and
writes the tables of the history as Parquet. The first run reads the logs of the running servers,
the second run what they wrote until they stopped. The report is a page of HTML with charts.

At the end the tables are compared with what really happened. A second reader of the logs, written
for the tests, derives each row in another way; the traces of the zkconsumer members and the logs of
the JVM members name their claims, registrations and commits. The exit code is 1 if a row is missing
or if a row never happened.

Servers and members are on the loopback interface and are ended when the demo ends, also after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from _history_charts import charts
from _history_run import DemoRun, RunRecords
from _history_scene import GROUP
from support.history.real import moments, reports
from support.history.truth import Differences, Truth, differences
from support.members.replay import Record

from zkconsumer.cli import was_interrupted
from zkconsumer.errors import SandboxError
from zkconsumer.history.page import page
from zkconsumer.history.report import TimeSpan
from zkconsumer.protocol.model import TopicPartition

SHOWN = 20
"""Differences that are printed."""


def compared(evidence: RunRecords) -> Differences:
    """Compare the tables with the logs, read in another way, and with the members' records."""
    records = [Record(one.stem, one, ()) for one in evidence.traces if begun(one)]
    truth = Truth(moments(evidence.logs), GROUP)
    found = differences(truth, evidence.history, reports(records))
    owned = Counter(
        (row.thread, TopicPartition(row.topic, row.partition))
        for row in evidence.history.tables.ownership
    )
    threads = {thread for thread, _ in evidence.claims}
    of_jvms = Counter({key: count for key, count in owned.items() if key[0] in threads})
    found.missed += [f"JVM's claim: {one}" for one in (evidence.claims - of_jvms).elements()]
    unlogged = list((of_jvms - evidence.claims).elements())
    if len(unlogged) > evidence.jvm_interruptions:
        found.invented += [f"JVM's claim: {one}" for one in unlogged]
    found.compared["JVM members' claims"] += evidence.claims.total()
    return found


def begun(trace: Path) -> bool:
    """Return whether a trace has a step; a member that could not join has none."""
    return trace.read_bytes().count(b"\n") > 1


def show(evidence: RunRecords, found: Differences) -> None:
    """Print the tables at the end to standard error."""
    console = Console(stderr=True)
    faults = Table("fault", "times", title="Faults", title_justify="left")
    for name, count in sorted(evidence.faults.items()):
        faults.add_row(name, str(count))
    console.print(faults)
    rows = Table("compared with", "rows", title="Comparison", title_justify="left")
    for name, count in sorted(found.compared.items()):
        rows.add_row(name, f"{count:,}")
    for name, lines in (("missed", found.missed), ("invented", found.invented)):
        rows.add_row(name, f"{len(lines):,}")
    console.print(rows)
    for name, lines in (("missed", found.missed), ("invented", found.invented)):
        for line in lines[:SHOWN]:
            console.print(f"{name}: {line}", markup=False, highlight=False)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/history_demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--faults", type=int, default=40, help="number of faults (default 40)")
    add(
        "--minutes",
        type=float,
        default=10.0,
        help="minutes after which no fault is injected (default 10)",
    )
    add("--seed", type=int, default=1, help="determines the order of the faults (default 1)")
    add(
        "--output",
        type=Path,
        default=Path("history-demo"),
        help="new directory for the report, the tables, the logs and the members' traces "
        "(default history-demo)",
    )
    add("--json", action="store_true", help="also print the result as one JSON object")
    given = parser.parse_args()
    if given.faults < 1 or given.minutes <= 0:
        parser.error("--faults and --minutes must be greater than 0")
    if given.output.exists():
        parser.error(f"{given.output} exists already; remove it, or use another --output")
    return given


def main() -> int:
    given = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # kazoo warns of each injected fault.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s {text}\n")

    try:
        given.output.mkdir(parents=True)
        play = DemoRun(
            faults=given.faults,
            limit_s=60 * given.minutes,
            seed=given.seed,
            output=given.output,
            say=say,
        )
        evidence = play.run()
        report = given.output / "report.html"
        found = evidence.history
        report.write_text(page(found, TimeSpan(), charts(found)), encoding="utf-8")
        say("comparing the tables with what really happened")
        result = compared(evidence)
    except (Exception, KeyboardInterrupt) as error:
        interrupted = was_interrupted(error)
        if not interrupted and not isinstance(error, SandboxError):
            raise
        shutil.rmtree(given.output, ignore_errors=True)  # an incomplete run has no result
        sys.stderr.write(f"zkconsumer: {'interrupted' if interrupted else error}\n")
        return 130 if interrupted else 1
    show(evidence, result)
    say(f"the report is {report}")
    if given.json:
        counts = {"missed": len(result.missed), "invented": len(result.invented)}
        more = {"runs": evidence.runs, "seconds": round(evidence.seconds, 1)}
        print(json.dumps({**counts, **more, "faults": evidence.faults, "rows": result.compared}))
    return 1 if result.missed or result.invented else 0


if __name__ == "__main__":
    sys.exit(main())
