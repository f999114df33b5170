"""scripts/history_demo: a whole run, its clean-up, and the parts that need no server."""

from __future__ import annotations

import importlib
import json
import random
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from support.processes import PATIENCE_S, assert_nothing_is_left, programs

from zkconsumer.history.describe import Described, Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.history.page import page
from zkconsumer.history.report import TimeSpan, within
from zkconsumer.history.tables import TABLES
from zkconsumer.history.timeline import timeline
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.spark.history import table_batches

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from _history_charts import charts  # needs the path above
from _history_run import RunRecords, rows_of
from _history_scene import claims

SCRIPT = Path(__file__).parents[2] / "scripts" / "_history_demo.py"
INCIDENT = Path(__file__).parents[1] / "golden" / "history" / "incident.tar.gz"
# Time limit of a run in seconds. On a busy machine a run takes 90 s.
LIMIT_S = 900.0
SVG = "{http://www.w3.org/2000/svg}"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files, which each process of the run has in its command line."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setenv("TMPDIR", str(found))
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the demo with arguments."""
    with programs(SCRIPT, tmp_path) as run:
        yield run


@pytest.mark.timeout(LIMIT_S + PATIENCE_S)
def test_a_run(home: Path, start: Start, tmp_path: Path) -> None:
    """The tables equal what the demo recorded; both runs of the pipeline read new transactions."""
    process = start("--faults", "4", "--seed", "3", "--output", "out", "--json")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err.decode()
    result = json.loads(out.splitlines()[-1])
    assert (result["missed"], result["invented"]) == (0, 0)
    assert min(result["runs"]) > 0
    assert sum(result["faults"].values()) == 4
    assert min(result["rows"][one] for one in ("ownership", "members' claims")) > 0
    assert result["rows"]["JVM members' claims"] > 0
    kept = tmp_path / "out"
    assert "<svg" in (kept / "report.html").read_text(encoding="utf-8")
    assert list((kept / "tables" / "demo").glob("rebalances-*.parquet"))
    assert_nothing_is_left(home)


@pytest.mark.timeout(LIMIT_S)
def test_ctrl_c(home: Path, start: Start, tmp_path: Path) -> None:
    """Ctrl-C between two faults gives exit code 130, and leaves no process and no directory."""
    process = start("--faults", "40")
    assert process.stderr is not None
    assert any(b"fault 1 of 40" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    told = process.stderr.read().decode()
    assert (process.wait(timeout=PATIENCE_S), "Traceback" in told) == (130, False), told
    assert not (tmp_path / "history-demo").exists()
    assert_nothing_is_left(home)


# ---- parts --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Described:
    """The tables of a run of the demo, computed from the logs of its servers."""
    description = Description(find_servers([INCIDENT]), ["billing"])
    description.read()
    return description.result()


def test_the_tables_are_read_back(found: Described) -> None:
    """Rows that were converted to columns, in any order, are read back unchanged."""
    for table in TABLES:
        if table != "transactions":
            rows = getattr(found.tables, table)
            columns = pa.Table.from_batches(table_batches(rows, table))
            order = list(range(len(rows)))
            random.Random(1).shuffle(order)
            again = rows_of(columns.take(order), table)
            assert rows
            assert sorted(map(repr, again)) == sorted(map(repr, rows)), table
            assert [row.zxid for row in again] == sorted(row.zxid for row in rows)


def test_the_charts(found: Described) -> None:
    """Each chart is an SVG with data; the page has all charts, and loads no resource."""
    drawn = charts(found)
    for one in drawn:
        root = ElementTree.fromstring(one)
        assert root.tag == f"{SVG}svg"
        assert not [text for text in root.iter(f"{SVG}text") if text.text == "No data"]
    labels = {text.text for text in ElementTree.fromstring(drawn[0]).iter(f"{SVG}text")}
    assert labels >= {one.kind for one in found.tables.incidents}
    shown = page(found, TimeSpan(), drawn)
    assert all(one in shown for one in drawn)
    assert "src=" not in shown


def test_a_window_has_no_earlier_moments(found: Described) -> None:
    """A window shows its own events and states, but no earlier decrease of an offset."""
    kinds = ("offset moved back", "offset deleted")
    moments = [one for one in found.tables.incidents if one.kind in kinds]
    after = TimeSpan(from_ms=max(one.time_ms for one in moments) + 1)
    left = {one.kind for one in within(found, after).tables.incidents}
    assert left
    assert left.isdisjoint(kinds)
    until_ms = moments[0].time_ms
    lines = timeline(within(found, TimeSpan(to_ms=until_ms)).tables, until_ms)
    assert max(line.time_ms for line in lines) == until_ms


def test_the_claims_of_a_jvm() -> None:
    """From a JVM's log, a claim gives thread and partition, and a failed claim gives nothing."""
    begin = "2026-11-23 12:40:21,187 INFO  kafka.consumer.ZookeeperConsumerConnector - [g_1], "
    text = (
        f"{begin}g_1-0 successfully owned partition 3 for topic orders\n"
        f"{begin}waiting for the partition ownership to be deleted: 4 for topic orders\n"
        f"{begin}g_1-0 successfully owned partition 3 for topic orders\n"
    )
    assert claims(text) == Counter({("g_1-0", TopicPartition("orders", 3)): 2})


def test_the_comparison(found: Described, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The comparison finds a missing row, an invented row, and a JVM's claim without a row."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    compared = importlib.import_module(SCRIPT.stem).compared
    with tarfile.open(INCIDENT) as archive:
        archive.extractall(tmp_path, filter="data")
    real = RunRecords(sorted(tmp_path.iterdir()), [], Counter(), 0, Counter(), 1.0, [], found)
    result = compared(real)
    assert (result.missed, result.invented) == ([], [])

    first, *others = found.tables.ownership
    lacking = found._replace(tables=replace(found.tables, ownership=others))
    result = compared(replace(real, history=lacking))
    assert any(str(first.czxid) in one for one in result.missed)

    doubled = replace(found.tables, ownership=[first, first, *others])
    result = compared(replace(real, history=found._replace(tables=doubled)))
    assert not result.missed
    assert any(first.thread in one for one in result.invented)

    never = Counter({(first.thread, TopicPartition("orders", 99)): 1})
    (missed,) = compared(replace(real, claims=never, jvm_interruptions=99)).missed
    assert missed.startswith("JVM's claim")


def test_an_output_that_exists(home: Path, start: Start, tmp_path: Path) -> None:
    """If the output directory exists, the error says what to do, and the directory stays."""
    report = tmp_path / "out" / "report.html"
    report.parent.mkdir()
    report.write_text("an earlier report")
    process = start("--output", "out")
    out, err = process.communicate(timeout=PATIENCE_S)
    said = "out exists already; remove it, or use another --output"
    assert (process.returncode, out, err.decode().splitlines()[-1].partition("error: ")[2]) == (
        2,
        b"",
        said,
    )
    assert list(report.parent.iterdir()) == [report]
    assert report.read_text() == "an earlier report"
    assert_nothing_is_left(home)
