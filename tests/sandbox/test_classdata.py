"""Class-data archives of JVMs: their warnings do not appear in a program's output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.wait import LIMIT_S

from zkconsumer.sandbox import jars, server
from zkconsumer.sandbox.jars import find_java

# This class prints ZooKeeper's version on standard output, and needs only ZooKeeper's jar.
MAIN = "org.apache.zookeeper.Version"


def test_the_jvms_warnings_go_to_standard_error(tmp_path: Path) -> None:
    """If a jar has changed, a JVM ignores its archive, and warns on standard error."""
    jar, known = tmp_path / "some.jar", tmp_path / "known.jsa"
    found = jars.resolve("kafka-1.1.1")
    shutil.copy(next(one for one in found if "zookeeper.zookeeper" in one.name), jar)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [find_java().executable, *options, "-cp", jar, MAIN]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)

    with server.recording(known) as fresh:
        recorded = run(*server.options(known, record=fresh))
    os.utime(jar, (1, 1))
    mapped = run(*server.options(known, record=None))
    runtime = find_java().executable.resolve().parent.parent / "lib" / "server"
    assert known.exists() == any(runtime.glob("classes*.jsa"))  # Some runtimes cannot write one.
    assert recorded.stdout == mapped.stdout == run().stdout
    assert ("warning" in mapped.stderr) == known.exists()
