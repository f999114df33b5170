"""The registrations of each release: how they are written, read, and rejected."""

from __future__ import annotations

import pytest

from zkconsumer.errors import ConfigError, MalformedZnodeError
from zkconsumer.protocol.payloads import JvmException
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
    validate_registration,
)
from zkconsumer.protocol.releases import RELEASES, profile

STATIC = Registration({"t1": 4, "t2": 4}, timestamp_ms=1384000000000)
LIST = Registration({r"t\d/.": 4}, Pattern.WHITE_LIST, 1384000000000)
TIME = '"timestamp":"1384000000000"'


@pytest.mark.parametrize(
    ("release", "static", "regex"),
    [
        (
            "0.8.0",
            f'{{ "pattern":"static", "subscription":{{ "t1": 4,"t2": 4 }}, {TIME}, "version":1 }}',
            r' "t\d/." : 4 ',
        ),
        (
            "0.8.1",
            f'{{"version":1,"subscription":{{"t1":4,"t2":4}},"pattern":"static",{TIME}}}',
            r'"t\d/.":4',
        ),
        (
            "1.0.0",
            f'{{"version":1,"subscription":{{"t1":4,"t2":4}},"pattern":"static",{TIME}}}',
            r'"t\\d\/.":4',
        ),
        (
            "1.0.1",
            f'{{"version":1,"subscription":{{"t1":4,"t2":4}},"pattern":"static",{TIME}}}',
            r'"t\\\\d\\/.":4',
        ),
    ],
)
def test_how_each_release_writes(release: str, static: str, regex: str) -> None:
    """A member writes the layout of its release; for 0.8.0 and 0.8.1 there is no capture."""
    assert encode_registration(STATIC, profile=profile(release)).decode() == static
    written = encode_registration(LIST, profile=profile(release)).decode()
    assert f'"subscription":{{{regex}}}' in written


@pytest.mark.parametrize("writer", RELEASES)
def test_every_release_reads_what_every_release_writes(writer: str) -> None:
    """All releases read topic names alike, and filters without backslash, quote or slash."""
    for one in (STATIC, Registration({"a|b.*": 1}, Pattern.BLACK_LIST, 1384000000000)):
        payload = encode_registration(one, profile=profile(writer))
        for reader in RELEASES:
            read = decode_registration(payload, where="", profile=profile(reader))
            assert read == one, f"read by {reader}"


@pytest.mark.parametrize(
    ("release", "regex", "fault"),
    [
        ("0.8.0", r"t\b", r"as 't\\x08'"),
        ("0.8.1", r"t\b", r"as 't\\x08'"),
        ("0.8.1", 'a"b', "as an error"),
        ("0.8.1", r"t\d", ""),
        ("0.8.2.2", r't\b"/', ""),
        ("1.0.0", r't\b"/', ""),
        ("1.0.2", r"t\d", r"as 't\\\\\\\\d'"),
        ("1.1.1", "t.*", ""),
    ],
)
def test_what_would_be_misread_is_refused(release: str, regex: str, fault: str) -> None:
    """A filter that members of the release would misread is refused before registration."""
    one = Registration({regex: 1}, Pattern.WHITE_LIST)
    if not fault:
        validate_registration(one, profile=profile(release))
        return
    with pytest.raises(ConfigError, match=fault) as caught:
        validate_registration(one, profile=profile(release))
    assert caught.value.where == "peers.release"


def test_backslashes_are_doubled_only_for_texts_that_fail() -> None:
    """1.0.0 rejects the text that 0.8.1 writes; from 1.0.1 on its backslashes are doubled."""
    payload = rb'{"subscription":{"t\d":1},"pattern":"white_list"}'
    with pytest.raises(MalformedZnodeError) as caught:
        decode_registration(payload, where="", profile=profile("1.0.0"))
    assert caught.value.thrown is JvmException.KAFKA
    for release in ("0.8.1", "0.11", "1.0.1", "0.8.2-0.11"):
        found = decode_registration(payload, where="", profile=profile(release))
        assert dict(found.subscription) == {r"t\d": 1}


def test_of_five_regexes_the_first_in_scalas_order_counts() -> None:
    """In a Scala map with five entries the first entry by hash counts, not the first by text."""
    payload = b'{"subscription":{"t1":1,"t2":2,"t3":3,"t4":4,"t5":5},"pattern":"white_list"}'
    assert dict(decode_registration(payload, where="").subscription) == {"t4": 4}


def test_a_topic_that_cannot_be_a_path_fails_its_readers() -> None:
    """If a topic name cannot be a path, 0.9 decodes the registration, but 0.11 fails."""
    payload = b'{"subscription":{"":1},"pattern":"static"}'
    assert dict(decode_registration(payload, where="", profile=profile("0.9")).subscription)
    with pytest.raises(MalformedZnodeError) as caught:
        decode_registration(payload, where="", profile=profile("0.11"))
    assert caught.value.thrown is JvmException.ARGUMENT
