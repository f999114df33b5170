"""Segments of `__consumer_offsets` that a test writes: what they prove, and what stays unknown."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.kafka.encoded_records import Record, batch, message_set

from zkconsumer.errors import BadFileError
from zkconsumer.history.kafka_offsets import KafkaCommits, KafkaLogs, read_past_in_kafka
from zkconsumer.history.offset_logs import find_replicas
from zkconsumer.history.offsets import KafkaCommit, PastKafkaOffsets
from zkconsumer.protocol.model import TopicPartition

TP = TopicPartition("orders", 0)
CHECKPOINT = "cleaner-offset-checkpoint"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def key(group: str) -> bytes:
    return struct.pack(">h", 1) + text(group) + text(TP.topic) + struct.pack(">i", TP.partition)


def commit(place: int, group: str, offset: int | None, ms: int, *, version: int = 3) -> Record:
    """Return the record of a commit, or of the deletion of an offset, at a place in the log."""
    if offset is None:
        return Record(place, key(group), None, ms)
    epoch = struct.pack(">i", 4) if version >= 3 else b""
    rest = struct.pack(">q", ms) + (struct.pack(">q", ms + 9) if version == 1 else b"")
    value = struct.pack(">hq", version, offset) + epoch + text("") + rest
    return Record(place, key(group), value, ms)


def segment(log_dir: Path, base: int, *batches: bytes) -> Path:
    """Write a segment of partition 3 of the topic."""
    folder = log_dir / "__consumer_offsets-3"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{base:020}.log"
    file.write_bytes(b"".join(batches))
    return file


def past(at_ms: int, *log_dirs: Path) -> PastKafkaOffsets:
    return read_past_in_kafka(find_replicas(log_dirs), at_ms)


def offset(at_ms: int, *log_dirs: Path, group: str = "g") -> int | str | None:
    """Return the offset in effect; "unknown", or None if there was none."""
    found = past(at_ms, *log_dirs).offsets.get(group, {}).get(TP)
    return found.offset if isinstance(found, KafkaCommit) else "unknown" if found else None


def rows(*log_dirs: Path) -> KafkaCommits:
    return KafkaLogs(lambda: find_replicas(log_dirs)).read()


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_old_formats(tmp_path: Path, magic: int, codec: str) -> None:
    """Sets of formats v0 and v1, plain or compressed, are read with each version of a value."""
    records = [commit(n, "g", 10 + n, 100 + n, version=n) for n in range(4)]
    segment(tmp_path, 0, message_set(records, magic=magic, codec=codec))
    assert [offset(100 + n, tmp_path) for n in range(-1, 4)] == [None, 10, 11, 12, 13]


def test_a_deletion_without_a_time(tmp_path: Path) -> None:
    """A deletion in format v0 has no time: between the records around it, nothing is known."""
    records = [commit(0, "g", 5, 100), commit(1, "g", None, 0), commit(2, "h", 1, 200)]
    segment(tmp_path, 0, message_set(records, magic=0))
    assert [offset(ms, tmp_path) for ms in (99, 100, 199, 200)] == [
        None,
        "unknown",
        "unknown",
        None,
    ]


def test_compaction(tmp_path: Path) -> None:
    """An offset is unknown before its first record that is left, and known from there on."""
    left = [commit(1, "idle", 1, 110), commit(6, "g", 8, 160), commit(7, "g", 9, 170)]
    segment(tmp_path, 0, batch(left))
    assert [offset(ms, tmp_path) for ms in (100, 159, 160, 170)] == ["unknown", "unknown", 8, 9]
    assert [offset(ms, tmp_path, group="idle") for ms in (110, 165, 180)] == [1, 1, 1]
    assert "first commit that is left is of 1970-01-01T00:00:00.160Z" in str(
        past(120, tmp_path).offsets["g"][TP]
    )


def test_nothing_is_missing_before_the_moment(tmp_path: Path) -> None:
    """If compaction has removed only later records, a group without a commit had no offset."""
    segment(tmp_path, 0, batch([commit(0, "h", 1, 100), commit(1, "h", 2, 150)]))
    segment(tmp_path, 2, batch([commit(5, "g", 3, 200)]))
    (tmp_path / CHECKPOINT).write_text("0\n1\n__consumer_offsets 3 6\n")
    assert [offset(ms, tmp_path) for ms in (149, 199, 200)] == [None, "unknown", 3]


@pytest.mark.parametrize("checkpoint", [None, 2])
def test_a_lost_segment(tmp_path: Path, checkpoint: int | None) -> None:
    """Where the cleaner has not been, an offset is unknown after missing records."""
    segment(tmp_path, 0, batch([commit(0, "g", 1, 100), commit(1, "g", 2, 110)]))
    segment(tmp_path, 5, batch([commit(5, "h", 7, 150), commit(6, "g", 6, 160)]))
    if checkpoint is not None:
        (tmp_path / CHECKPOINT).write_text(f"0\n1\n__consumer_offsets 3 {checkpoint}\n")
    assert [offset(ms, tmp_path) for ms in (100, 109, 110, 159, 160)] == [
        1, 1, "unknown", "unknown", 6
    ]  # fmt: skip
    (problem,) = past(110, tmp_path).problems
    assert (problem.kind, problem.what) == (
        "missing",
        "the records with offsets 2 to 4 are missing",
    )


def test_a_segment_that_was_cleaned(tmp_path: Path) -> None:
    """A first record above the segment's name shows that the cleaner was there."""
    segment(tmp_path, 0, batch([commit(0, "idle", 1, 100)]))
    segment(tmp_path, 3, batch([commit(5, "g", 7, 150)]))
    assert (offset(120, tmp_path, group="idle"), offset(120, tmp_path)) == (1, "unknown")


