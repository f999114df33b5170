"""Prometheus' own tool, for the alert rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of `promtool`: the system's, or that of Debian's package `prometheus`.

    The package is only unpacked, because its installation would start a server.
    """
    if found := shutil.which("promtool"):
        return found
    if not shutil.which("apt-get"):
        pytest.skip("promtool is missing, and there is no apt-get that fetches it")
    directory = tmp_path_factory.mktemp("prometheus")
    _run(directory, "apt-get", "-q", "download", "prometheus")
    (package,) = directory.glob("*.deb")
    _run(directory, "dpkg-deb", "--extract", package.name, ".")
    return str(directory / "usr" / "bin" / "promtool")


def _run(directory: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
