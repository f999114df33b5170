"""The image of zkconsumer: the command runs in it, and so does the ZooKeeper of the contract tests.

test_compose runs a ZooKeeper and a broker of the image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from support.zk.client import peer_of

from zkconsumer.cli.backups import backups_directory
from zkconsumer.cli.sources import contexts_file
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


def command_line(image: str, *arguments: str, network: str = "none") -> str:
    """Return the standard output of the image's command; fail with its standard error."""
    client = docker.from_env()
    try:
        return bytes(
            client.containers.run(image, list(arguments), network=network, remove=True)
        ).decode()
    finally:
        client.close()


def test_the_command_line_of_the_image_names_its_commands(image: str) -> None:
    """The entry point of the image is `zkconsumer`, run by the image's Python."""
    assert "consume" in command_line(image, "--help")


def test_the_command_line_reads_a_group_of_the_sandbox(
    image: str, sandbox: Sandbox, unique: Callable[[str], str]
) -> None:
    """`lag` in a container, on the network of this machine, reads a group's offsets and logs."""
    topic, group = unique("orders"), unique("billing")
    sandbox.create_topic(topic, partitions=2)
    sandbox.produce(topic, 5, partition=0)
    with peer_of(sandbox.zookeeper_connect) as client:
        for partition, offset in enumerate((b"2", b"0")):
            path = paths.offset(group, TopicPartition(topic, partition))
            client.create(path, offset, makepath=True)
    arguments = ("lag", "-z", sandbox.zookeeper_connect, "-g", group, "-o", "json")
    rows = json.loads(command_line(image, *arguments, network="host"))
    assert [(row["offset"], row["log_end"], row["lag"]) for row in rows] == [(2, 5, 3), (0, 0, 0)]


def test_backups_and_contexts_are_in_the_mounted_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the image, backups and contexts are below /data, where users mount a directory."""
    text = (Path(__file__).parents[2] / "docker" / "Dockerfile").read_text(encoding="utf-8")
    for name, value in re.findall(r"^(?:ENV| ) +(HOME|XDG_\w+)=(\S+)", text, re.MULTILINE):
        monkeypatch.setenv(name, value)
    assert backups_directory().is_relative_to("/data")
    assert contexts_file().is_relative_to("/data")


def test_no_process_runs_as_root(image: str) -> None:
    """None of the image's processes runs as root."""
    client = docker.from_env()
    try:
        assert client.images.get(image).attrs["Config"]["User"] == "65534:65534"
    finally:
        client.close()


def test_a_session_reaches_the_container_from_the_host(container_zookeeper: str) -> None:
    """The server in the container of the contract tests is a real one of the pinned release."""
    with peer_of(container_zookeeper) as client:
        assert client.server_version()[:2] == (3, 8)
