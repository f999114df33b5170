"""The package on a standalone cluster: a master and two workers, each in its own JVM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from support.packages import LIMIT_S, build, pip, python_without_package
from support.processes import children, command

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import Sandbox, guard
from zkconsumer.sandbox.spark import SparkCluster, environment

JOB = Path(__file__).with_name("clusterjob.py")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
CONTENTS = [f"{partition}-{number}" for partition in range(4) for number in range(25)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster whose executors cannot find the package through this process's PYTHONPATH."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        with SparkCluster(tmp_path_factory.mktemp("cluster")) as made:
            yield made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the package, which users install."""
    return build(tmp_path_factory.mktemp("built")).wheel


@pytest.fixture
def filled(sandbox: Sandbox, unique: Callable[[str], str]) -> dict[str, str]:
    """A topic of four partitions that contains the messages CONTENTS."""
    topic = unique("cluster")
    sandbox.create_topic(topic, partitions=4)
    for partition in range(4):
        messages = [one for one in CONTENTS if one.startswith(f"{partition}-")]
        sandbox.produce(topic, messages, partition=partition)
    return {"zookeeper": sandbox.zookeeper_connect, "topic": topic}


def run(
    cluster: SparkCluster,
    directory: Path,
    request: dict[str, Any],
    *,
    python: Path,
    ship: str = "",
    driver: Path | None = None,
    archive: str = "",
    within: Sequence[str] = (),
) -> dict[str, Any]:
    """Submit the job, with `python` on the driver and the executors; return its output.

    `ship` is the package for the driver, and for the executors unless it must not be sent.
    `driver` is PYSPARK_DRIVER_PYTHON, if it is not `python`. The executors unpack `archive`, and
    the command `within` starts the driver.
    """
    environ = {**os.environ, **environment(directory), "PYSPARK_PYTHON": str(python)}
    environ["PYSPARK_DRIVER_PYTHON"] = str(driver or python)
    # --py-files has no effect on the process of a stream's source, on the driver.
    environ["PYTHONPATH"] = ship
    command = [*within, str(SUBMIT), "--master", cluster.url]
    command += ["--conf", "spark.ui.enabled=false"]
    command += ["--archives", archive] if archive else []
    command += ["--conf", "spark.log.level=ERROR"]
    command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.sql.shuffle.partitions=2"]
    for key, value in cluster.settings.items():
        command += ["--conf", f"{key}={value}"]
    if request["way"] in ("not sent", "unreadable"):
        # One executor and one attempt suffice: further attempts give the same error.
        command += ["--conf", "spark.cores.max=1", "--conf", "spark.task.maxFailures=1"]
    elif ship:
        command += ["--py-files", ship]
    command += [str(JOB), json.dumps(request)]
    done = subprocess.run(
        command,
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("way", ["installed", "shipped"])
def test_a_job_on_the_cluster(
    cluster: SparkCluster, wheel: Path, filled: dict[str, str], tmp_path: Path, way: str
) -> None:
    """A batch, a stream, and tasks that fail halfway and are retried run on both workers."""
    python, ship = python_without_package(tmp_path / "venv"), ""
    if way == "installed":
        # The wheel installs the two names under which Spark finds the format, so the test does not
        # register the format.
        pip("--python", str(python), "install", "--no-deps", "--ignore-installed", str(wheel))
    else:
        ship = str(shutil.copy(wheel, tmp_path / "zkconsumer.zip"))
    request = {**filled, "checkpoint": str(tmp_path / "checkpoint"), "way": way}
    told = run(cluster, tmp_path, request, python=python, ship=ship)
    assert told["batch"] == told["stream"] == sorted(CONTENTS)
    assert told["retried"] == [[one, 1] for one in sorted(CONTENTS)]
    assert len(told["executors"]) == 2
    assert all(Path(one).is_relative_to(cluster.directory) for one in told["executors"])
    whence = "zkconsumer.zip" if ship else str(tmp_path / "venv")
    assert all(whence in package for package in told["package"])


@pytest.mark.timeout(LIMIT_S)
def test_executors_without_the_package(
    cluster: SparkCluster, wheel: Path, filled: dict[str, str], tmp_path: Path
) -> None:
    """If only the driver has the package, the error names the package and the interpreter."""
    python = python_without_package(tmp_path / "venv")
    ship = str(shutil.copy(wheel, tmp_path / "zkconsumer.zip"))
    request = {**filled, "checkpoint": str(tmp_path / "checkpoint"), "way": "not sent"}
    told = run(cluster, tmp_path, request, python=python, ship=ship)["error"]
    assert f"an executor cannot read: No module named 'zkconsumer' ({python} on " in told
    assert "Traceback" not in told


@pytest.fixture(scope="module")
def packed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package, as an archive for the executors."""
    directory = tmp_path_factory.mktemp("packed")
    python = python_without_package(directory / "environment")
    pip("--python", str(python), "install", "--no-deps", "--ignore-installed", str(wheel))
    with tarfile.open(directory / "environment.tar.gz", "w:gz") as made:
        made.add(directory / "environment", arcname="")
    return directory


@pytest.fixture
def apart(cluster: SparkCluster, packed: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Submits the job from a directory in which `environment` leads to the driver's environment.

    The executors cannot see the driver's environment, because it is mounted for the driver only.
    They unpack the archive, in which the same relative path leads to an interpreter.
    """
    directory = tmp_path / "driver-environment"
    directory.mkdir()
    (tmp_path / "environment").symlink_to(directory)
    private = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*private, "true"], check=False).returncode:
        pytest.skip("this system does not let a user mount a directory for one process")
    script = 'mount --bind "$0" "$1" && shift && exec "$@"'
    within = [*private, "sh", "-c", script, str(packed / "environment"), str(directory)]
    archive = f"{packed / 'environment.tar.gz'}#environment"
    return partial(run, cluster, tmp_path, archive=archive, within=within)


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("way", "driver"),
    [("installed", ""), ("registered", "driver-environment"), ("unreadable", "driver-environment")],
)
def test_interpreters_at_different_paths(
    apart: Callable[..., dict[str, Any]],
    filled: dict[str, str],
    tmp_path: Path,
    way: str,
    driver: str,
) -> None:
    """With one relative path, the driver and the executors each start their own interpreter."""
    # A registered format also works if PYSPARK_DRIVER_PYTHON is the driver's absolute path. With a
    # format that Spark has found, the executors would start that path, and the error names it.
    python = Path("environment/bin/python")
    absolute = tmp_path / driver / "bin" / "python" if driver else None
    request = {**filled, "checkpoint": str(tmp_path / "checkpoint"), "way": way}
    told = apart(request, python=python, driver=absolute)
    if way == "unreadable":
        assert f'Cannot run program "{absolute}"' in told["error"]
        return
    assert told["batch"] == told["stream"] == sorted(CONTENTS)
    assert len(told["executors"]) == 2


def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    """A cluster that cannot start reports the reason, and leaves no process behind."""
    cluster = SparkCluster(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").write_text("exit 3\n")
    with pytest.raises(SandboxError, match="master is not ready"):
        cluster.start()
    with pytest.raises(SandboxError, match="is not running"):
        _ = cluster.url


def test_a_stopped_cluster_has_no_processes(cluster: SparkCluster) -> None:
    """After a stop no master and no worker is left. (Last test: the module shares both.)"""
    mine = [pid for pid in children(os.getpid()) if str(cluster.directory) in command(pid)]
    alive = [(pid, guard.start_time(pid)) for pid in mine]
    assert len(alive) == 3
    cluster.stop()
    assert not any(guard.start_time(pid) == birth for pid, birth in alive)
