"""Topic counts, consumer ids and consumer thread ids."""

from __future__ import annotations

from typing import cast

import pytest

from zkconsumer.errors import ConfigError, InvalidNameError
from zkconsumer.protocol import paths


def test_topic_counts_pass_in_their_order() -> None:
    """Valid counts are returned unchanged; an empty mapping is valid, as in the JVM."""
    assert list(paths.validate_topic_counts({"b": 1, "a": 2}).items()) == [("b", 1), ("a", 2)]
    assert paths.validate_topic_counts({}) == {}


@pytest.mark.parametrize("count", [0, -1, 1.0, "1", True, None, paths.MAX_STREAMS + 1])
def test_bad_counts_are_refused(count: object) -> None:
    """A count that is not an integer from 1 to the limit is an error."""
    with pytest.raises(ConfigError):
        paths.validate_topic_counts({"t": cast(int, count)})


def test_bad_topics_are_refused() -> None:
    """The error for an illegal topic name in the topic counts contains the name."""
    with pytest.raises(InvalidNameError, match="'a b'"):
        paths.validate_topic_counts({"a b": 1})


def test_generated_suffix() -> None:
    """The suffix has the host, milliseconds, and eight hexadecimal digits of a UUID, unpadded."""
    suffix = paths.default_suffix(hostname="HOST", epoch_ms=5, uuid_msb=0x7B3FD65E_00004000)
    assert suffix == "HOST-5-7b3fd65e"
    short = paths.default_suffix(hostname="h", epoch_ms=5, uuid_msb=0x00003FD6_5E00A000)
    assert short == "h-5-3fd65e00"


def test_consumer_id() -> None:
    """A consumer id is the group, an underscore and the suffix; impossible ids are rejected."""
    assert paths.consumer_id("g", "c1") == "g_c1"
    with pytest.raises(InvalidNameError):
        paths.consumer_id("g", "a/b")


def test_thread_ids() -> None:
    """Threads are numbered from 0 and listed in the order of their numbers."""
    assert paths.thread_ids("g_c", 11)[9:] == ("g_c-9", "g_c-10")
