"""ZooKeeper servers that several directories of tests share.

One server runs in a container of the project's own image; besides, there is one server per release.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from zkconsumer.sandbox import ZOOKEEPER_RELEASES
from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER

# The oldest and the newest release. The default release is between them, and runs every test.
SOME_ZOOKEEPERS = (ZOOKEEPER_RELEASES[0], ZOOKEEPER_RELEASES[-1])

ROOT = Path(__file__).parents[3]
IMAGE = "zkconsumer:test"
OFFICIAL, OFFICIAL_IMAGE = ROOT / "tests/containers/official", "zkconsumer:official"
CLIENT_PORT = 2181
# The container is ready after 1.3 s; a busy machine may take ten times as long.
CONTAINER_LIMIT_S = 60
# A Docker engine answers within milliseconds; an engine that hangs must not stop the tests.
ENGINE_LIMIT_S = 5

# testcontainers would start its reaper from an image of the public hub, and tests may need no
# registry. Without the reaper, each fixture here stops its own containers.
testcontainers_config.ryuk_disabled = True


@pytest.fixture(scope="session")
def image() -> str:
    """Return the name of zkconsumer's image, built from this checkout; skip without an engine."""
    try:
        client = docker.from_env(timeout=ENGINE_LIMIT_S)
    except docker.errors.DockerException:
        pytest.skip("no Docker engine answers")
    client.close()
    command = [sys.executable, str(ROOT / "docker/build.py"), "--tag", IMAGE, "--base", "scratch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return IMAGE


@pytest.fixture(scope="session")
def server_images(image: str) -> Iterator[None]:
    """Images with the interface of the official ones, for the backend `containers`.

    Tests may need no registry.
    """
    with pytest.MonkeyPatch.context() as patch, closing(docker.from_env()) as client:
        client.images.build(path=str(OFFICIAL), tag=OFFICIAL_IMAGE, rm=True)
        for server in ("ZOOKEEPER", "KAFKA"):
            patch.setenv(f"ZKCONSUMER_{server}_IMAGE", OFFICIAL_IMAGE)
        yield
        client.images.remove(OFFICIAL_IMAGE)


@pytest.fixture(scope="session")
def container_zookeeper(image: str) -> Iterator[str]:
    """Yield the connect string of a ZooKeeper in a container of zkconsumer's image."""
    container = (
        DockerContainer(image, entrypoint="/opt/jre/bin/java")
        .with_command("@/conf/zookeeper.args")
        .with_exposed_ports(CLIENT_PORT)
        .waiting_for(
            LogMessageWaitStrategy("PrepRequestProcessor.*started").with_startup_timeout(
                CONTAINER_LIMIT_S
            )
        )
    )
    with container:
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(CLIENT_PORT)}"
        _check_session(container, address)
        yield address


def _check_session(container: DockerContainer, address: str) -> None:
    """Fail with the container's state, ports and log if no session reaches its server."""
    client = KazooClient(address)
    try:
        client.start(CONTAINER_LIMIT_S)
    except KazooTimeoutError as error:
        wrapped = container.get_wrapped_container()
        wrapped.reload()
        state, ports = wrapped.attrs["State"], wrapped.attrs["NetworkSettings"]["Ports"]
        log = b"".join(container.get_logs()).decode(errors="replace")
        raise AssertionError(f"no session at {address}: {state}, {ports}\n{log}") from error
    finally:
        client.stop()
        client.close()


def zookeeper_releases(config: pytest.Config) -> tuple[str, ...]:
    """Return the releases of ZooKeeper that `--zookeeper` names."""
    word = config.getoption("--zookeeper")
    return {"some": SOME_ZOOKEEPERS, "all": ZOOKEEPER_RELEASES}.get(word, (word,))


def release_number(release: str) -> tuple[int, ...]:
    """Return a release as a tuple of numbers, by which releases are sorted."""
    return tuple(map(int, release.split(".")))


def shared_release(config: pytest.Config) -> str:
    """Return the release of the ZooKeeper servers that all tests share."""
    word = str(config.getoption("--zookeeper"))
    return word if word in ZOOKEEPER_RELEASES else DEFAULT_ZOOKEEPER


@pytest.fixture(scope="session")
def zookeeper_release(pytestconfig: pytest.Config) -> str:
    """The release of the ZooKeeper servers that all tests share."""
    return shared_release(pytestconfig)
