"""What differs between the releases of fake brokers: versions of requests, formats, registrations.

The versions are those that the brokers of the sandbox report (ApiVersions), and for 0.8.2 and 0.9,
which have no such request, those of `org.apache.kafka.common.protocol.Protocol`. Tests compare
them with the real brokers: with their report, or by asking 0.8.2.2 and 0.9.0.1 each version. Every
broker in ZooKeeper mode supports each request from version 0 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.errors import ConfigError

RELEASES: Final = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "3.9.1")
"""The releases of fake brokers: those of the sandbox."""

API_VERSIONS: Final = 18

# Request -> its highest version in each release; None: the release does not have the request.
_HIGHEST: Final[Mapping[int, tuple[int | None, ...]]] = {
    0: (0, 1, 2, 3, 5, 11),  # Produce
    1: (0, 1, 3, 5, 7, 17),  # Fetch
    2: (0, 0, 1, 2, 2, 9),  # ListOffsets
    3: (0, 0, 2, 4, 5, 12),  # Metadata
    8: (1, 2, 2, 3, 3, 9),  # OffsetCommit
    9: (1, 1, 2, 3, 3, 9),  # OffsetFetch
    10: (0, 0, 0, 1, 1, 6),  # FindCoordinator
    11: (None, 0, 1, 2, 2, 9),  # JoinGroup
    12: (None, 0, 0, 1, 1, 4),  # Heartbeat
    13: (None, 0, 0, 1, 1, 5),  # LeaveGroup
    14: (None, 0, 0, 1, 1, 5),  # SyncGroup
    15: (None, 0, 0, 1, 1, 5),  # DescribeGroups
    16: (None, 0, 0, 1, 1, 5),  # ListGroups
    API_VERSIONS: (None, None, 0, 1, 1, 4),
    19: (None, None, 1, 2, 2, 7),  # CreateTopics
    20: (None, None, 0, 1, 1, 6),  # DeleteTopics
    21: (None, None, None, 0, 0, 2),  # DeleteRecords
    22: (None, None, None, 0, 0, 5),  # InitProducerId
    24: (None, None, None, 0, 0, 3),  # AddPartitionsToTxn: only brokers send versions 4 and 5
    26: (None, None, None, 0, 0, 4),  # EndTxn
    37: (None, None, None, None, 0, 3),  # CreatePartitions
    42: (None, None, None, None, 0, 2),  # DeleteGroups
}

# The version of the registrations in /brokers/ids, by release.
_REGISTRATIONS: Final = (1, 2, 4, 4, 4, 5)
# The message format in which each release stores messages by default.
_FORMATS: Final = (0, 0, 1, 2, 2, 2)


@dataclass(frozen=True, slots=True)
class BrokerProfile:
    """The behaviour of one release's brokers.

    Attributes:
        release: one of `RELEASES`.
        versions: the highest version of each request that the broker supports.
        registration: the version of the registration in ZooKeeper.
        magic: the message format of topics that do not set one.
        sets_format: whether a topic can set `message.format.version`.
        has_topic_ids: whether topics have ids (KIP-516).
    """

    release: str
    versions: Mapping[int, int]
    registration: int
    magic: int
    sets_format: bool
    has_topic_ids: bool


def broker_profile(release: str) -> BrokerProfile:
    """Return the profile of a release.

    Raises:
        ConfigError: there is no fake broker of this release.
    """
    if release not in RELEASES:
        raise ConfigError(
            f"there is no fake broker of release {release}",
            where="release",
            remedy=f"choose one of {', '.join(RELEASES)}",
        )
    at = RELEASES.index(release)
    highest = {key: versions[at] for key, versions in _HIGHEST.items()}
    return BrokerProfile(
        release,
        {key: version for key, version in highest.items() if version is not None},
        _REGISTRATIONS[at],
        _FORMATS[at],
        sets_format=release in ("0.10.2.2", "0.11.0.3", "1.1.1"),
        has_topic_ids=release == "3.9.1",
    )
