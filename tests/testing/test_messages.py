"""The fake brokers' messages have the fields of Kafka's own definitions, in every version."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from zkconsumer.protocol.kafka_fields import FieldReader
from zkconsumer.sandbox import jars
from zkconsumer.testing import wire
from zkconsumer.testing.messages import APIS, Api, MetadataRequest
from zkconsumer.testing.wire import FieldType, WireMessage

KINDS = {
    wire.BOOL: ("bool",),
    wire.INT8: ("int8",),
    wire.INT16: ("int16",),
    wire.INT32: ("int32",),
    wire.INT64: ("int64",),
    wire.STRING: ("string",),
    wire.OCTETS: ("bytes", "records"),
    wire.UUID: ("uuid",),
}
BY_NAME = {name: names[0] for names in KINDS.values() for name in names}


@cache
def definitions() -> Mapping[str, dict[str, Any]]:
    """Return Kafka's definitions of messages by name, from the jar of its clients."""
    (jar,) = [one for one in jars.resolve("kafka-3.9.1") if "kafka-clients" in one.name]
    found = {}
    with zipfile.ZipFile(jar) as content:
        for name in content.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = content.read(name).decode()
                one = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
                found[one["name"]] = one
    return found


def _versions(text: str) -> range:
    if text == "none":
        return range(0)
    first, dash, last = text.partition("-")
    if text.endswith("+"):
        return range(int(text[:-1]), 1000)
    return range(int(first), int(last if dash else first) + 1)


Shape = list[tuple[str, bool, object]]


def defined(fields: list[dict[str, Any]], structs: Mapping[str, Any], version: int) -> Shape:
    """Return the name, whether it is an array, and the type of each field in Kafka's definition."""
    shape: Shape = []
    for one in fields:
        if version not in _versions(one["versions"]) or "tag" in one:
            continue
        kind = one["type"].removeprefix("[]")
        inner = one.get("fields") or structs.get(kind)
        type_ = defined(inner, structs, version) if inner else BY_NAME[kind]
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", one["name"]).lower()
        shape.append((name, one["type"].startswith("[]"), type_))
    return shape


def described(message: type[WireMessage], version: int) -> Shape:
    """Return the same of a class of `zkconsumer.testing.messages`."""
    return [
        (
            name,
            one.is_array,
            KINDS[one.kind][0] if isinstance(one.kind, FieldType) else described(one.kind, version),
        )
        for name, one in message.fields.items()
        if one.since <= version <= one.until
    ]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_version_has_kafkas_fields(api: Api) -> None:
    """Each version has Kafka's fields in Kafka's order, and becomes flexible when Kafka's does."""
    for message in (api.request, api.response):
        definition = definitions()[message.__name__]
        structs = {one["name"]: one["fields"] for one in definition.get("commonStructs", ())}
        assert definition["apiKey"] == api.key
        flexible = _versions(definition["flexibleVersions"])
        assert (flexible.start if flexible else wire.LAST) == api.flexible
        for version in _versions(definition["validVersions"]):
            expected = defined(definition["fields"], structs, version)
            assert described(message, version) == expected, f"version {version}"


def _filled(message: type[WireMessage], version: int, numbers: Iterator[int]) -> WireMessage:
    """Return a message whose fields all differ from their defaults."""

    def value(kind: FieldType | type[WireMessage]) -> object:
        if not isinstance(kind, FieldType):
            return _filled(kind, version, numbers)
        number = next(numbers)
        (name, *_) = KINDS[kind]
        text = f"text {number}"
        special = {"bool": True, "string": text, "bytes": text.encode(), "uuid": bytes(15) + b"1"}
        return special.get(name, number % 100 + 2)

    return message(
        **{
            name: [value(one.kind), value(one.kind)] if one.is_array else value(one.kind)
            for name, one in message.fields.items()
            if one.since <= version <= one.until
        }
    )


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_what_is_written_is_read(api: Api) -> None:
    """Each version of each message is read as it was written, to its last byte."""
    for message in (api.request, api.response):
        for version in range(20):
            flexible = version >= api.flexible
            sent = _filled(message, version, iter(range(1, 10_000)))
            reader = FieldReader(memoryview(wire.encode(sent, version, flexible=flexible)))
            got = wire.decode(message, version, reader, flexible=flexible)
            assert repr(got) == repr(sent)
            assert reader.at == len(reader.data)


def test_nulls_are_kept() -> None:
    """A null string, null bytes and a null array are read as None in old and flexible versions."""
    for version, flexible in ((4, False), (9, True)):
        data = wire.encode(MetadataRequest(topics=None), version, flexible=flexible)
        got = wire.decode(
            MetadataRequest, version, FieldReader(memoryview(data)), flexible=flexible
        )
        assert got.topics is None
