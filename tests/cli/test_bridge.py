"""`zkconsumer bridge`: mistakes that it reports before it changes anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.conftest import Run
from kazoo.client import KazooClient

from zkconsumer.protocol import paths
from zkconsumer.sandbox import ZooKeeperServer

MISTAKES = [
    (["run", "nobody"], 1, "group nobody does not exist"),
    (["status", "nobody"], 1, "group nobody does not exist"),
    (["run", "GROUP", "--topic", "nothing"], 2, "the topic does not exist (--topic nothing)"),
    (["run", "GROUP", "--share", "120%"], 2, "120% is not a share between 0% and 100%"),
    (["finish", "GROUP"], 4, "no bridge is active (GROUP)"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[" ".join(one[0]) for one in MISTAKES])
def test_mistakes(
    mistake: tuple[list[str], int, str],
    zookeeper: ZooKeeperServer,
    client: KazooClient,
    unique: Callable[[str], str],
    call: Run,
) -> None:
    """Each mistake has its exit code, and a line that says what is wrong."""
    arguments, code, words = mistake
    group = unique("group")
    client.ensure_path(paths.ids(group))
    given = [group if one == "GROUP" else one for one in arguments]
    found, out, err = call("bridge", *given, "--zookeeper", zookeeper.connect)
    assert (found, out) == (code, "")
    assert words.replace("GROUP", group) in err
