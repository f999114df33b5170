"""Generated payloads of hostile or faulty clients, in every decoder and every name."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

import pytest

from zkconsumer.errors import InvalidNameError, MalformedZnodeError
from zkconsumer.protocol import paths, payloads, registrations

WHERE = "/the/znode"
# Maximum of CPU seconds for one payload in one decoder; usually a thousandth of it is enough.
LIMIT_S = 1.0

VALUES = [
    "null",
    "true",
    "0",
    "-0",
    "-1",
    "1",
    "1.0",
    "1e5",
    "1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9" * 400,
    '""',
    '"1"',
    '"\\u0000"',
    '"\\ud800"',
    "[]",
    "[[]]",
    "[1,1]",
    "{}",
    '{"a":{}}',
    '{"":1}',
    '{"../x":1}',
    '{"a/b":1}',
    '{".":1}',
    '{"a":0}',
    '{"a":-1}',
    '{"a":1.5}',
    '{"a":"1"}',
    '{"a":null}',
    '{"a":[1]}',
    '{"a":2147483648}',
    '{"a":1,"a":2}',
    '{"a\\u0000":1}',
    '{"\\u202e":1}',
    '{"' + "t" * 5000 + '":1}',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000,
]
TEMPLATES = {
    "subscription": '{"version":1,"subscription":%s,"pattern":"static","timestamp":"1"}',
    "white list": '{"version":1,"subscription":%s,"pattern":"white_list","timestamp":"1"}',
    "pattern": '{"version":1,"subscription":{"t":1},"pattern":%s,"timestamp":"1"}',
    "timestamp": '{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":%s}',
    "version": '{"version":%s,"subscription":{"t":1},"pattern":"static"}',
    "partitions": '{"version":1,"partitions":%s}',
    "broker": '{"version":1,"host":%s,"port":%s,"endpoints":%s}',
    "whole": "%s",
}
JSON = {
    f"{name}={value[:24]}": (template.replace("%s", value)).encode()
    for (name, template), value in itertools.product(TEMPLATES.items(), VALUES)
}
SOUND = TEMPLATES["subscription"].replace("%s", '{"t":1}').encode()
BROKEN = {
    **{f"cut at {n}": SOUND[:n] for n in range(0, len(SOUND), 4)},
    **{f"byte {b:#04x}": SOUND[:20] + bytes([b]) + SOUND[20:] for b in range(0, 256, 15)},
    "twice": SOUND * 2,
    "byte order mark": b"\xef\xbb\xbf" + SOUND,
    "UTF-16": SOUND.decode().encode("utf-16"),
    "overlong": SOUND.replace(b"t", b"\xc1\xb4", 1),
    "surrogate": SOUND.replace(b'"t"', b'"\xed\xa0\x80"'),
    "comment": b"/* */" + SOUND,
}
DECODERS: list[Callable[..., object]] = [
    registrations.decode_registration,
    payloads.decode_topic,
    payloads.decode_broker,
    payloads.decode_offset,
    payloads.decode_owner,
]
NO_OFFSET = [
    b"",
    b" ",
    b"1 ",
    b" 1",
    b"1\n",
    b"\n1",
    b"+",
    b"-",
    b"--1",
    b"+-1",
    b"1-",
    b"1.0",
    b"1e3",
    b"0x10",
    b"1_000",
    b"1,000",
    b"1L",
    b"null",
    b'"1"',
    b"[1]",
    b"NaN",
    b"\x00",
    b"1\x00",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"9" * 5000,
    b"\xff",
    b"\xc2\xa01",
    "½".encode(),
    "①".encode(),
    "一".encode(),
    "\u202e1".encode(),
    b"1;2",
    b"offset",
    b"1 2",
]
NO_NAME = [
    "",
    ".",
    "..",
    "/",
    "a/b",
    "/a",
    "a/",
    "../x",
    "a\x00",
    "\x01",
    "a\n",
    "a\tb",
    " ",
    "a b",
    "\x7f",
    "a\x85",
    "\u202egpj",
    "\ufeffa",
    "\ufffe",
    "\ud800",
    "é",
    "a\u0301",
    "\U0001f600",
    "%2e%2e",
    "a%2fb",
    "a\\b",
    "a:b",
    "a*",
    "a?",
    "$a",
    "a;rm",
    "`a`",
    "<a>",
    "\x1b[31m",
    "a" * 250,
    "a" * 100_000,
]


def test_the_corpus_is_large() -> None:
    """There are at least 200 payloads, besides those of Hypothesis in the decoders' tests."""
    assert len(JSON) + len(BROKEN) + len(NO_OFFSET) + len(NO_NAME) >= 400


@pytest.mark.parametrize("decode", DECODERS, ids=lambda one: one.__name__)
def test_every_payload_is_decoded_or_named(decode: Callable[..., object]) -> None:
    """For any payload a decoder raises only MalformedZnodeError, in bounded time and length."""
    for name, payload in {**JSON, **BROKEN, **{repr(one): one for one in NO_OFFSET}}.items():
        began = time.thread_time()
        try:
            decode(payload, where=WHERE)
        except MalformedZnodeError as error:
            assert error.where == WHERE, name
            assert len(str(error)) < 500, name
            assert str(error).isprintable(), name
        assert time.thread_time() - began < LIMIT_S, name


@pytest.mark.parametrize("payload", NO_OFFSET, ids=lambda one: ascii(one)[:40])
def test_what_java_takes_for_no_number_is_no_offset(payload: bytes) -> None:
    """A text that `Long.parseLong` refuses is refused as an offset, too."""
    with pytest.raises(MalformedZnodeError):
        payloads.decode_offset(payload, where=WHERE)


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_what_is_cut_or_damaged_is_refused_or_still_json(payload: bytes) -> None:
    """A damaged registration is accepted only if it is valid JSON with the same topics."""
    try:
        found = registrations.decode_registration(payload, where=WHERE)
    except MalformedZnodeError:
        return
    assert dict(found.subscription) == {"t": 1}
    json.loads(payload)


@pytest.mark.parametrize("name", NO_NAME, ids=lambda one: ascii(one)[:40])
@pytest.mark.parametrize(
    "check", [paths.validate_group, paths.validate_topic], ids=["group", "topic"]
)
def test_what_is_no_name_reaches_no_path(check: Callable[[str], str], name: str) -> None:
    """Names of groups and topics are checked before they enter a path; errors are printable."""
    with pytest.raises(InvalidNameError) as caught:
        check(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", NO_NAME, ids=lambda one: ascii(one)[:40])
def test_any_path_is_located(name: str) -> None:
    """The path of any watch event is classified, and none raises an exception."""
    for path in (name, f"/consumers/{name}", f"/consumers/g/owners/{name}/0", f"/brokers/{name}"):
        paths.locate(path)
