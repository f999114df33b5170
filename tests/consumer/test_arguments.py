"""Wrong arguments of the library's calls raise ConfigError, which says what to pass instead."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.members.group import SETTINGS, Group
from support.wait import LIMIT_S

import zkconsumer
from zkconsumer import (
    ConfigError,
    ConsumerConfig,
    ConsumerConnector,
    OffsetAndMetadata,
    TopicPartition,
    black_list,
    white_list,
)
from zkconsumer.admin.api import Admin
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.protocol import arguments

PROPERTIES: dict[str, object] = {"group.id": "g", "zookeeper.connect": "127.0.0.1:1"}
TP = TopicPartition("t", 0)
WRONG: Any = object()

# Any: wrong arguments on purpose. Call -> (the call, what the error names).
BEFORE_STREAMS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a list of topics": (lambda c: c.create_message_streams(["t"]), "topic_counts"),
    "a topic of bytes": (lambda c: c.create_message_streams({b"t": 1}), "topic_counts"),
    "a decoder's name": (
        lambda c: c.create_message_streams({"t": 1}, value_decoder="utf-8"),
        "value_decoder",
    ),
    "a regex for a filter": (lambda c: c.create_message_streams_by_filter("t.*"), "topic_filter"),
    "a listener without methods": (
        lambda c: c.set_consumer_rebalance_listener(WRONG),
        "before_releasing_partitions",
    ),
    "no registry": (lambda c: c.register_metrics(None), "registry"),
    "no streams to wait for": (lambda c: c.wait_until_assigned(), "wait_until_assigned"),
    "a text to run": (lambda c: c.run("work", []), "work"),
    "a dictionary of streams to run": (lambda c: c.run(print, {"t": []}), "streams"),
}
WITH_STREAMS: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "pause a topic": (lambda c, s: c.pause("t"), "partitions"),
    "pause a number": (lambda c, s: c.pause(0), "partitions"),
    "resume a pair of numbers": (lambda c, s: c.resume([(0, 0)]), "partitions"),
    "seek a topic": (lambda c, s: c.seek("t", 0), "partition"),
    "seek_to_end of a topic": (lambda c, s: c.seek_to_end("t"), "partitions"),
    "seek_to_beginning of None": (lambda c, s: c.seek_to_beginning(None), "partitions"),
    "seek_to_timestamp of a topic": (lambda c, s: c.seek_to_timestamp("t", 0), "partitions"),
    "position of a topic": (lambda c, s: c.position("t"), "partition"),
    "committed of a topic": (lambda c, s: c.committed("t"), "partitions"),
    "committed, negative limit": (lambda c, s: c.committed([TP], timeout_s=-1), "timeout_s"),
    "end_offsets, negative limit": (lambda c, s: c.end_offsets([TP], timeout_s=-5), "timeout_s"),
    "beginning_offsets, a text": (
        lambda c, s: c.beginning_offsets([TP], timeout_s="1"),
        "timeout_s",
    ),
    "offsets_for_times of a list": (lambda c, s: c.offsets_for_times([TP]), "times"),
    "offsets_for_times of a topic": (lambda c, s: c.offsets_for_times({"t": 1}), "times"),
    "commit of a mapping": (lambda c, s: c.commit({TP: 1}), "commit_offsets"),
    "commit of a number": (lambda c, s: c.commit(7), "messages"),
    "commit of offsets in a list": (lambda c, s: c.commit([7]), "messages"),
    "commit_offsets of a list": (lambda c, s: c.commit_offsets([TP]), "offsets"),
    "commit_offsets of a topic": (lambda c, s: c.commit_offsets({"t": 1}), "offsets"),
    "commit_offsets, a text": (lambda c, s: c.commit_offsets({TP: "1"}), "is not an offset"),
    "commit_offsets, negative limit": (lambda c, s: c.commit_offsets(timeout_s=-1), "timeout_s"),
    "commit, True as a limit": (lambda c, s: c.commit(timeout_s=True), "timeout_s"),
    "wait_until_assigned, NaN": (
        lambda c, s: c.wait_until_assigned(timeout_s=float("nan")),
        "timeout_s",
    ),
    "poll a text": (lambda c, s: s.poll(timeout_s="1"), "timeout_s"),
    "poll, negative limit": (lambda c, s: s.poll(timeout_s=-1), "timeout_s"),
    "poll too many": (lambda c, s: s.poll(max_messages=10**12), "max_messages"),
    "poll_arrow, negative limit": (lambda c, s: s.poll_arrow(timeout_s=-1), "timeout_s"),
    "poll_arrow none": (lambda c, s: s.poll_arrow(max_messages=0), "max_messages"),
}


def test_a_free_threaded_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the global interpreter lock a connector is refused before it connects."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(ConfigError, match=r"global interpreter lock.*PYTHON_GIL=1"):
        ConsumerConnector(PROPERTIES)


def test_every_call_names_its_wrong_argument(group: Group) -> None:
    """Each call with a wrong argument raises ConfigError that names it, and changes nothing."""
    settings = {**SETTINGS, "zookeeper_connect": group.sandbox.zookeeper_connect}
    config = ConsumerConfig(group_id=group.name, **settings)
    with ConsumerConnector(config) as connector:
        for name, (before, named) in BEFORE_STREAMS.items():
            with pytest.raises(ConfigError) as caught:
                before(connector)
            assert named in str(caught.value) and caught.value.remedy, name
        (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
        assert connector.wait_until_assigned(LIMIT_S).keys() == {group.tp(n) for n in range(4)}
        for name, (call, named) in WITH_STREAMS.items():
            with pytest.raises(ConfigError) as caught:
                call(connector, stream)
            assert named in str(caught.value) and caught.value.remedy, name
        assert not connector.paused()


def test_calls_accept_one_partition_and_any_container(group: Group) -> None:
    """A call takes one partition, a list, the assignment, or plain pairs of topic and number."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    connector, tp = one.connector, group.tp(1)
    for given in (tp, [tp], {tp: 0}.keys(), {tp: 0}, iter([tuple(tp)])):
        connector.pause(given)  # type: ignore[arg-type]  # a plain pair
        assert connector.paused() == {tp}
        connector.resume(tp)
    assert connector.end_offsets(tp) == {tp: 10}
    connector.commit_offsets({tp: OffsetAndMetadata(7, "")}, timeout_s=None)
    assert connector.committed(tp, timeout_s=None) == {tp: OffsetAndMetadata(7, "")}


