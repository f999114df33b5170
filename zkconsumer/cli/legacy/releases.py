"""The Kafka releases whose tools are imitated."""

from __future__ import annotations

from enum import Enum


class KafkaRelease(Enum):
    """A Kafka release whose tools' output was recorded byte for byte; in ascending order."""

    R0_8 = "0.8.2.2"
    R0_9 = "0.9.0.1"
    R0_10 = "0.10.2.2"
    R0_11 = "0.11.0.3"
    R1 = "1.1.1"

    def since(self, other: KafkaRelease) -> bool:
        """Return whether this is `other` or a later release."""
        return _ORDER[self] >= _ORDER[other]


_ORDER = {release: number for number, release in enumerate(KafkaRelease)}
