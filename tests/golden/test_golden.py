"""Byte for byte and partition for partition what the JVM consumer did."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zkconsumer.core import paths, records
from zkconsumer.core.assignors import KeyForm, Strategy, Variant, assign
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.records import Pattern, Registration
from zkconsumer.core.topics import consumer_id, default_suffix, thread_id
from zkconsumer.errors import ConfigError, MalformedZnodeError

WRITTEN_AT_MS = 1400000000000
# release -> what a group of it does in round-robin
RELEASES = {
    "0.8.2.2": (KeyForm.BRACKET, Variant.IDENTICAL),
    "0.9.0.1": (KeyForm.BRACKET, Variant.IDENTICAL),
    "0.10.2.2": (KeyForm.BRACKET, Variant.SKIPPING),
    "0.11.0.3": (KeyForm.BRACKET, Variant.SKIPPING),
    "1.1.1": (KeyForm.DASH, Variant.SKIPPING),
}


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(Path(__file__).with_name(name), "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


# ---- assignors ----------------------------------------------------------------------------------

Outcome = dict[TopicPartition, str] | None  # None: refused


def _ours(case: dict[str, Any], release: str) -> Outcome:
    def payload(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    key_form, variant = RELEASES[release]
    try:
        return assign(
            Strategy(case["strategy"]),
            subscriptions={
                name: records.decode_registration(payload(text), where=name).subscription
                for name, text in case["registrations"].items()
            },
            partitions={
                name: records.decode_topic(payload(text), where=name)
                for name, text in case["topics"].items()
            },
            key_form=key_form,
            variant=variant,
        )
    except (MalformedZnodeError, ConfigError):
        return None


def _theirs(case: dict[str, Any], release: str) -> Outcome:
    (result,) = (r["assignment"] for r in case["results"] if release in r["releases"])
    if result is None:
        return None
    return {
        TopicPartition(topic, int(number)): thread
        for of_member in result.values()
        for topic, of_topic in of_member.items()
        for number, thread in of_topic.items()
    }


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("file", ["range", "roundrobin", "documented_and_failures"])
def test_assignments_are_those_of_the_jvm(file: str, release: str) -> None:
    """Every well-formed group is assigned, or refused, as the release's own assignor did it."""
    cases = [case for case in _lines("assignor.jsonl.gz") if case["file"] == file]
    assert len(cases) >= 40
    differing = [case["name"] for case in cases if _ours(case, release) != _theirs(case, release)]
    # Zero topics: 0.8.2 alone fails (KAFKA-1648). A null pattern: 1.1 alone refuses it.
    known = {
        "0.8.2.2": ["empty subscription only member"],
        "1.1.1": ["pattern null", "pattern null"],
    }
    assert differing in ([], known.get(release))


# Text behind the JSON, which 0.8.2-0.11 refuse (in a registration) or take for an empty topic.
TRAILING = ("registration: two objects", "topic: trailing garbage")


@pytest.mark.parametrize("file", ["malformed_registrations", "malformed_topics"])
def test_odd_payloads_mean_what_they_mean_to_the_jvm(file: str) -> None:
    """What 0.11 takes means the same here; what it refuses is refused, unless 1.1 takes it."""
    taken_as_by_1_1 = 0
    for case in _lines("assignor.jsonl.gz"):
        if case["file"] != file:
            continue
        release = "0.11.0.3"
        if _theirs(case, release) is None and not case["name"].startswith(TRAILING):
            release = "1.1.1"
            taken_as_by_1_1 += _theirs(case, release) is not None
        assert _ours(case, release) == _theirs(case, release), case["name"]
    assert taken_as_by_1_1 == {"malformed_registrations": 8, "malformed_topics": 2}[file]


# ---- payloads -----------------------------------------------------------------------------------


# Topics that the JVM does not escape: not JSON, or not the topic meant. We escape them.
UNESCAPED = {'a"b', "a\\b", "a\tb", "a\x01b", "a\x7fb"}


