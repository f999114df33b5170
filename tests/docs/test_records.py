"""Every figure in a table of results comes from a file in docs/records/."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from support.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
records = importlib.import_module("_records")

RECORDS = sorted((ROOT / "docs" / "records").glob("*.json"))


def test_the_tables_equal_the_records() -> None:
    """Each table of results is as scripts/records would write it now."""
    pages = records.pages()
    assert {path.name for path in pages} >= {"verification.md", "compatibility.md"}
    stale = [path.name for path, text in pages.items() if path.read_text("utf-8") != text]
    assert not stale, "run scripts/records and commit the changed pages"


def test_every_table_is_shown() -> None:
    """Each table that scripts/records can write is on exactly one page."""
    texts = [path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")]
    found = [match[2] for text in texts for match in records.BLOCK.finditer(text)]
    assert sorted(found) == sorted(records.BLOCKS)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_complete(path: Path) -> None:
    """A record names its kind, commit, command, machine, time, seeds, counts and violations."""
    record = json.loads(path.read_text("utf-8"))
    assert record.keys() >= set(records.REQUIRED)
    assert record["kind"] in records.KINDS
    assert path.name.startswith(f"{record['kind']}-")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    # Older records have neither a commit nor a time, and say so.
    assert re.fullmatch(r"[0-9a-f]{7,}", record["commit"]) or "note" in record
    assert record["seconds"] is not None or "note" in record


def test_every_mutant_is_recorded() -> None:
    """The table of mutants has a row for each mutant, and each mutant was caught."""
    rows = records.mutant_rows()
    missing = [one.name for one in MUTANTS if not rows.get(one.name, {}).get("schedules")]
    assert not missing, "commit, run scripts/bench_sim --case mutants --record, scripts/records"