def test_an_index_without_its_segment(tmp_path: Path) -> None:
    """A segment is lost if only its index is left, even where the cleaner has been."""
    segment(tmp_path, 0, batch([commit(0, "g", 1, 100)]))
    file = segment(tmp_path, 5, batch([commit(5, "h", 7, 150)]))
    (tmp_path / CHECKPOINT).write_text("0\n1\n__consumer_offsets 3 6\n")
    assert offset(120, tmp_path) == 1
    (file.parent / f"{3:020}.index").touch()
    assert offset(120, tmp_path) == "unknown"


def test_gaps_above_the_checkpoint(tmp_path: Path) -> None:
    """Above the cleaner's checkpoint, each missing record is a loss."""
    segment(tmp_path, 0, batch([commit(0, "g", 1, 100), commit(5, "h", 7, 150)]))
    assert offset(150, tmp_path) == 1
    (tmp_path / CHECKPOINT).write_text("0\n1\n__consumer_offsets 3 2\n")
    assert offset(150, tmp_path) == "unknown"


@pytest.mark.parametrize("place", [40, 70])
def test_a_damaged_batch(tmp_path: Path, place: int) -> None:
    """A damaged batch is named with its byte, and the other batches are read."""
    batches = [batch([commit(n, "g", n, 100 + n)]) for n in range(4)]
    size = len(batches[0])
    data = bytearray(b"".join(batches))
    data[size + place] ^= 255
    file = segment(tmp_path, 0, bytes(data))
    assert [offset(ms, tmp_path) for ms in (99, 100, 101, 102, 103)] == [
        None, "unknown", "unknown", 2, 3
    ]  # fmt: skip
    (problem,) = past(103, tmp_path).problems
    assert (problem.kind, problem.where) == ("damaged", str(file))
    assert problem.what.endswith(f"at byte {size}")


def test_ends_of_segments(tmp_path: Path) -> None:
    """The last segment may end within a batch, or in zeros; an older one that does is torn."""
    whole, cut = batch([commit(0, "g", 5, 100)]), batch([commit(1, "g", 6, 110)])[:-3]
    for rest in (cut, cut[:5], bytes(100), b""):
        segment(tmp_path, 0, whole, rest)
        assert (offset(105, tmp_path), past(105, tmp_path).problems) == (5, ())
    segment(tmp_path, 0, whole, cut)
    segment(tmp_path, 2, batch([commit(2, "g", 7, 120)]))
    assert (offset(119, tmp_path), offset(120, tmp_path)) == ("unknown", 7)
    assert [one.kind for one in past(120, tmp_path).problems] == ["torn"]


def test_replicas(tmp_path: Path) -> None:
    """One broker still knows what another one has compacted; an ended copy counts less."""
    first = [commit(0, "g", 1, 100), commit(1, "g", 2, 110)]
    segment(tmp_path / "a", 0, batch(first))
    segment(tmp_path / "b", 0, batch([commit(1, "g", 2, 110), commit(2, "g", 3, 120)]))
    segment(tmp_path / "c", 0, batch([commit(4, "g", 5, 140)]))
    a, b, c = (tmp_path / name for name in "abc")
    assert (offset(105, b), offset(105, a, b)) == ("unknown", 1)
    assert offset(130, a, b) == 3
    assert offset(130, a, b, c) == "unknown"
    assert [row.count for row in rows(a, b, c).commits] == [4]


def test_replicas_that_disagree(tmp_path: Path) -> None:
    """Two replicas with different commits at one place yield no offset."""
    for name, number in (("a", 1), ("b", 2)):
        segment(tmp_path / name, 0, batch([commit(0, "g", number, 100)]))
    assert offset(100, tmp_path / "a", tmp_path / "b") == "unknown"


