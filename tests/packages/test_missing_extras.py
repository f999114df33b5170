"""Without any extra, operators' commands work, and what needs an extra says so in one sentence."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from support.packages import ROOT, Built, linked, outside, python_without_package

from zkconsumer.sandbox import Sandbox

LOGS = ROOT / "tests" / "golden" / "history" / "incident.tar.gz"
# Spark's own look-up of formats by the modules' names, in the form in which the driver calls it.
LOOKUP = """
import io, json
from pyspark.serializers import read_int
from pyspark.sql.worker import lookup_data_sources
answer = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), answer)
answer.seek(0)
names = []
for _ in range(read_int(answer)):
    names.append(answer.read(read_int(answer)).decode())
    answer.read(read_int(answer))
print(json.dumps(sorted(names)))
"""
# What needs an extra -> the extra. A command begins with `zkconsumer`; all else is Python.
# ZOOKEEPER and TOPIC are replaced.
NEEDS = {
    "zkconsumer top --zookeeper ZOOKEEPER": "top",
    "zkconsumer lab --no-browser": "lab",
    "zkconsumer lag -z ZOOKEEPER -g g --prometheus 1": "metrics",
    "zkconsumer consume -z ZOOKEEPER -g g --topic TOPIC --output parquet --to out": "arrow",
    "zkconsumer consume -z ZOOKEEPER -g g --topic TOPIC --property fetch.engine=columns": "fast",
    "zkconsumer sandbox up --directory new": "sandbox",
    "import zkconsumer.spark.data_source": "spark",
    "from zkconsumer.spark import tables": "spark",
    "from zkconsumer.history.inputs import find_servers; find_servers(['hdfs://h:1/x'])": "hdfs",
    "from zkconsumer.sandbox import Sandbox; Sandbox('new').start()": "sandbox",
    "CONNECTOR(metrics_port=1)": "metrics",
    "CONNECTOR(zookeeper_auth_scheme='sasl', zookeeper_auth_credential='a:b')": "sasl",
    "CONNECTOR(zookeeper_auth_scheme='sasl', zookeeper_sasl_mechanism='GSSAPI')": "kerberos",
    "CONNECTOR(fetch_engine='columns').create_message_streams({'TOPIC': 1})": "fast",
    "CONNECTOR().create_message_streams({'TOPIC': 1})['TOPIC'][0].poll_arrow()": "arrow",
}
CONNECTOR = """
from functools import partial
from zkconsumer import ConsumerConfig, ConsumerConnector
def CONNECTOR(**given):
    config = ConsumerConfig(group_id="g", zookeeper_connect="ZOOKEEPER", **given)
    return ConsumerConnector(config)
"""


@pytest.fixture(scope="module")
def base(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and no extra."""
    return linked(tmp_path_factory.mktemp("base") / "venv", built.wheel)


@pytest.mark.parametrize("command", ["report", "timeline --group billing", "show ownership"])
def test_history(base: Path, tmp_path: Path, command: str) -> None:
    """`zkconsumer history` reads logs without any extra."""
    words = shlex.split(f"history {command} -o json --data-dir {LOGS}")
    done = outside(tmp_path, base.with_name("zkconsumer"), *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("what", NEEDS)
def test_a_missing_extra(
    base: Path, sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path, what: str
) -> None:
    """A command or a call that needs an extra names the extra in one sentence."""
    topic = unique("topic")
    code = what if what.startswith("zkconsumer ") else CONNECTOR + what
    code = code.replace("ZOOKEEPER", sandbox.zookeeper_connect).replace("TOPIC", topic)
    if "TOPIC" in what:
        sandbox.create_topic(topic)
    words = [base.with_name("zkconsumer"), *shlex.split(code)[1:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))
        patch.setenv("PATH", os.defpath if "andbox" in what else os.environ["PATH"])
        patch.delenv("JAVA_HOME", raising=False)
        is_command = what.startswith("zkconsumer ")
        done = outside(tmp_path, *(words if is_command else [base, "-c", code]))
    last = done.stderr.strip().splitlines()[-1]
    assert f"zkconsumer[{NEEDS[what]}" in last, done.stderr
    assert done.returncode != 0
    if is_command:
        assert "Traceback" not in done.stderr


def test_spark_finds_an_editable_installation(built: Built, tmp_path: Path) -> None:
    """After `pip install -e`, Spark's own look-up finds the three formats from any directory."""
    python = python_without_package(tmp_path / "venv")
    flags = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    tree = built.sdist.parents[1] / "tree"
    done = outside(tmp_path, python, "-m", "pip", "install", *flags, "--editable", tree)
    assert done.returncode == 0, done.stderr
    found = outside(tmp_path, python, "-c", LOOKUP)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == ["zkconsumer", "zkconsumer-groups", "zkconsumer-history"]
    place = outside(tmp_path, python, "-c", "import zkconsumer; print(zkconsumer.__file__)")
    assert Path(place.stdout.strip()) == tree / "zkconsumer" / "__init__.py"
