"""Measure a stream's throughput against raw confluent-kafka, an idle member's costs, and the time
to the first message.

A broker on this machine serves the benchmark. A ratio is the median over pairs: each pair reads the
same data first raw, then through a stream. Two earlier pairs warm up and are not counted. On an
idle machine single pairs differ by about 9 %, the median of five pairs by 5 %, the median of
fifteen by 3 %.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _bench import (
    Load,
    Result,
    add_json,
    at_least,
    at_most,
    cpu_seconds,
    fill,
    raw_value_rate,
    release_settings,
    show,
    without_goal,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from zkconsumer import ConsumerConfig, ConsumerConnector, aio
from zkconsumer.consumer.stream import Stream, StreamReader
from zkconsumer.consumer.stream_fetcher import in_thread
from zkconsumer.consumer.stream_partitions import Codec, Grant, LeaseGate
from zkconsumer.kafka.client_settings import Brokers, Settings, broker_settings, fetch_settings
from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher
from zkconsumer.kafka.engines import engines
from zkconsumer.kafka.fetcher import AutoOffsetReset, FetchFaultKind
from zkconsumer.protocol.model import TopicPartition as Partition
from zkconsumer.protocol.paths import owners_of
from zkconsumer.protocol.payloads import Broker
from zkconsumer.sandbox import Sandbox

WARM_UPS = 2
# The case `idle`: number of partitions, duration of the measurement, and time limit for settling.
GROUP_PARTITIONS, OWN_PARTITIONS = 512, 64
IDLE_SPAN_S, SETTLE_LIMIT_S = 20.0, 60.0
# The case `idle streams 1000`: in the first seconds after the claims, the group still works.
STREAMS, CALM_S = 1000, 5.0
# The case `idle fetch 1000`: number of partitions; each way is measured for this long.
IDLE_FETCHED, FETCH_SPAN_S = 1000, 10.0


def settings_of(bootstrap: str) -> Settings:
    config = ConsumerConfig(group_id="bench", zookeeper_connect="unused:2181")
    broker = Broker(None, -1, 4, (f"PLAINTEXT://{bootstrap}",))
    return {**fetch_settings(config), **broker_settings(Brokers([broker]))}


def stream_of(bootstrap: str, load: Load) -> StreamReader[bytes, bytes]:
    """Return a stream without a group: its lease is open, and the benchmark grants its
    partition.
    """
    settings = {**settings_of(bootstrap), **release_settings(load)}
    chosen = engines(ConsumerConfig(group_id="bench", zookeeper_connect="unused:2181"))
    columns = chosen.columns
    gate = LeaseGate()
    gate.open(gate.clock() + 3600)
    return StreamReader(
        topic=load.topic,
        thread_id="bench-0",
        number=0,
        gate=gate,
        connect=lambda: chosen.messages(settings),
        connect_columns=None if columns is None else partial(columns, settings),
        background=in_thread,
        reset=AutoOffsetReset.SMALLEST,
        timeout_s=30,
        retry_s=0.2,
        codec=Codec(),
        report=print,
    )


def granted(bootstrap: str, load: Load) -> StreamReader[bytes, bytes]:
    """Return a stream that owns all partitions of the load."""
    stream = stream_of(bootstrap, load)
    stream.grant([Grant(Partition(load.topic, one), 0, 1, 1) for one in range(load.partitions)])
    return stream


def poll_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of `poll`, if the value of each message is read."""
    stream = granted(bootstrap, load)
    count = len(stream.poll(max_messages=1, timeout_s=30))
    start = time.perf_counter()
    while count < load.messages:
        messages = stream.poll()
        for message in messages:
            message.value  # noqa: B018 - the access slices and decodes
        count += len(messages)
    rate = count / (time.perf_counter() - start)
    stream.close()
    return rate


# Processor time in ns per message of this process, by load, of the last run of `arrow_rate`.
cpu_ns: dict[Load, float] = {}


