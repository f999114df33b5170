"""Resolve the extras that scripts/ installs, and write their locks: the command scripts/lock.

usage: scripts/lock [--upgrade]
  --upgrade   take the newest versions that setup.cfg permits; without it, a locked version stays if
              it is still permitted

A lock lists every package with its version and the hashes of its files, for each Python in PYTHONS
and for every system. A lock names no package index, so pip uses the index that the user has
configured. uv resolves the versions in a temporary environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import _bootstrap

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / _bootstrap.LOCKS
# 0.8 resolves the extras of setup.cfg that name other extras of the same package.
UV = "uv>=0.8,<1"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# The largest set is first: its versions also apply to the smaller sets.
EXTRAS = ("test", "sandbox,spark", "sandbox")
URL = re.compile(r"\w+://\S+")


def uv_in(directory: str) -> Path:
    """Install uv into a new environment, and return the program."""
    venv.create(directory, with_pip=True)
    pip = [f"{directory}/bin/python", "-m", "pip", "install", "--quiet", UV]
    subprocess.run(pip, check=True)
    return Path(directory, "bin", "uv")


def resolve(uv: Path, requirements: str, lock: Path, *options: str) -> None:
    """Write the lock of `requirements`, which are lines of a requirements file."""
    command = [str(uv), "pip", "compile", "-", "--universal", "--python-version", PYTHONS[0]]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--emit-build-options"]
    command += ["--no-emit-package", "zkconsumer", "--output-file", str(lock), *options]
    # A local folder of packages must not influence the contents of a lock.
    environment = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    subprocess.run(command, input=requirements, text=True, cwd=ROOT, env=environment, check=True)
    text = lock.read_text(encoding="utf-8")
    if found := URL.search(text):
        raise SystemExit(f"scripts/lock: {lock} contains an address: {found[0]}")
    lock.write_text(f"# Python {' '.join(PYTHONS)}; written by scripts/lock\n{text}", "utf-8")


def build_requirements() -> str:
    """Return the build requirements of pyproject.toml, for packages that have no wheel."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (found,) = re.findall(r'^requires = \["(.*)"\]$', text, re.MULTILINE)
    return f"{found}\n"


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ["--upgrade"]):
        sys.stdout.write(__doc__ or "")
        return 0 if arguments in (["--help"], ["-h"]) else 2
    LOCKS.mkdir(exist_ok=True)
    largest = LOCKS / f"{EXTRAS[0]}.txt"
    with tempfile.TemporaryDirectory(prefix="zkconsumer-lock-") as directory:
        uv = uv_in(directory)
        for extra in EXTRAS:
            lock = LOCKS / f"{extra.replace(',', '-')}.txt"
            options = arguments if lock == largest else ["--constraint", str(largest)]
            resolve(uv, f".[{extra}]\n", lock, *options)
        build = LOCKS / _bootstrap.BUILD_LOCK
        resolve(uv, build_requirements(), build, "--constraint", str(largest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
