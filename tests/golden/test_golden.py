"""Results equal those of the JVM's consumer, byte by byte and partition by partition."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.captures import captured

from zkconsumer.errors import ConfigError, InvalidNameError, MalformedZnodeError
from zkconsumer.protocol import paths, payloads, registrations
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, consumer_id, default_suffix, thread_id
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
    validate_registration,
)
from zkconsumer.protocol.releases import profile

WRITTEN_AT_MS = 1400000000000
RELEASES = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1")


# ---- registrations ------------------------------------------------------------------------------


def _registrations(release: str) -> Iterator[tuple[Registration, bytes]]:
    """Yield what a member of the release was asked to register, and what it wrote."""
    for capture in captured("registrations"):
        if release in capture["releases"]:
            asked = dict(capture["subscription"])
            pattern = Pattern(capture["pattern"])
            yield Registration(asked, pattern, WRITTEN_AT_MS), capture["payload"].encode()


@pytest.mark.parametrize("release", RELEASES)
def test_registrations_are_written_as_the_jvm_writes_them(release: str) -> None:
    """Registrations equal the captured bytes of each release, even in the order of maps."""
    captured = list(_registrations(release))
    assert len(captured) >= 100
    for registration, payload in captured:
        assert encode_registration(registration, profile=profile(release)) == payload


def test_by_default_registrations_are_those_of_0_8_2_to_1_0_0() -> None:
    """Without `peers.release`, a member writes the registration of 0.11."""
    captured = list(_registrations("0.11.0.3"))
    assert len(captured) >= 100
    for registration, payload in captured:
        assert encode_registration(registration) == payload


@pytest.mark.parametrize("release", RELEASES)
def test_registrations_are_read_as_the_jvm_reads_them(release: str) -> None:
    """A captured registration can be read, unless zkconsumer refuses to write it."""
    count = 0
    for registration, payload in _registrations(release):
        ((key, streams),) = list(registration.subscription.items())[:1] or [("t", 1)]
        doubled = release == "1.1.1" and bool(re.search(r'["\\/\x00-\x1f\x7f-\x9f]', key))
        try:
            validate_registration(registration, profile=profile(release))
        except ConfigError as error:
            assert release in error.what
            assert registration.pattern is Pattern.STATIC or doubled or streams < 1
            continue
        read = decode_registration(payload, where="", profile=profile(release))
        assert read == registration
        assert registration.pattern is Pattern.STATIC or not doubled
        count += 1
    assert count >= 60


def test_generated_consumer_ids() -> None:
    """A generated consumer id has the format of the JVM's ids."""
    generated = [c["generated_id"] for c in captured("registrations") if "generated_id" in c]
    assert len(generated) == 15
    for one in generated:
        hostname, epoch_ms, digits = one.removeprefix("g_").split("-")
        suffix = default_suffix(
            hostname=hostname, epoch_ms=int(epoch_ms), uuid_msb=int(digits + "0" * 8, 16)
        )
        assert consumer_id("g", suffix) == one


def test_characters_of_consumer_ids() -> None:
    """A consumer id is refused if ZooKeeper or its Java client refused the znode."""
    path = Path(__file__).with_name("consumer_ids.jsonl")
    captures = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(captures) >= 13
    for capture in captures:
        suffix = capture["suffix"]
        if "0.8.2.2" not in capture["releases"]:
            suffix = suffix.strip("".join(map(chr, range(0x21))))
        allowed = True
        try:
            consumer_id("g", suffix)
        except InvalidNameError:
            allowed = False
        assert allowed is capture["registered"], ascii(capture)


def test_znodes_of_running_groups() -> None:
    """Owners and offsets equal the captured bytes, and every path is recognised."""
    seen = dict.fromkeys(ZnodeKind, 0)
    for capture in captured("znodes"):
        path, payload = capture["path"], bytes.fromhex(capture["payload_hex"] or "")
        located = paths.locate(path)
        seen[located.kind] += 1
        tp = TopicPartition(located.name, located.partition)
        if located.kind is ZnodeKind.MEMBER:
            assert path == paths.member(located.group, located.name)
            registration = registrations.decode_registration(payload, where=path)
            assert registrations.encode_registration(registration) == payload
        elif located.kind is ZnodeKind.OWNER:
            assert path == paths.owner(located.group, tp)
            owner = payloads.decode_owner(payload, where=path)
            member, _, number = owner.rpartition("-")
            assert member.startswith(f"{located.group}_")
            assert payloads.encode_owner(thread_id(member, int(number))) == payload
        elif located.kind is ZnodeKind.OFFSET:
            assert path == paths.offset(located.group, tp)
            assert payloads.encode_offset(payloads.decode_offset(payload, where=path)) == payload
        else:
            assert payload == b""
    assert min(seen[ZnodeKind.MEMBER], seen[ZnodeKind.OWNER], seen[ZnodeKind.OFFSET]) >= 9


def test_odd_offsets() -> None:
    """An offset znode is read or refused as in the JVM; a negative number means no offset."""
    captures = list(captured("odd_offsets"))
    assert len(captures) == 23
    for capture in captures:
        stored, first = capture["payload_hex"], capture["first_offset"]
        try:
            payload = None if stored is None else bytes.fromhex(stored)
            offset = payloads.decode_offset(payload, where="")
        except MalformedZnodeError:
            assert first is None, stored
            continue
        # A consumer without an offset, or with one beyond the end, started at the log's beginning.
        assert first == (offset if 0 <= offset <= 20 else 0), stored
