"""Payloads of znodes: what decoders accept and reject, and how much time they take."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.errors import MalformedZnodeError
from zkconsumer.protocol import payloads, registrations
from zkconsumer.protocol.paths import MAX_STREAMS
from zkconsumer.protocol.payloads import Broker
from zkconsumer.protocol.registrations import Pattern, Registration

WHERE = "/the/znode"
DECODERS: list[Callable[..., object]] = [
    registrations.decode_registration,
    payloads.decode_topic,
    payloads.decode_broker,
    payloads.decode_offset,
    payloads.decode_owner,
]
MIB = payloads.MAX_PAYLOAD


def _registration(**fields: object) -> bytes:
    return json.dumps({"subscription": {"t": 1}, "pattern": "static"} | fields).encode()


# ---- registrations ------------------------------------------------------------------------------


@given(
    st.text('abé.\\"/\t\x7f|* ', min_size=1),
    st.integers(1, 9),
    st.sampled_from([Pattern.WHITE_LIST, Pattern.BLACK_LIST]),
)
def test_a_registration_is_decoded_to_the_same_value(
    regex: str, streams: int, pattern: Pattern
) -> None:
    """Decoding an encoded registration gives the same value, whatever characters are escaped."""
    subscription = {regex: streams}
    payload = registrations.encode_registration(Registration(subscription, pattern, 1400000000000))
    decoded = registrations.decode_registration(payload, where=WHERE)
    assert dict(decoded.subscription) == subscription
    assert (decoded.pattern, decoded.timestamp_ms) == (pattern, 1400000000000)
    assert json.loads(payload)["subscription"] == subscription


def test_a_registration_is_written_with_its_time() -> None:
    """Encoding a registration that has no timestamp is a programming error."""
    with pytest.raises(ValueError, match="time"):
        registrations.encode_registration(Registration({"t": 1}))


@pytest.mark.parametrize("pattern", ["whatever", "WHITE_LIST", "", None])
def test_unknown_patterns_are_static(pattern: str | None) -> None:
    """A pattern that the JVM does not know, or null, means a static subscription."""
    decoded = registrations.decode_registration(_registration(pattern=pattern), where=WHERE)
    assert decoded.pattern is Pattern.STATIC


def test_empty_subscription_is_static() -> None:
    """A list pattern without an entry counts as a static subscription without topics."""
    payload = _registration(pattern="white_list", subscription={})
    assert registrations.decode_registration(payload, where=WHERE) == Registration({})


def test_wildcards_are_kept() -> None:
    """For a member with a pattern, only the first entry of its subscription is decoded."""
    payload = rb'{"subscription":{"te\\st\d/.*":2,"x":0},"pattern":"black_list"}'
    decoded = registrations.decode_registration(payload, where=WHERE)
    assert decoded == Registration({r"te\st\d/.*": 2}, Pattern.BLACK_LIST)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [("1400000000000", 1400000000000), (1400000000000, 1400000000000), ("x", None), (1.5, None)],
)
def test_timestamps_are_never_a_fault(timestamp: object, expected: int | None) -> None:
    """No reader needs the timestamp: a valid one is returned, and any other value is ignored."""
    payload = _registration(timestamp=timestamp)
    assert registrations.decode_registration(payload, where=WHERE).timestamp_ms == expected


BAD_COUNTS: list[object] = [0, -1, 1.0, 1.5, "1", None, True, 2**31, {}]
BAD_REGISTRATIONS = [
    None,
    b"",
    b"hello",
    b"[1,2]",
    b"{}",
    b'{"subscription":{"t":1}}',
    b'{"pattern":"static"}',
    _registration(pattern=1),
    *(_registration(subscription=s) for s in (None, "t", [1])),
    *(_registration(subscription={"t": count}) for count in BAD_COUNTS),
    _registration(pattern="white_list", subscription={"t": 0}),
    *(_registration(subscription={t: 1}) for t in ("", ".", "a/../b", "a\x01", "\U0001f600")),
    b'{"subscription":{"t\xff":1},"pattern":"static"}',
    b'{"subscription":{"t":1e0},"pattern":"static"}',
    b'{"subscription":{"t":' + b"9" * 5000 + b'},"pattern":"static"}',
    _registration(subscription={"t": MAX_STREAMS, "u": 1}),
    _registration(x=[[]] * 10).replace(b"[]", b"[" * 5000 + b"]" * 5000, 1),
    _registration(x="y" * MIB),
]


@pytest.mark.parametrize("payload", BAD_REGISTRATIONS, ids=lambda p: ascii(p)[:60])
def test_bad_registrations(payload: bytes | None) -> None:
    """If the JVM would fail at a registration, the error names its znode and a remedy."""
    with pytest.raises(MalformedZnodeError) as caught:
        registrations.decode_registration(payload, where=WHERE)
    assert caught.value.where == WHERE
    assert caught.value.remedy
    assert len(str(caught.value)) < 500


# ---- topics and brokers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "partitions"),
    [
        ('{"version":1,"partitions":{"10":[1],"2":[0],"0":[0]}}', (0, 2, 10)),
        ('{"version":3,"partitions":{"0":[0]},"topic_id":"x","adding_replicas":{}}', (0,)),
        ('{"partitions":{"1":[0],"01":[0],"+2":null,"-1":0,"٣":[]}}', (-1, 1, 2, 3)),
        ('{"partitions":{"0":[0]},"x":99999999999}', (0,)),
        ('{"version":1}', ()),
        ("", ()),
        ("{", ()),
        ('"x"', ()),
        ('{"partitions":{"0":[0]}} x', ()),
    ],
)
def test_topics(payload: str, partitions: tuple[int, ...]) -> None:
    """Partitions are returned in ascending order; a text that the JVM cannot parse has none."""
    assert payloads.decode_topic(payload.encode(), where=WHERE) == partitions


BAD_TOPICS = [None, b"[]", b"[" * 100 + b"]" * 100]
BAD_TOPICS += [b'{"partitions":%s}' % p for p in (b"null", b"[0,1]", b'{"x":[]}', b'{" 1":[]}')]
BAD_TOPICS += [b'{"partitions":{"2147483648":[0]}}', b'{"partitions":{"":[0]}}', b" " * (MIB + 1)]


def test_booleans_in_a_configuration() -> None:
    """A topic's settings are written as Kafka writes them: Booleans in lower case."""
    config = {"preallocate": True, "retention.ms": 1}
    written = {"preallocate": "true", "retention.ms": "1"}
    assert payloads.topic_config(config) == {"version": 1, "config": written}


