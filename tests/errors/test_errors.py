"""The behaviour that all errors of the package share."""

from __future__ import annotations

import copy
import pickle
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import zkconsumer
from zkconsumer import errors
from zkconsumer.errors import MalformedZnodeError, ZkConsumerError


@pytest.mark.parametrize("again", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_an_error_crosses_processes(again: Callable[[Any], Any]) -> None:
    """An error that a worker process raises arrives with all its attributes."""
    for error in (
        ZkConsumerError("gone", where="/x", remedy="wait"),
        MalformedZnodeError("no JSON", where="/y", thrown="JsonParseException"),
    ):
        other = again(error)
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_every_error_is_exported() -> None:
    """`from zkconsumer import …` finds each error class that the library raises."""
    classes = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, ZkConsumerError)
    }
    of_other_packages = {
        *("AppliedInPartError", "BadFileError", "DamagedFileError", "FakeServerError"),
        *("HistoryError", "MissingShareError", "SandboxError", "SparkSourceError"),
        *("TraceDiffersError", "TraceError"),
    }
    exported = classes & set(zkconsumer.__all__)
    assert exported == classes - of_other_packages
    assert all(getattr(zkconsumer, name) is getattr(errors, name) for name in exported)


def test_a_word_of_a_command_line() -> None:
    """A shell reads each name of another client as one word, and executes no part of the name."""
    names = [
        "billing",
        "b c",
        "$(id)",
        "a'b",
        "-rf",
        "*",
        "a\u00a0b",
        "it's \\ \u202e",
        "`id`",
        "é",
    ]
    for name in names:
        word = errors.shell_word(name)
        assert word.isprintable()
        script = f"set -- {word}; printf '%s %s' $# \"$1\""
        words = ["bash", "-c", script]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, env={"LC_ALL": "C.UTF-8"}
        )
        assert done.stdout == f"1 {name}"
    assert errors.shell_word("billing") == "billing"


def test_how_to_react_to_an_error() -> None:
    """An error says whether the call may be repeated, and whether the connector has ended."""
    assert errors.ConsumerTimeoutError("x").retriable
    assert not errors.ConfigError("x").retriable
    assert errors.ConnectorClosedError("x").fatal
    ended = copy.copy(errors.ZooKeeperUnreachableError("x").mark_fatal())
    assert (ended.retriable, ended.fatal) == (False, True)
    assert not errors.ZooKeeperUnreachableError("x").fatal
