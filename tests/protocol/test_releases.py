"""The releases of Kafka, and the behaviour of each release."""

from __future__ import annotations

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.assignors import PartitionFormat, RoundRobinRule, Strategy, assign
from zkconsumer.protocol.releases import DEFAULT, RELEASES, Layout, Parser, profile


def test_every_release_has_a_profile_of_its_name() -> None:
    """Each listed release has a profile of the same name, and so has the default release."""
    assert [profile(name).release for name in RELEASES] == list(RELEASES)
    assert profile("0.8.2-0.11") is DEFAULT


SCALA, JACKSON, TWICE = Parser.SCALA, Parser.JACKSON, Parser.JACKSON_TWICE
BRACKET, DASH = PartitionFormat


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.8.0", (Layout.SORTED, SCALA, 0, BRACKET, RoundRobinRule.RANGE_ONLY)),
        ("0.8.1.1", (Layout.UNESCAPED, SCALA, 0, BRACKET, RoundRobinRule.RANGE_ONLY)),
        ("0.8.2.2", (Layout.ESCAPED, SCALA, 1, BRACKET, RoundRobinRule.IDENTICAL)),
        ("0.10.1.1", (Layout.ESCAPED, SCALA, 1, BRACKET, RoundRobinRule.IDENTICAL)),
        ("0.10.2.0", (Layout.ESCAPED, SCALA, 1, BRACKET, RoundRobinRule.SKIPPING)),
        ("0.11.0.3", (Layout.ESCAPED, SCALA, 2, BRACKET, RoundRobinRule.SKIPPING)),
        ("1.0.0", (Layout.ESCAPED, JACKSON, 2, DASH, RoundRobinRule.SKIPPING)),
        ("1.0.1", (Layout.ESCAPED_TWICE, TWICE, 2, DASH, RoundRobinRule.SKIPPING)),
        ("1.1.1", (Layout.ESCAPED_TWICE, TWICE, 2, DASH, RoundRobinRule.SKIPPING)),
    ],
)
def test_the_profile_at_each_release_boundary(release: str, expected: tuple[object, ...]) -> None:
    """At each boundary in the version table, only the listed fields of the profile change."""
    found = profile(release)
    internal = sorted(found.internal_topics)
    assert internal == ["__consumer_offsets", "__transaction_state"][: len(internal)]
    seen = (found.layout, found.parser, len(internal), found.key_form, found.variant)
    assert seen == expected


@pytest.mark.parametrize(
    ("beginning", "release"),
    [("0.8.2", "0.8.2.2"), ("0.9", "0.9.0.1"), ("0.11.0", "0.11.0.3"), ("1.1", "1.1.1")],
)
def test_a_beginning_that_leaves_no_doubt(beginning: str, release: str) -> None:
    """A prefix of releases that all behave alike stands for the latest of them."""
    assert profile(beginning).release == release


@pytest.mark.parametrize("release", ["0.8", "0.10", "1.0", "1", "0"])
def test_a_beginning_of_releases_that_differ(release: str) -> None:
    """A prefix of releases that behave differently is rejected with a list of the releases."""
    with pytest.raises(ConfigError) as caught:
        profile(release)
    assert all(one.startswith(f"{release}.") for one in caught.value.remedy[11:].split(", "))


@pytest.mark.parametrize("release", ["", "0.7.2", "2.0.0", "1.1.", "0.8.2-beta", "auto"])
def test_a_release_without_this_consumer(release: str) -> None:
    """A release that never had the old consumer, and a text that is no release, are rejected."""
    with pytest.raises(ConfigError, match="not a Kafka release"):
        profile(release)


def test_a_release_without_round_robin_deals_in_ranges() -> None:
    """0.8.0 and 0.8.1 have no round-robin, so they use range whatever the property says."""
    group = {"g_a": {"t": 1}, "g_b": {"t": 1}}
    dealt = assign(
        Strategy.ROUND_ROBIN,
        subscriptions=group,
        partitions={"t": range(4)},
        variant=profile("0.8.0").variant,
    )
    assert dealt == assign(Strategy.RANGE, subscriptions=group, partitions={"t": range(4)})
