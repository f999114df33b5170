"""Let a new checkout reuse the packages that another one has installed.

pip needs 20 s of processor time to install the packages of the lock `test`. Python needs some
seconds more to compile the packages that the tests import. `keep` links the packages of a new
environment into the cache. `restore` links them from there into the environment of another
checkout, which takes a second. A hard link takes no space on the disk. pip and Python never change
a file in place. They replace it, so the other links keep the former contents.

The installer uv links packages in the same way. However, it ignores pip's configuration, without
which machines behind a mirror or a proxy cannot install anything.

Uses only the standard library, since _bootstrap.py imports it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

# The folders of an environment that contain packages.
FOLDERS = ("bin", "etc", "include", "lib", "share")
# Files that the installation of the checkout itself writes; they are not kept. A `*` also matches
# slashes.
OWN_FILES = (
    "bin/zkconsumer",
    "lib/*/site-packages/zkconsumer-*",
    "lib/*/site-packages/__editable__*",
    "lib/*/site-packages/__pycache__/__editable__*",
)
# This file exists in a new environment until its packages are kept, and contains their key.
PENDING = "zkconsumer-packages.key"
# This file describes kept packages: their environment, and the number of their files.
DESCRIPTION = "kept.json"
# Maximum number of kept sets of packages; the sets that were used last stay.
KEPT = 2


def directory() -> Path:
    """Return the directory of the kept packages, beside that of the sandbox's jars."""
    if own := os.environ.get("ZKCONSUMER_CACHE"):
        return Path(own).expanduser().absolute() / "environments"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser().absolute() / "zkconsumer" / "environments"


def key_of(*locks: Path) -> str:
    """Return the name under which packages of these locks are kept for the running Python."""
    digest = hashlib.sha256(f"{sys.version}\0{os.path.realpath(sys.executable)}\0".encode())
    for lock in locks:
        digest.update(lock.read_bytes())
    return digest.hexdigest()[:24]


def has(key: str) -> bool:
    """Return whether packages are kept under this key."""
    return (directory() / key / DESCRIPTION).is_file()


def keep(venv: Path) -> None:
    """Keep the packages of a new environment, unless the cache has packages with this key."""
    pending = venv / PENDING
    if not pending.is_file():
        return
    key = pending.read_text(encoding="utf-8")
    pending.unlink()
    if has(key):
        return
    try:
        directory().mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=directory()))
        try:
            count = _link_folders(venv, fresh)
            description = {"environment": str(venv), "files": count}
            (fresh / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
            fresh.rename(directory() / key)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _remove_oldest()
    except OSError:
        # For instance, the cache is on another filesystem. Then each checkout installs its packages
        # itself.
        return


def restore(venv: Path, key: str) -> bool:
    """Link the packages of this key into a new environment. Return whether it is complete.

    If the result is False, the caller must create the environment again.
    """
    kept = directory() / key
    try:
        description = json.loads((kept / DESCRIPTION).read_text(encoding="utf-8"))
        os.utime(kept)
        if _link_folders(kept, venv) == description["files"]:
            _rename_environment(venv, description["environment"])
            return True
    except (OSError, ValueError, KeyError):
        pass
    # Files are missing, or cannot be linked.
    shutil.rmtree(kept, ignore_errors=True)
    return False


def _link_folders(source: Path, target: Path) -> int:
    return sum(
        _link(source / folder, target / folder, f"{folder}/")
        for folder in FOLDERS
        if (source / folder).is_dir()
    )


def _link(source: Path, target: Path, inner: str) -> int:
    """Link all files below `source`, whose path in the environment is `inner`; count them."""
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{inner}{entry.name}"
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in OWN_FILES):
                continue
            if entry.is_dir(follow_symlinks=False):
                count += _link(source / entry.name, target / entry.name, f"{path}/")
            else:
                # A new environment already has its own Python, and the programs that activate it.
                with suppress(FileExistsError):
                    os.link(entry.path, target / entry.name, follow_symlinks=False)
                count += 1
    return count


def _rename_environment(venv: Path, former: str) -> None:
    """Make the programs of an environment run its own Python, which their first lines name."""
    old, new = os.fsencode(f"{former}/bin/"), os.fsencode(f"{venv}/bin/")
    for program in (venv / "bin").iterdir():
        if program.is_symlink() or not program.is_file():
            continue
        text = program.read_bytes()
        if text.startswith(b"#!") and old in text:
            mode = program.stat().st_mode
            program.unlink()  # other environments link to this file
            program.write_bytes(text.replace(old, new))
            program.chmod(mode)


def _remove_oldest() -> None:
    kept = [one for one in directory().iterdir() if (one / DESCRIPTION).is_file()]
    for one in sorted(kept, key=lambda one: one.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(one, ignore_errors=True)
