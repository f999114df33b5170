"""Pinned versions: scripts/locks match setup.cfg and are installed; images have digests."""

from __future__ import annotations

import importlib
import re
import sys
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
bootstrap = importlib.import_module("_bootstrap")
LOCKS = ROOT / bootstrap.LOCKS
EXTRAS = {"sandbox": ["sandbox"], "sandbox-spark": ["sandbox", "spark"], "test": ["test"]}
# An entry has a name, a version, an optional marker, and then one line for each hash.
ENTRY = re.compile(
    r"^([\w.-]+)==([\w.!+]+)( ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.MULTILINE,
)


def _lock(name: str) -> dict[str, str]:
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8")
    return {canonicalize_name(found[1]): found[2] for found in ENTRY.finditer(text)}


def _asked(extras: list[str]) -> list[Requirement]:
    """Return the requirements of these extras in setup.cfg, and of the extras they include."""
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg")
    lines = declared["options"]["install_requires"].splitlines()
    for extra in extras:
        lines += declared["options.extras_require"][extra].splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    inner = [extra for one in found if one.name == "zkconsumer" for extra in one.extras]
    rest = [one for one in found if one.name != "zkconsumer"]
    return rest + _asked(sorted(inner)) if inner else rest


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_satisfies_the_setup(name: str) -> None:
    """Each package that setup.cfg requires is pinned to a version in its range."""
    lock = _lock(name)
    for one in _asked(EXTRAS[name]):
        version = lock.get(canonicalize_name(one.name), "none")
        assert one.specifier.contains(version), f"{one} is pinned to {version}: run scripts/lock"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_is_complete(name: str) -> None:
    """Every package that the pinned packages require on this machine is pinned, too."""
    lock, todo, seen = _lock(name), _asked(EXTRAS[name]), set()
    while todo:
        one = todo.pop()
        extras = [*one.extras, ""]
        assert canonicalize_name(one.name) in lock, f"{one} is not pinned: run scripts/lock"
        if (key := (one.name, *extras)) in seen:
            continue
        seen.add(key)
        try:
            needed = [Requirement(line) for line in requires(one.name) or []]
        except PackageNotFoundError:
            continue
        todo += [
            another
            for another in needed
            if another.marker is None
            or any(another.marker.evaluate({"extra": extra}) for extra in extras)
        ]


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_lock_has_only_pinned_packages(path: Path) -> None:
    """Each entry of a lock has hashes; no entry has an address."""
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    assert first.split()[:2] == ["#", "Python"]
    assert "://" not in text
    assert ENTRY.sub("", text) == ""
    assert "setuptools" in _lock("build")


def test_the_locks_agree() -> None:
    """A package has the same version in every lock."""
    largest = _lock("test")
    for name in ("build", "sandbox", "sandbox-spark"):
        assert _lock(name).items() <= largest.items()


def _environment(directory: Path, version: str) -> Path:
    directory.mkdir()
    (directory / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    return directory


def test_the_commands_install_a_lock(tmp_path: Path) -> None:
    """With a lock, pip verifies the hash of each file that it downloads, and resolves nothing."""
    venv = _environment(tmp_path / "venv", "3.12.1")
    build, (*parts, checkout) = bootstrap.installations(ROOT, venv, "sandbox,spark")
    assert [Path(one[-1]) for one in build] == [LOCKS / "build.txt"]
    assert all("--require-hashes" in one and "--no-deps" in one for one in (*build, *parts))
    assert checkout == ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    texts = [Path(one[-1]).read_text(encoding="utf-8") for one in parts]
    assert [ENTRY.sub("", text) for text in texts] == [""] * len(parts)
    lock = (LOCKS / "sandbox-spark.txt").read_text(encoding="utf-8")
    entries = [found[0] for text in texts for found in ENTRY.finditer(text)]
    assert sorted(entries) == sorted(found[0] for found in ENTRY.finditer(lock))


def test_a_python_without_a_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a Python version without a lock the ranges of setup.cfg hold, and one line says so."""
    venv = _environment(tmp_path / "venv", "3.99.0")
    assert bootstrap.installations(ROOT, venv, "test") == [[["--editable", f"{ROOT}[test]"]]]
    (line,) = capsys.readouterr().err.splitlines()
    assert "pins no versions for Python 3.99" in line


def test_a_changed_lock_is_installed(tmp_path: Path) -> None:
    """An environment is updated when its lock changes."""
    for name in ("setup.cfg", "pyproject.toml"):
        (tmp_path / name).write_text("")
    locks = tmp_path / bootstrap.LOCKS
    locks.mkdir(parents=True)
    venv = _environment(tmp_path / "venv", "3.12.1")
    prints = []
    for version in ("1", "2"):
        (locks / "test.txt").write_text(version)
        prints.append(bootstrap.fingerprint(tmp_path, venv))
    assert prints[0] != prints[1]


def test_images_are_pinned() -> None:
    """Each image that docker/ takes from a registry is pinned by a digest as well as its tag."""
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    images = re.findall(r"^ +image: (\S+)$", compose, re.MULTILINE)
    images += re.findall(
        r"^ARG BASE=(\S+)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE
    )
    pinned = [one for one in images if re.fullmatch(r"[\w/-]+:[\w.-]+@sha256:[0-9a-f]{64}", one)]
    assert [one for one in images if one not in pinned] == ["zkconsumer"]  # the project's own image
    assert len(pinned) == 3
