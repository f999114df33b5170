"""Compare two ways from ZooKeeper to Kafka's group protocol on real servers.

Two JVM members of 1.1.1 read a topic, while messages arrive. Two confluent-kafka members replace
them:

- stop: the old members stop, `zkconsumer migrate zookeeper-to-kafka --execute` copies the offsets,
  and the new members start;
- bridge: `zkconsumer bridge` starts, new members start and old ones stop one after the other, and
  `zkconsumer bridge finish` ends the bridge.

A partition is unread during a pause between two deliveries that is at least three times its usual
one, the median. Redelivered and lost messages are counted, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import _records
from _bench import Result, add_json, at_most, show, without_goal
from support.members.bridged_group import BridgedGroup

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.sandbox import Sandbox

LONG = 3.0
"""How many usual pauses between two deliveries are a pause without a reader."""

BEFORE_S = 10.0
"""Seconds before a move whose deliveries count, because a pause may begin before the move."""

PACE_S = 0.004
"""The pause, in seconds, between two messages of the topic."""


def stop(group: BridgedGroup) -> None:
    """Stop the old members, copy the offsets, and start new members."""
    for member in list(group.members.values()):
        member.leave()
    done = group.command("migrate", "zookeeper-to-kafka", "-g", group.name, "--execute")
    if done.returncode:
        raise SystemExit(done.stderr)
    for _ in range(2):
        group.new("librdkafka", "range")


def bridge(group: BridgedGroup) -> None:
    """Replace the members one after the other, with a bridge."""
    running = group.bridge()
    running.wait("runs")
    for member in list(group.members.values()):
        group.new("librdkafka", "range")
        group.wait_for_share("new", *range(1, group.partitions + 1))
        member.leave()
    group.order("finish")
    running.wait_for_end()


WAYS: dict[str, Callable[[BridgedGroup], None]] = {"stop": stop, "bridge": bridge}


def unread(group: BridgedGroup, since: float) -> list[float]:
    """Return for each partition the seconds, since a time of `boottime`, in which it was unread."""
    times: dict[int, list[float]] = defaultdict(list)
    for one in sorted(group.deliveries(since - BEFORE_S)):
        times[one.partition.partition].append(one.t)
    return [_unread(at, since) for at in times.values()]


def _unread(times: list[float], since: float) -> float:
    pauses = [(end, end - begin) for begin, end in pairwise(times)]
    usual = statistics.median(length for _, length in pauses)
    return sum(length - usual for end, length in pauses if end >= since and length >= LONG * usual)


def bench(way: str, sandbox: Sandbox, place: Path, partitions: int) -> list[Result]:
    """Move a group, and return its figures."""
    with ExitStack() as stack:
        group = BridgedGroup(
            sandbox, place, stack, name=f"moves-by-{way}", partitions=partitions, pace_s=PACE_S
        )
        for _ in range(2):
            group.old("1.1.1")
        group.wait_for_all("old")
        since = boottime()
        WAYS[way](group)
        group.wait_for_all("new")
        took = boottime() - since
        verdict = group.finish()
        seconds = unread(group, since)
    lost = sum(map(len, verdict.lost.values()))
    again = len(verdict.unexplained) + sum(verdict.explained.values())
    return [
        without_goal(way, "duration", took, "s"),
        without_goal(way, "unread, mean", statistics.mean(seconds), "s"),
        without_goal(way, "unread, max", max(seconds), "s"),
        without_goal(way, "redelivered", again, "messages"),
        at_most(way, "lost", lost, "messages", 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_bridge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=64, help="default: 64")
    parser.add_argument("--release", default="3.9.1", help="release of the broker (default: 3.9.1)")
    add_json(parser)
    parser.add_argument("--record", action="store_true", help="write a record to docs/records/")
    given = parser.parse_args()
    started, results = time.monotonic(), list[Result]()
    with (
        tempfile.TemporaryDirectory(prefix="zkconsumer-bench-") as place,
        Sandbox(release=given.release) as sandbox,
    ):
        for way in WAYS:
            results += bench(way, sandbox, Path(place), given.partitions)
    if given.record:
        _records.write(
            "moves",
            seconds=time.monotonic() - started,
            counts={f"{one.case}: {one.metric}": one.value for one in results},
            partitions=given.partitions,
            release=given.release,
            name=given.release,
        )
    return show("bridge", results, output=given.output)


if __name__ == "__main__":
    sys.exit(main())
