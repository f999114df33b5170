"""The containers run the images of docker/compose.yaml; this test starts none."""

from __future__ import annotations

from pathlib import Path

import yaml

from zkconsumer.testing import RELEASES, containers

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"


def test_the_images_are_pinned_like_those_of_compose() -> None:
    """Both images are the official ones, pinned by the digests of docker/compose.yaml."""
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert services["zookeeper"]["image"] == containers.ZOOKEEPER_IMAGE
    assert services["kafka"]["image"] == containers.KAFKA_IMAGE
    assert f":{containers.RELEASE}@sha256:" in containers.KAFKA_IMAGE
    assert RELEASES[-1] == containers.RELEASE
