"""Spark on this machine: an environment in which its launcher, its JVM and its workers start.

Three things stop a plain `pip install pyspark` from running: its launcher always asks for a Java
module that small runtimes leave out, its Python workers are whatever `python3` is on PATH, and the
driver binds to whatever the host's name resolves to.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.sandbox.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's launcher asks for it since 3.5 (`JavaModuleOptions`); only linear algebra is faster by it.
_MODULE = "jdk.incubator.vector"

_WITHOUT_MODULE = f"""#!/bin/sh
for word do
    shift
    case $word in --add-modules={_MODULE}) ;; *) set -- "$@" "$word" ;; esac
done
exec "{{java}}" "$@"
"""

# Where the two top-level modules lie in a checkout; an installed package has them beside itself.
DISCOVERY = Path(__file__).resolve().parent.parent / "spark" / "discovery"


def java_home(directory: Path, java: Java | None = None) -> Path:
    """A JAVA_HOME for Spark, made in `directory`: its `java` leaves out a module it has not got.

    Raises:
        SandboxError: no Java runtime fits; see `find_java`.
    """
    java = java or find_java()
    script = directory / "bin" / "java"
    if java.executable == script:  # made before, and in our own JAVA_HOME since
        return directory
    listed = subprocess.run(
        [java.executable, "--list-modules"], capture_output=True, text=True, check=False
    )
    script.parent.mkdir(parents=True, exist_ok=True)
    script.unlink(missing_ok=True)
    if _MODULE in listed.stdout:
        script.symlink_to(java.executable)
    else:
        script.write_text(_WITHOUT_MODULE.format(java=java.executable))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return directory


def environment(directory: Path) -> dict[str, str]:
    """The variables with which Spark's launcher runs here, beside those of the process.

    `directory` keeps what is made for it. Raises SandboxError as `java_home`.
    """
    before = os.environ.get("PYTHONPATH")
    return {
        "JAVA_HOME": str(java_home(directory / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(DISCOVERY), *([before] if before else [])]),
    }


def session(
    directory: Path, *, master: str = "local[2]", settings: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session of this process, quiet and bound to loopback; `stop()` ends it.

    Its temporary files and default checkpoints lie in `directory`. The variables of `environment`
    are set for this process, since the launcher and the workers inherit them.

    Raises:
        SandboxError: no Java runtime fits.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an optional extra, needed only here

    os.environ.update(environment(directory))
    # A JVM does not look at TMPDIR, and one that is killed leaves libraries that it has unpacked.
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    chosen = {
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={temporary.absolute()}"',
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **(settings or {}),
    }
    builder = SparkSession.builder.master(master).appName("zkconsumer")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made
