"""Shared parts of the benchmarks: results and their output, topics with messages, and a
raw reader.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition


@dataclass(frozen=True)
class Result:
    """A measured value. `goal` is a string such as `>= 0.9`, or empty."""

    case: str
    metric: str
    value: float
    unit: str
    goal: str
    met: bool


def at_least(case: str, metric: str, value: float, unit: str, goal: float) -> Result:
    return Result(case, metric, round(value, 3), unit, f">= {goal:g}", value >= goal)


def at_most(case: str, metric: str, value: float, unit: str, goal: float) -> Result:
    return Result(case, metric, round(value, 3), unit, f"<= {goal:g}", value <= goal)


def without_goal(case: str, metric: str, value: float, unit: str) -> Result:
    return Result(case, metric, round(value, 3), unit, "", True)


def end_with_parent() -> None:
    """End this process of a pool when its parent has ended, even by SIGTERM or SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process is not one of a pool"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`, which sets `output` for `show`."""
    parser.add_argument(
        "--json",
        action="store_const",
        dest="output",
        const="json",
        default="table",
        help="also print the results as one JSON object on the last line",
    )


def show(bench: str, results: list[Result], *, output: str) -> int:
    """Print the results as a table. With `output` = `json`, also print one JSON object as the last
    line.

    Return the exit code, which is 1 if a goal is missed.
    """
    for one in results:
        line = f"{one.case:<16} {one.metric:<28} {one.value:>10.3f} {one.unit:<8}"
        if one.goal:
            line += f" goal {one.goal:<9} {'met' if one.met else 'MISSED'}"
        print(line, flush=True)
    if output == "json":
        print(json.dumps({"bench": bench, "results": [asdict(one) for one in results]}))
    return 0 if all(one.met for one in results) else 1


# ---- Messages to read ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """A topic with `messages` of `size` bytes in its first `partitions`.

    Each message also has a key of `key_size` bytes. The raw reader takes `chunk` messages at a
    time.
    """

    topic: str
    size: int
    messages: int
    chunk: int = 1000
    partitions: int = 1
    key_size: int = 0
    batch_bytes: int = 1_000_000
    codec: str = "none"
    release: str = "3.9.1"


def release_settings(load: Load) -> dict[str, str | bool]:
    """Return librdkafka's settings for brokers that do not report their versions."""
    if not load.release.startswith(("0.8", "0.9")):
        return {}
    return {"api.version.request": False, "broker.version.fallback": load.release}


def fill(bootstrap: str, load: Load) -> None:
    """Produce the load, to each partition in turn."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "batch.size": load.batch_bytes,
            "compression.type": load.codec,
            **release_settings(load),
        }
    )
    value = os.urandom(load.size)
    for number in range(load.messages):
        key = b"%0*d" % (load.key_size, number) if load.key_size else None
        while True:
            try:
                producer.produce(load.topic, value, key, partition=number % load.partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit(f"the broker did not accept the messages of {load.topic} within 120 s")


def raw_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of confluent-kafka's `consume(chunk)` alone, after the first
    chunk.
    """
    return _raw_rate(bootstrap, load, lambda messages: None)


def raw_value_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of confluent-kafka's `consume(chunk)`, after the first chunk,
    if the value of each message is read.
    """

    def read(messages: list[Message]) -> None:
        for message in messages:
            message.value()

    return _raw_rate(bootstrap, load, read)


def _raw_rate(bootstrap: str, load: Load, read: Callable[[list[Message]], None]) -> float:
    """The reader never requests more messages than exist, because such a request would wait for a
    second.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "raw",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "check.crcs": True,
            "fetch.queue.backoff.ms": 5,
            **release_settings(load),
        }
    )
    consumer.assign([TopicPartition(load.topic, one, 0) for one in range(load.partitions)])
    count = first = len(consumer.consume(load.chunk, 30))
    start = time.perf_counter()
    while count < load.messages:
        messages = consumer.consume(min(load.chunk, load.messages - count), 1.0)
        read(messages)
        count += len(messages)
    rate = (count - first) / (time.perf_counter() - start)
    consumer.close()
    return rate


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, by the scheduler's clock
    (clock_getcpuclockid(3)).

    The times in proc(5) are sampled at ticks: a thread that runs only briefly at a tick is charged
    for the whole tick.
    """
    return time.clock_gettime((~pid << 3) | 2)
