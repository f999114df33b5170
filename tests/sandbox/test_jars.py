"""The jar cache: jars are pinned, verified, downloaded once, and used without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import jars

# A jar of 5 kB, for the tests that download.
SMALL = next(jar for jar in jars.read_lock("kafka-1.1.1") if jar.artifact == "slf4j-reload4j")

LOCKS = sorted(path.stem for path in (Path(jars.__file__).parent / "locks").glob("*.txt"))

NO_NETWORK = {"HTTPS_PROXY": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}


def _silent(line: str) -> None:
    """A progress function that ignores all lines."""


@pytest.mark.parametrize("name", LOCKS)
def test_locks_are_whole(name: str) -> None:
    """Every lock names each jar once, with a SHA-256 of 64 digits."""
    lock = jars.read_lock(name)
    assert len({(jar.group, jar.artifact) for jar in lock}) == len(lock) > 3
    assert all(len(jar.sha256) == 64 and int(jar.sha256, 16) for jar in lock)


def test_one_version_one_hash() -> None:
    """Locks that name the same jar have the same hash for it, because they share the cache."""
    found: dict[str, str] = {}
    for name in LOCKS:
        for jar in jars.read_lock(name):
            assert found.setdefault(jar.coordinate, jar.sha256) == jar.sha256


def test_unknown_lock() -> None:
    """The error for an unknown lock lists the known locks."""
    with pytest.raises(
        SandboxError, match=r"there is no lock named kafka-4\.0: choose one of .*kafka-3\.9\.1"
    ):
        jars.read_lock("kafka-4.0")


def test_download_and_reuse(tmp_path: Path) -> None:
    """A jar is downloaded with lines of progress, and later taken from the cache without them."""
    said: list[str] = []
    [path] = jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=said.append)
    assert said == [f"x: downloading 1 jars to {tmp_path}", "x: 1 of 1 jars"]
    assert list(tmp_path.iterdir()) == [path]
    jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=said.append)
    assert len(said) == 2


def test_damaged_jar_is_replaced(tmp_path: Path) -> None:
    """If a jar in the cache was altered, this is detected, and the jar is replaced."""
    [path] = jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=_silent)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=_silent)
    assert path.read_bytes() == good


def test_two_at_once(tmp_path: Path) -> None:
    """If two threads fill a cache at once, both get complete jars and leave no other file."""
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(
            lambda title: jars.resolve_jars(
                [SMALL], title=title, directory=tmp_path, progress=_silent
            ),
            ("a", "b"),
        )
    assert first == second
    assert list(tmp_path.iterdir()) == [*first]


def test_a_jar_of_another_process_stays(tmp_path: Path) -> None:
    """If a jar is in the cache when its download ends, the file in the cache is kept."""
    [path] = jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=_silent)
    before = path.stat()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    jars.download_one(SMALL, tmp_path, scratch)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_bad_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jar whose hash differs from the lock is refused, and does not enter the cache."""
    monkeypatch.setattr(jars, "TRIES", 1)
    wrong = replace(SMALL, sha256="0" * 64)
    with pytest.raises(
        SandboxError, match=f"has SHA-256 {SMALL.sha256}, but the lock requires 0000"
    ):
        jars.resolve_jars([wrong], title="x", directory=tmp_path, progress=_silent)
    assert list(tmp_path.iterdir()) == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, an error of one line has the jar and the remedy."""
    monkeypatch.setattr(jars, "TRIES", 1)
    for name, value in NO_NETWORK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SandboxError, match=r"could not be downloaded .*: check the network") as got:
        jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=_silent)
    assert "\n" not in str(got.value)
    assert SMALL.coordinate in str(got.value)


def test_jar_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the repository does not have a version, the error is one line."""
    monkeypatch.setattr(jars, "TRIES", 1)
    absent = replace(SMALL, version="0.0.0")
    with pytest.raises(SandboxError, match=r"slf4j-reload4j:0\.0\.0 could not be downloaded"):
        jars.resolve_jars([absent], title="x", directory=tmp_path, progress=_silent)


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """If the cache directory cannot be created, the error names it and the setting."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match=r"jar cache cannot be used: .*ZKCONSUMER_CACHE"):
        jars.resolve_jars([SMALL], title="x", directory=tmp_path / "file" / "jars")


def test_disk_full_while_downloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk becomes full during a download, the error says so and blames no network."""

    def full(jar: jars.Jar, private: Path) -> Path:
        with Path("/dev/full").open("wb", buffering=0) as disk:
            disk.write(b"x")
        return private

    monkeypatch.setattr(jars, "download", full)
    with pytest.raises(SandboxError, match=r"No space left on device .*: free some space"):
        jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=_silent)


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZKCONSUMER_CACHE overrides XDG_CACHE_HOME, which overrides ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("ZKCONSUMER_CACHE", "/own")
    assert jars.cache_directory() == Path("/own/jars")
    monkeypatch.delenv("ZKCONSUMER_CACHE")
    assert jars.cache_directory() == Path("/x/zkconsumer/jars")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert jars.cache_directory() == Path.home() / ".cache" / "zkconsumer" / "jars"


def test_warm_cache_works_offline(tmp_path: Path) -> None:
    """If the cache has all jars, a server starts without a network, and jgo is not imported."""
    jars.resolve("zookeeper-3.8.4")
    code = (
        "import sys\n"
        "from zkconsumer.sandbox import ZooKeeperServer\n"
        "with ZooKeeperServer(sys.argv[1]) as server: print(server.mode)\n"
        "print('jgo' in sys.modules or 'requests' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | NO_NETWORK,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["standalone", "False"], done.stderr


def test_old_leftovers_are_swept(tmp_path: Path) -> None:
    """A download removes the files of a killed download, but only if they are a day old."""
    old, young = tmp_path / ".part-old", tmp_path / ".part-young"
    for path in (old, young):
        path.mkdir()
    os.utime(old, (0, 0))
    jars.resolve_jars([SMALL], title="x", directory=tmp_path, progress=_silent)
    assert not old.exists()
    assert young.exists()
    shutil.rmtree(young)
