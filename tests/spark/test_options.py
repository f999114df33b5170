"""The options of `format("zkconsumer")`: names, values, contradictions; without servers."""

from __future__ import annotations

import pickle
import re

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from support.logged import logged

from zkconsumer.config.settings import SETTINGS
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.spark.data_source import ZkConsumerSource
from zkconsumer.spark.option_parsing import SECRET as CREDENTIAL_OPTION
from zkconsumer.spark.option_parsing import AtOffsets, AtTime, AtTimes, NamedPosition
from zkconsumer.spark.options import (
    NO_GROUP,
    OPTIONS,
    Assigned,
    Matching,
    Mode,
    SourceOptions,
    Topics,
)
from zkconsumer.spark.schema import MEMBER_TYPES, SCHEMA, columns_of, schema_with
from zkconsumer.spark.tables import options as tables

NEEDED = {"zookeeper": "h:2181/kafka", "subscribe": "a"}
SECRET = {
    "zookeeper.auth.scheme": "digest",
    "zookeeper.auth.credential": "me:hidden",
    "zookeeper.auth.insecure.plaintext": "true",
}
MEMBER_SCHEMA = schema_with(("headers", "token"))
MEMBER = {**NEEDED, "mode": "group", "group.id": "g"}


def parse(**options: str) -> SourceOptions:
    """Parse NEEDED together with these options; `__` in a name stands for a dot."""
    return SourceOptions.parse(
        {**NEEDED, **{name.replace("__", "."): text for name, text in options.items()}}
    )


def refused(options: dict[str, str]) -> ConfigError:
    """Return the error that these options cause."""
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse(options)
    return caught.value


def test_what_is_needed_is_enough() -> None:
    """A direct query of all partitions needs only ZooKeeper and topics, but no group."""
    options = SourceOptions.parse(NEEDED)
    assert options.mode is Mode.DIRECT
    assert options.subscription == Topics({"a": 1})
    assert options.group is None
    assert options.config.group_id == NO_GROUP
    assert options.config.zookeeper_connect == "h:2181/kafka"
    assert options.fail_on_data_loss
    assert not options.mirror_offsets
    assert not options.push_filters


def test_case_does_not_matter() -> None:
    """Each option is recognised in lower case, in which Spark passes it."""
    for name in (*OPTIONS, *(row.name for row in SETTINGS)):
        given = dict(CaseInsensitiveDict({name: "x"}))
        try:
            SourceOptions.parse(given)
        except ConfigError as error:
            assert "unknown" not in error.what, name


def test_old_property_names_reach_the_consumer() -> None:
    """Properties of the JVM's consumer are options of the same names, and override defaults."""
    options = SourceOptions.parse(
        {
            "zookeeper.connect": "z:1",
            "subscribe": "a",
            "group.id": "g",
            "fetch.message.max.bytes": "4096",
            "auto.offset.reset": "smallest",
        }
    )
    assert options.config.fetch_message_max_bytes == 4096
    assert options.config.auto_offset_reset == "smallest"
    assert options.group == "g"


def test_a_member_names_topics_and_threads() -> None:
    """`a:2,b` with `streams` means the same as createStream's dict; a pattern uses `streams`."""
    options = SourceOptions.parse({**MEMBER, "subscribe": " a:2 , b ", "streams": "3"})
    assert options.mode is Mode.GROUP
    assert options.subscription == Topics({"a": 2, "b": 3})
    pattern = {**MEMBER, "subscribePattern": "a.*", "streams": "2"}
    del pattern["subscribe"]
    found = SourceOptions.parse(pattern).subscription
    assert isinstance(found, Matching)
    assert (found.filter.regex, found.threads) == ("a.*", 2)


def test_partitions_can_be_assigned() -> None:
    """`assign` has the format of Spark's option."""
    found = SourceOptions.parse({"zookeeper": "h", "assign": '{"a":[1,0],"b":[2]}'})
    assert found.subscription == Assigned({"a": (0, 1), "b": (2,)})


