"""Create the environment in which the commands of scripts/ run; uses only the standard library.

The environment contains a stamp for each extra, a hash of everything on which the installation
depends. If the stamp is current, nothing is installed and pip does not start. All messages go to
stderr; stdout belongs to the command.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import _package_cache

# An environment created for the key (extras of setup.cfg) also serves the values.
SERVES = {
    "sandbox": ("sandbox",),
    "sandbox,spark": ("sandbox,spark", "sandbox"),
    "test": ("test", "sandbox,spark", "sandbox"),
}
# Pinned versions with hashes; `scripts/lock` writes them. The lock `build` contains setuptools,
# which builds packages that have no wheel. Each of the other locks belongs to one extra. The first
# line of a lock names its Python versions.
LOCKS = "scripts/locks"
BUILD_LOCK = "build.txt"
# The entries of a lock are divided among this many calls of pip. Each call fetches one file after
# the other and waits for the index for half of its time, so that four calls keep two cores busy.
# Measured on two cores with other load: two calls take 55 s, four take 28 s.
PARTS = 4
# pip reports every file that it downloads; files below this size are not reported.
TOLD_DOWNLOAD_MB = 5.0
# Lines of pip's output that are shown after a failure: its error and the lines before it.
TOLD_LINES_ON_FAILURE = 25


class BootstrapError(Exception):
    """An error for the user in one line: what is wrong, and what to do."""


def say(text: str) -> None:
    sys.stderr.write(f"zkconsumer: {text}\n")
    sys.stderr.flush()


@contextmanager
def one_at_a_time(root: Path, venv: Path) -> Iterator[None]:
    """Hold a lock, so that only one of several commands creates the environment, and the others
    wait.
    """
    with open(root / "setup.cfg", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that creates {venv}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def is_usable(venv: Path) -> bool:
    """Whether the environment is complete and its base interpreter still exists."""
    if not (venv / "pyvenv.cfg").is_file() or not os.access(python_of(venv), os.X_OK):
        return False
    probe = [str(python_of(venv)), "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def make(venv: Path, *, with_pip: bool = True) -> None:
    """Create an empty environment, replacing the remains of an interrupted creation.

    With `with_pip=False` it need not contain pip, which takes 3 s to install.
    """
    if venv.exists() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").is_file():
        raise BootstrapError(
            f"{venv} is not a virtual environment: empty it, or set ZKCONSUMER_VENV"
        )
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        command = [sys.executable, "-m", "venv", "--clear", str(venv)]
        command += [] if with_pip else ["--without-pip"]
    elif importlib.util.find_spec("virtualenv"):
        command = [sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(venv)]
    elif virtualenv := shutil.which("virtualenv"):
        command = [virtualenv, "--quiet", "--clear", "--python", sys.executable, str(venv)]
    else:
        raise BootstrapError(
            f"{sys.executable} lacks venv and ensurepip: install your system's package with them "
            "(Debian, Ubuntu: apt-get install python3-venv), or install virtualenv, "
            "or set PYTHON to another Python"
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        raise BootstrapError(f"{venv} could not be created: see the error above")


def fingerprint(root: Path, venv: Path) -> str:
    """Return a hash of what an installation depends on: the declared packages, the Python, and both
    paths.
    """
    digest = hashlib.sha256(f"{root}\0{venv}\0".encode())
    declared = [root / "setup.cfg", root / "pyproject.toml", *sorted((root / LOCKS).glob("*.txt"))]
    for file in (*declared, venv / "pyvenv.cfg"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def stamp(venv: Path, extra: str) -> Path:
    return venv / f"zkconsumer-{extra}.stamp"


def python_version(venv: Path) -> str:
    """Return the minor version of the environment's Python, such as 3.12."""
    text = (venv / "pyvenv.cfg").read_text()
    found = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", text, re.MULTILINE)
    return found[1] if found else "unknown"


def lock_of(root: Path, venv: Path, extra: str) -> Path | None:
    """Return the lock of an extra, or None if no lock was made for the environment's Python."""
    lock = root / LOCKS / f"{extra.replace(',', '-')}.txt"
    return lock if is_for(lock, python_version(venv)) else None


def is_for(lock: Path, version: str) -> bool:
    """Return whether a lock was made for this minor version of Python."""
    with open(lock, encoding="utf-8") as lines:
        return version in lines.readline().split()


def installations(root: Path, venv: Path, extra: str) -> list[list[list[str]]]:
    """Return the steps of an installation: the arguments of calls of `pip install` that run at the
    same time.

    With a lock, every downloaded file is pinned by its hash, and pip resolves nothing. pip cannot
    compare the checkout itself with a hash, so a call of its own installs it. Python compiles
    a module when it is first imported; to compile all modules would take 20 s of a processor.
    """
    lock = lock_of(root, venv, extra)
    if lock is None:
        say(
            f"{LOCKS} pins no versions for Python {python_version(venv)}: installing within the "
            "version ranges of setup.cfg"
        )
        return [[["--editable", f"{root}[{extra}]"]]]
    pinned = [
        "--no-deps",
        "--no-compile",
        "--require-hashes",
        "--no-build-isolation",
        "--requirement",
    ]
    return [
        [[*pinned, str(lock.with_name(BUILD_LOCK))]],
        [
            *([*pinned, str(part)] for part in split(lock, venv)),
            ["--no-deps", "--no-build-isolation", "--editable", str(root)],
        ],
    ]


