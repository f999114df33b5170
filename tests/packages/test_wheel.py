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

# The aim is 1 MB: 3.2 MB of sources and 320 files compress to 1.07 MB.
MAX_WHEEL_BYTES = 1_200_000
EXTRAS = {"arrow", "charts", "fast", "lab", "metrics", "sandbox", "sasl", "spark", "top"}
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


def _source_files() -> set[str]:
    """The files of the package in the checkout, under their names in the wheel."""
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
    """The wheel, built from the sdist, has each file of the package, no test, and about 1 MB."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == _source_files()
    assert "zkconsumer/py.typed" in names
    assert built.wheel.name == f"zkconsumer-{zkconsumer.__version__}-py3-none-any.whl"
    assert built.wheel.stat().st_size <= MAX_WHEEL_BYTES


def test_the_sdist_contains_no_tests(built: Built) -> None:
    """The sdist contains the package, its licence and what builds it."""
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in names if name.startswith(("tests", "docs", "scripts", "docker"))}
    assert names >= {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "zkconsumer/py.typed"}


def test_the_metadata(built: Built) -> None:
    """The metadata names the versions of Python, the licence, and each extra for users."""
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
    """An interpreter into whose environment the wheel is installed."""
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


def test_spark_finds_the_installed_sources(python: Path, tmp_path: Path) -> None:
    """Spark's three names are modules of the installed wheel, and not of the checkout."""
    done = outside(tmp_path, python, "-c", PROBE)
    assert done.returncode == 0, done.stderr
    place, version, names = json.loads(done.stdout)
    assert Path(place).is_relative_to(python.parents[1])
    assert version == zkconsumer.__version__
    assert names == ["zkconsumer", "zkconsumer-groups", "zkconsumer-history"]
