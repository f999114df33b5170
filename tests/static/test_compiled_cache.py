"""Bytecode and compiled loops of a checkout are used again in equal checkouts."""

from __future__ import annotations

import importlib
import importlib.util
import marshal
import py_compile
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest
from support.wait import LIMIT_S

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
cache = importlib.import_module("_compiled_cache")

RULES, LOOPS = "zkconsumer/member/rules.py", "zkconsumer/history/loops.py"
COMPILED_LOOP = "zkconsumer/history/__pycache__/loops.scan-1.py311.nbi"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of these tests."""
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))


def checkout(root: Path, *, rule: str = "name = 'rule'", loop: str = "loop = 1") -> Path:
    """Return a checkout that `restore` has prepared."""
    for module, text in ((RULES, rule), (LOOPS, loop), ("zkconsumer/history/constants.py", "")):
        (root / module).parent.mkdir(parents=True, exist_ok=True)
        (root / module).write_text(text)
    (venv := root / ".venv").mkdir()
    cache.restore(root, venv)
    return root


def compiled(root: Path, text: str) -> Path:
    """Write bytecode that is valid for the module RULES, but that was compiled from `text`."""
    module = root / RULES
    file = Path(importlib.util.cache_from_source(module))
    own = module.read_text()
    py_compile.compile(str(module))
    header = file.read_bytes()[: cache.HEADER_BYTES]
    file.write_bytes(header + marshal.dumps(compile(text, str(module), "exec")))
    assert module.read_text() == own
    return file


def name_in(root: Path) -> str:
    """Return what the module RULES of a checkout calls itself in a new interpreter."""
    program = "import rules; print(rules.name, rules.__spec__.loader.path)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=(root / RULES).parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    name, path = done.stdout.split()
    assert Path(path) == root / RULES
    return name


def test_python_uses_the_bytecode_of_an_equal_module(tmp_path: Path) -> None:
    """Python loads the bytecode that another checkout has made, if the module is equal."""
    first = checkout(tmp_path / "first")
    compiled(first, "name = 'kept'")
    cache.keep(first)
    assert name_in(checkout(tmp_path / "second", loop="loop = 2")) == "kept"
    assert name_in(checkout(tmp_path / "other", rule="name = 'new'")) == "new"


def test_a_changed_module_is_compiled_again(tmp_path: Path) -> None:
    """If a module changes after `restore`, its bytecode is neither used nor kept."""
    first = checkout(tmp_path / "first")
    compiled(first, "name = 'kept'")
    cache.keep(first)
    second = checkout(tmp_path / "second")
    (second / RULES).write_text("name = 'mine'")
    assert name_in(second) == "mine"
    cache.restore(second, second / ".venv")
    cache.keep(second)
    assert name_in(second) == "mine"
    assert name_in(checkout(tmp_path / "third", rule="name = 'mine'")) == "mine"


def test_the_bytecode_of_a_test_has_its_new_path(tmp_path: Path) -> None:
    """pytest's bytecode of a test module, and of the functions in it, names the new checkout."""
    first = checkout(tmp_path / "first")
    file = compiled(first, "def test():\n    assert [one for one in (1, 2)]\n")
    suffix = ".cpython-311-pytest-9.0.0.pyc"
    file.rename(file.with_name(f"rules{suffix}"))
    cache.keep(first)
    second = checkout(tmp_path / "second")
    content = (second / RULES).parent.joinpath("__pycache__", f"rules{suffix}").read_bytes()
    todo, seen = [marshal.loads(content[cache.HEADER_BYTES :])], []
    while todo:
        code = todo.pop()
        seen.append(code.co_name)
        assert code.co_filename == str(second / RULES)
        todo += [one for one in code.co_consts if isinstance(one, CodeType)]
    assert seen[:2] == ["<module>", "test"]


def test_loops_are_used_until_a_module_of_their_folders_changes(tmp_path: Path) -> None:
    """A checkout gets the compiled loops if the modules of the loops' folders are equal."""
    first = checkout(tmp_path / "first")
    (first / COMPILED_LOOP).parent.mkdir(exist_ok=True)
    (first / COMPILED_LOOP).write_text("machine code")
    cache.keep(first)
    second = checkout(tmp_path / "second", rule="name = 'another'")
    assert (second / COMPILED_LOOP).read_text() == "machine code"
    times = {(root / LOOPS).stat().st_mtime_ns for root in (first, second)}
    assert len(times) == 1
    assert not (checkout(tmp_path / "other", loop="loop = 2") / COMPILED_LOOP).exists()


def test_only_an_equal_checkout_needs_no_compilation(tmp_path: Path) -> None:
    """`is_kept` holds for a checkout whose modules are all equal to those of a kept one."""
    first = checkout(tmp_path / "first")
    assert not cache.is_kept(first)
    cache.keep(first)
    assert cache.is_kept(checkout(tmp_path / "second"))
    assert not cache.is_kept(checkout(tmp_path / "other", rule="name = 'another'"))


def test_a_checkout_is_prepared_once(tmp_path: Path) -> None:
    """Another `restore` changes neither the times of the modules nor the compiled files."""
    first = checkout(tmp_path / "first")
    compiled(first, "name = 'kept'")
    cache.keep(first)
    second = checkout(tmp_path / "second", rule="name = 'mine'")
    (second / RULES).write_text("name = 'rule'")
    cache.restore(second, second / ".venv")
    assert not Path(importlib.util.cache_from_source(second / RULES)).exists()


def test_the_oldest_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the modules and loops that were used last are kept."""
    monkeypatch.setattr(cache, "KEPT_MODULES", 1)
    monkeypatch.setattr(cache, "KEPT_LOOPS", 1)
    for number in range(3):
        root = checkout(tmp_path / str(number), rule=f"name = {number}", loop=f"loop = {number}")
        compiled(root, "name = 'kept'")
        (root / COMPILED_LOOP).parent.mkdir(exist_ok=True)
        (root / COMPILED_LOOP).write_text("machine code")
        cache.keep(root)
    for kept in ("bytecode", "loops"):
        assert len([*(cache.directory() / kept).iterdir()]) == 1