@pytest.mark.parametrize("make", [white_list, black_list])
def test_a_filter_is_a_text(make: Callable[[Any], object]) -> None:
    """A compiled regular expression of Python is refused: the filter is one of Java."""
    with pytest.raises(ConfigError, match="Java regular expression as a text"):
        make(re.compile("t"))


def test_a_time_limit_that_may_be_in_milliseconds_causes_a_warning() -> None:
    """A limit above an hour is accepted with a warning; None and infinity have no limit."""
    with pytest.warns(UserWarning, match=r"timeout_s=5000 means 1.39 hours; the unit is seconds"):
        assert arguments.time_limit(5000) == 5000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert arguments.time_limit(3600.0) == 3600.0
        assert arguments.time_limit(None) is arguments.time_limit(float("inf")) is None
    with pytest.warns(UserWarning, match="zookeeper_session_timeout_s=6000 means 1.67 hours"):
        ConsumerConfig(PROPERTIES, zookeeper_session_timeout_s=6000)


def test_a_configuration_names_times_in_seconds(tmp_path: Path) -> None:
    """A negative time in Python is refused in seconds; a JVM file's -1 still means never."""
    with pytest.raises(ConfigError, match=r"seconds, 0 to 2147483, or None for never") as caught:
        ConsumerConfig(PROPERTIES, consumer_timeout_s=-1)
    assert caught.value.where == "consumer_timeout_s"
    file = tmp_path / "consumer.properties"
    file.write_text("group.id=g\nzookeeper.connect=a:1\nconsumer.timeout.ms=-1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = ConsumerConfig.from_properties(file, auto_commit_interval_s=7200.0)
    assert (read.consumer_timeout_s, read.auto_commit_interval_s) == (None, 7200.0)


def test_admin_checks_its_arguments(group: Group, tmp_path: Path) -> None:
    """A name may stand for a list of names; other wrong arguments raise ConfigError."""
    config = ConnectionConfig(zookeeper_connect=group.sandbox.zookeeper_connect)
    wrong: list[Callable[[Any], object]] = [  # Any: wrong arguments on purpose
        lambda admin: admin.lag(7),
        lambda admin: admin.lag([b"g"]),
        lambda admin: admin.groups(topics="orders"),
        lambda admin: admin.groups(topics={"orders": 0}),
        lambda admin: admin.verify(["g"]),
        lambda admin: admin.explain(None),
        lambda admin: admin.plan_import([("g", TP, 1)]),
        lambda admin: admin.plan_import({"g": {"t": 1}}),
        lambda admin: admin.plan_delete_offsets("g", ["t"]),
        lambda admin: admin.plan_undo(7),
    ]
    with Admin(config, backup_dir=tmp_path) as admin:
        for call in wrong:
            with pytest.raises(ConfigError) as caught:
                call(admin)
            assert caught.value.where and caught.value.remedy
        group.join("m").settled(0, 1, 2, 3)
        assert admin.members(group.name).keys() == {group.name}
    for limits in ({"broker_limit_s": -1}, {"broker_limit_s": 0}, {"patience_s": "1"}):
        with pytest.raises(ConfigError, match="time limit"):
            Admin(config, **limits)  # type: ignore[arg-type]  # on purpose


def test_the_package_shows_its_public_names_only() -> None:
    """`dir` and `__all__` hold the library's names, without the errors of other packages."""
    assert dir(zkconsumer) == sorted(zkconsumer.__all__)
    others = {"SandboxError", "SparkSourceError", "TraceError", "HistoryError", "BadFileError"}
    assert not others & {*zkconsumer.__all__}
    for name in zkconsumer.__all__:
        assert getattr(zkconsumer, name) is not None


def test_a_stream_shows_its_users_names_only(group: Group) -> None:
    """A stream has six public names; the member's side is another object."""
    one = group.join()
    names = {name for name in dir(one.readers[0].stream) if not name.startswith("_")}
    assert names == {"number", "poll", "poll_arrow", "thread_id", "topic", "waiting_for"}
