"""The rules of the repository that a syntax tree can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zkconsumer"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
ALL_FILES = [*MODULES, *sorted((ROOT / "tests").rglob("*.py")), *(ROOT / "scripts").glob("*.py")]

# The pure packages make decisions; their callers provide input, output, time and randomness.
IMPURE = {"kazoo", "confluent_kafka", "threading", "time", "random", "socket", "logging", "os"}
IMPURE |= {"subprocess", "asyncio", "concurrent", "multiprocessing", "pathlib", "secrets", "uuid"}
MAX_FUNCTION, MAX_COMMAND = 60, 80  # lines
ZNODE = re.compile(r"/(consumers|brokers)(?![A-Za-z])")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(_tree(path)))


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in _nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _imports(path: Path) -> Iterator[str]:
    """Return the full name of every module that a file imports, at its top or in a function."""
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_relative(path)}: relative import"
            yield node.module or ""


@cache
def _docstrings(path: Path) -> frozenset[int]:
    """Return the ids of the constants that are documentation: strings that stand as statements."""
    return frozenset(
        id(node.value)
        for node in _nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, in the form that a failing test prints."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{_relative(self.path)}:{self.line}: {self.what}"


def _report(places: Iterable[Place]) -> str:
    return "\n".join(map(str, places))


def test_the_pure_packages_are_pure() -> None:
    """The pure packages import no module for input, output, time, randomness or threads."""
    found = [
        Place(path, 1, f"imports {name}")
        for package in ("protocol", "member", "later")
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for name in _imports(path)
        if name.partition(".")[0] in IMPURE
    ]
    assert not found, _report(found)


# Modules that Python lacks on Windows.
POSIX_ONLY = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
POSIX_IMPORT = re.compile(rf"\b(?:from|import) (?:{'|'.join(sorted(POSIX_ONLY))})\b")
# These run only where the servers' processes can be controlled by signals.
POSIX_PACKAGES = {"sandbox", "demo"}


def _statements(
    body: Iterable[ast.stmt], *, is_guarded: bool = False
) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield each statement, and whether a test of `sys.platform` precedes it or surrounds it."""
    for one in body:
        yield one, is_guarded
        tests_platform = isinstance(one, ast.If) and "sys.platform" in ast.unparse(one.test)
        for name in ("body", "orelse", "handlers", "finalbody"):
            below = getattr(one, name, [])
            yield from _statements(below, is_guarded=is_guarded or tests_platform)
        is_guarded = is_guarded or tests_platform


def test_all_modules_can_be_imported_on_windows() -> None:
    """Only the sandbox and the demos import POSIX modules without a test of `sys.platform`."""
    found = [
        Place(path, one.lineno, f"imports {name}")
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] not in POSIX_PACKAGES
        if POSIX_IMPORT.search(path.read_text(encoding="utf-8"))
        for one, is_guarded in _statements(_tree(path).body)
        if not is_guarded
        for name in _imported(one)
        if name.partition(".")[0] in POSIX_ONLY
    ]
    assert not found, _report(found)


def _imported(one: ast.stmt) -> list[str]:
    if isinstance(one, ast.Import):
        return [alias.name for alias in one.names]
    return [one.module or ""] if isinstance(one, ast.ImportFrom) else []


