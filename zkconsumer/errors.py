"""All errors that this package raises, as one class hierarchy below `ZkConsumerError`.

Each error has three texts. `what` is one sentence that says what happened. `where` names the
znode, the partition, the file and line, or the property. `remedy` says what the reader can do.
`str(error)` joins the three in one line. `retriable` and `fatal` say how a program can react.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Self

MAX_DISPLAYED = 400
"""Maximum number of characters of one text from another client in a log line, an error or a status.

It is enough for every thread id that a consumer generates: a group of 249 characters, a host, a
time and a number. A longer text is cut, and its length is appended.
"""

MAX_ERROR_TEXT = 10_000
"""Maximum number of characters of each part of an error: enough for 20 names of 400 characters.

A longer text is cut, and its length is appended.
"""

_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def escaped(text: str) -> str:
    """Return `text` with all characters escaped that a terminal or a log reader might interpret.

    The escaped characters are those for which `str.isprintable` is false: control characters
    (including line ends), invisible characters, characters that change the direction of text, and
    surrogates.
    """
    return text if text.isprintable() else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    one = match[0]
    return one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode()


def escaped_and_cut(text: str, limit: int = MAX_DISPLAYED) -> str:
    """Return text from another client for display: escaped, and cut after `limit` characters."""
    if len(text) <= limit:
        return escaped(text)
    return f"{escaped(text[:limit])}... ({len(text)} characters)"


def first_few(names: Iterable[object], most: int, *, separator: str = ", ") -> str:
    """Return the first `most` names as one text, with the number of those that it leaves out."""
    known = [str(one) for one in names]
    more = len(known) - most
    return separator.join(known[:most]) + (f" and {more} more" if more > 0 else "")


def quoted(text: str) -> str:
    """Return the first 80 characters of text from another client, in quotes and in ASCII."""
    literal = ascii(text[:80])
    return literal if len(literal) <= 80 and len(text) <= 80 else literal[:80] + "..."


def shell_word(text: str) -> str:
    """Return text from another client as one word of a command line.

    The word can be pasted into bash and zsh. Characters that cannot be printed are written as
    escapes of `$'...'`.
    """
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_in_shell_quotes, text))}'"


def _in_shell_quotes(one: str) -> str:
    if one in "\\'":
        return f"\\{one}"
    return one if one.isprintable() else f"\\U{ord(one):08x}"


class RemedyOperation(Enum):
    """An operation that remedies an error or a finding of the operators' tools.

    A program can call the operation; `zkconsumer.cli` prints the command or the option for it.
    """

    LIST_GROUPS = "list groups"
    LIST_TOPICS = "list topics"
    SHOW_GROUP = "show a group"
    SHOW_OFFSETS = "show the offsets of a group"
    COPY_OFFSETS = "copy offsets into an existing group"
    SELECT_PARTITIONS = "select partitions"
    EXAMINE = "examine a group with doctor"
    FIX = "apply the doctor's fixes to a group"
    EXPLAIN = "explain the assignment of a group"
    RESET_TO_CURRENT = "move offsets into the range of the log"
    FORCE_LIVE = "change a group that has members"
    RAISE_LIMIT = "raise the number of znodes that a plan may delete"
    APPROXIMATE = "accept approximate offsets for a time"
    ZOOKEEPER_ONLY = "change only the offsets in ZooKeeper"
    OTHER_FORMAT = "choose another file format"
    SAME_CHROOT = "connect below the same chroot"
    COMPLETE_OR_UNDO = "complete or undo a change that was applied in part"


@dataclass(frozen=True, slots=True)
class Advice:
    """A remedy as data: the operation `step` on `group`; `value` is its argument, or ""."""

    step: RemedyOperation
    group: str = ""
    value: str = ""


class ZkConsumerError(Exception):
    """The base class of all errors of this package.

    All three texts are safe to display. Text that other clients wrote into ZooKeeper is escaped,
    and each part is cut after `MAX_ERROR_TEXT` characters.

    Attributes:
        what: one sentence without the final full stop.
        where: the znode, partition, property, or file and line; may be empty.
        remedy: what the reader can do about it; may be empty.
        advice: the remedy as data, if the remedy is an operation of the operators' tools.
        retriable: whether the same call may succeed later without a change of the program, its
            properties or the cluster's data.
        fatal: whether the connector that raised the error cannot be used again. If so, create a new
            one.
    """

    retriable: bool = False
    fatal: bool = False

    def __init__(
        self, what: str, *, where: str = "", remedy: str = "", advice: Advice | None = None
    ) -> None:
        what, where, remedy = (
            escaped_and_cut(text, MAX_ERROR_TEXT) for text in (what, where, remedy)
        )
        super().__init__(what, where, remedy)
        self.what = what
        self.where = where
        self.remedy = remedy
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all attributes, because Spark's workers send errors to another process."""
        return type(self).__new__, (type(self), *self.args), self.__dict__

    def mark_fatal(self) -> Self:
        """Mark this error as the error that ended a member, and return it."""
        self.retriable, self.fatal = False, True
        return self

    def __str__(self) -> str:
        text = self.what + (f" ({self.where})" if self.where else "")
        return f"{text}: {self.remedy}" if self.remedy else text


# ---- wrong use ----------------------------------------------------------------------------------


class ConfigError(ZkConsumerError):
    """A property is missing or invalid, or contradicts another one (JVM:
    InvalidConfigException)."""


