"""Measure the reading of ZooKeeper's transaction logs, with generated logs.

A log contains 80 % commits; the rest are registrations, claims, sessions and refused writes, and
another program's creates, deletes and multis of 1,000 znodes. A transaction has 122 bytes on
average, including its digest. Each figure is the median of `--rounds` interleaved rounds. The file
is in the page cache.

- `decode`: the compiled decoder, from a file into Arrow columns, checksums included.
- `decode plain`: the decoder in plain Python, into rows.
- `report 1GB`: `zkconsumer history report` of 1 GB of logs, one after the other, in a separate
  process: seconds, its largest resident set, and its processor time divided by that of the compiled
  decoder for the same logs.
- `report 10k`: the processor time of a report of 10,000 operations, divided by that of
  `zkconsumer history report --help`.
- `decode vs server's reader`: the rate of `decode` divided by that of ZooKeeper's
  `FileTxnIterator` in a warm JVM, which JPype runs in this process: one call reads the whole log.
- `spark`: the logs on a Spark cluster; scripts/_bench_history_spark.py describes it.
- `incidents`: the tables of random groups, compared with what really happened. This case runs only
  with `--case incidents`; scripts/_bench_history_truth.py describes it.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import _bench_history_spark
import _bench_history_truth
import jpype
from _bench import Result, add_json, at_least, at_most, show
from support.zk.history_logs import HEADER, changed, created, multi, number, sized, transaction

from zkconsumer.history import transactions as tx
from zkconsumer.history.columns import ColumnDecoder
from zkconsumer.history.logs import LogReader, LogSource
from zkconsumer.sandbox import jars

GROUP, TOPICS, PARTITIONS, MEMBERS = "/kafka/consumers/billing", 20, 16, 40
DIGEST = struct.pack(">iq", 2, 0)
FIRST_MS = 1_700_000_000_000
REPORT_FILES, REPORT_BYTES = 8, 1 << 27


# ---- logs ---------------------------------------------------------------------------------------


class Busy:
    """A group of 40 members and 320 partitions; members leave and join while they all commit."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._partitions = [(t, p) for t in range(TOPICS) for p in range(PARTITIONS)]
        self._owner: dict[tuple[int, int], int] = {}
        self._offset = dict.fromkeys(self._partitions, 0)
        self._version = dict.fromkeys(self._partitions, 0)
        self._session = {n: 0x1000000000000 + n for n in range(MEMBERS)}
        self._next = 0x1000000000000 + MEMBERS

    def transactions(self) -> list[tuple[int, int, int, bytes]]:
        """Return the next transactions: session, cxid, type, body."""
        if not self._owner:
            joined = [one for n in range(MEMBERS) for one in self._join(n)]
            created = [
                (self._session[0], 1, tx.CREATE, self._offset_znode(tp)) for tp in self._partitions
            ]
            ordered = sorted(range(MEMBERS), key=self._name)  # range: the first 16 members own
            claimed = [self._claim(tp, ordered[tp[1]]) for tp in self._partitions]
            topics = [(self._session[0], 1, tx.CREATE, self._topic_znode(t)) for t in range(TOPICS)]
            return [*topics, *joined, *created, *claimed]
        if self._chance.random() < 0.0005:
            return self._rebalance(self._chance.randrange(MEMBERS))
        if self._chance.random() < 0.02:
            return [(self._session[0], 7, tx.ERROR, number(-110))]
        if self._chance.random() < 0.18:
            return [self._other_program()]
        tp = self._chance.choice(self._partitions)
        self._offset[tp] += 100
        self._version[tp] += 1
        body = changed(self._path("offsets", tp), b"%d" % self._offset[tp], self._version[tp])
        return [(self._session[self._owner[tp]], self._version[tp], tx.SET_DATA, body)]

    def _other_program(self) -> tuple[int, int, int, bytes]:
        """Another program creates a znode, deletes it, or does both in one multi."""
        path = "/jobs/queue-{}/job-{:010d}".format(*divmod(self._chance.randrange(1000), 100))
        made, deleted = created(path, b'{"state":"running"}'), sized(path)
        kind = self._chance.choice((tx.CREATE, tx.DELETE, tx.MULTI))
        both = multi((tx.CREATE, made), (tx.DELETE, deleted))
        body = {tx.CREATE: made, tx.DELETE: deleted, tx.MULTI: both}[kind]
        return self._session[0] + 1000, 9, kind, body

    def _path(self, directory: str, tp: tuple[int, int]) -> str:
        return f"{GROUP}/{directory}/topic-{tp[0]}/{tp[1]}"

    def _offset_znode(self, tp: tuple[int, int]) -> bytes:
        return created(self._path("offsets", tp), b"0")

    def _topic_znode(self, topic: int) -> bytes:
        partitions = ",".join(f'"{p}":[1]' for p in range(PARTITIONS))
        data = f'{{"version":1,"partitions":{{{partitions}}}}}'.encode()
        return created(f"/kafka/brokers/topics/topic-{topic}", data)

    def _name(self, member: int) -> str:
        return f"billing_host{member}-1400000000000-{member:08x}"

    def _join(self, member: int) -> list[tuple[int, int, int, bytes]]:
        topics = ",".join(f'"topic-{t}":1' for t in range(TOPICS))
        data = (
            f'{{"version":1,"subscription":{{{topics}}},"pattern":"static",'
            '"timestamp":"1400000000000"}'
        ).encode()
        body = created(f"{GROUP}/ids/{self._name(member)}", data, ephemeral=True)
        session = self._session[member]
        return [
            (session, 0, tx.CREATE_SESSION, number(6000)),
            (session, 1, tx.CREATE, body),
        ]

    def _claim(self, tp: tuple[int, int], member: int) -> tuple[int, int, int, bytes]:
        self._owner[tp] = member
        thread = f"{self._name(member)}-0".encode()
        body = created(self._path("owners", tp), thread, ephemeral=True)
        return self._session[member], 2, tx.CREATE, body

    def _rebalance(self, member: int) -> list[tuple[int, int, int, bytes]]:
        """A member's session expires, and its successor claims its partitions."""
        found = [(self._session[member], 0, tx.CLOSE_SESSION, number(0))]
        self._session[member], self._next = self._next, self._next + 1
        found += self._join(member)
        owned = [tp for tp, owner in self._owner.items() if owner == member]
        return found + [self._claim(tp, member) for tp in owned]


