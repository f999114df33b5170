"""Read the files of servers from tar and zip archives."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Final, NamedTuple, TypeAlias, cast

from zkconsumer.history.logs import READ_ERRORS, LogSource, unreadable

Members: TypeAlias = Iterator[tuple[str, IO[bytes]]]
"""The names and the contents of the regular files in an archive."""

_numbers = count()


class _Copies(NamedTuple):
    """The copies of an archive's files, and the version of the archive that contained them."""

    version: tuple[int, str]
    files: list[LogSource]
    folder: Path


# A command that follows a server looks for its files every second.
_copies: Final[dict[tuple[str, Callable[[str], bool]], _Copies]] = {}


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="zkconsumer-history-")


def _tar_members(file: IO[bytes]) -> Members:
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if member.isfile():
                yield member.name, cast(IO[bytes], archive.extractfile(member))


def _zip_members(file: IO[bytes]) -> Members:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                yield member.filename, archive.open(member)


def files_of(archived: LogSource, wanted: Callable[[str], bool]) -> list[LogSource]:
    """Return the wanted files of an archive, which are copied into a temporary directory.

    A compressed archive cannot be read from the middle. The copies are removed when the process
    ends, or when the archive has changed and is read again.

    Args:
        wanted: whether the name of a file, without its directories, is that of a file to read.

    Raises:
        HistoryError: the archive cannot be read.
    """
    try:
        version = _version(archived)
        known = _copies.get((archived.name, wanted))
        if known is not None and known.version == version:
            return known.files
        folder = Path(_temporary().name, str(next(_numbers)))
        folder.mkdir()
        try:
            files = list(_copied(archived, wanted, folder))
        except BaseException:
            shutil.rmtree(folder)
            raise
    except (*READ_ERRORS, tarfile.TarError, zipfile.BadZipFile, NotImplementedError) as error:
        raise unreadable(archived.name, error) from None
    _copies[archived.name, wanted] = _Copies(version, files, folder)
    if known is not None:
        shutil.rmtree(known.folder)
    return files


def _version(archived: LogSource) -> tuple[int, str]:
    """Return what differs after the archive has changed."""
    stamp = archived.stamp or str(Path(archived.name).stat().st_mtime_ns)
    return archived.size, stamp


def _copied(
    archived: LogSource, wanted: Callable[[str], bool], folder: Path
) -> Iterator[LogSource]:
    """Copy the wanted files of an archive into a directory, and yield the copies."""
    members = _zip_members if archived.base.lower().endswith(".zip") else _tar_members
    with archived.open_raw() as file:
        for number, (name, content) in enumerate(members(file)):
            base = name.rpartition("/")[2]
            if wanted(base):
                # The ending of a name tells how its content is compressed.
                copy = folder / f"{number}{Path(base).suffix}"
                with copy.open("wb") as target:
                    shutil.copyfileobj(content, target)
                yield LogSource.of_path(copy)._replace(name=f"{archived.name}:{name}")
