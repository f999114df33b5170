"""The statements on the pages about the operator's tools are true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.zk.client import peer_of

from zkconsumer.admin.exporter import OWN, READINGS
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reading_calls(
    sandbox: Sandbox, unique: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The example in docs/library.md runs unchanged, except for names."""
    topic, group = unique("orders"), unique("billing")
    sandbox.create_topic(topic, partitions=2)
    with peer_of(sandbox.zookeeper_connect) as client:
        client.create(paths.offset(group, TopicPartition(topic, 1)), b"0", makepath=True)
    page = (DOCS / "library.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (example,) = [block for block in blocks if "group_lags" in block]
    names = {
        "zk1:2181/kafka": sandbox.zookeeper_connect,
        '"orders"': f'"{topic}"',
        '"billing"': f'"{group}"',
    }
    for name, real in names.items():
        example = example.replace(name, real)
    exec(compile(example, "library.md", "exec"), {})  # The page is a file of this repository.
    said = capsys.readouterr().out
    assert f"[('{group}', None)]" in said
    assert f"{topic} 1 None 0 Source.ZOOKEEPER LogRange(start=0, end=0) 0" in said


def test_every_metric_of_a_group_is_listed() -> None:
    """docs/metrics.md lists exactly the metrics that `lag --prometheus` serves."""
    page = (DOCS / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(zkconsumer_group_\w+)`", page, re.MULTILINE))
    assert listed == {name for name, _, _ in (*OWN, *READINGS)}
