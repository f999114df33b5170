"""Which packages may import each other; and imports form no cycle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from _compiled_cache import LOOP_FOLDERS  # needs the path above

PACKAGE = Path(__file__).parents[2] / "zkconsumer"

PERMITTED: dict[str, set[str]] = {
    "errors": set(),
    "frozen": set(),
    "safe_logger": {"errors"},
    "file_lock": set(),
    "times": {"errors"},
    "java": {"errors", "frozen"},
    "protocol": {"errors", "frozen", "java"},
    "config": {"errors", "safe_logger", "protocol"},
    "member": {"errors", "frozen", "protocol"},
    "later": {"frozen", "java", "protocol"},
    "zk": {"errors", "frozen", "safe_logger", "protocol", "config"},
    "kafka": {"errors", "frozen", "safe_logger", "protocol", "config"},
    "trace": {"errors", "frozen", "protocol", "member"},
    "consumer": {
        "errors",
        "frozen",
        "safe_logger",
        "protocol",
        "config",
        "member",
        "zk",
        "kafka",
        "trace",
    },
    "aio": {"errors", "protocol", "config", "consumer"},
    "admin": {
        *("errors", "times", "java", "protocol", "config", "zk", "kafka", "history", "file_lock"),
    },
    "bridge": {
        *("errors", "frozen", "safe_logger", "times", "protocol", "config", "later", "zk", "kafka"),
        *("consumer", "admin", "history"),
    },
    "loops": {"kafka", "history"},
    "spark": {
        *(
            "errors",
            "safe_logger",
            "protocol",
            "config",
            "member",
            "zk",
            "kafka",
            "consumer",
            "admin",
        ),
        *("history", "file_lock", "loops"),
    },
    "tables": {"errors", "safe_logger", "protocol", "config", "zk", "kafka", "admin", "spark"},
    "sim": {
        *(
            "errors",
            "frozen",
            "protocol",
            "config",
            "member",
            "zk",
            "kafka",
            "trace",
            "consumer",
            "admin",
        ),
        *("spark", "later", "bridge"),
    },
    "judge": {
        *("errors", "frozen", "protocol", "config", "member", "zk", "consumer", "trace", "later"),
        *("sandbox", "sim", "lab"),
    },
    "sandbox": {"errors", "frozen", "safe_logger", "protocol", "config", "zk", "kafka"},
    "lab": {
        *(
            "errors",
            "frozen",
            "safe_logger",
            "java",
            "protocol",
            "member",
            "later",
            "consumer",
            "trace",
            "sim",
        ),
        *("config", "zk", "admin", "bridge", "sandbox", "history"),
    },
    "history": {"errors", "frozen", "times", "protocol", "kafka"},
    "testing": {
        *(
            "errors",
            "safe_logger",
            "protocol",
            "config",
            "member",
            "later",
            "zk",
            "kafka",
            "consumer",
            "admin",
        ),
        *("sim", "sandbox"),
    },
    "demo": {"errors", "frozen", "protocol", "zk", "sandbox", "zkconsumer"},
    "cli": {
        *(
            "errors",
            "frozen",
            "java",
            "protocol",
            "config",
            "zk",
            "kafka",
            "trace",
            "consumer",
            "admin",
        ),
        *("sim", "judge", "sandbox", "demo", "lab", "history", "file_lock", "loops"),
        *("zkconsumer", "bridge", "times", "safe_logger"),
    },
    "zkconsumer": {"errors", "protocol", "config", "consumer", "cli"},
}
"""Package -> the packages that its modules may import, also in functions and `TYPE_CHECKING`.

`java` is `protocol.java` and `tables` is `spark.tables`. `zkconsumer` is the top-level module,
which has the public names. `sim` runs the production code of the loop, the streams and the tools,
on simulated servers.
"""


@cache
def modules() -> dict[str, Path]:
    """Return dotted name -> file of every module of the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield each statement, without the expressions, in which nothing is imported."""
    for one in body:
        yield one
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            for below in getattr(one, name, ()):
                is_statement = isinstance(below, ast.stmt)
                yield from _statements([below] if is_statement else below.body)


@cache
def imports(name: str) -> tuple[str, ...]:
    """Return the modules of this package that a module imports."""
    found = []
    for node in _statements(ast.parse(modules()[name].read_text(encoding="utf-8")).body):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zkconsumer"):
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.append(below if below in modules() else str(node.module))
    return tuple(found)


def package(name: str) -> str:
    parts = name.split(".")
    if parts[1:3] in (["protocol", "java"], ["spark", "tables"]):
        return parts[2]
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else parts[0]


def test_packages_import_what_they_may() -> None:
    """Every module imports only from packages that `PERMITTED` lists for its own package."""
    found = [
        f"{name} imports {other}"
        for name in modules()
        for other in imports(name)
        if package(other) not in {package(name), *PERMITTED[package(name)]}
    ]
    assert not found, "\n".join(found)


def test_every_permission_is_used() -> None:
    """Every import that `PERMITTED` lists is made by at least one module."""
    used = {(package(name), package(other)) for name in modules() for other in imports(name)}
    spare = {(one, other) for one, others in PERMITTED.items() for other in others} - used
    assert not spare


def test_no_import_forms_a_cycle() -> None:
    """Imports form no cycle, even if function-local and `TYPE_CHECKING` imports are included."""
    graph = {name: {other for other in imports(name) if other != name} for name in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_compiled_loops_use_modules_of_few_folders() -> None:
    """Loops that numba compiles use only the modules on which the cache of loops depends."""
    known = tuple(folder.replace("/", ".") for folder in LOOP_FOLDERS)
    todo = ["zkconsumer.history.columns", "zkconsumer.history.commit_loop"]
    todo += ["zkconsumer.kafka.columns.parsers"]
    seen: set[str] = set()
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            todo += imports(name)
    assert [name for name in seen if not name.startswith(known)] == []
