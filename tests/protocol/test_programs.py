"""Which program has left what: JVM members of five releases are no other program."""

from __future__ import annotations

import pytest
from support.captures import captured

from zkconsumer.protocol import programs
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.programs import Program
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.protocol.releases import profile

TPS = [TopicPartition("t", number) for number in range(2)]


def test_registrations_of_the_jvm_are_of_no_other_program() -> None:
    """No captured registration of the JVM, and none that zkconsumer writes, looks like another."""
    payloads = [one["payload"].encode() for one in captured("registrations")]
    for pattern in Pattern:
        one = Registration({"t": 1}, pattern, timestamp_ms=1_700_000_000_000)
        payloads += [encode_registration(one, profile=profile(r)) for r in ("0.8.0", "1.1.1")]
    assert len(payloads) > 20
    assert {programs.of_registration(one) for one in payloads} == {None}


@pytest.mark.parametrize(
    ("payload", "program"),
    [
        (
            b'{"version":1,"subscription":{"t": 1},"pattern":"white_list",'
            b'"timestamp":"1400000000000"}',
            Program.KAFKA_NODE,
        ),
        (
            b'{"pattern":"static","subscription":{"t":1},"timestamp":"1400000000","version":1}',
            Program.GO,
        ),
        (b"orders", Program.PYKAFKA),
    ],
)
def test_registrations_of_other_programs(payload: bytes, program: Program) -> None:
    """kafka-node, the Go library and pykafka are known by the form of their registrations."""
    found = programs.of_registration(payload)
    assert found is not None
    assert (found.program, found.is_hint) == (program, False)


def test_claims_in_one_transaction() -> None:
    """Only zkconsumer claims several partitions in one transaction; one claim shows nothing."""
    for zxids, program in (([5, 5, 6], Program.ZKCONSUMER), ([5, 6], Program.JVM)):
        found = programs.of_owners({"a": zxids})
        assert found is not None
        assert found.program is program
    assert programs.of_owners({"a": [5], "b": [6]}) is None


def test_offsets_of_other_programs() -> None:
    """An address is Secor's, an empty znode Flink's; offsets of the JVM show nothing."""
    for data, program in ((b"10.20.30.40", Program.SECOR), (b"", Program.FLINK)):
        found = programs.of_offsets({TPS[0]: (data, 1), TPS[1]: (b"5", 2)})
        assert found is not None
        assert found.program is program
    assert programs.of_offsets({TPS[0]: (b"7", 1), TPS[1]: (b"5", 2)}) is None


def test_names_are_hints() -> None:
    """The name of a group is only a hint, and most names are none."""
    for name, program in (
        ("logstash", Program.LOGSTASH),
        ("graylog2", Program.GRAYLOG),
        ("console-consumer-81234", Program.CONSOLE),
    ):
        found = programs.by_name(name)
        assert found is not None
        assert (found.program, found.is_hint) == (program, True)
    assert programs.by_name("billing") is None
