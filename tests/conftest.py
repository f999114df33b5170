"""Fixtures and rules of the whole suite: real servers; in CI no test may skip.

A part that is missing in CI is a failure. The controlling process starts the servers that all
workers share; any other server starts when a test first requests it.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import lanes
import pytest
from lanes import Lane
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from zkconsumer.member import phases
from zkconsumer.sandbox import (
    RELEASES,
    ZOOKEEPER_RELEASES,
    ZooKeeperEnsemble,
)
from zkconsumer.sandbox.server import JavaServer

# The servers and the browser that tests in several directories share.
pytest_plugins = [
    "support.zk.servers",
    "support.shared_servers",
    "support.browser",
    "zkconsumer.testing.plugin",
]

# Tests neither read nor write the contexts and the backups of the user.
_HOME = tempfile.TemporaryDirectory(prefix="zkconsumer-home-")
for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
    os.environ[variable] = _HOME.name

# Most tests write the offsets of a group without members just before they change it. No command
# waits then for a client that commits without a registration, unless the test asks for it.
os.environ["ZKCONSUMER_PATIENCE"] = "0"

# On a busy machine any example can take long.
hypothesis.settings.register_profile("without deadline", hypothesis.settings(deadline=None))
hypothesis.settings.load_profile("without deadline")

# Nearly all objects of the collection live until the end; see `pytest_collection_finish`.
gc.disable()

# In every test, each step of a member checks the change of phase.
phases.enforced = True

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options: the lane, the releases of real servers, and files to rewrite or to download."""
    parser.addoption("--rewrite", action="store_true", help="write the golden traces anew")
    words = [lane.name.lower() for lane in Lane]
    which = "which tests run, as tests/lanes.py says: quick, normal or all (default: normal)"
    parser.addoption("--lane", choices=words, help=which)
    which = (
        "releases that tests/brokers runs on: three of them, all, or the one of this number "
        "(default: by the lane)"
    )
    choices = ("some", "all", *RELEASES)
    parser.addoption("--brokers", choices=choices, help=which)
    which = "scenarios of tests/mixed: those of each run, or all (default: by the lane)"
    parser.addoption("--mixed", choices=("some", "all"), help=which)
    which = (
        "releases of ZooKeeper beside the default one: two of them, or all; or one release, which "
        "the servers that all tests share then have, too (default: by the lane)"
    )
    choices = ("some", "all", *ZOOKEEPER_RELEASES)
    parser.addoption("--zookeeper", choices=choices, help=which)
    which = "also what needs Spark 4.0.0 and its Kafka source, half a gigabyte that is fetched once"
    parser.addoption("--kafka-source", action="store_true", help=which)


