"""The differences between Kafka releases that another member or a tool can observe.

A `Profile` holds these differences for one release. Differences that other members cannot observe,
for example a deadlock or the version of a fetch request, are in no profile.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from zkconsumer.errors import ConfigError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.assignors import PartitionFormat, RoundRobinRule
from zkconsumer.protocol.model import OFFSETS_TOPIC


class Layout(Enum):
    """How a release writes a registration (`TopicCount`, `kafka.utils.Json.encode`)."""

    SORTED = "keys in alphabetical order, blanks, nothing escaped"  # 0.8.0
    UNESCAPED = "compact, nothing escaped"  # 0.8.1
    ESCAPED = "compact, regexes escaped"  # 0.8.2-1.0.0 (KAFKA-1180)
    ESCAPED_TWICE = "compact, names escaped once, regexes twice"  # 1.0.1-1.1.1 (KAFKA-6319)


class Parser(Enum):
    """How a release parses a registration and a topic (`kafka.utils.Json.parseFull`)."""

    ANY = "accepts what any other parser accepts, unless two parsers read it differently"
    SCALA = "Scala's JSON, numbers of 32 bits"  # 0.8.0-0.11
    JACKSON = "Jackson"  # 1.0.0 (KAFKA-1595)
    JACKSON_TWICE = "Jackson; after a failure, again with all backslashes doubled"  # 1.0.1-1.1.1


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of a release's members that other members can observe.

    Attributes:
        release: the release, as `profile` accepts it.
        layout: how members write registrations.
        parser: how members parse registrations and topics.
        internal_topics: the topics that `exclude.internal.topics` hides from patterns.
        key_form, variant: the rules of round-robin. Even with range, a member with
            RoundRobinRule.SKIPPING reads every topic of the group; other members read only their
            own topics.
    """

    release: str
    layout: Layout
    parser: Parser
    internal_topics: frozenset[str]
    key_form: PartitionFormat
    variant: RoundRobinRule

    def __hash__(self) -> int:
        # Caches look up profiles often, and Python computes the hash of an enumeration slowly.
        return hash(self.release)


_OFFSETS: Final = frozenset({OFFSETS_TOPIC})
_INTERNAL: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})

# The profile of a group whose release is not configured. This profile behaves as 0.10.2 to 0.11,
# and in most respects as 0.8.2 to 0.10.1. It parses payloads that any release accepts.
DEFAULT: Final = Profile(
    "0.8.2-0.11",
    Layout.ESCAPED,
    Parser.ANY,
    _INTERNAL,
    PartitionFormat.BRACKET,
    RoundRobinRule.SKIPPING,
)

_0_8_0 = Profile(
    "0.8.0",
    Layout.SORTED,
    Parser.SCALA,
    frozenset(),
    PartitionFormat.BRACKET,
    RoundRobinRule.RANGE_ONLY,
)
_0_8_1 = replace(_0_8_0, release="0.8.1", layout=Layout.UNESCAPED)
_0_8_2 = Profile(
    "0.8.2",
    Layout.ESCAPED,
    Parser.SCALA,
    _OFFSETS,
    PartitionFormat.BRACKET,
    RoundRobinRule.IDENTICAL,
)
_0_10_2 = replace(_0_8_2, variant=RoundRobinRule.SKIPPING)
_0_11 = replace(_0_10_2, internal_topics=_INTERNAL)
_1_0_0 = replace(_0_11, parser=Parser.JACKSON, key_form=PartitionFormat.DASH)
_1_0_1 = replace(_1_0_0, parser=Parser.JACKSON_TWICE, layout=Layout.ESCAPED_TWICE)

_PROFILES: Final = {
    DEFAULT.release: DEFAULT,
    **{
        release: replace(of_release, release=release)
        for of_release, releases in (
            (_0_8_0, "0.8.0"),
            (_0_8_1, "0.8.1 0.8.1.1"),
            (_0_8_2, "0.8.2.0 0.8.2.1 0.8.2.2 0.9.0.0 0.9.0.1"),
            (_0_8_2, "0.10.0.0 0.10.0.1 0.10.1.0 0.10.1.1"),
            (_0_10_2, "0.10.2.0 0.10.2.1 0.10.2.2"),
            (_0_11, "0.11.0.0 0.11.0.1 0.11.0.2 0.11.0.3"),
            (_1_0_0, "1.0.0"),
            (_1_0_1, "1.0.1 1.0.2 1.1.0 1.1.1"),
        )
        for release in releases.split()
    },
}
RELEASES: Final = tuple(_PROFILES)


def profile(release: str) -> Profile:
    """Return the profile of a release: its full name, or an unambiguous prefix (`0.11`).

    Raises ConfigError for another name, and for a prefix whose releases differ (`1.0`).
    """
    named = _PROFILES.get(release)
    if named is not None:
        return named
    meant = [one for name, one in _PROFILES.items() if name.startswith(f"{release}.")]
    if not meant:
        raise ConfigError(
            f"{release!r} is not a Kafka release with the old consumer",
            where="peers.release",
            remedy=f"use one of {', '.join(RELEASES)}",
        )
    if any(replace(one, release="") != replace(meant[0], release="") for one in meant):
        raise ConfigError(
            f"the releases that begin with {release} differ",
            where="peers.release",
            remedy=f"use one of {', '.join(one.release for one in meant)}",
        )
    return meant[-1]