@pytest.mark.parametrize("payload", BAD_TOPICS, ids=lambda p: ascii(p)[:60])
def test_bad_topics(payload: bytes | None) -> None:
    """A topic znode for which the JVM throws an exception raises an error."""
    with pytest.raises(MalformedZnodeError, match=WHERE):
        payloads.decode_topic(payload, where=WHERE)


BROKERS = {
    '{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}': Broker("h", 9092, 1, ()),
    '{"version":2,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1",'
    '"endpoints":["PLAINTEXT://h:9092"]}': Broker("h", 9092, 2, ("PLAINTEXT://h:9092",)),
    '{"version":3,"host":null,"port":-1,"rack":"r","endpoints":["SSL://h:9093"]}': Broker(
        None, -1, 3, ("SSL://h:9093",)
    ),
    '{"version":5,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],"features":{},'
    '"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}}': Broker(
        "h", 1, 5, ("PLAINTEXT://h:1",), (("PLAINTEXT", "PLAINTEXT"),)
    ),
    '{"host":"h","port":1}': Broker("h", 1, 1, ()),
}


@pytest.mark.parametrize(("payload", "broker"), BROKERS.items())
def test_brokers(payload: str, broker: Broker) -> None:
    """All versions of broker registrations give the address of the PLAINTEXT listener."""
    assert payloads.decode_broker(payload.encode(), where=WHERE) == broker


BAD_BROKERS = [None, b"", b"x", b"[]", b"{}", b'{"host":"h"}', b'{"host":"h","port":"1"}']
BAD_BROKERS += [b'{"host":"","port":1,"endpoints":[1]}', b'{"host":"h","port":99999999999999}']


@pytest.mark.parametrize("payload", BAD_BROKERS)
def test_bad_brokers(payload: bytes | None) -> None:
    """A broker registration without a usable address is rejected."""
    with pytest.raises(MalformedZnodeError, match=WHERE):
        payloads.decode_broker(payload, where=WHERE)


# ---- owners and offsets -------------------------------------------------------------------------


def test_owners_are_any_text() -> None:
    """Any text in an owner znode is read as a thread id; no payload is the empty thread id."""
    assert payloads.decode_owner(payloads.encode_owner("g_é-0"), where=WHERE) == "g_é-0"
    assert payloads.decode_owner(None, where=WHERE) == ""
    assert payloads.decode_owner(b"\xff", where=WHERE) == "\ufffd"


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_offset_is_decoded_to_the_same_value(offset: int) -> None:
    """Every int64 is encoded, and decoded to the same value."""
    assert payloads.decode_offset(payloads.encode_offset(offset), where=WHERE) == offset


