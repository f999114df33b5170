"""What differs from one Kafka release to the next, as far as a peer or a tool can see it.

A `Profile` is one column of that table. What a release keeps to itself, such as its deadlocks and
the version of its fetch requests, is in no profile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.assignors import KeyForm, Variant


class Layout(Enum):
    """How a registration is written (`TopicCount`, `kafka.utils.Json.encode`)."""

    SORTED = "keys in alphabetical order, blanks, nothing escaped"  # 0.8.0
    UNESCAPED = "compact, nothing escaped"  # 0.8.1
    ESCAPED = "compact, regexes escaped"  # 0.8.2-1.0.0 (KAFKA-1180)
    ESCAPED_TWICE = "compact, names escaped, regexes twice"  # 1.0.1-1.1.1 (KAFKA-6319)


class Parser(Enum):
    """What reads a registration and a topic (`kafka.utils.Json.parseFull`)."""

    ANY = "whatever one of them takes and none takes for something else"
    SCALA = "Scala's JSON, numbers of 32 bits"  # 0.8.0-0.11
    JACKSON = "Jackson"  # 1.0.0 (KAFKA-1595)
    JACKSON_TWICE = "Jackson, and again with all backslashes doubled"  # 1.0.1-1.1.1


@dataclass(frozen=True, slots=True)
class Profile:
    """How members of one release act on each other.

    Attributes:
        release: as `profile` takes it.
        layout: how it writes registrations.
        parser: what it takes for a registration or a topic.
        internal_topics: what `exclude.internal.topics` keeps from wildcards.
        key_form, variant: its round-robin. A member of Variant.SKIPPING reads every topic of the
            group in range, too; others read their own topics alone.
    """

    release: str
    layout: Layout
    parser: Parser
    internal_topics: frozenset[str]
    key_form: KeyForm
    variant: Variant


_OFFSETS: Final = frozenset({"__consumer_offsets"})
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})

# What holds of a group whose release nobody named: one of 0.10.2 to 0.11, and of 0.8.2 to 0.10.1
# where the two do not differ. It reads what any release takes.
DEFAULT: Final = Profile(
    "0.8.2-0.11", Layout.ESCAPED, Parser.ANY, _INTERNAL, KeyForm.BRACKET, Variant.SKIPPING
)

_0_8_0 = Profile(
    "0.8.0", Layout.SORTED, Parser.SCALA, frozenset(), KeyForm.BRACKET, Variant.RANGE_ONLY
)
_0_8_1 = replace(_0_8_0, release="0.8.1", layout=Layout.UNESCAPED)
_0_8_2 = Profile(
    "0.8.2", Layout.ESCAPED, Parser.SCALA, _OFFSETS, KeyForm.BRACKET, Variant.IDENTICAL
)
_0_10_2 = replace(_0_8_2, variant=Variant.SKIPPING)
_0_11 = replace(_0_10_2, internal_topics=_INTERNAL)
_1_0_0 = replace(_0_11, parser=Parser.JACKSON, key_form=KeyForm.DASH)
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
    """The profile of a release: its whole name, or a beginning that leaves no doubt (`0.11`).

    Raises ConfigError for another name, and for a beginning of releases that differ (`1.0`).
    """
    named = _PROFILES.get(release)
    if named is not None:
        return named
    meant = [one for name, one in _PROFILES.items() if name.startswith(f"{release}.")]
    if not meant:
        raise ConfigError(
            f"{release!r} is no release that has this consumer",
            where="peers.release",
            remedy=f"one of {', '.join(RELEASES)}",
        )
    if any(replace(one, release="") != replace(meant[0], release="") for one in meant):
        raise ConfigError(
            f"the releases of {release} differ",
            where="peers.release",
            remedy=f"one of {', '.join(one.release for one in meant)}",
        )
    return meant[-1]
