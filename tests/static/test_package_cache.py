"""Packages of the tests' environment are linked into the environments of other checkouts."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from zkconsumer.sandbox import jars

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
cache = importlib.import_module("_package_cache")

PACKAGES = "lib/python3.11/site-packages"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of these tests."""
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))


def _write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def _environment(venv: Path, key: str = "key") -> Path:
    """Return a new environment with a package, a program and the checkout."""
    _write(venv / cache.PENDING, key)
    _write(venv / "pyvenv.cfg", "the first one's")
    _write(venv / PACKAGES / "package" / "__init__.py", "name = 'package'")
    _write(venv / PACKAGES / "zkconsumer-0.1.0.dist-info" / "direct_url.json", str(venv))
    _write(venv / PACKAGES / "__editable___zkconsumer_finder.py", str(venv))
    python = venv / "bin" / "python"
    _write(python, f"#!/bin/sh\necho {venv.name}\n").chmod(0o755)
    _write(venv / "bin" / "program", f"#!{python}\n").chmod(0o755)
    return venv


def test_another_environment_has_the_packages(tmp_path: Path) -> None:
    """Another environment gets the same files, programs for its own Python, and no checkout."""
    first, second = _environment(tmp_path / "first"), tmp_path / "second"
    cache.keep(first)
    python = _write(second / "bin" / "python", "#!/bin/sh\necho second\n")
    python.chmod(0o755)
    assert cache.restore(second, "key")
    ours, theirs = (one / PACKAGES / "package" / "__init__.py" for one in (second, first))
    assert ours.samefile(theirs)
    assert [one.name for one in (second / PACKAGES).iterdir()] == ["package"]
    assert not (second / "pyvenv.cfg").exists()
    for venv in (first, second):
        program = subprocess.run([venv / "bin" / "program"], capture_output=True, check=True)
        assert program.stdout.decode() == f"{venv.name}\n"


def test_only_a_new_environment_is_kept(tmp_path: Path) -> None:
    """Packages that the user installs later do not enter the cache."""
    venv = _environment(tmp_path / "venv")
    cache.keep(venv)
    assert cache.has("key")
    (cache.directory() / "key").rename(tmp_path / "removed")
    cache.keep(venv)
    assert not cache.has("key")


def test_an_incomplete_cache_is_removed(tmp_path: Path) -> None:
    """If a file in the cache was deleted, the packages are installed again."""
    cache.keep(_environment(tmp_path / "first"))
    (cache.directory() / "key" / PACKAGES / "package" / "__init__.py").unlink()
    assert not cache.restore(tmp_path / "second", "key")
    assert not cache.has("key")


def test_the_packages_used_last_are_kept(tmp_path: Path) -> None:
    """Only the packages that were used last are kept, so changed locks do not fill the cache."""
    for number in range(cache.KEPT + 1):
        cache.keep(_environment(tmp_path / f"venv{number}", f"key{number}"))
        assert cache.restore(tmp_path / f"other{number}", "key0")
    assert [cache.has(f"key{number}") for number in range(3)] == [True, False, True]


def test_the_key_depends_on_the_locks(tmp_path: Path) -> None:
    """Packages that belong to another lock are not used."""
    lock = _write(tmp_path / "test.txt", "1")
    key = cache.key_of(lock)
    assert cache.key_of(lock) == key
    lock.write_text("2")
    assert cache.key_of(lock) != key


def test_the_directory_is_beside_the_jars() -> None:
    """One setting moves all caches: the directory is beside the jars."""
    assert cache.directory().parent == jars.cache_directory().parent