def test_unknown_versions(tmp_path: Path) -> None:
    """A commit in a version of a later release makes the offset unknown up to its next commit."""
    later = Record(1, key("g"), struct.pack(">hq", 9, 7), 110)
    group = Record(2, struct.pack(">h", 5) + text("g"), b"", 120)
    segment(tmp_path, 0, batch([commit(0, "g", 1, 100), later, group, commit(3, "g", 3, 130)]))
    assert [offset(ms, tmp_path) for ms in (109, 120, 130)] == [1, "unknown", 3]
    assert [one.kind for one in rows(tmp_path).problems] == ["unreadable"]


def test_rows(tmp_path: Path) -> None:
    """A run of commits is one row; a lower offset or a deletion ends it."""
    records = [commit(n, "g", value, 100 + n) for n, value in enumerate((5, 6, 6, 2, None, 9))]
    segment(tmp_path, 0, batch(records))
    found = rows(tmp_path)
    assert [(row.begins, row.before, row.first, row.last, row.count) for row in found.commits] == [
        ("first", None, 5, 6, 3),
        ("moved back", 6, 2, 2, 1),
        ("first", None, 9, 9, 1),
    ]
    assert [(row.store, row.place, row.session) for row in found.commits][1] == ("kafka", 3, None)
    assert [one.kind for one in found.incidents] == ["offset deleted"]


@pytest.mark.parametrize("given", ["data", "__consumer_offsets-3", "segment"])
def test_paths(tmp_path: Path, given: str) -> None:
    """A log directory, a partition's directory or a segment can be named."""
    file = segment(tmp_path, 0, batch([commit(0, "g", 1, 100), commit(5, "h", 7, 150)]))
    (tmp_path / CHECKPOINT).write_text("0\n1\n__consumer_offsets 3 2\n")
    path = {"data": tmp_path, "segment": file}.get(given, file.parent)
    assert offset(150, path) == "unknown"


def test_wrong_paths(tmp_path: Path) -> None:
    """A directory without segments of the topic is an error that says what to give."""
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020}.log").touch()
    with pytest.raises(BadFileError, match="no segment of __consumer_offsets"):
        find_replicas([tmp_path])


def test_the_cleaner_removes_a_commit_before_the_segments_are_opened(tmp_path: Path) -> None:
    """A commit is found in a segment that was added after the directory had been listed."""
    file = segment(tmp_path, 0, batch([commit(0, "g", 1, 100), commit(1, "h", 1, 110)]))
    segment(tmp_path, 2, b"")
    replicas = find_replicas([tmp_path])
    file.unlink()
    segment(tmp_path, 0, batch([commit(1, "h", 1, 110)]))
    segment(tmp_path, 2, b"")
    segment(tmp_path, 3, batch([commit(3, "g", 3, 160)]))
    found = [read_past_in_kafka(replicas, at).offsets["g"][TP] for at in (120, 160)]
    assert isinstance(found[0], str) and isinstance(found[1], KafkaCommit)


def test_a_segment_that_the_cleaner_has_not_renamed(tmp_path: Path) -> None:
    """A segment `.swap` replaces the one with its base, and those that are deleted already."""
    cleaned = segment(tmp_path, 0, batch([commit(0, "idle", 1, 100), commit(3, "g", 4, 130)]))
    swap = cleaned.rename(cleaned.with_name(f"{cleaned.name}.swap"))
    segment(tmp_path, 4, batch([commit(4, "g", 5, 140)]))
    (tmp_path / CHECKPOINT).write_text("0\n1\n__consumer_offsets 3 4\n")
    for _ in ("the old segment is deleted", "the old segment is still there"):
        assert [offset(ms, tmp_path, group="idle") for ms in (100, 140)] == [1, 1]
        assert [offset(ms, tmp_path) for ms in (129, 130, 140)] == ["unknown", 4, 5]
        segment(tmp_path, 0, batch([commit(n, "g", n, 100 + n) for n in range(3)]))
    assert find_replicas([swap])[0].size == swap.stat().st_size


def test_the_broker_deletes_a_segment(tmp_path: Path) -> None:
    """If a segment disappears before it is opened, the directory is listed again."""
    segment(tmp_path, 0, batch([commit(0, "g", 1, 100)]))
    file = segment(tmp_path, 1, batch([commit(1, "g", 2, 110)]))
    replicas = find_replicas([tmp_path])
    segment(tmp_path, 0, batch([commit(0, "g", 1, 100), commit(1, "g", 2, 110)]))
    file.unlink()
    found = read_past_in_kafka(replicas, 110).offsets["g"][TP]
    assert isinstance(found, KafkaCommit)
    assert found.offset == 2