def require(*modules: str, extra: str, where: str) -> None:
    """Raise ConfigError if a module cannot be found; `extra` is the extra that installs it."""
    if missing := [one for one in modules if find_spec(one) is None]:
        raise ConfigError(
            f"{where} needs {' and '.join(missing)}",
            where=where,
            remedy=f"pip install 'zkconsumer[{extra}]'",
        )


class InvalidNameError(ConfigError):
    """A name of a group, topic or consumer id that ZooKeeper or a JVM member rejects."""


class MessageStreamsExistError(ZkConsumerError):
    """Streams were created a second time on one connector (JVM: MessageStreamsExistException)."""


class ConnectorClosedError(ZkConsumerError):
    """The connector had been shut down before the call."""

    fatal = True


class ForkedError(ConnectorClosedError):
    """The connector was created in the parent process; a process and its fork cannot share it."""


class InvalidFilterError(ConfigError):
    """Java rejects the regular expression of a topic filter (JVM: "... is an invalid regex.")."""


class UnsupportedFilterError(ConfigError):
    """Java accepts the regular expression of a topic filter, but zkconsumer cannot evaluate it."""


class FilterTooCostlyError(UnsupportedFilterError):
    """The regular expression of a topic filter exceeds a limit of size or time."""


# ---- streams ------------------------------------------------------------------------------------


class ConsumerTimeoutError(ZkConsumerError):
    """No message arrived within `consumer.timeout.ms`; the stream remains usable."""

    retriable = True


class StreamInUseError(ZkConsumerError):
    """A second thread or task asked a stream for messages while another one did."""


class RebalanceBlockedError(ZkConsumerError):
    """Another client owns this member's partitions (JVM: ConsumerRebalanceFailedException).

    A stream without a partition raises this error once. The member keeps retrying.
    """

    retriable = True


class FetchError(ZkConsumerError):
    """The brokers reject the requests for a partition, and retries cannot succeed."""


class BrokerAccessError(FetchError):
    """The brokers refuse the login or the certificate, or their certificate is not trusted."""


class BrokersUnreachableError(FetchError):
    """The brokers do not answer, or cannot answer now, for example because there is no leader."""

    retriable = True


class DecodeError(ZkConsumerError):
    """The user's decoder raised an exception; the message counts as delivered."""


class NotOwnedError(ZkConsumerError):
    """This member does not own a partition that the call names, or is about to release it."""


# ---- fake servers -------------------------------------------------------------------------------


class FakeServerError(ZkConsumerError):
    """A fake server of `zkconsumer.testing` refuses what a test has asked for."""


# ---- ZooKeeper ----------------------------------------------------------------------------------


class ZooKeeperUnreachableError(ZkConsumerError):
    """No ZooKeeper session began within `zookeeper.connection.timeout.ms`, or the client failed
    permanently."""

    retriable = True


class ChrootMissingError(ZkConsumerError):
    """The chroot of `zookeeper.connect` does not exist; this package never creates it."""


class AccessDeniedError(ZkConsumerError):
    """ZooKeeper refused a request: it is too large, or an access control list forbids it."""


class MalformedZnodeError(ZkConsumerError):
    """A znode's payload is refused by a JVM member, or by zkconsumer alone.

    Attributes:
        thrown: the class of the exception that a JVM member throws for the payload; empty if only
            zkconsumer refuses the payload.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "", thrown: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.thrown = thrown


class ConsumerIdTakenError(ZkConsumerError):
    """Another live session is registered under this member's consumer id."""

    retriable = True


class UnsupportedPeerError(ZkConsumerError):
    """Another member's registration is valid, but this release of zkconsumer cannot evaluate it."""


class UnknownGroupError(ZkConsumerError):
    """The group has no znode: no member ever joined it, or its name or the chroot is wrong."""


class CommitError(ZkConsumerError):
    """Some or all offsets could not be committed; `where` names the partitions."""

    retriable = True


# ---- operators' tools ---------------------------------------------------------------------------


class RefusedError(ZkConsumerError):
    """A safety check forbids the change; nothing was written."""


class BadFileError(ConfigError):
    """A file that the user named cannot be used; `where` names the file and the line.

    The file is a plan, a backup, a file of offsets, or one of ZooKeeper's files.
    """


class AppliedInPartError(ZkConsumerError):
    """A part of a change was applied; `what` says which part, and `remedy` how to complete it."""


# ---- Spark --------------------------------------------------------------------------------------


class SparkSourceError(ZkConsumerError):
    """A query on the Spark source cannot start or continue; `where` names the part of the query."""


class MissingShareError(SparkSourceError):
    """A query with `Trigger.AvailableNow` was not assigned its share of the group's partitions."""


# ---- sandbox ------------------------------------------------------------------------------------


class SandboxError(ZkConsumerError):
    """A server of the sandbox could not be downloaded, started or stopped."""


# ---- traces -------------------------------------------------------------------------------------


class TraceError(ZkConsumerError):
    """A trace cannot be read, or its replay differs; `where` names the file and the line."""


class TraceDiffersError(TraceError):
    """A trace can be read, but its replay makes another decision."""


# ---- history ------------------------------------------------------------------------------------


class HistoryError(ZkConsumerError):
    """ZooKeeper's transaction logs or snapshots cannot be found or read."""


class DamagedFileError(HistoryError):
    """A transaction log or a snapshot is malformed; the part before the damage has been read.

    Attributes:
        file: the name of the file.
        offset: the byte offset at which the damage was found.
    """

    def __init__(self, what: str, *, file: str, offset: int, remedy: str) -> None:
        super().__init__(what, where=f"{file}, byte {offset}", remedy=remedy)
        self.file, self.offset = file, offset
