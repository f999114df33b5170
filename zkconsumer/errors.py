"""Every error this package raises: one tree, and each error says what, where, and what to do.

`what` is one sentence; `where` names the znode, the partition, the file and line, or the setting;
`remedy` is what the reader can do about it. All three are plain attributes, so that a program can
show them apart, and `str(error)` is all of them in one line.
"""

from __future__ import annotations

import re
from typing import Any

MAX_DISPLAYED = 400
"""Characters of one foreign text in a log line, an error or a status: room for every thread id that
a consumer makes (a group of 249, host, time and number). The rest is counted."""

MAX_ERROR_TEXT = 10_000
"""Characters of each part of an error: room for 20 names of 400. The rest is counted."""

_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """Return `text` with every character escaped that a terminal or a log reader might act upon.

    Escaped are control characters (line ends too), the characters that change the direction of
    text or are invisible, and surrogates: everything for which `str.isprintable` is false.
    """
    return text if text.isprintable() else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    one = match[0]
    return one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode()


def displayed(text: str, limit: int = MAX_DISPLAYED) -> str:
    """Return foreign text as it may be displayed: printable, and cut after `limit` characters."""
    if len(text) <= limit:
        return printable(text)
    return f"{printable(text[:limit])}... ({len(text)} characters)"


def shown(text: str) -> str:
    """Return the first 80 characters of foreign text, quoted, in ASCII and safe to print."""
    quoted = ascii(text[:80])
    return quoted if len(quoted) <= 80 and len(text) <= 80 else quoted[:80] + "..."


class ZkConsumerError(Exception):
    """Root of the tree.

    All three texts can be displayed as they are: what other clients wrote into ZooKeeper is
    escaped in them, and is cut after `MAX_ERROR_TEXT` characters.

    Attributes:
        what: one sentence without the final full stop.
        where: the znode, partition, setting, or file and line concerned; may be empty.
        remedy: what to do about it; may be empty.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        what, where, remedy = (displayed(text, MAX_ERROR_TEXT) for text in (what, where, remedy))
        super().__init__(what, where, remedy)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is: errors of workers reach the process that waits for them."""
        return type(self).__new__, (type(self), *self.args), self.__dict__

    def __str__(self) -> str:
        text = self.what + (f" ({self.where})" if self.where else "")
        return f"{text}: {self.remedy}" if self.remedy else text


# ---- the caller's fault -------------------------------------------------------------------------


class ConfigError(ZkConsumerError):
    """A property is bad, missing, or contradicts another (JVM: InvalidConfigException)."""


class InvalidNameError(ConfigError):
    """A group, topic or consumer id that cannot stand in a ZooKeeper path or a JVM rejects."""


class MessageStreamsExistError(ZkConsumerError):
    """Streams were created twice on one connector (JVM: MessageStreamsExistException)."""


class ConnectorClosedError(ZkConsumerError):
    """The connector was shut down before the call."""


class InvalidFilterError(ConfigError):
    """A topic filter's regex that Java refuses (JVM: "... is an invalid regex.")."""


class UnsupportedFilterError(ConfigError):
    """A topic filter's regex that Java takes and that cannot be evaluated here as Java does."""


class FilterTooCostlyError(UnsupportedFilterError):
    """A topic filter's regex is beyond a limit of size or of time; the text names the limit."""


# ---- the user's iterator ------------------------------------------------------------------------


class ConsumerTimeoutError(ZkConsumerError):
    """No message within `consumer.timeout.ms`; the stream stays usable."""


class RebalanceBlockedError(ZkConsumerError):
    """Somebody else holds what this member should own (JVM: ConsumerRebalanceFailedException).

    Raised once to a stream that has no partition at all; the member goes on trying.
    """


class FetchError(ZkConsumerError):
    """The brokers refuse to serve a partition for a reason that waiting does not mend."""


class DecodeError(ZkConsumerError):
    """The user's decoder raised on a key or a value; the message itself was delivered."""


class NotOwnedError(ZkConsumerError):
    """The call is about a partition that this member does not own, or is about to hand over."""


# ---- ZooKeeper ----------------------------------------------------------------------------------


class ZooKeeperUnreachableError(ZkConsumerError):
    """No session within `zookeeper.connection.timeout.ms`, or it was lost for good."""


class ChrootMissingError(ZkConsumerError):
    """The chroot of `zookeeper.connect` does not exist; it is never created here."""


class AccessDeniedError(ZkConsumerError):
    """ZooKeeper refuses an operation: its access control list forbids it, or it is too large."""


class MalformedZnodeError(ZkConsumerError):
    """A znode's payload is not what the JVM would accept there.

    Attributes:
        thrown: the exception's class that a JVM member throws at it; empty where only we refuse it.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "", thrown: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.thrown = thrown


class ConsumerIdTakenError(ZkConsumerError):
    """Another live session is registered under our consumer id."""


class UnsupportedPeerError(ZkConsumerError):
    """A peer's registration is valid, but this release cannot evaluate it."""


class UnknownGroupError(ZkConsumerError):
    """The group has no znode: nobody was ever in it, or its name or the chroot is wrong."""


class CommitError(ZkConsumerError):
    """Offsets could not be committed, or were committed in part; `where` names the partitions."""


# ---- the operator's tools -----------------------------------------------------------------------


class RefusedError(ZkConsumerError):
    """A safety check forbids the change; nothing was written."""


class BadFileError(ConfigError):
    """A plan, a backup or a file of offsets cannot be used; `where` is the file, and the line."""


class AppliedInPartError(ZkConsumerError):
    """A change was applied in part; `what` says what was done, the remedy how to finish it."""


# ---- Spark --------------------------------------------------------------------------------------


class SparkSourceError(ZkConsumerError):
    """A query on the Spark source cannot go on, or cannot begin; `where` names the query's part."""


class MissingShareError(SparkSourceError):
    """The group did not give a query with `Trigger.AvailableNow` its share of the partitions."""


# ---- the sandbox --------------------------------------------------------------------------------


class SandboxError(ZkConsumerError):
    """A server of the sandbox could not be fetched, started or stopped."""


# ---- traces -------------------------------------------------------------------------------------


class TraceError(ZkConsumerError):
    """A trace cannot be read, or the machine does something else; `where` is file and line."""