def test_defaults_of_where_to_begin() -> None:
    """A stream starts at the group's offsets or the log's end, a batch at the log's beginning."""
    assert parse().for_stream().starting is NamedPosition.LATEST
    assert parse(group__id="g").for_stream().starting is NamedPosition.ZOOKEEPER
    assert parse(startingOffsets="Earliest").for_stream().starting is NamedPosition.EARLIEST
    batch = parse(group__id="g").for_batch()
    assert (batch.starting, batch.ending) == (NamedPosition.EARLIEST, NamedPosition.LATEST)


def test_forms_of_offsets_and_times() -> None:
    """Offsets and times may be JSON or numbers, as in Spark's connector."""
    one = TopicPartition("a", 0)
    assert parse(startingOffsets='{"a":{"0":23,"1":-2}}').starting == AtOffsets(
        {one: 23, TopicPartition("a", 1): -2}
    )
    assert parse(endingTimestamp="17").ending == AtTime(17)
    assert parse(startingOffsetsByTimestamp='{"a":{"0":5}}').starting == AtTimes({one: 5})


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "{",
        "{}",
        "[]",
        '{"a":{}}',
        '{"a":{"x":1}}',
        '{"a":{"0":-3}}',
        '{"a":{"0":true}}',
        '{"a b":{"0":1}}',
    ],
)
def test_a_bad_position_says_what_is_allowed(text: str) -> None:
    """Every malformed `startingOffsets` is a ConfigError that names the option."""
    assert refused({**NEEDED, "startingOffsets": text}).where == "startingOffsets"


def test_columns_that_options_add() -> None:
    """`includeHeaders` and `includeToken` add a column, which a schema can also select."""
    assert parse().more_columns == ()
    assert schema_with(parse(includeHeaders="true").more_columns).names == [
        *SCHEMA.names,
        "headers",
    ]
    member = SourceOptions.parse({**MEMBER, "includeToken": "true", "includeHeaders": "true"})
    assert member.more_columns == ("headers", "token")
    assert refused({**NEEDED, "includeToken": "true"}).where == "includeToken"
    both = StructType([MEMBER_SCHEMA["token"], MEMBER_SCHEMA["headers"]])
    assert columns_of(both, MEMBER_TYPES) == ("token", "headers")
    assert columns_of(StructType([MEMBER_SCHEMA["headers"]])) == ("headers",)
    with pytest.raises(ConfigError, match="there is no column token"):
        columns_of(both)


