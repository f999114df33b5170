"""Files of ExportZkOffsets: which files are read, and which are refused as a whole."""

from __future__ import annotations

import pytest

from zkconsumer.admin.legacy import read_export
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import TopicPartition

GOOD = b"/consumers/g/offsets/t/0:42"


@pytest.mark.parametrize(
    ("data", "offsets", "unread"),
    [
        (b"", {}, 0),
        (GOOD, {0: 42}, 0),
        (GOOD + b"\n", {0: 42}, 0),
        (GOOD + b"\r\n/consumers/g/offsets/t/1:-1\r\n", {0: 42, 1: -1}, 0),
        (GOOD + b"\n" + GOOD + b"3\n", {0: 423}, 0),
        (GOOD + b"\n\n" + GOOD + b"3\n", {0: 42}, 2),
        (GOOD + b"\n\n\n", {0: 42}, 0),
    ],
)
def test_read(data: bytes, offsets: dict[int, int], unread: int) -> None:
    """As in ImportZkOffsets, the last line of a path counts, and an empty line ends the file."""
    found = read_export(data, where="file")
    assert found.unread == unread
    assert found.offsets == {("g", TopicPartition("t", n)): at for n, at in offsets.items()}


@pytest.mark.parametrize(
    "line",
    [
        b"broken line",
        b"/consumers/g/offsets/t/0:",
        b"/consumers/g/offsets/t/0: 5 ",
        b"/consumers/g/offsets/t/0:abc",
        b"/consumers/g/offsets/t/0:5:6",
        b"/consumers/g/offsets/t/0:9223372036854775808",
        b"/consumers/g/offsets/t/-1:5",
        b"/consumers/g/offsets/t/00:5",
        b"/consumers/../offsets/t/0:5",
        b"/consumers/g/offsets/../0:5",
        b"/consumers/g/owners/t/0:5",
        b"/consumers/g/offsets/t:5",
        b"/brokers/ids/0:5",
        b"/consumers/g/offsets/a\x00b/0:5",
        b"\xef\xbb\xbf/consumers/g/offsets/t/0:5",
        b"\xff\xfe",
        b"/consumers/" + b"g" * 1_000_000 + b"/offsets/t/0:5",
    ],
)
def test_refused(line: bytes) -> None:
    """A line that is not an offset of a group is refused in one sentence with its position."""
    with pytest.raises(ConfigError) as caught:
        read_export(GOOD + b"\n" + line + b"\n" + GOOD + b"\n", where="file")
    assert caught.value.where == "file:2"
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
