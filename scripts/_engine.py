"""A Docker engine for the container tests: one that already runs, or a temporary one.

The temporary engine is Debian's `docker.io`, started on a private socket in a temporary directory,
so it needs no init system and no group. The temporary engine is stopped by its pid and leaves
nothing behind.
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

import docker

# An engine answers within milliseconds; a hung engine must not block the tests.
PING_TIMEOUT_S = 5.0
# Measured: ready after 0.3 to 0.6 s. The limit allows for a busy machine.
READY_DEADLINE_S = 60.0
# dockerd first stops its containers (10 s, all together); after this limit it is killed.
STOP_DEADLINE_S = 30.0
PACKAGES, COMPOSE = ("docker.io", "iptables"), "docker-compose"
# Kerberos' server and tools, and what pip needs to build the packages of the extra `kerberos`.
KERBEROS = ("krb5-kdc", "krb5-admin-server", "krb5-user", "libkrb5-dev", "gcc")
SHELLS = ("zsh", "fish")
# The lab's tests run in the headless shell: a page costs it a fifth of the processor time that it
# costs the complete browser, which also draws a window. The complete one is measured by benchmarks.
HEADLESS, CHROMIUM, FONTS = "chromium-headless-shell", "chromium", "fonts-dejavu-core"
# apt installs these programs in directories that are not on a normal user's PATH.
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
LOG_LINES_ON_FAILURE = 15


class EngineError(Exception):
    """An error for the user in one line: why there is no engine, and what to do."""


def answers() -> str | None:
    """Return the version of the engine at DOCKER_HOST (or Docker's default); None without an
    answer.
    """
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
    """Install the engine from the system's packages unless it exists. Raises EngineError."""
    if _which("dockerd") and _which("iptables"):
        return
    if not can_install():
        raise EngineError(
            "no Docker engine answers, and installing one needs root and apt-get: "
            "start an engine, or set DOCKER_HOST"
        )
    install_packages(*PACKAGES)


def install_compose() -> None:
    """Install Docker Compose unless there is one. Raises EngineError."""
    if _which(COMPOSE) or _has_plugin():
        return
    if not can_install():
        raise EngineError("Docker Compose is missing, and installing it needs root and apt-get")
    install_packages(COMPOSE)


def _has_plugin() -> bool:
    command = ("docker", "compose", "version")
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def install_shells() -> None:
    """Install the shells of the completion tests unless they exist. Raises EngineError."""
    missing = [shell for shell in SHELLS if not _which(shell)]
    if not missing:
        return
    if not can_install():
        raise EngineError(
            f"{' and '.join(missing)} are missing, and installing them needs root and apt-get"
        )
    install_packages(*missing)


def install_chromium(*, complete: bool) -> None:
    """Install the browser of the lab's tests unless it exists; also the complete one if required.

    The tests also run in a complete browser, if the system has no package of the headless shell.
    Raises EngineError.
    """
    wanted = (HEADLESS, CHROMIUM) if complete else (HEADLESS,)
    missing = [program for program in wanted if not _which(program)]
    if not missing or (_which(CHROMIUM) and not can_install()):
        return
    if not can_install():
        raise EngineError("Chromium is missing, and installing it needs root and apt-get")
    try:
        install_packages(*missing, FONTS)
    except EngineError:
        if not _which(CHROMIUM):
            raise


def chromium() -> str:
    """Return the path of the complete browser, or else of its headless shell.

    Raises EngineError if both are missing.
    """
    found = _which(CHROMIUM) or _which(HEADLESS)
    if found is None:
        raise EngineError(f"Chromium is missing: install the package {HEADLESS} or {CHROMIUM}")
    return found


def install_kerberos() -> None:
    """Install Kerberos for its tests unless it exists. Raises EngineError."""
    if all(_which(program) for program in ("krb5kdc", "kadmin.local", "kinit", "krb5-config")):
        return
    if not can_install():
        raise EngineError("Kerberos is missing, and installing it needs root and apt-get")
    install_packages(*KERBEROS)


def can_install() -> bool:
    """Return whether this process may install Debian packages."""
    return os.geteuid() == 0 and _which("apt-get") is not None


def install_packages(*packages: str) -> None:
    """Install Debian packages. Raises EngineError."""
    sys.stderr.write(f"zkconsumer: installing {' and '.join(packages)}\n")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ("update", "-q"),
        ("install", "-qy", "--no-install-recommends", *packages),
    ):
        command = ("apt-get", *arguments)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
            raise EngineError(f"`{' '.join(command)}` failed: see its output above")


@contextmanager
def own_engine() -> Iterator[str]:
    """Run a temporary engine; yield its address, a value for DOCKER_HOST.

    The engine is stopped by its pid at the end of the block, even after an error. If this process
    is killed, the kernel stops the engine (through setpriv, if available).

    Raises:
        EngineError: the engine does not start.
    """
    with tempfile.TemporaryDirectory(prefix="zkconsumer-docker-", ignore_cleanup_errors=True) as at:
        directory = Path(at)
        address = f"unix://{directory}/docker.sock"
        log = directory / "log"
        # The ports of the containers are published on loopback only. By default, Docker publishes
        # them on all addresses, and IPv4 and IPv6 can get different port numbers.
        command = [_which("dockerd") or "dockerd", "--host", address, "--ip", "127.0.0.1"]
        for option, name in (("data-root", "data"), ("exec-root", "exec"), ("pidfile", "pid")):
            command += [f"--{option}", str(directory / name)]
        if setpriv := _which("setpriv"):
            command = [setpriv, "--pdeathsig", "TERM", *command]
        path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
        with open(log, "wb") as output:
            # The engine gets its own session: Ctrl-C reaches only Python, which stops the engine
            # after the tests.
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
        f"dockerd {'ended' if process.poll() is not None else 'did not get ready'}: see its last "
        "lines above; it needs root, and permission to create networks and mounts"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Ignore a second Ctrl-C, which would leave the engine's containers and mounts behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