def test_the_size_of_batches_and_tasks() -> None:
    """The options have the names, the units and the defaults of Spark's connector."""
    options = parse(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10", maxTriggerDelay="90s")
    assert (options.min_per_trigger, options.max_delay_s) == (10, 90.0)
    assert parse().max_delay_s == 900.0
    assert [parse(maxTriggerDelay=one).max_delay_s for one in ("250", "5MIN", "2h")] == [
        0.25,
        300.0,
        7200.0,
    ]
    assert parse(maxRecordsPerPartition="5").max_records == 5
    for bad in ("", "s", "1.5s", "-1s", "5w", "5 s", "1" * 5000 + "s"):
        assert refused({**NEEDED, "maxTriggerDelay": bad}).where == "maxTriggerDelay"
    wrong = parse(minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    with pytest.raises(ConfigError, match="at least 11 and at most 10 messages"):
        wrong.for_stream()
    with pytest.raises(ConfigError, match="does not apply to read"):
        parse(minOffsetsPerTrigger="1").for_batch()


def test_a_batch_of_a_query_s_progress() -> None:
    """A batch can start and end as `[from, to]` says, as in `endOffset` of a query's progress."""
    text = '{"a":{"2":[7,9,0,123],"0":[3,5]}}'
    batch = parse(startingOffsets=text).for_batch()
    zero, two = TopicPartition("a", 0), TopicPartition("a", 2)
    assert batch.subscription == Assigned({"a": (0, 2)})
    assert batch.starting == AtOffsets({zero: 3, two: 7})
    assert batch.ending == AtOffsets({zero: 5, two: 9})
    with pytest.raises(ConfigError) as caught:
        parse(startingOffsets=text).for_stream()
    assert '{"a":{"0":5,"2":9}}' in caught.value.remedy
    with pytest.raises(ConfigError, match="already says where each range ends"):
        parse(startingOffsets=text, endingOffsets="latest").for_batch()
    for bad in ("[5]", "[5,4]", "[-1,4]", "[1,2,3,4,5]", '[1,"2"]'):
        error = refused({**NEEDED, "startingOffsets": f'{{"a":{{"0":{bad}}}}}'})
        assert error.where == "startingOffsets"
        assert "[23,42]" in error.remedy


@pytest.mark.parametrize(
    "option",
    ["startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "minPartitions"],
)
def test_a_number_of_5000_digits(option: str) -> None:
    """A number that is too long for Python's conversion is a ConfigError that names the option."""
    error = refused({**NEEDED, option: "1" * 5000})
    assert error.where == option
    assert "set a whole number" in error.remedy


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("startingOffset", "startingOffsets"),
        ("subscribe.pattern", "subscribePattern"),
        ("zookeper", "zookeeper"),
        ("groupId", "group.id"),
        ("auto.offset.rest", "auto.offset.reset"),
        ("kafka.bootstrap.servers", "set zookeeper"),
        ("kafka.group.id", "group.id"),
        ("path", "subscribe"),
    ],
)
def test_an_unknown_name_names_the_nearest(name: str, hint: str) -> None:
    """The remedy in the error contains the known option whose name is most similar."""
    error = refused({**NEEDED, name.lower(): "1"})
    assert error.what == "unknown option"
    assert hint in error.remedy


def test_all_unknown_names_are_in_one_error() -> None:
    """One error names all unknown options."""
    error = refused({**NEEDED, "startingoffset": "earliest", "minpartition": "1"})
    assert "startingOffsets" in error.remedy
    assert "minPartitions" in error.remedy


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"subscribe": "a"}, "zookeeper"),
        ({"zookeeper": "h"}, "subscribe, subscribePattern, assign"),
        ({**NEEDED, "assign": '{"a":[0]}'}, "subscribe, assign"),
        ({**NEEDED, "zookeeper.connect": "other:1"}, "zookeeper, zookeeper.connect"),
        (
            {**NEEDED, "startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingOffsets, startingTimestamp",
        ),
        ({**NEEDED, "mode": "group"}, "group.id"),
        ({**MEMBER, "startingOffsets": "earliest"}, "startingOffsets"),
        ({**MEMBER, "startingTimestamp": "1"}, "startingTimestamp"),
        ({**MEMBER, "mirrorOffsets": "true"}, "mirrorOffsets"),
        ({**NEEDED, "mirrorOffsets": "true"}, "mirrorOffsets"),
        ({**NEEDED, "streams": "2"}, "streams"),
        ({**NEEDED, "subscribe": "a:2"}, "subscribe"),
        ({**NEEDED, "subscribe": "a,a"}, "subscribe"),
        ({**NEEDED, "subscribe": ","}, "subscribe"),
        ({**NEEDED, "mode": "both"}, "mode"),
        ({**NEEDED, "includeHeaders": "yes"}, "includeHeaders"),
        ({**NEEDED, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({**NEEDED, "failOnDataLoss": "yes"}, "failOnDataLoss"),
        ({**NEEDED, "fetch.message.max.bytes": "1k"}, "fetch.message.max.bytes"),
    ],
)
def test_contradictions_and_bad_values_name_the_option(options: dict[str, str], where: str) -> None:
    """For a contradiction or bad value, one ConfigError names the options to change."""
    assert refused(options).where == where


@pytest.mark.parametrize(
    "options",
    [
        {"maxOffsetsPerTrigger": "5"},
        {"mirrorOffsets": "true", "group.id": "g"},
        {"mode": "group", "group.id": "g"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"a":{"0":-2}}'},
        {"startingOffsets": "zookeeper"},
    ],
)
def test_batches_refuse_options_of_streams(options: dict[str, str]) -> None:
    """Like Spark's connector, a batch read refuses `mode=group` and the options of streams."""
    with pytest.raises(ConfigError):
        SourceOptions.parse({**NEEDED, **options}).for_batch()


@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": "latest"},
        {"endingTimestamp": "1"},
        {"pushFilters": "true"},
        {"endingOffsetsByTimestamp": '{"a":{"0":1}}'},
        {"startingOffsets": "zookeeper"},
    ],
)
def test_streams_refuse_options_of_batches(options: dict[str, str]) -> None:
    """A stream refuses an end and filters, and refuses `zookeeper` if there is no group."""
    with pytest.raises(ConfigError):
        SourceOptions.parse({**NEEDED, **options}).for_stream()


