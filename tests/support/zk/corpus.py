"""Real logs and snapshots of a ZooKeeper release, and what ZooKeeper's tools print for them.

`python -m support.zk.corpus` in `tests/` rewrites the corpora in `tests/golden/history`.
"""

from __future__ import annotations

import io
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections import namedtuple
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import (
    int_struct,
    long_struct,
    read_string,
    write_buffer,
    write_string,
)
from kazoo.security import make_acl, make_digest_acl

from support.wait import LIMIT_S
from zkconsumer.history.logs import LogReader, LogSource
from zkconsumer.history.transactions import CLOSE_SESSION
from zkconsumer.sandbox import ZOOKEEPER_RELEASES, jars
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.zookeeper import ZooKeeperServer

from .servers import release_number

GOLDEN = Path(__file__).parents[2] / "golden" / "history"
OPEN = [make_acl("world", "anyone", all=True)]


class CreateOf(namedtuple("CreateOf", "type path data flags ttl_ms")):
    """A creation of a container (type 19, flags 4) or of a znode with a TTL (21, flags 5)."""

    def serialize(self) -> bytearray:
        sent = bytearray(write_string(self.path) + write_buffer(self.data))
        sent += int_struct.pack(len(OPEN))
        for acl in OPEN:
            sent += int_struct.pack(acl.perms)
            sent += write_string(acl.id.scheme) + write_string(acl.id.id)
        sent += int_struct.pack(self.flags)
        return sent + (long_struct.pack(self.ttl_ms) if self.ttl_ms else b"")

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> str:
        return read_string(data, offset)[0]


def create_of(client: KazooClient, *values: Any) -> None:
    result = client.handler.async_result()
    client._call(CreateOf(*values), result)
    result.get(10)


def write(connect: str, release: str, name: str) -> None:
    """Write every type of transaction that the release knows, below `/name`."""
    one, two = KazooClient(connect, timeout=6), KazooClient(connect, timeout=10)
    one.start(60)
    two.start(60)
    root = f"/{name}"
    one.create(root, b"")
    one.create(f"{root}/\u00fcml\u00e4ut", "gr\u00fc\u00dfe".encode())
    one.create(f"{root}/secret", b"x", acl=[make_digest_acl("user", "word", read=True)])
    one.create(f"{root}/item-", b"1", sequence=True)
    one.create(f"{root}/live", b"thread-0", ephemeral=True)
    two.create(f"{root}/other", b"thread-1", ephemeral=True)
    two.create(f"{root}/other2", b"thread-2", ephemeral=True)
    one.create(f"{root}/both", b"", include_data=release_number(release) >= (3, 5))
    for number in range(40):
        one.set(f"{root}/both", b"%d" % number)
    one.set_acls(f"{root}/both", [*OPEN, make_acl("ip", "127.0.0.1", read=True)])
    # The server refuses these two writes: one with "no node", one with "node exists".
    for path in (f"{root}/none/child", f"{root}/live"):
        with suppress(KazooException):
            one.create(path, b"")
    good = one.transaction()
    good.create(f"{root}/multi", b"m")
    good.check(f"{root}/both", 40)
    good.set_data(f"{root}/multi", b"n")
    good.delete(f"{root}/secret")
    good.commit()
    bad = one.transaction()
    bad.create(f"{root}/never", b"m")
    bad.check(f"{root}/both", 7)
    bad.delete(f"{root}/multi")
    bad.commit()
    one.delete(f"{root}/multi")
    if release_number(release) >= (3, 5):
        create_of(one, 19, f"{root}/container", b"c", 4, 0)
        create_of(one, 21, f"{root}/ttl", b"t", 5, 3_600_000)
    two.stop()
    two.close()
    one.stop()
    one.close()


def serve(release: str, directory: Path) -> None:
    """Start a server of a release four times, so that it writes logs and snapshots of each kind."""
    kinds = ["", "", "gz", "snappy"] if release_number(release) >= (3, 6) else ["", ""]
    for number, kind in enumerate(kinds):
        properties: dict[str, object] = {
            "zookeeper.extendedTypesEnabled": "true",
            "zookeeper.preAllocSize": 64,
        }
        if release.startswith("3.4."):  # Servers of 3.4 take no snapshot when they start.
            properties["zookeeper.snapCount"] = 40
        if kind:
            properties["zookeeper.snapshot.compression.method"] = kind
        with ZooKeeperServer(directory, release=release, properties=properties) as server:
            lone = abandoned_session(server.port)
            write(server.connect, release, f"run{number}")
            logs = directory / "data" / "version-2"
            assert until(partial(_is_over, logs, lone), limit_s=LIMIT_S)


