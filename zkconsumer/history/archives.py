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
from typing import IO, TypeAlias, cast

from zkconsumer.history.logs import READ_ERRORS, LogSource, unreadable

Members: TypeAlias = Iterator[tuple[str, IO[bytes]]]
"""The names and the contents of the regular files in an archive."""

_numbers = count()


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


def files_of(archived: LogSource, wanted: Callable[[str], bool]) -> Iterator[LogSource]:
    """Yield the wanted files of an archive, which are copied into a temporary directory.

    A compressed archive cannot be read from the middle. The directory is removed when the process
    ends.

    Args:
        wanted: whether the name of a file, without its directories, is that of a file to read.

    Raises:
        HistoryError: the archive cannot be read.
    """
    members = _zip_members if archived.base.lower().endswith(".zip") else _tar_members
    folder = Path(_temporary().name)
    try:
        with archived.open_raw() as file:
            for name, content in members(file):
                base = name.rpartition("/")[2]
                if wanted(base):
                    # The ending of a name tells how its content is compressed.
                    copy = folder / f"{next(_numbers)}{Path(base).suffix}"
                    with copy.open("wb") as target:
                        shutil.copyfileobj(content, target)
                    yield LogSource.of_path(copy)._replace(name=f"{archived.name}:{name}")
    except (*READ_ERRORS, tarfile.TarError, zipfile.BadZipFile, NotImplementedError) as error:
        raise unreadable(archived.name, error) from None
