"""A real Spark for the tests of this room: one session for each process that runs tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.spark_queries import SLOW

from zkconsumer.sandbox import spark as sparks


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Another Spark is tested where it is asked for."""
    is_other = collection_path.name == "test_kafka_source.py"
    return True if is_other and not config.getoption("--kafka-source") else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test of this room once more if Spark waited ten seconds for a Python worker in vain.

    Spark has no setting for this time. On a machine with other work it can be too short, which says
    nothing about zkconsumer.
    """
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    try:
        pyfuncitem.obj(**arguments)
    except Exception as error:
        if SLOW not in str(error):
            raise
        warnings.warn(f"called again, because of: {SLOW}", stacklevel=1)
        pyfuncitem.obj(**arguments)
    return True


@pytest.fixture(scope="session", autouse=True)
def quick_jvms() -> Iterator[None]:
    """Spark's launcher and drivers, ours and those of subprocesses, end before C2 pays."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
            patch.setenv(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`; queries of one test have names, topics and checkpoints of their own."""
    made = sparks.session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()
