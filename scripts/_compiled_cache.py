"""Let a new checkout reuse what Python and Numba have compiled in another one.

Python writes a module's bytecode beside the module, pytest writes that of a test module with its
assertions rewritten, and Numba writes the machine code of the columnar decoders' loops. They use
these files only while the module has the same size and modification time. `restore` gives each
module of a new checkout a time that depends on its text only. So files that were compiled from
equal modules are valid, and `restore` copies them from the user's cache, where `keep` has put them.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType

import _package_cache

# The folders of a checkout that contain modules.
FOLDERS = ("zkconsumer", "scripts", "tests")
# The folders of the loops. A module with loops uses no module of another folder of the package.
LOOP_FOLDERS = ("zkconsumer/history", "zkconsumer/kafka/columns")
LOOPS = "__pycache__/*.nb[ci]"
# This file of an environment exists when `restore` has been called for its checkout.
MARK = "zkconsumer-compiled"
# The maximum number of modules whose bytecode is kept, of kept sets of loops, and of checkouts that
# are known to be kept.
KEPT_MODULES = 5000
KEPT_LOOPS = 2
KEPT_CHECKOUTS = 20
# The bytes of bytecode before the code: a magic number, flags, and the module's time and size.
HEADER_BYTES = 16


def directory() -> Path:
    """Return the directory of the compiled files, beside that of the packages."""
    return _package_cache.directory().with_name("compiled")


def restore(root: Path, venv: Path) -> None:
    """Prepare a new checkout, whose environment is `venv`; do nothing at the next call."""
    mark = venv / MARK
    if mark.exists():
        return
    for module in _modules(root, FOLDERS):
        digest = _digest(module)
        os.utime(module, (_time(digest), _time(digest)))
        kept = directory() / "bytecode" / digest
        with suppress(OSError):
            for file in sorted(kept.iterdir()):
                _restore_bytecode(file, module)
            os.utime(kept)
    loops = directory() / "loops" / _key(root, LOOP_FOLDERS)
    with suppress(OSError):
        for file in loops.rglob("*.nb[ci]"):
            _copy(file, root / file.relative_to(loops))
        os.utime(loops)
    mark.touch()


def is_kept(root: Path) -> bool:
    """Return whether `keep` has kept the compiled files of this checkout, or of an equal one."""
    return (directory() / "checkouts" / _key(root, FOLDERS)).exists()


def keep(root: Path) -> None:
    """Keep what was compiled in a checkout that `restore` has prepared."""
    with suppress(OSError):
        is_prepared = True
        for module in _modules(root, FOLDERS):
            digest = _digest(module)
            if module.stat().st_mtime != _time(digest):
                is_prepared = False
                continue
            kept = directory() / "bytecode" / digest
            for file in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
                if not (target := kept / file.name.removeprefix(module.stem)).exists():
                    _copy(file, target)
        loops = directory() / "loops" / _key(root, LOOP_FOLDERS)
        if is_prepared:
            for folder in LOOP_FOLDERS:
                for file in (root / folder).glob(LOOPS):
                    _copy(file, loops / file.relative_to(root))
            (directory() / "checkouts" / _key(root, FOLDERS)).mkdir(parents=True, exist_ok=True)
        _remove_oldest(directory() / "bytecode", KEPT_MODULES)
        _remove_oldest(directory() / "loops", KEPT_LOOPS)
        _remove_oldest(directory() / "checkouts", KEPT_CHECKOUTS)


def _modules(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def _digest(module: Path) -> str:
    return hashlib.sha256(module.read_bytes()).hexdigest()[:24]


def _time(digest: str) -> int:
    """Return a time in seconds, between the years 2001 and 2017."""
    return 1_000_000_000 + int(digest[:12], 16) % 500_000_000


def _key(root: Path, folders: tuple[str, ...]) -> str:
    """Return a name for these folders of a checkout, and of equal ones.

    The machine code of a loop depends on all modules of `LOOP_FOLDERS`, because it contains their
    constants and functions.
    """
    digest = hashlib.sha256(sys.version.encode())
    for module in _modules(root, folders):
        digest.update(f"{module.relative_to(root)}\0{_digest(module)}\0".encode())
    return digest.hexdigest()[:24]


def _copy(file: Path, target: Path) -> None:
    """Copy a file; no other process sees a part of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copy(file, fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _restore_bytecode(file: Path, module: Path) -> None:
    """Write the bytecode `file` beside `module`.

    Bytecode contains the path of its module. Python corrects this path when it loads the bytecode.
    pytest does not, and the report of a failed test would show no source.
    """
    target = module.parent / "__pycache__" / f"{module.stem}{file.name}"
    _copy(file, target)
    if "pytest" in file.name:
        content = file.read_bytes()
        code = _moved(marshal.loads(content[HEADER_BYTES:]), str(module))
        target.write_bytes(content[:HEADER_BYTES] + marshal.dumps(code))


def _moved(code: CodeType, path: str) -> CodeType:
    """Return the code of a module, and of the functions in it, with another path."""
    constants = tuple(
        _moved(one, path) if isinstance(one, CodeType) else one for one in code.co_consts
    )
    return code.replace(co_filename=path, co_consts=constants)


def _remove_oldest(folder: Path, kept: int) -> None:
    for one in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime)[:-kept]:
        shutil.rmtree(one, ignore_errors=True)
