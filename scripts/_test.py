"""Provide the real servers and run the tests: the part of scripts/test inside its environment.

usage: scripts/test [--quick | --all] [--install-docker] [pytest arguments]
  --quick            only the tests that need no server: a minute, for use while you work
  --all              every test: each release of brokers, JVM members and ZooKeeper, all
                     scenarios, and the long searches; without it, what CI runs
  --install-docker   install and start a Docker engine if none answers, and install Docker Compose,
                     zsh, fish and Chromium, and with --all Kerberos (root, apt-get); CI=true does
                     the same. With either, a missing program is a failure.
tests/lanes.py says which test runs when, and CONTRIBUTING.md shows it as a table. A test whose file
or node id the arguments name always runs. Further pytest arguments: --brokers all, --mixed all and
--zookeeper all, for all releases of one kind; --zookeeper 3.4.6, for any tests on that release;
--kafka-source, for the tests of Spark's own Kafka source.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import _compiled_cache
import _engine
import _package_cache
from _bootstrap import say

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import BrokerServer, ZooKeeperServer, jars

ROOT = Path(__file__).resolve().parent.parent
# Programs of tests/support start the JVM members.
sys.path.insert(0, str(ROOT / "tests"))

from support.jvm.member import RELEASES, recording
from support.packages import build_kerberos_packages
from support.processes import adopt_orphans, children, end_orphans, wait_and_bury

# The jars of the servers that nearly all tests use. The few tests that need another release
# download its jars themselves.
JARS = "kafka-3.9.1"
# The releases of the normal lane's JVM members.
SOME_RELEASES = (RELEASES[0], RELEASES[-1])
# Workers. They share a ZooKeeper and a sandbox (tests/support/shared_servers.py). Five workers
# leave 8 % of two cores idle, six leave 4 %. tests/conftest.py says which modules a worker takes
# together, and in which order. `-n 0` runs the tests one after the other, which --pdb and -s need.
WORKERS = ("-n", "6", "--no-loadscope-reorder")
# The tests that only --all runs keep more processes busy. With six workers, the load of two cores
# is 20 to 25, at which tests exceed their time limits.
ALL_WORKERS = ("-n", "3", "--no-loadscope-reorder")
# Tests without servers are limited by the processor, so there is one worker for each core.
QUICK_WORKERS = ("-n", "2", "--dist", "load")
SLOWEST = ("--durations", "30")
# On a new machine, the set-up records the classes of Spark's drivers (40 s).
SPARK_CLASSES = ("scripts/_spark_classes.py",)
# Each worker would do this work for itself, so it is done once, during the set-up, unless an equal
# checkout has done it: compile the test modules with their assertions rewritten (12 s of processor
# time) and the loops of the two columnar decoders (20 s).
COMPILATIONS = (
    ("-m", "pytest", "-qq", "--collect-only"),
    (
        "-m",
        "pytest",
        "-qq",
        "tests/history/test_logs.py::test_every_kind",
        "tests/history/test_groups.py::test_a_rebalance_settles",
        "tests/history/test_groups.py::test_many_partitions_and_sessions",
    ),
)


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def provide_engine(stack: ExitStack, *, required: bool) -> str | None:
    """Make an engine answer at DOCKER_HOST if possible; return what is missing, or None."""
    # The reaper's image comes from the public hub; the tests stop their containers themselves.
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    version = _engine.answers()
    if version is None and required:
        _engine.install()
        # The installation may have started the system's engine; otherwise start a temporary one.
        if _engine.answers() is None:
            os.environ["DOCKER_HOST"] = stack.enter_context(_engine.own_engine())
            # This engine publishes the ports on loopback. Inside a container, testcontainers would
            # guess another address from the engine's networks.
            os.environ["TESTCONTAINERS_CONNECTION_MODE"] = "docker_host"
            os.environ["TESTCONTAINERS_HOST_OVERRIDE"] = "127.0.0.1"
        version = _engine.answers()
        if version is None:
            raise _engine.EngineError("the engine started, and then did not answer")
    if version is None:
        return (
            "no Docker engine answers: the container cases ran on the sandbox's server only; "
            "scripts/test --install-docker brings an engine (root)"
        )
    say(f"containers: Docker engine {version}")
    return None


def record_classes(releases: Iterable[str]) -> None:
    """Have the suite's hundreds of JVMs start with archives of the classes that they load: the
    servers and the members of these releases."""
    with TemporaryDirectory(prefix="zkconsumer-classes-") as directory:
        zookeeper = ZooKeeperServer(f"{directory}/zookeeper")
        zookeeper.record_classes()
        with zookeeper, recording(zookeeper.connect, Path(directory), releases):
            broker = BrokerServer(f"{directory}/broker", zookeeper_connect=zookeeper.connect)
            broker.record_classes()


@contextmanager
def warming_up() -> Iterator[None]:
    """Fill the caches while the block runs. An error is ignored here, since a test reports it
    again.
    """
    compilations = () if _compiled_cache.is_kept(ROOT) else COMPILATIONS
    started = [
        subprocess.Popen(
            (sys.executable, *arguments),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for arguments in (SPARK_CLASSES, *compilations)
    ]
    try:
        yield
        for process in started:
            process.wait()
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(*command: str) -> int:
    """Run a step to its end; pass one Ctrl-C or SIGTERM on to the step as one SIGINT.

    The step has a separate session: otherwise a Ctrl-C would reach it twice, from the terminal and
    from this process. The second one would interrupt the tear-down in which pytest stops its
    servers. A worker that ends without its tear-down leaves processes, which end here.
    """
    adopt_orphans()
    others = children(os.getpid())
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    stopped: BaseException | None = None
    while True:
        try:
            code = wait_and_bury(process)
        except (KeyboardInterrupt, SystemExit) as error:
            stopped = error
            os.killpg(process.pid, signal.SIGINT)
        else:
            break
    for one in end_orphans(others):
        say(f"the tests left a process, which is killed: {one}")
    if stopped is not None:
        raise stopped
    return code


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(__doc__ or "")
        return 0
    own = {"--quick", "--all", "--install-docker"}
    options, arguments = own & {*arguments}, [one for one in arguments if one not in own]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    # A script's background job ignores SIGINT, and so would every process that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Without compiled modules on the disk, each of hundreds of processes compiles them again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "--quick" in options:
        return pytest(*QUICK_WORKERS, "--lane", "quick", *arguments)
    lane = ("--lane", "all") if "--all" in options else ()
    with ExitStack() as stack:
        required = is_ci() or "--install-docker" in options
        _compiled_cache.restore(ROOT, Path(sys.prefix))
        with warming_up():
            if required:
                _engine.install_shells()
                _engine.install_chromium(complete=bool(lane))
                _engine.install_compose()
                if lane:
                    _engine.install_kerberos()
                    with TemporaryDirectory(prefix="zkconsumer-kerberos-") as directory:
                        build_kerberos_packages(Path(directory))
            missing = provide_engine(stack, required=required)
            jars.resolve(JARS)
            record_classes(RELEASES if lane else SOME_RELEASES)
        # Now Python has compiled the packages that the tests import.
        _package_cache.keep(Path(sys.prefix))
        _compiled_cache.keep(ROOT)
        workers = ALL_WORKERS if lane else WORKERS
        tests = pytest(*workers, *lane, *arguments)
    if missing:
        say(missing)
    return tests


def pytest(*arguments: str) -> int:
    return run(sys.executable, "-m", "pytest", *SLOWEST, *arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (_engine.EngineError, SandboxError) as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