RELEASE_OPTIONS = ("brokers", "mixed", "zookeeper")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Fill in the lane and the releases.

    The lane `all` means all releases. A release, or `all`, for any option selects the lane `all`.
    """
    config.addinivalue_line("markers", f"{lanes.MARK}: a parameter whose tests use a server")
    config.addinivalue_line("markers", "since(release): the first release that has the subject")
    config.addinivalue_line("markers", "until(release): the release at which the test ends")
    option = config.option
    given = {getattr(option, name) for name in RELEASE_OPTIONS} - {None, "some"}
    default = "all" if option.lane == "all" and not given else "some"
    for name in RELEASE_OPTIONS:
        if getattr(option, name) is None:
            setattr(option, name, default)
    if option.lane is None or given:
        option.lane = "all" if given else "normal"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of modules that belong to later lanes as a whole, unless paths are given."""
    if collection_path.suffix != ".py" or config.args != config.getini("testpaths"):
        return None
    module = collection_path.relative_to(config.rootpath).as_posix()
    return lanes.is_later(module, lanes.of_run(config)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Deselect the tests of later lanes, unless the command line names their file; then sort."""
    lane = lanes.of_run(config)
    config.stash[lanes.UNUSED_RULES] = lanes.note_lanes(items)
    kept, dropped = [], []
    for item in items:
        fits = item.stash[lanes.LANE] <= lane
        (kept if fits or _is_named(item) else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
    yield
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from all later garbage collections.

    Nearly all other objects end without the collector, too. With Python's own threshold of 700
    objects it takes 7 % of a worker's time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def _is_named(item: pytest.Item) -> bool:
    """Return whether an argument of the command line names this test, by file or node id."""
    config = item.config
    for argument in config.args:
        path, _, name = str(argument).partition("::")
        is_file = (config.invocation_params.dir / path).resolve() == item.path
        if is_file and item.nodeid.partition("::")[2].startswith(name):
            return True
    return False


TESTS = Path(__file__).parent

# Folders each of which one worker runs as a whole, because its modules share what no other folder
# uses: a Spark session, the built wheel, ZooKeeper and brokers of old releases, servers in
# containers, a ZooKeeper with TLS, a lab. The worker that runs the containers also runs the lab,
# because Chromium ends its requests when the network interface of a container appears or
# disappears.
TOGETHER = {
    "spark": "spark",
    "zk/contract": "containers",
    "zkreleases": "containers",
    "containers": "containers",
    "brokers": "brokers",
    "mixed": "mixed",
    "security": "security",
    "lab": "containers",
    "packages": "packages",
}

# These groups and modules use servers and are the longest. They start first, so that no worker ends
# with one of them alone.
FIRST = (
    "spark",
    "zk/contract",
    "zkreleases",
    "containers",
    "mixed",
    "lab",
    "brokers",
    "integration/test_restarts.py",
    "security",
    "integration",
    "sim/test_replies_like_real.py",
    "sim/test_zookeeper_like_real.py",
    "sim/test_replicas_like_real.py",
    "sandbox",
    "packages",
    "typing",
)
# The last worker takes the modules from the end: in turn some that mostly wait and one that
# computes for long, while the other workers start servers. Most modules that only compute are left
# for all workers at the end of a run, when no core must be idle. All other modules are between the
# two lists and keep their order.
LAST = (
    "config",
    "errors",
    "monitoring",
    "traces",
    "static",
    "member",
    "protocol",
    "history",
    "sim",
    "sim/test_jvm_member.py",
    "sim/test_aimed_worlds.py",
    "sim/test_mutants.py",
    "sim/test_full_worlds.py",
    "faults/test_tampering.py",
    "consumer/test_metrics.py",
    "consumer/test_stream_pause_seek.py",
    "consumer/test_rules.py",
    "sim/test_random_search.py",
    "consumer/test_timeouts.py",
    "consumer/test_shutdown.py",
    "consumer/test_stream.py",
    "sim/test_handover.py",
    "kafka/test_fetcher.py",
    "static/test_checks.py",
)


def _place(item: pytest.Item) -> int:
    """Return the sort key of a test in the order of a run."""
    path = item.path.relative_to(TESTS).as_posix()
    first = [number for number, start in enumerate(FIRST) if path.startswith(start)]
    last = [number for number, start in enumerate(LAST, 1) if path.startswith(start)]
    return first[0] if first else len(FIRST) + max(last, default=0)


class _Scheduling(LoadFileScheduling):
    """Gives workers a module or a folder of `TOGETHER` at a time; the last worker gets the last."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == f"gw{self.numnodes - 1}" != "gw0":
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        module = super()._split_scope(nodeid)
        inner = module.removeprefix("tests/")
        folders = (name for folder, name in TOGETHER.items() if inner.startswith(f"{folder}/"))
        return next(folders, module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """For `--dist loadfile`, the default of setup.cfg."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


# The niceness of all processes except Spark's. Spark gives its Python workers ten seconds to start,
# and no setting changes that.
YIELDS = 5


# The running test, if any.
_running: list[pytest.Item] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs, and lower the priority of processes that do not run Spark's tests.

    The priority of an xdist worker falls when it runs its first test that is not one of Spark's.
    """
    _running[:] = [item]
    is_spark = item.path.parent.name == "spark"
    if not is_spark and "PYTEST_XDIST_WORKER" in os.environ and os.nice(0) < YIELDS:
        os.nice(YIELDS - os.nice(0))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tests recorded as `summary`, also the tests of other processes."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "summary" and report.when == "call":
                    terminalreporter.write_line(text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure in CI; an expected failure (xfail) is left as it is."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not skip in CI: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns a module that skips itself as a whole (importorskip) into an error in CI."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} may not skip in CI: {_reason(report.longrepr)}"
    return report


def _reason(longrepr: object) -> str:
    """Return the reason of a skip, whose report is (file, line, reason)."""
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


_numbers = itertools.count(1)


@pytest.fixture
def ensemble(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_release: str
) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper servers for one test, which may kill some of them."""
    directory = tmp_path_factory.mktemp("ensemble")
    with ZooKeeperEnsemble(directory, release=zookeeper_release) as servers:
        yield servers


@pytest.fixture(scope="session", autouse=True)
def no_servers() -> Iterator[None]:
    """A test of the quick lane starts no server, whichever lane is run."""
    launch = JavaServer.launch

    def checked(server: JavaServer) -> None:
        for item in _running:
            assert not (fault := lanes.fault(item, [type(server).__name__])), fault
        launch(server)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JavaServer, "launch", checked)
        yield


@pytest.fixture(autouse=True)
def uses_no_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of the quick lane does not use a server that an earlier test started."""
    yield
    used = lanes.SERVER_FIXTURES.intersection(request.fixturenames)
    assert not (fault := lanes.fault(request.node, used)), fault


@pytest.fixture(autouse=True)
def logging_of_the_command_line() -> Iterator[None]:
    """Undo what the command line does to its process: it silences kazoo and adds a log handler.

    Without this, both would affect later tests, and the handler would write to the standard error
    of `CliRunner`, which is closed after the call.
    """
    root, kazoo = logging.getLogger(), logging.getLogger("kazoo")
    handlers, level = list(root.handlers), kazoo.level
    yield
    kazoo.setLevel(level)
    for one in set(root.handlers) - set(handlers):
        root.removeHandler(one)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes names (for topics, groups, znodes) that no other test of the session uses."""

    def name(stem: str) -> str:
        return f"{stem}-{os.getpid()}-{next(_numbers)}"

    return name