def test_a_member_cannot_leave_out_commits() -> None:
    """With mode=group `auto.commit.enable=false` is refused; otherwise it has no effect."""
    with pytest.raises(ConfigError, match="must commit finished batches") as caught:
        SourceOptions.parse({**MEMBER, "auto.commit.enable": "false"}).for_stream()
    assert caught.value.where == "auto.commit.enable=false"
    SourceOptions.parse({**MEMBER, "auto.commit.enable": "true"}).for_stream()
    SourceOptions.parse({**NEEDED, "auto.commit.enable": "false"}).for_stream()


def test_options_are_pickled_and_hide_credentials() -> None:
    """Options can be pickled; neither their repr nor an error shows a credential."""
    options = SourceOptions.parse({**NEEDED, **SECRET}).for_stream()
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.config.zookeeper_auth_credential == "me:hidden"
    assert "hidden" not in repr(again)
    assert "hidden" not in str(refused({**NEEDED, **SECRET, "zookeeper.auth.credential": "hidden"}))


REDACTED = re.compile(r"(?i)secret|password|token|access[.]?key")  # spark.redaction.regex


def test_a_credential_that_spark_redacts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark redacts the credential's option; a credential in another option causes a warning."""
    assert REDACTED.search(CREDENTIAL_OPTION)
    here = {**NEEDED, **SECRET, "zookeeper": "127.0.0.1:1"}
    plain = here.pop("zookeeper.auth.credential")
    found = SourceOptions.parse({**here, CREDENTIAL_OPTION: plain})
    assert found.config.zookeeper_auth_credential == plain
    monkeypatch.setenv("ZKCONSUMER_AUTH_CREDENTIAL", "from:environment")
    assert SourceOptions.parse(here).config.zookeeper_auth_credential == "from:environment"
    assert not logged(caplog, "zkconsumer")
    both = {**here, CREDENTIAL_OPTION: plain, "zookeeper.auth.credential": plain}
    assert "two options set the credential" in str(refused(both))
    SourceOptions.parse({**here, "zookeeper.auth.credential": plain})
    assert CREDENTIAL_OPTION in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("reader", NEEDED),
        ("reader", {**NEEDED, "pushFilters": "true"}),
        ("streamReader", NEEDED),
        ("streamReader", MEMBER),
    ],
)
def test_executors_get_no_secret(kind: str, options: dict[str, str]) -> None:
    """The source and reader sent to executors have no credential; the driver's processes do."""
    packed = cloudpickle.dumps(ZkConsumerSource({**options, **SECRET}))
    assert b"hidden" in packed
    source = cloudpickle.loads(packed)
    reader = getattr(source, kind)(SCHEMA)
    sent = cloudpickle.dumps((source, reader))
    assert b"hidden" not in sent
    assert type(cloudpickle.loads(sent)[1]) is type(reader)


def test_librdkafka_s_properties_are_passed_on() -> None:
    """`kafka.` options and `broker.listener` reach the configuration, in upper or lower case."""
    secured = {
        "broker.listener": "EXTERNAL",
        "kafka.SSL.ca.location": "/ca.pem",
        "kafka.sasl.password": "canary",
    }
    options = SourceOptions.parse({"zookeeper": "z:1", "subscribe": "t", **secured})
    assert options.config.broker_listener == "EXTERNAL"
    assert options.config.kafka == {"ssl.ca.location": "/ca.pem", "sasl.password": "canary"}
    assert "canary" not in repr(pickle.loads(pickle.dumps(options)))
    table = tables.parse({"zookeeper": "z:1", "table": "lag", **secured})
    assert table.config.kafka == options.config.kafka
    assert table.config.broker_listener == "EXTERNAL"
