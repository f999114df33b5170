"""The common behaviour of all errors of the package."""

from __future__ import annotations

import copy
import pickle

import pytest

from zkconsumer.errors import MalformedZnodeError, ZkConsumerError


@pytest.mark.parametrize("again", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_an_error_crosses_processes(again: object) -> None:
    """An error that a worker raises arrives with all its attributes."""
    for error in (
        ZkConsumerError("gone", where="/x", remedy="wait"),
        MalformedZnodeError("no JSON", where="/y", thrown="JsonParseException"),
    ):
        other = again(error)  # type: ignore[operator]
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)
