"""Files of offsets are read as a whole or not at all; written files can be read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.admin.offset_files import (
    FileFormat,
    Offsets,
    importable,
    read_offsets,
    read_storm_file,
    write_offsets,
)
from zkconsumer.errors import BadFileError
from zkconsumer.protocol.model import TopicPartition

# The text that ExportZkOffsets of 0.8.2.2 and of 1.1.1 wrote.
EXPORTED = b"/consumers/toolg/offsets/tool/0:1\n/consumers/toolg/offsets/tool/1:0\n"
TOOL: Offsets = {"toolg": {TopicPartition("tool", 0): 1, TopicPartition("tool", 1): 0}}

names = st.text("abZ09._-", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
offsets = st.dictionaries(
    names,
    st.dictionaries(
        st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)),
        st.integers(0, 2**63 - 1),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize(
    "data",
    [
        EXPORTED,
        EXPORTED.replace(b"\n", b"\r\n"),
        EXPORTED.rstrip(),
        EXPORTED + b"\n\r\n",
        b"tool,0,1\ntool,1,0\n",
        b"topic,partition,offset\ntool,0,1\ntool,1,0\n",
        b'"toolg","tool",0,1\n"toolg","tool",1,0\n',
        b"GROUP,TOPIC,PARTITION,OFFSET\ntoolg,tool,0,1\ntoolg,tool,1,0\n",
        b'{"groupid": "toolg", "offsets": {"tool": {"0": 1, "1": 0}}}',
        b' {"format": "zkconsumer-offsets", "version": 1, "groups": {"toolg":'
        b' {"tool": {"0": 1, "1": 0}}}}',
    ],
)
def test_every_format_is_known(data: bytes) -> None:
    """Each format is detected, and all formats give the same offsets."""
    assert read_offsets(data, where="f", group="toolg") == TOOL


def test_numbers_that_the_jvm_accepts() -> None:
    """If the JVM accepts a number in an export, it is read as the same number."""
    assert read_offsets(b"/consumers/g/offsets/t/0:+003", where="f") == {
        "g": {TopicPartition("t", 0): 3}
    }


@settings(max_examples=40)
@given(given_offsets=offsets, to=st.sampled_from(FileFormat))
def test_offsets_are_read_back_unchanged(given_offsets: Offsets, to: FileFormat) -> None:
    """In each format, offsets that are written and read again are unchanged."""
    if to is FileFormat.KAFKA_UTILS:
        given_offsets = dict(list(given_offsets.items())[:1])
    group = next(iter(given_offsets)) if len(given_offsets) == 1 else None
    text = write_offsets(given_offsets, to)
    assert read_offsets(text.encode(), where="f", group=group) == given_offsets


GOOD = "/consumers/g/offsets/t/0:1\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 0, "no offsets"),
        ("\n\n", 0, "no offsets"),
        (GOOD + "\n" + GOOD.replace("0:", "1:"), 2, "empty, and other lines follow"),
        (GOOD + GOOD, 2, "twice"),
        (GOOD + "/consumers/g/offsets/t/1:x", 2, "'x' is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1:", 2, "'' is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1: 5", 2, "' 5' is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1:5 ", 2, "'5 ' is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1:-1", 2, "not an offset"),
        (GOOD + "/consumers/g/offsets/t/1:9223372036854775808", 2, "not an offset"),
        (GOOD + "/consumers/g/offsets/t/1", 2, "is not of the form"),
        (GOOD + "/consumers/g/offsets/t/-1:5", 2, "-1 is not a partition"),
        (GOOD + "/consumers/g/offsets/t/01:5", 2, "is not of the form"),
        (GOOD + "/consumers/g/offsets/t/2147483648:5", 2, "is not of the form"),
        (GOOD + "/consumers/g/owners/t/1:5", 2, "is not of the form"),
        (GOOD + "/brokers/topics/t/1:5", 2, "is not of the form"),
        (GOOD + "/consumers/../offsets/t/1:5", 2, "not a legal group"),
        (GOOD + "/consumers/g/offsets/../1:5", 2, "not a legal topic"),
        (GOOD + "/consumers/g/offsets/a/b/1:5", 2, "is not of the form"),
        (GOOD + "/consumers/g\x00/offsets/t/1:5", 2, "not a legal group"),
        (GOOD + "/consumers/g\x1b[31m/offsets/t/1:5", 2, "x1b[31m"),
        (GOOD + "/consumers//offsets/t/1:5", 2, "not a legal group"),
        (GOOD + "/consumers/g/offsets/t\r/1:5", 2, "not a legal topic"),
        (GOOD + "/consumers/g/offsets/" + "t" * 250 + "/1:5", 2, "not a legal topic"),
        (GOOD + "/consumers/g/offsets/t/" + "1" * 1_000_000, 2, "longer than 4096"),
        ("\ufeff" + GOOD, 1, "byte order mark"),
        ("\ufefft,0,1", 1, "byte order mark"),
        ("t,0,1", 1, "names no group"),
        ("t,0", 1, "is not of the form"),
        ("g,t,0,1\ng,t,1,2,3", 2, "is not of the form"),
        ("g,t,x,1", 1, "not a partition"),
        ("g,t,99999999999,1", 1, "not a partition"),
        ("g,../t,0,1", 1, "not a legal topic"),
        ('g,"t,0,1', 1, "not a line of CSV"),
        ('g,"t",0,"1"x', 1, "not a line of CSV"),
        ("{", 1, "not JSON"),
        ("{}", 0, "neither"),
        ("{" * 100_000, 1, "not JSON"),
        ('{"a": ' * 100_000, 0, "not JSON"),
        ('{"groupid": "g", "offsets": {"t": {"0": 1, "0": 2}}}', 0, "twice"),
        ('{"groupid": "g", "offsets": {"t": {"0": "1"}}}', 0, "not an offset"),
        ('{"groupid": "g", "offsets": {"t": {"0": true}}}', 0, "not an offset"),
        ('{"groupid": "g", "offsets": {"t": {"00": 1}}}', 0, "not a partition"),
        ('{"groupid": "g", "offsets": {"t": {"' + "1" * 5000 + '": 1}}}', 0, "not a partition"),
        ('{"groupid": "g", "offsets": {"t": {"0": ' + "1" * 5000 + "}}}", 0, "not JSON"),
        ('{"groupid": "..", "offsets": {"t": {"0": 1}}}', 0, "not a legal group"),
        ('{"groupid": "g", "offsets": {"t": [1]}}', 0, "not an object"),
        ('{"format": "zkconsumer-offsets", "version": 2, "groups": {}}', 0, "version 1"),
        ('{"format": "zkconsumer-offsets", "version": 1, "groups": {}}', 0, "no offsets"),
    ],
)
def test_one_clear_error(text: str, line: int, why: str) -> None:
    """Any fault, even in the last line, is reported as one printable error with the line number."""
    with pytest.raises(BadFileError) as caught:
        read_offsets(text.encode(), where="file.txt")
    error = caught.value
    assert why in error.what
    assert error.where == (f"file.txt:{line}" if line else "file.txt")
    assert str(error).isprintable()
    assert len(str(error)) < 500


@pytest.mark.parametrize("to", FileFormat)
def test_a_group_whose_name_kafka_does_not_allow(to: FileFormat) -> None:
    """A file of an existing group with a blank, `#` or `:` in its name is read back unchanged."""
    offsets = {"my app: #1": {TopicPartition("t", 0): 5}}
    text = write_offsets(offsets, to)
    assert read_offsets(text.encode(), where="f", group="my app: #1") == offsets


def test_what_no_file_can_hold_is_left_out_of_an_export() -> None:
    """An export contains only offsets that an import accepts, with a note on each other one."""
    legal, negative, blank = (TopicPartition(*one) for one in (("t", 0), ("t", -1), ("a b", 0)))
    found, notes = importable({"g": {legal: 5, negative: 6, blank: 7}})
    assert found == {"g": {legal: 5}}
    assert len(notes) == 2


def test_bytes_that_are_no_text() -> None:
    """Bytes that are not UTF-8 are reported with the line number."""
    with pytest.raises(BadFileError, match=r"UTF-8 \(f:3\)"):
        read_offsets(b"a\nb\n\xff", where="f")


def test_another_group() -> None:
    """A file of another group than the given one is refused."""
    with pytest.raises(BadFileError, match="of group 'toolg', not of 'other'"):
        read_offsets(EXPORTED, where="f", group="other")


def test_groups_that_do_not_fit() -> None:
    """The JSON format of kafka-utils holds only one group, so several groups are refused."""
    with pytest.raises(BadFileError, match="2 groups"):
        write_offsets(TOOL | {"g": TOOL["toolg"]}, FileFormat.KAFKA_UTILS)


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    """Any bytes are either read, or raise this module's error."""
    try:
        assert read_offsets(data, where="f", group="g")
    except BadFileError as error:
        assert str(error).isprintable()


def test_a_file_of_storm(tmp_path: Path) -> None:
    """Each line is the payload of a spout's znode; another line is an error with its number."""
    line = (
        '{"topology":{"id":"7f1c","name":"count"},"offset":%d,"partition":%d,'
        '"broker":{"host":"b1","port":9092},"topic":"t"}\n'
    )
    file = tmp_path / "spout"
    file.write_text(line % (7, 0) + line % (9, 1))
    found = read_storm_file(file, group="g")
    assert found == {"g": {TopicPartition("t", 0): 7, TopicPartition("t", 1): 9}}
    file.write_text(line % (7, 0) + '{"offset":1}\n')
    with pytest.raises(BadFileError, match="is not an offset of a Storm spout") as error:
        read_storm_file(file, group="g")
    assert error.value.where == f"{file}:2"