def write_log(
    path: Path, *, size: int, group: Busy, zxid: int = 0, time_ms: int = FIRST_MS
) -> tuple[int, int]:
    """Write a log of at least `size` bytes; return its last zxid and time."""
    chance, written = random.Random(zxid), 16
    with path.open("wb", buffering=1 << 20) as file:
        file.write(HEADER)
        while written < size:
            for session, cxid, kind, body in group.transactions():
                zxid += 1
                time_ms += chance.random() < 0.3
                encoded = transaction(
                    zxid, kind, body + DIGEST, session=session, cxid=cxid, time_ms=time_ms
                )
                written += file.write(encoded)
    return zxid, time_ms


def write_logs(folder: Path, *, logs: int, size: int) -> None:
    """Write logs with consecutive zxids, as one server writes them."""
    folder.mkdir(exist_ok=True)
    group, zxid, time_ms = Busy(1), 0, FIRST_MS
    for _ in range(logs):
        path = folder / f"log.{zxid + 1:x}"
        zxid, time_ms = write_log(path, size=size, group=group, zxid=zxid, time_ms=time_ms)


# ---- measurements -------------------------------------------------------------------------------


def decoded(path: Path, decoder: ColumnDecoder | None) -> int:
    """Read the whole log, and return its rows."""
    reader = LogReader(LogSource.of_path(path), decoder)
    return sum(batch.columns.num_rows if decoder else len(batch.rows) for batch in reader.batches())


