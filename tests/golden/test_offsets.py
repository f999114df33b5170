"""Recorded segments of `__consumer_offsets` say what the brokers answered at each moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.history.offset_commits import IDLE, TOOL, Offsets, moments_of

from zkconsumer.history.kafka_offsets import KafkaLogs, read_past_in_kafka
from zkconsumer.history.offset_logs import find_replicas
from zkconsumer.history.offsets import KafkaCommit

RECORDINGS = sorted((Path(__file__).parent / "offsets").glob("*.tar.gz"))
COMPLETE = [one for one in RECORDINGS if "compacted" not in one.name]
COMPACTED = [one for one in RECORDINGS if "compacted" in one.name]


def name(path: Path) -> str:
    return path.name.removesuffix(".tar.gz")


def known(path: Path, at_ms: int) -> tuple[Offsets, set[tuple[str, int]]]:
    """Return the offsets that the segments show, and the partitions whose offsets are unknown."""
    found: Offsets = {}
    unknown = set()
    for group, some in read_past_in_kafka(find_replicas([path]), at_ms).offsets.items():
        for tp, one in some.items():
            if isinstance(one, KafkaCommit):
                found.setdefault(group, {})[tp.partition] = (one.offset, one.metadata)
            else:
                unknown.add((group, tp.partition))
    return found, unknown


@pytest.mark.parametrize("path", COMPLETE, ids=name)
def test_every_moment(path: Path) -> None:
    """The offsets and metadata of each moment are those that OffsetFetch returned."""
    moments = moments_of(path)
    assert len(moments) >= 6
    for at_ms, answered in moments:
        assert known(path, at_ms) == ({g: one for g, one in answered.items() if one}, set())


@pytest.mark.parametrize("path", COMPACTED, ids=name)
def test_compaction(path: Path) -> None:
    """An offset is what OffsetFetch returned, or unknown; that of an idle group is known."""
    moments = moments_of(path)
    answers = [(known(path, at_ms), answered) for at_ms, answered in moments]
    for (found, unknown), answered in answers:
        for group, some in answered.items():
            for partition, one in some.items():
                if (group, partition) not in unknown:
                    assert found[group][partition] == one
        assert found[IDLE] == answered[IDLE]
    assert any((TOOL, 0) in unknown for (_, unknown), _ in answers)
    assert answers[-1][0][1] == set()
    assert KafkaLogs(lambda: find_replicas([path])).read().compacted
