"""The output of rows: tables that fit a terminal, formats for programs, escaped text."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest
import yaml

from zkconsumer.cli.output import (
    Align,
    Color,
    Column,
    Output,
    Screen,
    Table,
    Unknown,
    format_table,
    safe,
    unknown_reasons,
    write,
    write_sections,
)

COLUMNS = (
    Column("topic"),
    Column("lag", align=Align.RIGHT, color=lambda lag: Color.BAD if lag == 7 else None),
    Column("start", align=Align.RIGHT, drop_order=1),
    Column("owner", drop_order=2),
    Column("session", wide_only=True),
)
ROWS = [
    {"topic": "orders", "lag": 7, "start": 0, "owner": "group_host-1-0", "session": "0x1"},
    {"topic": "b", "lag": Unknown("no leader"), "start": None, "owner": None, "session": None},
]


def _lines(width: int | None, output: Output = Output.TABLE) -> tuple[list[str], list[str]]:
    text, dropped = format_table(Table(ROWS, COLUMNS), output, Screen(width))
    return text.splitlines(), dropped


def test_a_table_without_a_terminal() -> None:
    """Without a terminal numbers are right-aligned and no text is cut; `wide` adds columns."""
    assert _lines(None) == (
        [
            "TOPIC       LAG  START  OWNER",
            "orders        7      0  group_host-1-0",
            "b       unknown      -  -",
        ],
        [],
    )
    assert _lines(20, Output.WIDE)[0][0].split() == ["TOPIC", "LAG", "START", "OWNER", "SESSION"]


def test_a_narrow_terminal() -> None:
    """If a terminal is narrow, columns are dropped in their declared order; text is wrapped."""
    assert _lines(38)[1] == []
    assert _lines(37)[1] == ["START"]
    lines, dropped = _lines(20)
    assert dropped == ["START", "OWNER"]
    assert lines[1] == "orders        7"
    long = Table([{"name": "x" * 30, "n": 1}], (Column("name"), Column("n", align=Align.RIGHT)))
    text, dropped = format_table(long, Output.TABLE, Screen(20))
    assert dropped == []
    assert [len(line) for line in text.splitlines()] == [20, 20, 13]
    assert text.replace("\n", "").count("x") == 30


def test_a_long_list_on_a_terminal() -> None:
    """A terminal shows the first items of a list and counts the others; other outputs show all."""
    names = [f"t{number}" for number in range(200)]
    rows = [{"topics": names, "threads": dict.fromkeys(names, 1)}, {"topics": ["t0"]}]
    columns = (
        Column("topics", type="strings", show=", ".join, most=3),
        Column("threads", type="counts?", show=", ".join, most=2),
    )
    table = Table(rows, columns)
    assert format_table(table, Output.TABLE, Screen(80))[0].splitlines() == [
        "TOPICS                   THREADS",
        "t0, t1, t2 and 197 more  t0, t1 and 198 more",
        "t0                       -",
    ]
    for output, screen in ((Output.WIDE, Screen(80)), (Output.TABLE, Screen())):
        assert format_table(table, output, screen)[0].count("t199") == 2


def test_colours() -> None:
    """With colours on, codes surround the text, but not its padding."""
    painted, _ = format_table(Table(ROWS, COLUMNS), Output.TABLE, Screen(80, color=True))
    assert "      \x1b[31m7\x1b[0m" in painted
    assert "\x1b" not in format_table(Table(ROWS, COLUMNS), Output.TABLE, Screen(80))[0]


def test_texts_that_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, JSON, YAML and CSV escape control characters, but not letters of any script."""
    assert safe("a\x1b[2Jb\n\x7f\x9b\u202e") == r"a\x1b[2Jb\n\x7f\x9b\u202e"
    assert safe("Bestellungen-ä-注文") == "Bestellungen-ä-注文"
    rows = [{"topic": "a\x1b]0;x\x07\n"}]
    for output in set(Output) - {Output.PROMETHEUS, Output.LEGACY, Output.HTML}:
        write(rows, COLUMNS[:1], output)
        written = capsys.readouterr().out
        assert not {"\x1b", "\x07"} & set(written)


def test_wide_characters() -> None:
    """A character that a terminal shows in two cells counts as two."""
    table = Table([{"a": "注文", "b": 1}, {"a": "abcd", "b": 2}], (Column("a"), Column("b")))
    assert format_table(table, Output.TABLE, Screen())[0].splitlines()[1:] == ["注文  1", "abcd  2"]


def test_formats_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Formats for programs have all columns; unknown is null with a reason, in CSV `unknown`."""
    found = {}
    for output in (Output.JSON, Output.JSONL, Output.YAML, Output.CSV):
        write(ROWS, COLUMNS, output)
        found[output] = capsys.readouterr().out
    documents = json.loads(found[Output.JSON])
    assert documents[0] == ROWS[0]
    assert documents[1] == {
        "topic": "b",
        "lag": None,
        "start": None,
        "owner": None,
        "session": None,
        "unknown": {"lag": "no leader"},
    }
    assert [json.loads(line) for line in found[Output.JSONL].splitlines()] == documents
    assert yaml.safe_load(found[Output.YAML]) == documents
    assert list(csv.DictReader(io.StringIO(found[Output.CSV])))[1]["lag"] == "unknown"


def test_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """If there are no rows, JSON is an empty list, and a table has only its titles."""
    write([], COLUMNS, Output.JSON)
    write([], COLUMNS, Output.YAML)
    write([], COLUMNS, Output.TABLE)
    assert capsys.readouterr().out == "[]\n[]\nTOPIC  LAG  START  OWNER\n"


def test_sections(capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON, several tables are one object; in JSON Lines, each line names its table."""
    sections = {"members": Table([], COLUMNS), "partitions": Table(ROWS[:1], COLUMNS)}
    write_sections(sections, Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"members": [], "partitions": ROWS[:1]}
    write_sections(sections, Output.JSONL)
    assert json.loads(capsys.readouterr().out) == {"section": "partitions", **ROWS[0]}
    write_sections(sections, Output.TABLE)
    assert capsys.readouterr().out.splitlines()[::3] == ["members", "partitions"]


def test_reasons_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error has each reason of unknown values once, with the number of its rows."""
    rows = [{"topic": "a", "lag": Unknown("no leader"), "start": Unknown("no leader")}] * 3
    write(rows, COLUMNS, Output.TABLE)
    assert capsys.readouterr().err == "zkconsumer: LAG, START unknown: no leader (3 rows)\n"
    many = [{"lag": Unknown(str(n))} for n in range(50)]
    assert len(unknown_reasons(Table(many, COLUMNS))) == 11


def test_ten_thousand_rows() -> None:
    """10,000 rows take much less than the ten seconds of a quadratic algorithm."""
    rows = [{"topic": f"t{n}", "lag": n, "start": 0, "owner": f"o{n}"} for n in range(10_000)]
    start = time.thread_time()
    format_table(Table(rows, COLUMNS), Output.TABLE, Screen(80))
    assert time.thread_time() - start < 5
