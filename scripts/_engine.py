"""A Docker engine for the container tests: the one that answers, or one of our own for the run.

Our own is Debian's `docker.io`, started by hand on a private socket in a temporary directory, so
it needs no init system and no group; it is stopped by its pid and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker  # type: ignore[import-untyped]

# Answers within milliseconds where there is an engine; a hung one must not hang the tests.
PING_TIMEOUT_S = 5.0
# Measured: ready after 0.3-0.6 s; the rest is for a machine that is busy.
READY_DEADLINE_S = 60.0
# dockerd stops its containers first (10 s each, together); then it is killed.
STOP_DEADLINE_S = 30.0
PACKAGES = ("docker.io", "iptables")
# apt puts these where the PATH of a plain user does not look.
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
LOG_LINES_ON_FAILURE = 15


class EngineError(Exception):
    """One line for the user: why there is no engine, and the remedy."""


def answers() -> str | None:
    """The version of the engine that DOCKER_HOST (or Docker's default) leads to, or None."""
    try:
        client = docker.from_env(timeout=PING_TIMEOUT_S)
    except docker.errors.DockerException:
        return None
    try:
        return str(client.version()["Version"])
    except (docker.errors.DockerException, OSError):
        return None
    finally:
        client.close()


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}")


def install() -> None:
    """Bring the engine from the system's packages, unless it is there. Raises: EngineError."""
    if _which("dockerd") and _which("iptables"):
        return
    if os.geteuid() != 0 or not _which("apt-get"):
        raise EngineError(
            "no Docker engine answers, and installing one takes root and apt-get: "
            "start an engine, or point DOCKER_HOST to one"
        )
    sys.stderr.write(f"zkconsumer: installing {' and '.join(PACKAGES)} (about 66 MB)\n")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ("update", "-q"),
        ("install", "-qy", "--no-install-recommends", *PACKAGES),
    ):
        command = ("apt-get", *arguments)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
            raise EngineError(f"`{' '.join(command)}` failed: its reason stands above")


@contextmanager
def own_engine() -> Iterator[str]:
    """Run an engine of our own; yields its address, a value for DOCKER_HOST.

    Raises: EngineError. The engine is stopped by its pid however the block ends, and by the kernel
    when this process is killed (setpriv, where there is one).
    """
    with tempfile.TemporaryDirectory(prefix="zkconsumer-docker-", ignore_cleanup_errors=True) as at:
        directory = Path(at)
        address = f"unix://{directory}/docker.sock"
        log = directory / "log"
        command = [_which("dockerd") or "dockerd", "--host", address]
        for option, name in (("data-root", "data"), ("exec-root", "exec"), ("pidfile", "pid")):
            command += [f"--{option}", str(directory / name)]
        if setpriv := _which("setpriv"):
            command = [setpriv, "--pdeathsig", "TERM", *command]
        path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
        with open(log, "wb") as output:
            # A session of its own: a Ctrl-C reaches Python, which stops it when the tests are done.
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PATH": path},
                start_new_session=True,
            )
        try:
            _await_ready(process, address, log)
            yield address
        finally:
            _stop(process)


def _await_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    client = docker.DockerClient(base_url=address, timeout=PING_TIMEOUT_S, version="1.41")
    deadline = time.monotonic() + READY_DEADLINE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
                return
            except (docker.errors.DockerException, OSError):
                time.sleep(0.05)
    finally:
        client.close()
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_ON_FAILURE:]
    sys.stderr.write("\n".join([*lines, ""]))
    raise EngineError(
        f"dockerd {'ended' if process.poll() is not None else 'did not get ready'}: its last words "
        "stand above; it needs root and a kernel that lets it make networks and mounts"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    # A second Ctrl-C must not leave the engine's containers and mounts behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
