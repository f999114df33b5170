"""Measure the assignors with 10,000 partitions and 200 threads.

Each thread belongs to a separate member, which is the case with the most work. `one-topic`: one
topic has all partitions. `many-topics`: 100 topics have 100 partitions each, and every member
subscribes to all of them. `unequal`: the same topics, and each member subscribes to a different
half.

Each figure is the median time of one call over `--rounds` calls; round-robin is measured with both
orders. `members_s` is what `zkconsumer assign` does: decode 200 registrations and all topics, and
compute the assignment of each member.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from _bench import Result, add_json, at_most, show

from zkconsumer.protocol.assignors import PartitionFormat, Strategy, assign
from zkconsumer.protocol.group_assignment import GroupInput, assign_each_member
from zkconsumer.protocol.payloads import decode_topic
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.protocol.releases import profile

PARTITIONS, THREADS, TOPICS = 10_000, 200, 100
GOAL_S = 0.5

Subscriptions = Mapping[str, Mapping[str, int]]
Partitions = Mapping[str, Sequence[int]]


def worlds() -> dict[str, tuple[Subscriptions, Partitions]]:
    members = [f"group_host-1400000000{n:03}-{n * 7919:08x}" for n in range(THREADS)]
    many = {f"topic.{n}": range(PARTITIONS // TOPICS) for n in range(TOPICS)}
    halves = {
        one: {topic: 1 for k, topic in enumerate(many) if (k + n) % 2 or (k * n) % 3 == 1}
        for n, one in enumerate(members)
    }
    return {
        "one-topic": ({one: {"topic": 1} for one in members}, {"topic": range(PARTITIONS)}),
        "many-topics": ({one: dict.fromkeys(many, 1) for one in members}, many),
        "unequal": (halves, many),
    }


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Return the median time of a call in seconds."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def all_members(subscriptions: Subscriptions, partitions: Partitions) -> float:
    """Measure the time of the command from after the read of the znodes until before the output."""
    registrations = {
        one: encode_registration(Registration(counts, timestamp_ms=1))
        for one, counts in subscriptions.items()
    }
    topics = {
        topic: json.dumps({"partitions": {str(n): [1, 2, 3] for n in numbers}}).encode()
        for topic, numbers in partitions.items()
    }
    group = GroupInput(Strategy.ROUND_ROBIN, registrations, topics)
    decode_topic.cache_clear()
    return seconds(lambda: assign_each_member(group, profile("1.1.1")), 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    add_json(parser)
    arguments = parser.parse_args()
    results: list[Result] = []
    for name, (subscriptions, partitions) in worlds().items():

        def call(
            strategy: Strategy,
            form: PartitionFormat,
            of: Subscriptions = subscriptions,
            over: Partitions = partitions,
        ) -> Callable[[], object]:
            return lambda: assign(strategy, subscriptions=of, partitions=over, key_form=form)

        rounds = arguments.rounds
        ranged = seconds(call(Strategy.RANGE, PartitionFormat.DASH), rounds)
        dealt = max(seconds(call(Strategy.ROUND_ROBIN, form), rounds) for form in PartitionFormat)
        results += [
            at_most(name, "range_s", ranged, "s", GOAL_S),
            at_most(name, "roundrobin_s", dealt, "s", GOAL_S),
            at_most(name, "members_s", all_members(subscriptions, partitions), "s", 4 * GOAL_S),
        ]
    return show("assign", results, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())
