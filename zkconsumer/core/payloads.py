"""What all decoders of znodes share: text, JSON in a release's dialect, and the one error.

Every decoder reads untrusted bytes with bounded work and raises MalformedZnodeError and nothing
else. `MalformedZnodeError.thrown` names what a JVM member of that release throws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from zkconsumer.core import jackson, scalajson
from zkconsumer.core.releases import Parser
from zkconsumer.errors import MalformedZnodeError

# Bytes. A ZooKeeper server takes no larger znode by default (`jute.maxbuffer`), so none of the
# JVM's payloads is larger. A larger one is refused unread.
MAX_PAYLOAD: Final = 1 << 20


class Thrown(StrEnum):
    """The exceptions that end a JVM member's attempt to rebalance."""

    KAFKA = "kafka.common.KafkaException"
    JSON = "com.fasterxml.jackson.databind.JsonMappingException"
    CAST = "java.lang.ClassCastException"
    NULL = "java.lang.NullPointerException"
    NUMBER = "java.lang.NumberFormatException"
    ASSERTION = "java.lang.AssertionError"
    ARGUMENT = "java.lang.IllegalArgumentException"
    REGEX = "java.lang.RuntimeException"
    NO_NODE = "org.I0Itec.zkclient.exception.ZkNoNodeException"


_PARSE: Final[Mapping[Parser, Callable[[str], object]]] = {
    Parser.ANY: scalajson.parse,
    Parser.SCALA: scalajson.parse_int32,
    Parser.JACKSON: jackson.parse,
    Parser.JACKSON_TWICE: jackson.parse_twice,
}
_JACKSONS: Final = frozenset({Parser.JACKSON, Parser.JACKSON_TWICE})


class Payload:
    """One znode's payload on its way to a value; each step raises MalformedZnodeError.

    Args:
        raw: the bytes, or None if the znode has none.
        where: its path or name, for the error.
        remedy: what to do about a fault, for the error.
        parser: whose JSON it is.
    """

    def __init__(
        self, raw: bytes | None, *, where: str, remedy: str, parser: Parser = Parser.ANY
    ) -> None:
        self._raw, self._where, self._remedy = raw, where, remedy
        self._parser = parser
        self.is_jackson = parser in _JACKSONS

    def text(self) -> str:
        """Java's `new String(bytes, UTF_8)`: ill-formed sequences become U+FFFD."""
        if self._raw is None:
            thrown = Thrown.NULL if self.is_jackson else Thrown.KAFKA
            raise self.malformed("the znode has no payload", thrown)
        if len(self._raw) > MAX_PAYLOAD:
            raise self.malformed(f"the payload is larger than {MAX_PAYLOAD} bytes")
        return self._raw.decode(errors="replace")

    def document(self) -> object:
        """The JSON in it; raises ValueError as well, where the JVM cannot parse the text."""
        text = self.text()
        try:
            return _PARSE[self._parser](text)
        except RecursionError as error:
            raise self.malformed(str(error)) from error
        except scalajson.NotInt32Error as error:
            raise self.malformed("a number is no int32", Thrown.KAFKA) from error

    def fields(self, value: object, what: str) -> dict[str, object]:
        """`value` as an object; `what` names it."""
        if isinstance(value, dict):
            return value
        raise self.mistyped(f"{what} is no object", value)

    def mistyped(self, what: str, value: object) -> MalformedZnodeError:
        """The error of a value that has another type than the JVM takes it for."""
        if self.is_jackson:
            return self.malformed(what, Thrown.JSON)
        return self.malformed(what, Thrown.NULL if value is None else Thrown.CAST)

    def malformed(self, what: str, thrown: str = "") -> MalformedZnodeError:
        """The error of this payload; `thrown` is "" where only we refuse it."""
        return MalformedZnodeError(
            what, where=self._where, remedy=self._remedy, thrown=thrown
        )
