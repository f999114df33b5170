"""The wheel and the sdist contain the package and nothing else, and work outside the checkout."""

from __future__ import annotations

import json
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest
from support.packages import ROOT, Built, outside, pip, python_without_package

import zkconsumer

FOLDERS = ("course", "examples", "examples/judge", "lessons", "monitoring", "schemas")
"""The folders of docs/ that the wheel contains."""

EXTRAS = {"arrow", "charts", "fast", "lab", "metrics", "sandbox", "sasl", "spark", "top"}
PROBE = """
import json, zkconsumer
from importlib.metadata import version
from pyspark_zkconsumer import DefaultSource
from pyspark_zkconsumer_groups import DefaultSource as Groups
from pyspark_zkconsumer_history import DefaultSource as History
names = [one.name() for one in (DefaultSource, Groups, History)]
print(json.dumps([zkconsumer.__file__, version("zkconsumer"), names]))
"""


def _source_files() -> set[str]:
    """Return the package's files in the checkout, with the pages, by their names in the wheel."""
    package = ROOT / "zkconsumer"
    found = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found |= {path.name for path in ROOT.glob("pyspark_zkconsumer*.py")}
    shown = (ROOT / "docs").glob("*.md")
    folders = (ROOT / "docs" / name for name in FOLDERS)
    pages = [*shown, *(path for folder in folders for path in folder.iterdir() if path.is_file())]
    return found | {f"zkconsumer/{path.relative_to(ROOT)}" for path in pages}


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def test_the_wheel_contains_the_package(built: Built) -> None:
    """The wheel, built from the sdist, has each file of the package and each page, and no test."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == _source_files()
    assert "zkconsumer/py.typed" in names
    assert built.wheel.name == f"zkconsumer-{zkconsumer.__version__}-py3-none-any.whl"


def test_the_wheel_contains_the_source_as_it_is(built: Built) -> None:
    """Each file of the wheel has the same bytes as in the checkout."""
    with zipfile.ZipFile(built.wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/" not in name:
                assert archive.read(name) == (ROOT / name).read_bytes(), name


def test_the_sdist_contains_what_the_wheel_contains(built: Built) -> None:
    """The sdist has the same files as the wheel, and those that build it; no test, no script."""
    with tarfile.open(built.sdist) as archive:
        files = [one for one in archive.getmembers() if one.isfile()]
    names = {one.name.partition("/")[2] for one in files}
    made = {name for name in names if ".egg-info/" in name}
    building = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert names - made == _source_files() | building


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


def test_the_pages_are_installed(python: Path, tmp_path: Path) -> None:
    """`zkconsumer docs` lists, shows and searches the pages of the installed wheel."""
    command = python.parent / "zkconsumer"
    listed = outside(tmp_path, command, "docs").stdout
    assert {"operators", "lessons/02-range"} <= {line.split()[0] for line in listed.splitlines()}
    shown = outside(tmp_path, command, "docs", "operators").stdout
    assert shown.rstrip() == (ROOT / "docs" / "operators.md").read_text(encoding="utf-8").rstrip()
    found = outside(tmp_path, command, "docs", "--find", "auto.offset.reset").stdout
    assert "configuration:" in found
    unknown = outside(tmp_path, command, "docs", "operator")
    assert (unknown.returncode, "did you mean operators?" in unknown.stderr) == (2, True)


def test_spark_finds_the_installed_sources(python: Path, tmp_path: Path) -> None:
    """Spark's three names are modules of the installed wheel, and do not come from the checkout."""
    done = outside(tmp_path, python, "-c", PROBE)
    assert done.returncode == 0, done.stderr
    place, version, names = json.loads(done.stdout)
    assert Path(place).is_relative_to(python.parents[1])
    assert version == zkconsumer.__version__
    assert names == ["zkconsumer", "zkconsumer-groups", "zkconsumer-history"]
