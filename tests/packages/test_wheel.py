"""The wheel and the sdist contain the package and nothing else, and work outside the checkout."""

from __future__ import annotations

import ast
import json
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest
from support.packages import ROOT, Built, outside, pip, python_without_package

import zkconsumer
from zkconsumer.sim.coordinated import stories as coordinated
from zkconsumer.sim.lessons import LESSONS
from zkconsumer.sim.scenarios import SCENARIOS

# 1 MB, as 2**20 bytes.
MAX_WHEEL_BYTES = 1 << 20
EXTRAS = {"arrow", "charts", "fast", "lab", "metrics", "sandbox", "sasl", "spark", "top"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DISCOVERY = "zkconsumer/spark/discovery/"
PROBE = """
import json, zkconsumer
from importlib.metadata import version
from pyspark_zkconsumer import DefaultSource
from pyspark_zkconsumer_groups import DefaultSource as Groups
from pyspark_zkconsumer_history import DefaultSource as History
names = [one.name() for one in (DefaultSource, Groups, History)]
print(json.dumps([zkconsumer.__file__, version("zkconsumer"), names]))
"""


STORIES = """
import json
from zkconsumer.sim.lessons import LESSONS
from zkconsumer.sim.coordinated.stories import STORIES
from zkconsumer.sim.scenarios import SCENARIOS
told = [one.lesson for one in (*SCENARIOS.values(), *STORIES.values())]
print(json.dumps([*told, *(one.__doc__ for one in LESSONS.values())]))
"""


def _source_files() -> set[str]:
    """Return the package's files in the checkout, by their names in the wheel."""
    package = ROOT / "zkconsumer"
    found = {
        f"zkconsumer/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {name.removeprefix(DISCOVERY) for name in found}


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def test_the_wheel_contains_the_package(built: Built) -> None:
    """The wheel, built from the sdist, has each file of the package, no test, and at most 1 MB."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == _source_files()
    assert "zkconsumer/py.typed" in names
    assert built.wheel.name == f"zkconsumer-{zkconsumer.__version__}-py3-none-any.whl"
    assert built.wheel.stat().st_size <= MAX_WHEEL_BYTES


class _WithoutTexts(ast.NodeTransformer):
    """Removes docstrings, and other statements that consist of a constant."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def _code(text: bytes) -> tuple[str, list[int]]:
    """Return a module's syntax tree without docstrings, and the line of each node."""
    tree = _WithoutTexts().visit(ast.parse(text))
    return ast.dump(tree), [getattr(one, "lineno", 0) for one in ast.walk(tree)]


def test_the_modules_of_the_wheel_do_the_same(built: Built) -> None:
    """A module of the wheel lacks only comments and docstrings, and its line numbers are kept."""
    shorter = 0
    with zipfile.ZipFile(built.wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                here = ROOT / ("" if name.startswith("zkconsumer/") else DISCOVERY) / name
                source, found = here.read_bytes(), archive.read(name)
                assert _code(source) == _code(found), name
                shorter += len(found) < len(source)
    assert shorter > 200


def test_the_scripts_of_the_wheel_do_the_same(built: Built) -> None:
    """A script of the lab in the wheel lacks only comment lines, and keeps its line numbers."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = [one for one in archive.namelist() if one.endswith(".js") and "vendor" not in one]
        assert len(names) > 10
        for name in names:
            source = (ROOT / name).read_text(encoding="utf-8").splitlines()
            found = archive.read(name).decode().splitlines()
            assert found == ["" if one.lstrip().startswith("//") else one for one in source], name


def test_help_shows_the_same(built: Built) -> None:
    """In the wheel, public modules have all the docstrings that `help()` shows."""
    with zipfile.ZipFile(built.wheel) as archive:
        for name in ("__init__", "aio", "errors", "config/settings", "consumer/connector"):
            source = (ROOT / "zkconsumer" / f"{name}.py").read_bytes()
            found = archive.read(f"zkconsumer/{name}.py")
            assert _docstrings(source) == _docstrings(found), name


def _docstrings(text: bytes) -> list[tuple[str, str | None]]:
    """Return the docstrings of a module and of its public classes and functions."""
    nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, DOCUMENTED)]
    names = [(getattr(one, "name", ""), one) for one in nodes]
    return [(name, ast.get_docstring(one)) for name, one in names if _is_shown(name)]


def _is_shown(name: str) -> bool:
    return not name.startswith("_") or name.endswith("__")


def test_the_sdist_contains_no_tests(built: Built) -> None:
    """The sdist contains the package, its licence, and the files that build it."""
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in names if name.startswith(("tests", "docs", "scripts", "docker"))}
    assert names >= {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "zkconsumer/py.typed"}


def test_the_metadata(built: Built) -> None:
    """The metadata names the Python versions, the licence, and each extra for users."""
    found = _metadata(built.wheel)
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    assert set(found.get_all("Provides-Extra", [])) >= EXTRAS
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert found["Description-Content-Type"] == "text/markdown"
    assert str(found.get_payload()).startswith("# zkconsumer\n")


@pytest.fixture(scope="module")
def python(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter in whose environment the wheel is installed."""
    made = python_without_package(tmp_path_factory.mktemp("installed") / "venv")
    flags = ("--no-deps", "--no-index", "--ignore-installed")
    pip("--python", str(made), "install", *flags, str(built.wheel))
    return made


def test_the_module_and_the_command_run_outside_the_checkout(python: Path, tmp_path: Path) -> None:
    """`python -m zkconsumer` and the installed command both list the commands."""
    for command in ([python, "-m", "zkconsumer"], [python.parent / "zkconsumer"]):
        done = outside(tmp_path, *command, "--help")
        assert done.returncode == 0, done.stderr
        assert "doctor" in done.stdout


def test_the_stories_have_their_lessons(python: Path, tmp_path: Path) -> None:
    """The lessons of the simulator's stories are docstrings, which the wheel must contain."""
    done = outside(tmp_path, python, "-c", STORIES)
    assert done.returncode == 0, done.stderr
    lessons = [one.lesson for one in SCENARIOS.values()]
    lessons += [one.lesson for one in coordinated.STORIES.values()]
    assert json.loads(done.stdout) == [*lessons, *(one.__doc__ for one in LESSONS.values())]
    assert all(lessons)


def test_spark_finds_the_installed_sources(python: Path, tmp_path: Path) -> None:
    """Spark's three names are modules of the installed wheel, and do not come from the checkout."""
    done = outside(tmp_path, python, "-c", PROBE)
    assert done.returncode == 0, done.stderr
    place, version, names = json.loads(done.stdout)
    assert Path(place).is_relative_to(python.parents[1])
    assert version == zkconsumer.__version__
    assert names == ["zkconsumer", "zkconsumer-groups", "zkconsumer-history"]
