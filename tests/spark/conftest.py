"""A real Spark for these tests: one session for each process that runs tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from pyspark.sql import SparkSession
from spark.hadoop import QUICK_JVM

from zkconsumer.sandbox import spark as sparks


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not collect tests that need another Spark version, unless these tests are requested."""
    is_other = collection_path.name == "test_kafka_source.py"
    return True if is_other and not config.getoption("--kafka-source") else None


# Spark's error if a Python worker takes longer than ten seconds to start. Spark has no setting for
# this limit. On a busy machine the limit can be too short, which is not a defect of zkconsumer.
SLOW_WORKER = "failed to connect back"
# How often a test that fails with this error is run.
TRIES = 3


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test again, with new fixtures, if it failed because a Python worker started too slowly.

    Tests do not handle the error themselves: their queries raise it, and they fail.
    """
    log = item.ihook
    log.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(TRIES)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not (left and any(one.failed and SLOW_WORKER in one.longreprtext for one in reports)):
            break
        warnings.warn(f"{item.nodeid} runs again: {SLOW_WORKER}", stacklevel=1)
    for report in reports:
        log.pytest_runtest_logreport(report=report)
    log.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session", autouse=True)
def quick_jvms() -> Iterator[None]:
    """Let the JVMs of Spark's launcher and drivers, also in subprocesses, run without the second
    compiler."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
            patch.setenv(name, QUICK_JVM)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with `local[2]`, in which each test uses its own names, topics and checkpoints."""
    made = sparks.session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()
