"""Wrong arguments of the library's calls raise ConfigError, which says what to pass instead."""

from __future__ import annotations

import sys

import pytest

from zkconsumer import ConfigError, ConsumerConnector

PROPERTIES: dict[str, object] = {"group.id": "g", "zookeeper.connect": "127.0.0.1:1"}


def test_a_free_threaded_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the global interpreter lock a connector is refused before it connects."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(ConfigError, match=r"global interpreter lock.*PYTHON_GIL=1"):
        ConsumerConnector(PROPERTIES)