def server_reader(path: Path, last_zxid: int) -> Callable[[], None]:
    """Return a call that reads the whole log with ZooKeeper's own class."""
    classes = jars.resolve("zookeeper-3.8.4")
    runtime = jars.find_java().executable.resolve().parent.parent / "lib/server/libjvm.so"
    jpype.startJVM(str(runtime), "-Xmx512m", classpath=[str(one) for one in classes])
    iterator = jpype.JClass("org.apache.zookeeper.server.persistence.FileTxnLog$FileTxnIterator")
    folder = jpype.JClass("java.io.File")(str(path.parent))

    def read() -> None:
        found = iterator(folder, last_zxid, True)  # the constructor reads up to this zxid
        assert found.getHeader().getZxid() == last_zxid, "the server's reader stopped earlier"
        found.close()

    return read


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure_decoding(folder: Path, rounds: int, megabytes: int) -> list[Result]:
    path = folder / "log.1"
    count, _ = write_log(path, size=megabytes << 20, group=Busy(1))
    decoder = ColumnDecoder()
    assert decoded(path, decoder) == decoded(path, None), "the decoders differ"
    calls: dict[str, Callable[[], object]] = {
        "decode": lambda: decoded(path, decoder),
        "decode plain": lambda: decoded(path, None),
        "server": server_reader(path, count),
    }
    # The plain decoder is for processes without numba. Here, without `freeze`, each garbage
    # collection would examine the objects of numba and of its compiled functions.
    gc.freeze()
    for name in ("decode", "server", "server"):  # let both compilers run before the measurement
        calls[name]()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call))
    median = {name: statistics.median(found) for name, found in taken.items()}
    rate = {name: count / found for name, found in median.items()}
    size = path.stat().st_size / 1e6
    return [
        at_least("decode", "transactions_per_s", rate["decode"], "1/s", 2_000_000),
        at_least("decode", "mb_per_s", size / median["decode"], "MB/s", 200),
        at_least("decode plain", "transactions_per_s", rate["decode plain"], "1/s", 350_000),
        at_least("decode vs server's reader", "ratio", rate["decode"] / rate["server"], "times", 2),
    ]


# An installed package has bytecode, and so has a checkout after its first run.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def processor_s(*arguments: str) -> float:
    """Run `zkconsumer history report` in a process, and return its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "zkconsumer", "history", "report", *arguments]
    subprocess.run(command, check=True, capture_output=True, env=_ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure_report(folder: Path, rounds: int) -> list[Result]:
    """Write 1 GB of logs, and report on them; then report on 10,000 operations."""
    small, large = folder / "small", folder / "large"
    write_logs(small, logs=1, size=1_200_000)
    write_logs(large, logs=REPORT_FILES, size=REPORT_BYTES)
    decoder = ColumnDecoder()
    decoded(next(small.iterdir()), decoder)  # compile, or load the compiled loops
    begin = time.process_time()
    for path in large.iterdir():
        decoded(path, decoder)
    decoding_s = time.process_time() - begin
    starts, smalls = [], []
    for _ in range(rounds):
        starts.append(processor_s("--help"))
        smalls.append(processor_s("--data-dir", str(small)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    begin = time.perf_counter()
    used_s = processor_s("--data-dir", str(large))
    taken = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert after > before, "another child needed more memory"
    start_s, small_s = statistics.median(starts), statistics.median(smalls)
    return [
        at_most("report 1GB", "seconds", taken, "s", 30),
        at_most("report 1GB", "rss_mb", after / 1024, "MB", 500),
        at_most("report 1GB", "cpu_vs_decode", used_s / decoding_s, "times", 5),
        at_most("report 10k", "cpu_vs_start", small_s / start_s, "times", 1.5),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=130, help="size of the log for decoding")
    add_json(parser)
    cases = ("all", "decode", "report", "spark", "incidents")
    parser.add_argument("--case", choices=cases, default="all")
    parser.add_argument("--record", action="store_true", help="write a record in docs/records")
    _bench_history_spark.add_options(parser)
    _bench_history_truth.add_options(parser)
    arguments = parser.parse_args()
    results: list[Result] = []
    if arguments.case == "incidents":
        results += _bench_history_truth.measure(arguments)
    if arguments.case in ("all", "report"):
        with tempfile.TemporaryDirectory() as folder:
            results += measure_report(Path(folder), arguments.rounds)
    if arguments.case in ("all", "decode"):
        with tempfile.TemporaryDirectory() as folder:
            results += measure_decoding(Path(folder), arguments.rounds, arguments.megabytes)
    if arguments.case in ("all", "spark"):
        with tempfile.TemporaryDirectory() as folder:
            results += _bench_history_spark.measure(Path(folder), write_logs, arguments)
    return show("history", results, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())