def abandoned_session(port: int) -> int:
    """Begin a session of 1 s, close its connection, and return the id; the session will expire."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        request = struct.pack(">iqiqi16x", 0, 0, 1000, 0, 16)
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb").read(4 + 16)
    return int(struct.unpack(">iiiq", answer)[3])


def _is_over(directory: Path, session: int) -> bool:
    """Return whether the newest log contains the end of a session."""
    newest = max(directory.glob("log.*"), key=lambda path: int(path.suffix[1:], 16))
    batches = LogReader(LogSource.of_path(newest)).batches()
    rows = [row for batch in batches for row in batch.rows]
    return any(row.kind == CLOSE_SESSION and row.session == session for row in rows)


def tool(release: str, *arguments: str) -> list[str]:
    """Return the lines that one of ZooKeeper's classes prints, with times in UTC."""
    lock = {"3.8.4": "zookeeper-3.8.4-tls"}.get(release, f"zookeeper-{release}")
    done = subprocess.run(
        [
            str(jars.find_java().executable),
            *(
                "-Duser.timezone=UTC",
                "-Duser.language=en",
                "-Duser.country=US",
                "-Dfile.encoding=UTF-8",
            ),
            *("-Dstdout.encoding=UTF-8", "-Dlog4j.defaultInitOverride=true"),
            *("-cp", ":".join(map(str, (*jars.resolve(lock), *_options())))),
            *arguments,
        ],
        capture_output=True,
        check=False,
    )
    text = done.stdout.decode()
    assert text, done.stderr.decode()
    return text.removesuffix("\n").split("\n")


def _options() -> list[Path]:
    """Return the jar of the command line parser, which only `TxnLogToolkit` needs."""
    wanted = jars.Jar(COMMONS_CLI, "commons-cli", "commons-cli", "1.5.0")
    return list(jars.resolve_jars([wanted], title="commons-cli"))


COMMONS_CLI = "bc8bb01fc0fad250385706e20f927ddcff6173f6339b387dc879237752567ac6"


def printed_log(release: str, log: Path) -> list[str]:
    """Return what `TxnLogToolkit`, or in 3.4 `LogFormatter`, prints for a log."""
    server = "org.apache.zookeeper.server"
    if release.startswith("3.4."):
        return tool(release, f"{server}.LogFormatter", str(log))
    return tool(release, f"{server}.persistence.TxnLogToolkit", "-d", "-v", str(log))


def printed_snapshot(release: str, snapshot: Path) -> list[str]:
    """Return what `SnapshotFormatter` prints for a snapshot."""
    options = [] if release_number(release) < (3, 5) else ["-d"]
    return tool(release, "org.apache.zookeeper.server.SnapshotFormatter", *options, str(snapshot))


def record(release: str) -> None:
    """Record the golden corpus of a release."""
    with tempfile.TemporaryDirectory() as folder:
        serve(release, Path(folder))
        files = sorted(Path(folder, "data", "version-2").glob("[ls]*.*"))
        GOLDEN.mkdir(exist_ok=True)
        with tarfile.open(GOLDEN / f"{release}.tar.gz", "w:gz") as archive:
            for file in files:
                printed = printed_log if file.name.startswith("log") else printed_snapshot
                lines = printed(release, file)
                for name, content in (
                    (file.name, file.read_bytes()),
                    (f"{file.name}.txt", "\n".join(lines).encode()),
                ):
                    entry = tarfile.TarInfo(f"version-2/{name}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


def printed_in(archive: Path) -> dict[str, list[str]]:
    """Return file name -> the lines that ZooKeeper's tool printed for it, from a golden corpus."""
    with tarfile.open(archive) as files:
        return {
            # `extractfile` returns None only for a directory.
            Path(one.name).stem: files.extractfile(one).read().decode().split("\n")  # type: ignore
            for one in files.getmembers()
            if one.name.endswith(".txt")
        }


if __name__ == "__main__":
    for one in sys.argv[1:] or ZOOKEEPER_RELEASES:
        record(one)
        sys.stderr.write(f"{one}\n")
