"""The package as users get it: the wheel and the sdist, and environments that contain it."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# A Spark job takes 15 s, and installing Spark 25 s; a busy machine takes ten times as long.
LIMIT_S = 500
# Seconds in which npm installs a program on a busy machine.
NPM_S = 280
# The copy of the source contains no environments, caches or results of earlier builds.
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")


@dataclass(frozen=True)
class Built:
    """The two files of a release."""

    wheel: Path
    sdist: Path


def build(directory: Path) -> Built:
    """Build the sdist from a copy of the checkout, and the wheel from the sdist.

    Both are built by the installed setuptools, without a network.
    """
    tree, out = directory / "tree", directory / "dist"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


def pip(*arguments: str) -> None:
    """Run the pip of the tests' environment; `--python` names another environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def kerberos_packages() -> list[str]:
    """Return the requirements of the extra `kerberos` that have no wheels for Linux."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    lines = declared["options.extras_require"]["kerberos"].splitlines()
    return [one for one in lines if one and not one.startswith(("#", "zkconsumer["))]


def build_kerberos_packages(directory: Path) -> None:
    """Build these packages. pip caches the wheels, so that a test installs them in seconds.

    Beside six workers, the compiler would take longer than a test may.
    """
    pip("wheel", "--no-deps", "--wheel-dir", str(directory), *kerberos_packages())


def node_packages(directory: Path, wanted: Mapping[str, str]) -> Path:
    """Install packages of npm (name -> release); return the directory for NODE_PATH.

    If npm is not installed, the test fails in CI and is skipped elsewhere.
    """
    npm = shutil.which("npm")
    if npm is None:
        assert not os.environ.get("CI"), "npm is not installed"
        pytest.skip("npm is not installed")
    (directory / "package.json").write_text(
        json.dumps({"private": True, "dependencies": dict(wanted)})
    )
    done = subprocess.run(
        [npm, "install", "--omit=optional", "--no-audit", "--no-fund"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=NPM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory / "node_modules"


def python_without_package(directory: Path) -> Path:
    """An interpreter that has the dependencies of the package, but not the package.

    Python searches a directory that a .pth file names, but ignores the .pth files in this
    directory. So an editable installation is not visible.
    """
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    (site,) = (directory / "lib").glob("python*/site-packages")
    (site / "needs.pth").write_text(sysconfig.get_path("purelib"))
    return python


def outside(directory: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in `directory`, without the checkout on any path."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def interpreters() -> dict[str, Path]:
    """Return version ("3.12") -> interpreter, for each supported Python on PATH or in pyenv.

    pyenv's programs on PATH refuse to start if pyenv has not selected their version.
    """
    found: dict[str, Path] = {}
    for minor in range(11, 15):
        for candidate in _candidates(f"3.{minor}"):
            probe = [str(candidate), "-c", "import sys, ensurepip; print(*sys.version_info[:2])"]
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.stdout.split() == ["3", str(minor)]:
                found[f"3.{minor}"] = candidate
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    if program := shutil.which(f"python{version}"):
        yield Path(program)
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))


def linked(directory: Path, wheel: Path, extra: str = "") -> Path:
    """Install the wheel with one extra, or none, and return the new environment's interpreter.

    The dependencies are links to those of the tests' environment, which takes no network and hardly
    any time. Only what the wheel's metadata asks for is there.
    """
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (site,) = (directory / "lib").glob("python*/site-packages")
    for found in _required(extra):
        for file in found.files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(found.locate_file(top)))
    return python


def _required(extra: str) -> Iterator[Distribution]:
    """Yield the installed distributions that the package needs with an extra."""
    todo, seen = [("zkconsumer", extra)], set[tuple[str, str]]()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        found = distribution(name)
        if name != "zkconsumer":
            yield found
        for line in found.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": wanted}):
                todo += [(needed.name, one) for one in ("", *needed.extras)]
