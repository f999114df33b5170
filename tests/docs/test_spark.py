"""docs/spark.md: its options, old names and messages equal those in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from zkconsumer.config.settings import SETTINGS
from zkconsumer.errors import ConfigError
from zkconsumer.spark import legacy
from zkconsumer.spark.offset_ranges import SHARED_TASK
from zkconsumer.spark.options import OPTIONS, SourceOptions
from zkconsumer.spark.schema import SCHEMA

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
MINIMUM = {"zookeeper": "zk:2181", "subscribe": "a", "group.id": "g"}
# Names of Spark and of the old API, in the last column of the table of old names.
ELSEWHERE = {"endOffset", "checkpointLocation", "metadata.broker.list", "from_json", "legacy"}


def rows(heading: str) -> Iterator[list[str]]:
    """Return the cells of the last table below a heading, without the table's header."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [one for one in section.splitlines() if one.startswith("|")][2:]
    assert lines, heading
    for line in lines:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_options() -> None:
    """The table lists every option exactly once, except the old properties."""
    listed = [name for first, *_ in rows("Options") for name in code(first)]
    assert sorted(listed) == sorted([*OPTIONS, "broker.listener", "isolation.level", "kafka.*"])


@pytest.mark.parametrize(("mode", "word"), [("group", "direct"), ("direct", "group")])
def test_an_option_of_the_other_mode_is_refused(mode: str, word: str) -> None:
    """If an option applies only to another mode, the error names the option."""
    theirs = (word, f"{word}, batch")
    only = [code(first)[0] for first, _, whom, _ in rows("Options") if whom in theirs]
    assert only
    for name in only:
        with pytest.raises(ConfigError) as caught:
            SourceOptions.parse({**MINIMUM, "mode": mode, name: "1"}).for_stream()
        assert name in str(caught.value)


def test_the_defaults() -> None:
    """The defaults in the table are those in the code."""
    told = {code(first)[0]: default for first, default, _, _ in rows("Options")}
    group = SourceOptions.parse({**MINIMUM, "mode": "group"}).for_stream()
    direct = SourceOptions.parse(MINIMUM)
    plain = SourceOptions.parse({name: one for name, one in MINIMUM.items() if name != "group.id"})
    assert told["revoke.grace.ms"] == f"{group.revoke_grace_s * 1000:.0f}"
    assert group.patience_s == 10 * group.config.zookeeper_session_timeout_s
    assert told["zookeeper.patience.ms"] == "ten session timeouts"
    assert told["mode"] == f"`{direct.mode.value}`"
    assert told["offsets.on.restart"] == f"`{group.on_restart}`"
    assert told["startingOffsetsByTimestampStrategy"] == f"`{direct.without_match}`"
    for name, flag in (
        ("failOnDataLoss", direct.fail_on_data_loss),
        ("mirrorOffsets", direct.mirror_offsets),
        ("pushFilters", direct.push_filters),
        ("failOnMissingShare", group.fail_on_missing_share),
    ):
        assert told[name] == f"`{str(flag).lower()}`"
    starts = [plain.for_stream(), direct.for_stream(), plain.for_batch()]
    words = [getattr(one.starting, "value", None) for one in starts]
    assert words == ["latest", "zookeeper", "earliest"]
    assert [one for one in code(told["startingOffsets"]) if one != "group.id"] == words


def test_the_columns() -> None:
    """The page names the existing columns in their order."""
    said = re.search(r"^Columns are those.*?: (.*?)\. With `(.*?)` (.*?)`\n", PAGE, re.M | re.S)
    assert said is not None
    assert code(said[1]) == SCHEMA.names
    assert (said[2], code(said[3] + "`")[0]) == ("includeHeaders", "headers")


def test_the_figures() -> None:
    """Figures on the page that are constants in the code have the same values."""
    assert f"fewer than {SHARED_TASK:,} messages" in PAGE


def test_the_old_names() -> None:
    """The replacements of old names exist: options, properties, functions of `legacy`."""
    known = {*OPTIONS, *(row.name for row in SETTINGS), *ELSEWHERE}
    for _, new in rows("From the old DStreams"):
        for name in code(new):
            word = name.partition("=")[0].partition("(")[0]
            if word.startswith("legacy."):
                assert hasattr(legacy, word.removeprefix("legacy."))
            elif re.fullmatch(r"[a-z][A-Za-z._]*", word) and not word.startswith("spark."):
                assert word in known or word in ("cast", "trigger"), name


def test_the_messages() -> None:
    """Each message in the last table that this package writes occurs in the code."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "zkconsumer").rglob("*.py")
    )
    # Join adjacent literals, so that each message is one text, as a reader sees it.
    text = re.sub(r'"\s+f?"', "", sources)
    for message, _ in rows("What goes wrong"):
        for said in code(message):
            if said.startswith(("DATA_SOURCE", "No module", "Cannot run program")):
                continue
            parts = [re.escape(one.strip()) for one in said.split("…")]
            pattern = r".{0,80}".join(parts).replace(re.escape("No module named 'pyarrow'"), r".*")
            assert re.search(pattern, text), said