def arrow_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of `poll_arrow`, after the first batch."""
    stream = granted(bootstrap, load)
    count = first = stream.poll_arrow(timeout_s=30).num_rows
    start, before = time.perf_counter(), time.process_time()
    while count < load.messages:
        count += stream.poll_arrow().num_rows
    rate: float = (count - first) / (time.perf_counter() - start)
    cpu_ns[load] = 1e9 * (time.process_time() - before) / (count - first)
    stream.close()
    return rate


def iterator_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of a `for` loop that reads each value."""
    stream = granted(bootstrap, load)
    next(stream)
    start = time.perf_counter()
    for count, message in enumerate(stream, 2):
        message.value  # noqa: B018 - as above
        if count == load.messages:
            break
    rate = load.messages / (time.perf_counter() - start)
    stream.close()
    return rate


def asyncio_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of an `async for` loop that reads each value."""
    inner = granted(bootstrap, load)
    stream = aio.Stream(inner)

    async def read() -> float:
        await anext(stream)
        start, count = time.perf_counter(), 1
        async for message in stream:
            message.value  # noqa: B018 - as above
            count += 1
            if count == load.messages:
                break
        return load.messages / (time.perf_counter() - start)

    rate = asyncio.run(read())
    inner.close()
    aio.stop(stream)
    return rate


def asyncio_poll_rate(bootstrap: str, load: Load) -> float:
    """Return the messages per second of `await poll()`, if the value of each message is read."""
    inner = granted(bootstrap, load)
    stream = aio.Stream(inner)

    async def read() -> float:
        count = len(await stream.poll(max_messages=1, timeout_s=30))
        start = time.perf_counter()
        while count < load.messages:
            messages = await stream.poll()
            for message in messages:
                message.value  # noqa: B018 - as above
            count += len(messages)
        return load.messages / (time.perf_counter() - start)

    rate = asyncio.run(read())
    inner.close()
    aio.stop(stream)
    return rate


def _many_streams_rate(zookeeper: str, bootstrap: str, load: Load) -> float:
    """Return the messages per second that a thread for each partition reads in a group, if the
    value of each message is read."""
    config = ConsumerConfig(
        group_id=f"many-{time.monotonic_ns()}",
        zookeeper_connect=zookeeper,
        auto_offset_reset="smallest",
    )
    share = load.messages // load.partitions
    started, done = threading.Event(), threading.Semaphore(0)

    def read(stream: Stream[bytes, bytes]) -> None:
        for count, message in enumerate(stream, 1):
            message.value  # noqa: B018 - as above
            if count == 1:
                started.set()  # for each message, 64 threads would wait for the event's lock
            if count == share:
                done.release()

    with ConsumerConnector(config) as connector:
        for stream in connector.create_message_streams({load.topic: load.partitions})[load.topic]:
            threading.Thread(target=read, args=[stream], daemon=True).start()
        started.wait()
        start = time.perf_counter()
        for _ in range(load.partitions):
            done.acquire()
        return load.messages / (time.perf_counter() - start)


@dataclass(frozen=True)
class Race:
    """A case that measures the ratio of `measured` to `baseline`."""

    case: str
    load: Load
    measured: Callable[[str, Load], float]
    goal: float
    baseline: Callable[[str, Load], float] = raw_value_rate
    metric: str = "ratio_to_raw"


def ratios_of(bootstrap: str, race: Race, pairs: int) -> list[Result]:
    ratios: list[float] = []
    used: list[float] = []
    for number in range(WARM_UPS + pairs):
        baseline, measured = (
            race.baseline(bootstrap, race.load),
            race.measured(bootstrap, race.load),
        )
        counted = "" if number >= WARM_UPS else " (warm-up)"
        print(
            f"  {race.case}: {measured / 1e3:,.0f} k/s of {baseline / 1e3:,.0f} k/s{counted}",
            file=sys.stderr,
        )
        ratios.append(measured / baseline)
        used.append(cpu_ns.get(race.load, 0.0))
    median = statistics.median(ratios[WARM_UPS:])
    results = [at_least(race.case, race.metric, median, "", race.goal)]
    if race.measured is arrow_rate:
        median = statistics.median(used[WARM_UPS:])
        results.append(without_goal(race.case, "cpu_ns_per_message", median, "ns"))
    return results


SMALL, LARGE = Load("small", 100, 1_500_000), Load("large", 1000, 480_000)
SMALL_LZ4 = Load("small-lz4", 100, 1_500_000, codec="lz4")
LARGE_LZ4 = Load("large-lz4", 1000, 480_000, codec="lz4")
SPREAD = Load("spread", 100, 1_600_000, partitions=8)
MANY = Load("many", 100, 1_600_000, partitions=64)
# Brokers of 0.8 and 0.9 take messages of the old format only, and batches of at most 1 MB.
OLD = Load("old", 100, 1_500_000, batch_bytes=200_000, release="0.8.2.2")
OLD_0_9 = Load("old", 100, 1_500_000, batch_bytes=200_000, release="0.9.0.1")
RACES = (
    Race("100B poll", SMALL, poll_rate, 1.2),
    Race("1KB poll", LARGE, poll_rate, 1.0),
    Race("100B iterator", SMALL, iterator_rate, 1.2),
    Race("1KB iterator", LARGE, iterator_rate, 1.0),
    Race("8 partitions 100B poll", SPREAD, poll_rate, 1.2),
    Race("asyncio 100B poll", SMALL, asyncio_poll_rate, 1.2),
    Race("asyncio 1KB poll", LARGE, asyncio_poll_rate, 1.0),
    Race("100B arrow", SMALL, arrow_rate, 6),
    Race("1KB arrow", LARGE, arrow_rate, 1.2),
    Race("100B lz4 arrow", SMALL_LZ4, arrow_rate, 4),
    Race("1KB lz4 arrow", LARGE_LZ4, arrow_rate, 1.2),
    Race("8 partitions 100B arrow", SPREAD, arrow_rate, 5),
    Race("asyncio", SMALL, asyncio_rate, 0.5, iterator_rate, "ratio_to_iterator"),
)
MANY_STREAMS = "64 streams 100B"
OLD_RACES = (
    Race("0.8.2.2 100B arrow", OLD, arrow_rate, 3),
    Race("0.9.0.1 100B arrow", OLD_0_9, arrow_rate, 3),
    Race("0.8.2.2 100B poll", OLD, poll_rate, 1.0),
    Race("0.9.0.1 100B poll", OLD_0_9, poll_rate, 1.0),
)
_filled: set[tuple[str, Load]] = set()


def prepare(sandbox: Sandbox, load: Load) -> None:
    """Create a topic and its messages unless they exist; one partition stays empty, except in
    the case of 64 streams."""
    if (sandbox.bootstrap, load) in _filled:
        return
    _filled.add((sandbox.bootstrap, load))
    print(f"  {load.messages:,} messages of {load.size} bytes ...", file=sys.stderr)
    empty = 0 if load is MANY else 1
    sandbox.create_topic(load.topic, partitions=load.partitions + empty)
    fill(sandbox.bootstrap, load)


def first_message(bootstrap: str, load: Load, repeats: int) -> Result:
    """Measure the time from the grant of a partition with data to the first message.

    The stream already waits at the end of another partition. Such a stream is the slower one of the
    two kinds of idle streams.
    """
    took: list[float] = []
    for number in range(repeats):
        stream = stream_of(bootstrap, load)
        stream.grant([Grant(Partition(load.topic, 1), 0, 1, 1)])
        if stream.poll(timeout_s=0.5 + 0.02 * number):  # varies the time of the grant
            raise SystemExit(f"{load.topic}-1 is not empty")
        start = time.perf_counter()
        stream.grant([Grant(Partition(load.topic, 0), 0, 1, 1)])
        next(stream)
        took.append(time.perf_counter() - start)
        stream.close()
    return at_most("first message", "seconds", statistics.median(took), "s", 0.15)


IDLE_MEMBER = """
import sys, time
from zkconsumer import ConsumerConfig, ConsumerConnector, aio
config = ConsumerConfig(group_id="idle", zookeeper_connect=sys.argv[1])
with ConsumerConnector(config) as connector:
    (stream,) = connector.create_message_streams({"wide": 1})["wide"]
    for message in stream:
        raise SystemExit("the topic is not empty")
