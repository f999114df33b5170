"""The rules of the house that a syntax tree can show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zkconsumer"
PROTOCOL, MEMBER = PACKAGE / "protocol", PACKAGE / "member"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

# The core decides; whoever calls it brings input, output, time and chance.
IMPURE = {"kazoo", "confluent_kafka", "threading", "time", "random", "socket", "logging", "os"}
IMPURE |= {"subprocess", "asyncio", "concurrent", "multiprocessing", "pathlib", "secrets", "uuid"}
MAX_FUNCTION = 60  # lines
ZNODE = re.compile(r"/(consumers|brokers)(?![A-Za-z])")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _imports(path: Path) -> Iterator[str]:
    """The full name of every module imported, at the top or inside a function."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_relative(path)}: relative import"
            yield node.module or ""


def _docstrings(path: Path) -> set[int]:
    """The identities of the constants that are documentation: texts that stand as statements."""
    return {
        id(node.value)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


PURE = sorted([*PROTOCOL.rglob("*.py"), *MEMBER.rglob("*.py")])


@pytest.mark.parametrize("path", PURE, ids=_relative)
def test_the_core_is_pure(path: Path) -> None:
    """No module of the core imports what does input, output, time, chance or threads."""
    imported = set(_imports(path))
    if path == MEMBER / "read_group.py":
        imported.discard("logging")  # a broker's malformed registration is logged where it is read
    assert not {name.partition(".")[0] for name in imported} & IMPURE
    ours = {name for name in imported if name.startswith("zkconsumer")}
    pure = ("zkconsumer.protocol", "zkconsumer.member", "zkconsumer.errors")
    assert all(name.startswith(pure) for name in ours)


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_one_module_knows_the_paths(path: Path) -> None:
    """Texts with "/consumers" or "/brokers" stand in protocol/paths.py only, apart from docs."""
    documentation = _docstrings(path)
    literals = [
        node.value
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
        and ZNODE.search(node.value)
    ]
    assert not literals or path == PROTOCOL / "paths.py"


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_no_error_is_swallowed(path: Path) -> None:
    """No bare except, and no `except Exception` that does nothing."""
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"bare except in line {node.lineno}"
        broad = any(
            isinstance(name, ast.Name) and name.id in ("Exception", "BaseException")
            for name in ast.walk(node.type)
        )
        idle = all(
            isinstance(step, ast.Pass | ast.Continue)
            or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
            for step in node.body
        )
        assert not (broad and idle), f"an error is swallowed in line {node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_functions_are_short(path: Path) -> None:
    """Functions have 60 lines at most."""
    long = {
        function.name: length
        for function in _functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION
    }
    assert not long


@pytest.mark.parametrize("path", TESTS, ids=_relative)
def test_every_test_states_its_claim(path: Path) -> None:
    """Every test has a docstring of one line."""
    for function in _functions(path):
        if function.name.startswith("test_"):
            claim = ast.get_docstring(function)
            assert claim, f"{function.name} states no claim"
            assert "\n" not in claim, f"{function.name} states it in more than one line"


def test_every_package_is_installed() -> None:
    """`setup.cfg` lists exactly the packages that there are, Spark's two under their own names."""
    listed = ConfigParser()
    listed.read(ROOT / "setup.cfg")
    lines = listed["options"]["packages"].split()
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "zkconsumer").rglob("__init__.py")]
    names = {
        path.name if path.parent.name == "discovery" else ".".join(path.parts) for path in folders
    }
    assert sorted(lines) == sorted(names)
