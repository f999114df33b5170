"""Members with many streams, which share their broker clients."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

from support.members.group import Group, MemberUnderTest
from support.wait import LIMIT_S, eventually

from zkconsumer.sandbox import Sandbox

PARTITIONS = 8


def fetch_threads(one: MemberUnderTest) -> list[str]:
    """Return the names of a member's running fetch threads."""
    begin = f"{one.connector.consumer_id}-fetch-"
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(begin)]


def offsets(*members: MemberUnderTest) -> dict[int, set[int]]:
    """Return partition -> the delivered offsets."""
    found: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
    for one in members:
        for reader in one.readers:
            for message in list(reader.messages):
                found[message.partition].add(message.offset)
    return found


def test_streams_of_a_large_member_share_two_clients(group: Group, sandbox: Sandbox) -> None:
    """Eight streams share two fetch threads, which end with them; no hand-over loses a message."""
    topic = f"{group.topic}-wide"
    sandbox.create_topic(topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        sandbox.produce(topic, 10, partition=partition)
    first = group.member("a")
    first.subscribe(topic, PARTITIONS)
    eventually(lambda: offsets(first) == {n: set(range(10)) for n in range(PARTITIONS)})
    assert len(fetch_threads(first)) == 2
    second = group.member("b")
    second.subscribe(topic, PARTITIONS)
    first.settled(0, 1, 2, 3, 4, 5, 6, 7)  # One partition per thread, in the order of the ids.
    first.close()
    eventually(lambda: not fetch_threads(first))
    second.settled(*range(PARTITIONS))
    for partition in range(PARTITIONS):
        sandbox.produce(topic, 10, partition=partition)
    eventually(lambda: offsets(first, second) == {n: set(range(20)) for n in range(PARTITIONS)})


OUT_OF_DESCRIPTORS = """
import os, resource, sys, threading
from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.errors import ConsumerTimeoutError, FetchError
config = ConsumerConfig(
    group_id=sys.argv[2], zookeeper_connect=sys.argv[1], auto_offset_reset="smallest",
    consumer_timeout_s=0.2,
)
with ConsumerConnector(config) as connector:
    streams = connector.create_message_streams({sys.argv[3]: int(sys.argv[4])})[sys.argv[3]]
    while connector.status().phase != "settled":
        threading.Event().wait(0.05)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    while True:
        for stream in streams:
            try:
                next(stream)
            except ConsumerTimeoutError:
                continue
            except FetchError as error:
                for one in taken:
                    os.close(one)
                print(error, flush=True)
                os._exit(0)
"""


def test_a_lack_of_file_descriptors_is_named(group: Group, unique: Callable[[str], str]) -> None:
    """If file descriptors run out, the error names their limit, with shared or own clients."""
    for streams in (1, 5):
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                OUT_OF_DESCRIPTORS,
                group.sandbox.zookeeper_connect,
                unique("few"),
                group.topic,
                str(streams),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
            check=False,
        )
        assert not ended.returncode, ended.stderr
        assert "no file descriptor is left" in ended.stdout
        assert "256" in ended.stdout
