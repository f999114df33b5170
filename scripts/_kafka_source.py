"""Spark's own Kafka source for comparison, in a separate environment.

Its connector is published for Spark 4.0.0. The environment and its jars remain in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Self

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import jars
from zkconsumer.sandbox import spark as sparks

RELEASE = "4.0.0"
JARS = tuple(
    jars.Jar(sha256, *coordinate.split(":"))
    for sha256, coordinate in (
        (
            "33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3",
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{RELEASE}",
        ),
        (
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{RELEASE}",
        ),
        (
            "15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18",
            "org.apache.kafka:kafka-clients:3.9.0",
        ),
        (
            "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
            "org.apache.commons:commons-pool2:2.12.0",
        ),
    )
)

# The program reads topics from its input, one per line, and prints the seconds that each took.
PROGRAM = """
import sys, time
from pyspark.sql import SparkSession
jars, directory, bootstrap = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
for key, value in {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
                   "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": directory,
                   "spark.ui.showConsoleProgress": "false"}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
frames = {}
for topic in map(str.strip, sys.stdin):
    if topic not in frames:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        frames[topic] = reader.option("subscribe", topic).load()
    start = time.perf_counter()
    frames[topic].write.format("noop").mode("overwrite").save()
    print(time.perf_counter() - start, flush=True)
spark.stop()
"""


def _python() -> Path:
    """Return the interpreter of an environment with pyspark 4.0.0; create it if it does
    not exist.
    """
    directory = jars.cache_directory().parent / f"spark-{RELEASE}"
    python = directory / "bin" / "python"
    stamp = directory / "complete"
    if not stamp.exists():
        print(f"  creating an environment with pyspark {RELEASE} ...", file=sys.stderr)
        venv.create(directory, clear=True, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", f"pyspark=={RELEASE}"], check=True
        )
        stamp.touch()
    return python


def start(program: str, *arguments: str, directory: Path) -> subprocess.Popen[str]:
    """Start a program in that environment. Its arguments are the connector's jars, `directory`, and
    `arguments`.
    """
    python = _python()
    paths = ",".join(map(str, jars.resolve_jars(JARS, title="Spark's Kafka source")))
    directory.mkdir(exist_ok=True)
    variables = {
        **os.environ,
        **sparks.environment(directory),
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    variables.pop("SPARK_HOME", None)
    return subprocess.Popen(
        [python, "-c", program, paths, str(directory), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )


class KafkaSource:
    """A process with a Spark session and its own Kafka source; `with` starts and stops it."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._directory = bootstrap, directory

    def __enter__(self) -> Self:
        self._process = start(PROGRAM, self._bootstrap, directory=self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def seconds(self, topic: str) -> float:
        """Return the seconds needed to read the whole topic with all columns into the sink
        `noop`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(topic, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SandboxError(
                "Spark with its own Kafka source has ended", remedy="see its output above"
            )
        return float(line)