def test_paths_are_written_in_one_module() -> None:
    """Only protocol/paths.py has strings with "/consumers" or "/brokers", except in docstrings."""
    found = [
        Place(path, node.lineno, node.value)
        for path in MODULES
        if path != PACKAGE / "protocol" / "paths.py"
        for node in _nodes(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and ZNODE.search(node.value)
        and id(node) not in _docstrings(path)
    ]
    assert not found, _report(found)


def test_messages_name_pages_that_users_have() -> None:
    """No text of the program names a file of docs/; `zkconsumer docs PAGE` names a shipped page."""
    texts = [
        (path, node)
        for path in MODULES
        for node in _nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    found = [
        Place(path, node.lineno, text)
        for path, node in texts
        if id(node) not in _docstrings(path)
        for text in re.findall(r"docs/[\w-]+\.md\b", str(node.value))
    ]
    found += [
        Place(path, node.lineno, page)
        for path, node in texts
        for page in re.findall(r"`zkconsumer docs ([\w/-]+)`", str(node.value))
        if not (ROOT / "docs" / f"{page}.md").exists()
    ]
    assert not found, _report(found)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(
        isinstance(name, ast.Name) and name.id in ("Exception", "BaseException")
        for name in ast.walk(handler.type)
    )


def _is_idle(handler: ast.ExceptHandler) -> bool:
    return all(
        isinstance(step, ast.Pass | ast.Continue)
        or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
        for step in handler.body
    )


def test_no_error_is_swallowed() -> None:
    """There is no bare except, and no `except Exception` with an empty body."""
    found = [
        Place(path, node.lineno, "swallows errors")
        for path in MODULES
        for node in _nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (_is_broad(node) and _is_idle(node)))
    ]
    assert not found, _report(found)


_PLAIN_LOGGER = re.compile(
    r"^\w+ = logging\.getLogger"
    r"|logging(\.getLogger\([^)]*\))?\.(debug|info|warn|warning|error|exception|critical|log)\(",
    re.M,
)


def test_a_users_log_filter_ends_no_thread() -> None:
    """Every module logs through `SafeLogger`: a user's filter or handler may raise."""
    found = [
        _relative(path)
        for path in MODULES
        if _PLAIN_LOGGER.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def _any_without_reason(path: Path) -> Iterator[Place]:
    """Return uses of `Any` outside of aliases with a docstring, without `# Any: reason`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    named = {
        id(name)
        for alias, after in zip(_tree(path).body, _tree(path).body[1:], strict=False)
        if isinstance(alias, ast.AnnAssign)
        and ast.unparse(alias.annotation) == "TypeAlias"
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        for name in ast.walk(alias)
    }
    for node in _nodes(path):
        is_any = isinstance(node, ast.Name) and node.id == "Any"
        is_quoted = isinstance(node, ast.Constant) and node.value == "Any"
        if (is_any or is_quoted) and id(node) not in named:
            line = getattr(node, "lineno", 1)
            if "# Any: " not in lines[line - 1]:
                yield Place(path, line, "Any without a reason")


def test_any_has_a_reason() -> None:
    """`Any` is used only in an alias with a docstring, or beside a comment with the reason."""
    found = [place for path in MODULES for place in _any_without_reason(path)]
    assert not found, _report(found)


def test_an_ignored_rule_of_the_linter_has_a_reason() -> None:
    """Each `# noqa: RULE` is followed by a reason."""
    found = [
        Place(path, number, "noqa without a reason")
        for path in ALL_FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"# noqa(: \w+)?\s*$", line)
    ]
    assert not found, _report(found)


def test_an_ignored_type_error_has_a_reason() -> None:
    """Each `# type: ignore` is followed by a reason, or preceded by a comment."""
    found = []
    for path in ALL_FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, (before, line) in enumerate(zip(["", *lines], lines, strict=False), 1):
            has_reason = before.lstrip().startswith("#")
            if re.search(r"# type: ignore(\[[\w,-]+\])?$", line) and not has_reason:
                found.append(Place(path, number, "type: ignore without a reason"))
    assert not found, _report(found)


def test_functions_are_short() -> None:
    """Functions have at most 60 lines; commands, whose signatures list their options, have 80."""
    found = [
        Place(path, function.lineno, f"{function.name} has {length} lines")
        for path in MODULES
        for function in _functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1)
        > (MAX_COMMAND if path.parent.name == "cli" else MAX_FUNCTION)
    ]
    assert not found, _report(found)


def test_every_test_states_its_claim() -> None:
    """Every test has a docstring of one line."""
    found = [
        Place(path, function.lineno, f"{function.name} needs a docstring of one line")
        for path in TESTS
        for function in _functions(path)
        if function.name.startswith("test_")
        and ((claim := ast.get_docstring(function)) is None or "\n" in claim)
    ]
    assert not found, _report(found)


def test_a_list_that_is_cut_counts_what_it_leaves_out() -> None:
    """Only `errors.first_few` joins a part of a list of names; it says how many more there are."""
    found = [
        f"{_relative(path)}:{node.lineno}"
        for path in MODULES
        for node in _nodes(path)
        if isinstance(node, ast.Call) and _name(node.func) == "join" and _is_part_of_a_list(node)
    ]
    assert found == []


def _is_part_of_a_list(call: ast.Call) -> bool:
    """Return whether a call joins the first elements of a list with commas or semicolons."""
    assert isinstance(call.func, ast.Attribute)
    separator = call.func.value
    return (
        isinstance(separator, ast.Constant)
        and separator.value in (", ", "; ")
        and any(
            isinstance(one, ast.Slice) and one.lower is None and one.upper is not None
            for one in ast.walk(call)
        )
    )


# Public names that begin with an underscore; tests may use them.
NOT_PRIVATE = {"_replace", "_asdict", "_fields", "_make", "_exit", "_is_gil_enabled"}
NOT_PRIVATE |= {"_UNKNOWN_PARTITION"}
# Test file -> the highest number of private names that it may use, and the reason why no public
# interface suffices.
PRIVATE_PARTS = {
    "support/internals.py": (13, "each function states its reason"),
    "zk/test_kazoo_internals.py": (5, "lists the private parts of kazoo on which `zk` depends"),
    "support/sim/handover.py": (
        21,
        "searches all orders of the accesses to the private parts of a stream",
    ),
    "support/zk/corpus.py": (1, "sends requests that kazoo has no call for"),
}


def _private_parts(path: Path) -> Iterator[Place]:
    """Return uses of names with one underscore in other objects, and patches of such names."""
    for node in _nodes(path):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()"):
                yield Place(path, node.lineno, f"{owner}.{node.attr}")
        elif isinstance(node, ast.Call) and _name(node.func).endswith("setattr"):
            names = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (Place(path, node.lineno, str(one)) for one in names if _is_private(one))


def _name(function: ast.expr) -> str:
    """Return the last part of a called function's name; empty if a call or an index is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_private(name: object) -> bool:
    words = str(name).rpartition(".")[2]
    return re.match(r"_[A-Za-z]", words) is not None and words not in NOT_PRIVATE


def test_tests_touch_few_private_parts() -> None:
    """Tests use public interfaces, except in at most 41 places whose reasons are in a table."""
    tests = ROOT / "tests"
    for path in sorted(tests.rglob("*.py")):
        found = list(_private_parts(path))
        allowed, _ = PRIVATE_PARTS.get(str(path.relative_to(tests)), (0, ""))
        assert len(found) <= allowed, _report(found)
    assert sum(count for count, _ in PRIVATE_PARTS.values()) <= 41


def test_every_package_is_installed() -> None:
    """`setup.cfg` lists exactly the existing packages, and the modules at the top for Spark."""
    listed = ConfigParser()
    listed.read(ROOT / "setup.cfg")
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "zkconsumer").rglob("__init__.py")]
    names = sorted(".".join(path.parts) for path in folders)
    assert sorted(listed["options"]["packages"].split()) == names
    modules = sorted(path.stem for path in ROOT.glob("*.py"))
    assert sorted(listed["options"]["py_modules"].split()) == modules
