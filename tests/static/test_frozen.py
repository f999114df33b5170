"""The package's own decorator of frozen classes, compared with Python's."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from static.test_checks import MYPY, MYPY_CACHE, ROOT

from zkconsumer import frozen


@frozen.dataclass(frozen=True, slots=True)
class Own:
    x: int
    y: str = "a"
    hidden: int = dataclasses.field(default=0, repr=False)
    aside: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Pythons:
    x: int
    y: str = "a"
    hidden: int = dataclasses.field(default=0, repr=False)
    aside: int = dataclasses.field(default=0, compare=False)


@frozen.dataclass(frozen=True)
class Derived(Own):
    z: int = 0


@frozen.dataclass(frozen=True, kw_only=True)
class Single:
    x: int

    def __repr__(self) -> str:
        return "its own"


@frozen.dataclass(frozen=True, slots=True)
class Empty:
    """A class without fields."""


ARGUMENTS: list[dict[str, Any]] = [
    {"x": 1},
    {"x": 2},
    {"x": 1, "y": "b"},
    {"x": 1, "hidden": 1},
    {"x": 1, "aside": 1},
]


@pytest.mark.parametrize("first", ARGUMENTS)
def test_objects_behave_as_those_of_python(first: dict[str, Any]) -> None:
    """Equality, hash and text are those of `dataclasses.dataclass`."""
    own, pythons = Own(**first), Pythons(**first)
    assert repr(own) == repr(pythons).replace("Pythons", "Own")
    assert hash(own) == hash(pythons)
    for second in ARGUMENTS:
        assert (own == Own(**second)) is (pythons == Pythons(**second))
    for same in (copy.copy(own), pickle.loads(pickle.dumps(own)), dataclasses.replace(own)):
        assert same == own
    match own:
        case Own(x, y):
            assert (x, y) == (own.x, own.y)


def test_classes() -> None:
    """Only objects of one class are equal; a class keeps the methods that it defines."""
    assert Own(1) != Derived(1)
    assert Derived(1, z=2) == Derived(1, z=2) != Derived(1, z=3)
    assert repr(Derived(1)).startswith("Derived(x=1, ")
    assert (repr(Single(x=1)), hash(Single(x=1))) == ("its own", hash((1,)))
    assert {Empty()} == {Empty()} != {Own(1)}


@pytest.mark.parametrize("package", ["zkconsumer", "zkconsumer.admin", "zkconsumer.testing"])
def test_public_classes_are_python_s(package: str) -> None:
    """Users' code may not be checked by mypy, so public objects refuse assignments at runtime."""
    exported = importlib.import_module(package)
    kinds = [
        kind
        for kind in (getattr(exported, name) for name in exported.__all__)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    ]
    assert kinds
    assert [kind.__name__ for kind in kinds if _is_own(kind)] == []
    assert _is_own(Own)


def _is_own(kind: type) -> bool:
    """Return whether the package's own decorator has made a class."""
    return getattr(kind.__repr__, "__module__", "") == frozen.__name__


def test_mypy_reports_an_assignment(tmp_path: Path) -> None:
    """mypy reports an assignment to a field, although it succeeds at runtime."""
    code = tmp_path / "code.py"
    code.write_text(
        "from zkconsumer.member.events import Registered\n\n"
        "one = Registered(czxid=1)\none.czxid = 2\nassert one.czxid == 2\n"
    )
    exec(compile(code.read_text(), str(code), "exec"), {})
    found = subprocess.run(
        [sys.executable, "-m", *MYPY, str(code)],
        cwd=ROOT,
        env={**os.environ, "MYPY_CACHE_DIR": str(MYPY_CACHE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert '"czxid" defined in "Registered" is read-only' in found.stdout, found.stderr
    assert "Found 1 error" in found.stdout