"""


@contextmanager
def crowd(sandbox: Sandbox) -> Iterator[None]:
    """Run the other members of the group in this process; they only register and claim."""
    config = ConsumerConfig(group_id="idle", zookeeper_connect=sandbox.zookeeper_connect)
    with ExitStack() as stack:
        for _ in range(GROUP_PARTITIONS // OWN_PARTITIONS - 1):
            connector = stack.enter_context(ConsumerConnector(config))
            connector.create_message_streams({"wide": 1})
        yield


def idle(sandbox: Sandbox) -> list[Result]:
    """Measure one member in its own process, whose user waits for messages that never arrive."""
    sandbox.create_topic("wide", partitions=GROUP_PARTITIONS)
    command = [sys.executable, "-c", IDLE_MEMBER, sandbox.zookeeper_connect]
    with crowd(sandbox), subprocess.Popen(command, stdin=subprocess.DEVNULL) as member:
        try:
            await_settled(sandbox)
            before, start = cpu_seconds(member.pid), time.perf_counter()
            time.sleep(IDLE_SPAN_S)
            if member.poll() is not None:
                raise SystemExit("the idle member ended")
            used = cpu_seconds(member.pid) - before
            percent = 100 * used / (time.perf_counter() - start)
            memory = resident_mb(member.pid)
        finally:
            member.terminate()
    return [
        at_most("idle", "cpu_percent", percent, "%", 1),
        at_most("idle", "rss_mb", memory, "MB", 70),
    ]


IDLE_STREAMS = """
import sys, threading
from zkconsumer import ConsumerConfig, ConsumerConnector
config = ConsumerConfig(group_id="streams", zookeeper_connect=sys.argv[1])
count = int(sys.argv[2])
with ConsumerConnector(config) as connector:
    def read(stream):
        for message in stream:
            raise SystemExit("the topic is not empty")
    counts = {f"streams-{number}": 100 for number in range(count // 100)}
    made = connector.create_message_streams(counts)
    streams = [stream for several in made.values() for stream in several]
    users = [threading.Thread(target=read, args=[stream], daemon=True) for stream in streams]
    for user in users:
        user.start()
    while sum(map(len, connector.status().owned.values())) != count or any(
        stream.waiting_for for stream in streams
    ):
        threading.Event().wait(0.2)
    print("settled", flush=True)
    threading.Event().wait()
"""


def idle_streams(sandbox: Sandbox) -> list[Result]:
    """Measure a process with a thousand streams of one partition each, whose users wait for
    messages.
    """
    case = f"idle streams {STREAMS}"
    for number in range(STREAMS // 100):
        sandbox.create_topic(f"streams-{number}", partitions=100)
    command = [sys.executable, "-c", IDLE_STREAMS, sandbox.zookeeper_connect, str(STREAMS)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as member:
        try:
            assert member.stdout is not None
            if member.stdout.readline() != "settled\n":
                raise SystemExit("the streams did not settle")
            time.sleep(CALM_S)
            before, start = cpu_seconds(member.pid), time.perf_counter()
            time.sleep(IDLE_SPAN_S)
            used = cpu_seconds(member.pid) - before
            percent = 100 * used / (time.perf_counter() - start)
            memory = resident_mb(member.pid)
            threads = len(list(Path(f"/proc/{member.pid}/task").iterdir())) - STREAMS
            descriptors = len(list(Path(f"/proc/{member.pid}/fd").iterdir()))
        finally:
            member.terminate()
    return [
        at_most(case, "cpu_percent", percent, "%", 5),
        at_most(case, "threads", threads, "", 50),
        at_most(case, "descriptors", descriptors, "", 200),
        at_most(case, "rss_mb", memory, "MB", 1000),
    ]


def idle_fetch(sandbox: Sandbox) -> list[Result]:
    """Measure the columnar reader on a thousand partitions without messages, without and with a
    fetch session.
    """
    sandbox.create_topic("idle-fetch", partitions=IDLE_FETCHED)
    settings = settings_of(sandbox.bootstrap)
    results = []
    for title, session_from in (("without session", IDLE_FETCHED + 1), ("session", 1)):
        fetcher = ColumnFetcher(settings, session_from=session_from)
        fetcher.assign({Partition("idle-fetch", one): 0 for one in range(IDLE_FETCHED)})
        _fetch_for(fetcher, CALM_S)
        start, own, of_broker = _used(sandbox)
        received = fetcher.fetched_bytes
        _fetch_for(fetcher, FETCH_SPAN_S)
        end, own_end, of_broker_end = _used(sandbox)
        span_s, case = end - start, f"idle fetch {IDLE_FETCHED}"
        results += [
            without_goal(case, f"{title}: {metric}", value / span_s, unit)
            for metric, value, unit in (
                ("received", fetcher.fetched_bytes - received, "bytes/s"),
                ("cpu", 100 * (own_end - own), "%"),
                ("broker cpu", 100 * (of_broker_end - of_broker), "%"),
            )
        ]
        fetcher.close()
    return results


def _fetch_for(fetcher: ColumnFetcher, span_s: float) -> None:
    end = time.perf_counter() + span_s
    while (left_s := end - time.perf_counter()) > 0:
        fetched = fetcher.fetch(left_s)
        unexpected = [one for one in fetcher.faults if one.kind is not FetchFaultKind.END]
        fetcher.faults.clear()  # an empty partition reports once that its end is reached
        if fetched or unexpected:
            raise SystemExit(f"the fetcher is not idle: {unexpected[:3] or 'it got messages'}")


def _used(sandbox: Sandbox) -> tuple[float, float, float]:
    """Return the time, and the processor time of this process and of the broker."""
    return time.perf_counter(), time.process_time(), cpu_seconds(sandbox.broker.pid)


def await_settled(sandbox: Sandbox) -> None:
    """Wait until every partition has an owner and each of the eight members has its share."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    client = KazooClient(sandbox.zookeeper_connect)
    client.start()
    try:
        while time.monotonic() < deadline:
            root = owners_of("idle", "wide")
            found = client.get_children(root) if client.exists(root) else []
            if len(found) == GROUP_PARTITIONS:
                reads = [client.get_async(f"{root}/{one}") for one in found]
                with suppress(NoNodeError):  # an owner has changed since the listing
                    shares = Counter(read.get()[0] for read in reads)
                    if set(shares.values()) == {OWN_PARTITIONS}:
                        return
            time.sleep(0.2)
    finally:
        client.stop()
        client.close()
    raise SystemExit(f"the group did not settle within {SETTLE_LIMIT_S} s")


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_consume", description=__doc__)
    parser.add_argument(
        "--pairs", type=int, default=15, help="number of measured pairs (default 15)"
    )
    add_json(parser)
    parser.add_argument("--only", nargs="*", metavar="CASE", help="run only these cases")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    results: list[Result] = []

    def wanted(case: str) -> bool:
        return not options.only or case in options.only

    with Sandbox() as sandbox:
        for race in RACES:
            if wanted(race.case):
                prepare(sandbox, race.load)
                results += ratios_of(sandbox.bootstrap, race, options.pairs)
        if wanted(MANY_STREAMS):
            prepare(sandbox, MANY)
            rate = partial(_many_streams_rate, sandbox.zookeeper_connect)
            race = Race(MANY_STREAMS, MANY, rate, 1.0)
            results += ratios_of(sandbox.bootstrap, race, options.pairs)
        if wanted("first message"):
            prepare(sandbox, SMALL)
            results.append(first_message(sandbox.bootstrap, SMALL, options.pairs))
        if wanted("idle"):
            results += idle(sandbox)
        if wanted(f"idle streams {STREAMS}"):
            results += idle_streams(sandbox)
        if wanted(f"idle fetch {IDLE_FETCHED}"):
            results += idle_fetch(sandbox)
    for load in (OLD, OLD_0_9):
        races = [one for one in OLD_RACES if one.load is load and wanted(one.case)]
        if races:
            with Sandbox(release=load.release) as sandbox:
                prepare(sandbox, load)
                for race in races:
                    results += ratios_of(sandbox.bootstrap, race, options.pairs)
    return show("bench_consume", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