def split(lock: Path, venv: Path) -> list[Path]:
    """Write the parts of a lock into the environment, and return their paths."""
    entries = re.split(r"^(?=[^\s#])", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    parts = [venv / f"{lock.stem}-{number}.txt" for number in range(PARTS)]
    for number, part in enumerate(parts):
        part.write_text("".join(entries[number::PARTS]), encoding="utf-8")
    return parts


def create(venv: Path, key: str | None) -> bool:
    """Create an environment. Return whether it contains the packages of this key, because another
    checkout has installed them.
    """
    say(f"creating the environment {venv} (Python {sys.version.split()[0]})")
    if key and _package_cache.has(key):
        make(venv, with_pip=False)
        if _package_cache.restore(venv, key) and is_usable(venv):
            return True
        shutil.rmtree(venv)
    make(venv)
    return False


def package_key(root: Path, extra: str) -> str | None:
    """Return the key of an extra's packages in the cache, or None if they are not kept there.

    Only the packages of the extra `test` are kept: they take a gigabyte, and a contributor has many
    checkouts.
    """
    lock, build = root / LOCKS / f"{extra}.txt", root / LOCKS / BUILD_LOCK
    if extra != "test" or not is_for(lock, f"{sys.version_info.major}.{sys.version_info.minor}"):
        return None
    return _package_cache.key_of(build, lock)


def install(root: Path, venv: Path, extra: str, *, has_packages: bool) -> None:
    """Install what the environment lacks: all, or only the checkout."""
    steps = installations(root, venv, extra)
    if has_packages:
        *_, checkout = steps[-1]
        steps = [[checkout]]
        say(f"installing zkconsumer; its dependencies are links to {_package_cache.directory()}")
    else:
        say(f"installing zkconsumer[{extra}] and its dependencies")
    started = time.monotonic()
    for calls in steps:
        run_pips(venv, calls, extra)
    say(f"installed in {time.monotonic() - started:.1f} s")


def run_pips(venv: Path, calls: list[list[str]], extra: str) -> None:
    """Run calls of `pip install` at the same time and show their progress. Raises
    BootstrapError.
    """
    command = [str(python_of(venv)), "-m", "pip", "install", "--disable-pip-version-check"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    pips = [
        subprocess.Popen(
            [*command, "--no-input", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for arguments in calls
    ]
    with ThreadPoolExecutor(len(pips)) as readers:
        try:
            outputs = list(readers.map(follow, pips))
        except KeyboardInterrupt:
            # What was installed so far remains, without a stamp: the next run lets pip finish.
            for pip in pips:
                pip.terminate()
            raise
    clear_progress()
    for pip, lines in zip(pips, outputs, strict=True):
        if pip.returncode != 0:
            sys.stderr.write("\n".join([*lines[-TOLD_LINES_ON_FAILURE:], ""]))
            raise BootstrapError(
                f"pip could not install zkconsumer[{extra}]: see the error above; "
                "the first installation needs a network"
            )


def follow(pip: subprocess.Popen[str]) -> list[str]:
    """Show the progress of pip until it ends, and return its output."""
    assert pip.stdout is not None
    lines = []
    for line in pip.stdout:
        lines.append(line.rstrip())
        tell_progress(line.strip())
    pip.wait()
    return lines


def tell_progress(line: str) -> None:
    """Show pip's progress: on a terminal in one changing line, else only for large downloads."""
    if not line.startswith(("Collecting ", "Downloading ", "Installing ")):
        return
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\033[K  {line}"[: width + 4])
        sys.stderr.flush()
    elif line.endswith(" MB)") and float(line.rpartition("(")[2].split()[0]) >= TOLD_DOWNLOAD_MB:
        say(line[0].lower() + line[1:])


def clear_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")


def bootstrap(root: Path, venv: Path, extra: str) -> None:
    ready = python_of(venv).exists() and stamp(venv, extra).is_file()
    if ready and stamp(venv, extra).read_text() == fingerprint(root, venv):
        return
    with one_at_a_time(root, venv):
        key = package_key(root, extra)
        is_new = not is_usable(venv)
        has_packages = is_new and create(venv, key)
        wanted = fingerprint(root, venv)
        if stamp(venv, extra).is_file() and stamp(venv, extra).read_text() == wanted:
            return
        for served in SERVES["test"]:
            stamp(venv, served).unlink(missing_ok=True)
        pending = venv / _package_cache.PENDING
        pending.unlink(missing_ok=True)
        install(root, venv, extra, has_packages=has_packages)
        if key and is_new and not has_packages:
            pending.write_text(key, encoding="utf-8")
        for served in SERVES[extra]:
            stamp(venv, served).write_text(wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--extra", choices=sorted(SERVES), required=True)
    options = parser.parse_args()
    try:
        bootstrap(options.root, options.venv, options.extra)
    except BootstrapError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"the environment could not be created: {error}")
        return 1
    except KeyboardInterrupt:
        clear_progress()
        say("interrupted; the next run continues from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
