"""The containers run the images of docker/compose.yaml; these tests start none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from zkconsumer.errors import ConfigError, SandboxError
from zkconsumer.testing import RELEASES, containers, open_legacy_kafka

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"


def test_the_images_are_pinned_like_those_of_compose() -> None:
    """Both images are the official ones, pinned by the digests of docker/compose.yaml."""
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert services["zookeeper"]["image"] == containers.ZOOKEEPER_IMAGE
    assert services["kafka"]["image"] == containers.KAFKA_IMAGE
    assert f":{containers.RELEASE}@sha256:" in containers.KAFKA_IMAGE
    assert RELEASES[-1] == containers.RELEASE


def test_without_a_docker_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine, the error says what the backend needs."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    refused = pytest.raises(SandboxError, match=r"do not start.*Docker engine")
    with refused, open_legacy_kafka("containers"):
        pass


def test_without_testcontainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without testcontainers, the error names the package."""
    for name in ("zkconsumer.testing.containers", "testcontainers.core.config"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("zkconsumer.testing.containers")
    refused = pytest.raises(ConfigError, match="pip install testcontainers")
    with refused, open_legacy_kafka("containers"):
        pass


def test_releases_without_an_image() -> None:
    """A release that no container has is an error that names the sandbox."""
    refused = pytest.raises(ConfigError, match=r"1 broker of release 3\.9\.1, not 1 of 1\.1\.1")
    with refused, open_legacy_kafka("containers", release="1.1.1"):
        pass
