"""The lists on the pages equal the lists in the code."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from zkconsumer import errors
from zkconsumer.consumer.status import Status
from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.member import commands, events
from zkconsumer.member.commands import NoticeKind
from zkconsumer.member.machine import step
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.trace import VERSION, text, transition

DOCS = Path(__file__).parents[2] / "docs"
LIBRARY = (DOCS / "library.md").read_text(encoding="utf-8")
TRACE = (DOCS / "trace.md").read_text(encoding="utf-8")
# Counters of the coordinator itself; the machine and the streams have the others.
OWN_METRICS = [
    "rebalances",
    "commits",
    "rebalance_seconds",
    "zookeeper_commits",
    "kafka_commits",
    "messages",
    "fetched_bytes",
    "queued_messages",
    "max_lag",
    "zookeeper_requests",
    "owned_partitions",
    "blocked_partitions",
    "stuck_streams",
    "listener_merged",
    "trace_failed",
    "journal_failed",
    "tally_failed",
    "stuck_streams_failed",
]


def _first_cells(page: str, heading: str) -> list[str]:
    """Return the names in backticks in the first column of the last table below a heading."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def _kinds(base: type) -> set[str]:
    """Return the subclasses of a base class that the base class's module defines."""
    module = inspect.getmodule(base)
    found = inspect.getmembers(module, inspect.isclass)
    return {name for name, one in found if issubclass(one, base) and one is not base}


def test_every_error_is_listed() -> None:
    """docs/library.md lists every exported error exactly once."""
    listed = _first_cells(LIBRARY, "Errors")
    assert len(listed) == len(set(listed))
    assert set(listed) == _kinds(errors.ZkConsumerError)


def test_every_metric_is_listed() -> None:
    """docs/library.md lists every counter of the coordinator, the machine and the streams."""
    kinds = [*NoticeKind, *ReportKind]
    assert _first_cells(LIBRARY, "Looking into it") == OWN_METRICS + [kind.value for kind in kinds]


def test_the_status_is_listed() -> None:
    """docs/library.md names every field of the status."""
    section = LIBRARY.split("`connector.status()` is")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert set(Status.__dataclass_fields__) <= named


def test_the_phases_are_listed() -> None:
    """docs/trace.md lists every phase, in the order of the machine."""
    assert _first_cells(TRACE, "Phases") == [phase.value for phase in Phase]


@pytest.mark.parametrize(
    ("heading", "base"),
    [("Events", events.Event), ("Outcomes", events.Outcome), ("Commands", commands.Command)],
)
def test_every_kind_is_listed(heading: str, base: type) -> None:
    """docs/trace.md lists every kind of event, outcome and command once."""
    listed = _first_cells(TRACE, heading)
    assert len(listed) == len(set(listed))
    assert set(listed) == _kinds(base)


def test_the_version_of_the_trace() -> None:
    """docs/trace.md describes the trace version that zkconsumer writes."""
    assert TRACE.startswith(f"# The trace, format {VERSION}\n")


def test_the_line_of_a_trace() -> None:
    """docs/trace.md shows a line exactly as the step of the machine writes it."""
    (shown,) = re.findall(r"^```json\n(.*)\n```$", TRACE, re.MULTILINE)
    settings = Settings("billing", "billing_c1", {"orders": 1})
    before = State(settings, phase=Phase.SETTLED, connected=True, registered=True, last_op=6)
    event = events.Triggered(now=5123.250417, trigger=events.Trigger.MEMBERS)
    digest = json.loads(shown)["state"]  # The digest changes with each field of the state.
    assert text(transition(before, event, *step(before, event), digest=digest)) == shown


def test_which_errors_are_retriable() -> None:
    """docs/library.md says of every error whether it is retriable."""
    section = LIBRARY.split("\n## Errors\n")[1].split("\n## ", maxsplit=1)[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (yes|no) \| .* \|$", section, re.MULTILINE)
    expected = {name: getattr(errors, name).retriable for name in _kinds(errors.ZkConsumerError)}
    assert {name: word == "yes" for name, word in rows} == expected
