"""A real Spark for these tests: one session for each process that runs tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.spark_queries import SLOW

from zkconsumer.sandbox import spark as sparks


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the tests of another Spark unless they are requested."""
    is_other = collection_path.name == "test_kafka_source.py"
    return True if is_other and not config.getoption("--kafka-source") else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeat a test once if Spark waited ten seconds for a Python worker in vain.

    Spark has no setting for this limit. On a busy machine it can be too short, which is not a
    defect of zkconsumer.
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
    """Let Spark's launcher and drivers, also those of subprocesses, run without the second
    compiler.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
            patch.setenv(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`. Queries of one test have their own names, topics and checkpoints."""
    made = sparks.session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()
