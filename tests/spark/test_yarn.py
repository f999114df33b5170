"""The package on a real YARN (ResourceManager and NodeManager), with files on a real HDFS."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyspark
import pytest
from spark.hadoop import QUICK_JVM, Hdfs, Yarn
from support.packages import LIMIT_S, build, pip, python_without_package
from support.zk.client import peer_of
from support.zk.history_logs import every_kind

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.spark import environment

JOB = Path(__file__).with_name("yarnjob.py")
SPARK = Path(pyspark.__file__).parent
MESSAGES = [str(number) for number in range(20)]
JOB_S = 3 * LIMIT_S
"""Time limit of a job in seconds. On two busy cores, five JVMs of a job took 500 s and more."""


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """A NameNode and a DataNode that has the log of a ZooKeeper server."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as made:
        files, _ = fsspec.url_to_fs(made.url)
        files.makedirs("/logs", exist_ok=True)
        files.pipe("/logs/log.1", every_kind().content())
        yield made


@pytest.fixture(scope="module")
def yarn(hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A ResourceManager and a NodeManager."""
    with Yarn(tmp_path_factory.mktemp("yarn"), files=hdfs.url) as made:
        yield made


@pytest.fixture
def request_of(sandbox: Sandbox, unique: Callable[[str], str], hdfs: Hdfs) -> dict[str, str]:
    """Fill a topic; return what the job needs to read the topic."""
    topic = unique("yarn")
    sandbox.create_topic(topic, partitions=1)
    sandbox.produce(topic, MESSAGES)
    request = {"zookeeper": sandbox.zookeeper_connect, "topic": topic, "group": f"{topic}-group"}
    return {**request, "logs": f"{hdfs.url}/logs", "checkpoint": f"{hdfs.url}/checkpoints/{topic}"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of an environment that contains the package's wheel."""
    directory = tmp_path_factory.mktemp("built")
    made = python_without_package(directory / "environment")
    wheel = build(directory).wheel
    pip("--python", str(made), "install", "--no-deps", "--ignore-installed", str(wheel))
    return made


def submitted(
    yarn: Yarn, directory: Path, python: Path, mode: str, request: dict[str, str]
) -> dict[str, Any]:
    """Submit the job in the way of docs/spark.md, and return its results."""
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(python.parents[1], arcname="")
    found = {**os.environ, **environment(directory), "HADOOP_CONF_DIR": str(yarn.conf)}
    found |= {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": "./environment/bin/python"}
    found.pop("PYTHONPATH")  # Only the environment contains the package.
    found.pop("PYSPARK_DRIVER_PYTHON")
    settings = {
        "spark.yarn.jars": f"local:{SPARK}/jars/*",  # Otherwise the files are copied to HDFS.
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.yarn.am.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JVM,
    }
    if mode == "client":
        settings["spark.yarn.am.extraJavaOptions"] = QUICK_JVM
        (directory / "environment").symlink_to(python.parents[1])
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    else:
        settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = "./environment/bin/python"
        settings["spark.driver.extraJavaOptions"] = QUICK_JVM
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode]
    command += ["--archives", f"{archive}#environment"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    result = directory / "result.json"
    request = {**request, "result": str(result), "tables": str(directory / "tables")}
    done = subprocess.run(
        [*command, str(JOB), json.dumps(request)],
        cwd=directory,
        env=found,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:] + yarn.tails()
    answer: dict[str, Any] = json.loads(result.read_text())
    return answer


@pytest.mark.timeout(JOB_S + LIMIT_S)
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_job_on_yarn(
    yarn: Yarn, python: Path, request_of: dict[str, str], tmp_path: Path, mode: str
) -> None:
    """A batch, a stream of each mode, and the history pipeline run in YARN's containers."""
    told = submitted(yarn, tmp_path, python, mode, request_of)
    assert told["direct"] == told["group"] == sorted(MESSAGES)
    assert told["batch"] == len(MESSAGES)
    assert told["history"] == told["pipeline"] > 0
    containers = told["containers"] + ([told["driver"]] if mode == "cluster" else [])
    assert all(Path(one).is_relative_to(yarn.directory) for one in containers)
    assert mode == "client" or told["interpreter"].endswith("environment/bin/python")
    group, topic = request_of["group"], request_of["topic"]
    with peer_of(request_of["zookeeper"]) as client:
        assert client.get(paths.offset(group, TopicPartition(topic, 0)))[0] == b"20"
        assert client.get_children(paths.member(group, "x").rpartition("/")[0]) == []