def _is_broken(registration: Registration) -> bool:
    return not UNESCAPED.isdisjoint(registration.subscription)


def _registrations() -> Iterator[tuple[Registration, bytes]]:
    """What was asked for and what was written, but for 1.1.1's regexes that are escaped twice."""
    for capture in _lines("registrations.jsonl.gz"):
        if capture["releases"] != ["1.1.1"]:
            asked = dict(capture["subscription"])
            pattern = Pattern(capture["pattern"])
            yield Registration(asked, pattern, WRITTEN_AT_MS), capture["payload"].encode()


def test_registrations_are_written_as_the_jvm_writes_them() -> None:
    """Registrations are byte-equal to the captured ones of 0.8.2-1.0, map order included."""
    compared = 0
    for registration, payload in _registrations():
        if registration.pattern is not Pattern.STATIC or not _is_broken(registration):
            assert records.encode_registration(registration) == payload
            compared += 1
    assert compared >= 100


def test_registrations_are_read_as_the_jvm_reads_them() -> None:
    """A captured registration means what its writer was asked for, if the JVM can use it at all."""
    refused = 0
    for registration, payload in _registrations():
        asked, static = registration.subscription, registration.pattern is Pattern.STATIC
        impossible = _is_broken(registration) or any(paths.znode_fault(topic) for topic in asked)
        if (static and impossible) or min(asked.values(), default=1) < 1:
            with pytest.raises(MalformedZnodeError):
                records.decode_registration(payload, where="")
            refused += 1
        else:
            assert records.decode_registration(payload, where="") == registration
    assert refused < 20


def test_generated_consumer_ids() -> None:
    """A consumer id is put together as the JVM generates it."""
    generated = [c["generated_id"] for c in _lines("registrations.jsonl.gz") if "generated_id" in c]
    assert len(generated) == 15
    for captured in generated:
        hostname, epoch_ms, digits = captured.removeprefix("g_").split("-")
        suffix = default_suffix(
            hostname=hostname, epoch_ms=int(epoch_ms), uuid_msb=int(digits + "0" * 8, 16)
        )
        assert consumer_id("g", suffix) == captured


def test_znodes_of_running_groups() -> None:
    """Owners and offsets are byte-equal to the captured ones, and every path is recognised."""
    seen = dict.fromkeys(Kind, 0)
    for capture in _lines("znodes.jsonl.gz"):
        path, payload = capture["path"], bytes.fromhex(capture["payload_hex"] or "")
        located = paths.locate(path)
        seen[located.kind] += 1
        tp = TopicPartition(located.name, located.partition)
        if located.kind is Kind.MEMBER:
            assert path == paths.member(located.group, located.name)
            registration = records.decode_registration(payload, where=path)
            assert records.encode_registration(registration) == payload
        elif located.kind is Kind.OWNER:
            assert path == paths.owner(located.group, tp)
            owner = records.decode_owner(payload, where=path)
            member, _, number = owner.rpartition("-")
            assert member.startswith(f"{located.group}_")
            assert records.encode_owner(thread_id(member, int(number))) == payload
        elif located.kind is Kind.OFFSET:
            assert path == paths.offset(located.group, tp)
            assert records.encode_offset(records.decode_offset(payload, where=path)) == payload
        else:
            assert payload == b""
    assert min(seen[Kind.MEMBER], seen[Kind.OWNER], seen[Kind.OFFSET]) >= 9


def test_odd_offsets() -> None:
    """An offset znode is read, or refused, as the JVM does; a negative one means none."""
    captures = list(_lines("odd_offsets.jsonl.gz"))
    assert len(captures) == 23
    for capture in captures:
        stored, first = capture["payload_hex"], capture["first_offset"]
        try:
            payload = None if stored is None else bytes.fromhex(stored)
            offset = records.decode_offset(payload, where="")
        except MalformedZnodeError:
            assert first is None, stored
            continue
        # Without an offset, and beyond the end, consumers began at the beginning.
        assert first == (offset if 0 <= offset <= 20 else 0), stored