def test_an_empty_offset_znode_holds_no_offset() -> None:
    """An empty payload and a negative number mean no offset; any other text is malformed."""
    found = [payloads.stored_offset(one, where=WHERE) for one in (None, b"", b"-1", b"7")]
    assert found == [None, None, None, 7]
    with pytest.raises(MalformedZnodeError):
        payloads.stored_offset(b" ", where=WHERE)


# ---- hostile input ------------------------------------------------------------------------------


def _decode_with_all(payload: bytes) -> None:
    for decode in DECODERS:
        try:
            decode(payload, where=WHERE)
        except MalformedZnodeError as error:
            assert error.where == WHERE


JSON_LIKE = st.text('{}[],:"\\0129-tu \n')


@given(st.binary() | (st.text() | JSON_LIKE).map(str.encode))
def test_decoders_raise_only_malformed_znode_error(payload: bytes) -> None:
    """Every decoder decodes any bytes or raises MalformedZnodeError."""
    _decode_with_all(payload)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


FIELDS = st.sampled_from(["subscription", "pattern", "partitions", "host", "port", "endpoints"])


@given(st.dictionaries(FIELDS, JSON_VALUES))
def test_decoders_survive_wrong_types(document: dict[str, object]) -> None:
    """Every decoder decodes fields of any type or raises MalformedZnodeError."""
    _decode_with_all(json.dumps(document).encode())


HOSTILE = {
    "brackets": b"[" * MIB,
    "objects": b'{"a":' * (MIB // 5),
    "open string of quotes": b'{"' + b'\\"' * (MIB // 2 - 1),
    "backslashes": b"\\" * MIB,
    "quotes": b'"' * MIB,
    "unicode escapes": b'{"a":"' + b"\\u" * (MIB // 2 - 5) + b'"}',
    "digits": b"9" * MIB,
    "digits in an object": b'{"partitions":{"a":' + b"9" * (MIB - 21) + b"}}",
    "exponent": b'{"a":1e' + b"9" * (MIB - 8) + b"}",
    "zeros": b"0" * MIB,
    "other zeros": "\u0660".encode() * (MIB // 2),
    "minus and blanks": b"- " * (MIB // 2),
    "ill-formed": b"\xff" * MIB,
    "many topics": b'{"subscription":{%s},"pattern":"static"}'
    % b",".join(b'"%d":1' % n for n in range(80_000)),
    "too large": b" " * 10 * MIB,
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("decode", DECODERS, ids=lambda d: d.__name__)
def test_work_is_bounded(decode: Callable[..., object], payload: bytes) -> None:
    """Decoding 1 MiB that was made to be slow takes less than two seconds of CPU time."""
    start = time.thread_time()
    try:
        decode(payload, where=WHERE)
    except MalformedZnodeError as error:
        assert len(str(error)) < 500
    assert time.thread_time() - start < 2


JAVA_STRING = b"\xac\xed\x00\x05t\x00\x0212"
# `new ObjectOutputStream(...).writeObject(12L)`, and the same for an Integer.
JAVA_LONG = bytes.fromhex(
    "aced00057372000e6a6176612e6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c7565"
    "787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870000000000000000c"
)
JAVA_INTEGER = bytes.fromhex(
    "aced0005737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c7565"
    "787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b02000078700000000c"
)


@pytest.mark.parametrize(
    "payload",
    [
        b'"12"',
        b"'12'",
        b" 12",
        b"12\r\n",
        b'\t" 12 "\n',
        b"\xef\xbb\xbf12",
        b'\xef\xbb\xbf"12"',
        "12".encode("utf-16"),
        "12".encode("utf-16-le"),
        '"12"'.encode("utf-16-be"),
        b"12\0",
        b"\0 12\0\0",
        JAVA_STRING,
        JAVA_LONG,
        JAVA_INTEGER,
    ],
)
def test_a_payload_that_is_plainly_a_number(payload: bytes) -> None:
    """A number that other programs have wrapped is not an offset for the JVM, and still read."""
    with pytest.raises(MalformedZnodeError):
        payloads.decode_offset(payload, where="")
    assert payloads.plain_number(payload) == 12


@pytest.mark.parametrize(
    "payload",
    [
        None,
        b"",
        b"?",
        b"12 13",
        b"\"12'",
        b"1.5",
        b"0x12",
        b"12L",
        b"9" * 30,
        b" " * 300 + b"12",
        b"\xff\xfe1",
        b"1\x002",
        b"\0\0",
        JAVA_STRING + b"3",
        JAVA_LONG[:-1],
        b"\xac\xed\x00\x05t\x00\x02ab",
    ],
)
def test_a_payload_that_is_no_number(payload: bytes | None) -> None:
    """Nothing is guessed from a payload that is not plainly one number."""
    assert payloads.plain_number(payload) is None
