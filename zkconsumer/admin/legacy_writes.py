"""Writes as Kafka's old tools did them (`kafka.utils.ZkUtils`, 0.8.2 to 1.1): whatever is there.

The old tools had neither a plan nor a guard. Here each of their writes is a plan that is applied at
once, members or not: so there is a backup, from which `zkconsumer undo` leads back, and what is
written together is all written or, where ZooKeeper was lost, known in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkconsumer.admin.apply import Live, apply
from zkconsumer.admin.changes import state_of
from zkconsumer.admin.guards import read_rights
from zkconsumer.admin.plan import Change, Content, Plan
from zkconsumer.core import paths
from zkconsumer.errors import RefusedError
from zkconsumer.zk.connection import Connection
from zkconsumer.zk.requests import MAX_MULTI_WRITES, Delete

# Somebody else may change the same znodes between the reading and the writing, as members that
# commit do: so often all is read and tried again, then it is refused.
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Writing:
    """How a tool writes: `kind` is its name; the backup is told before the first write."""

    connection: Connection
    kind: str
    backup_dir: Path
    on_backup: Callable[[Path], None]

    def put(self, values: Mapping[str, bytes]) -> None:
        """Write these payloads, and create what is missing (`ZkUtils.updatePersistentPath`).

        Parents that are created have a null payload, as the JVM's. Raises as `admin.apply.apply`
        does, RefusedError when somebody else did not stop changing the same znodes.
        """
        self._apply(lambda: _puts(self.connection, values), Live.FORCE)

    def delete(self, *roots: str, live: Live) -> None:
        """Delete znodes with all that is below them (`ZkClient.deleteRecursive`), if they exist.

        Raises as `put` does; with Live.REFUSE also RefusedError while the group has members.
        """
        self._apply(lambda: _deletions(self.connection, roots), live)

    def _apply(self, changes: Callable[[], Iterator[Change]], live: Live) -> None:
        for left in reversed(range(_ATTEMPTS)):
            chroot = self.connection.config.zookeeper_chroot
            plan = Plan.of(self.kind, chroot, changes())
            try:
                apply(
                    self.connection, plan, backup_dir=self.backup_dir, live=live,
                    on_backup=self.on_backup,
                )
            except RefusedError:
                if not left:
                    raise
            else:
                return


def _puts(connection: Connection, values: Mapping[str, bytes]) -> Iterator[Change]:
    above = dict.fromkeys(parent for path in values for parent in _parents(path))
    there = connection.read([*above, *values])
    for path in above:
        if path not in there:
            yield Change(path, None, Content(None))
    for path, data in values.items():
        before = state_of(there[path]) if path in there else None
        yield Change(path, before, Content(data))


def _deletions(connection: Connection, roots: Iterable[str]) -> Iterator[Change]:
    there = connection.tree(*roots)
    rights = read_rights(connection, there)
    for path, node in there.items():
        yield Change(path, state_of(node, rights.get(path)), None)


def _parents(path: str) -> Iterator[str]:
    """From the group's own znode down."""
    parts = path.split("/")
    for end in range(3, len(parts)):
        yield "/".join(parts[:end])


def forget(connection: Connection, group: str) -> None:
    """Delete a group that one run made up for itself (`ZkUtils.maybeDeletePath`), if it can be.

    Without a backup, since nothing of it is anybody's; what refuses to go stays, as in the JVM.
    """
    doomed = [Delete(path) for path in reversed(connection.tree(paths.group(group)))]
    for start in range(0, len(doomed), MAX_MULTI_WRITES):
        connection.write(doomed[start : start + MAX_MULTI_WRITES])
