"""The examples of docs/testing.md run as the page says, with pytest and with unittest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIMIT_S = 240


def run(*words: str) -> str:
    """Run a module of Python in the folder of the examples, and return its output."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", *words],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def with_pytest(*options: str) -> str:
    """Run the example's tests with pytest, without this repository's settings."""
    own = ("-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", "-p", "no:xdist")
    plugin = ("-p", "zkconsumer.testing.plugin")
    failing = ("-W", "error::pytest.PytestUnhandledThreadExceptionWarning")
    files = ("test_totals.py", "test_totals_unittest.py")
    return run("pytest", *own, *plugin, *failing, *options, *files)


def test_pytest_on_the_fake() -> None:
    """The example's tests pass on fake servers."""
    assert re.search(r"\b6 passed\b", with_pytest())


def test_pytest_on_the_sandbox() -> None:
    """The same tests pass on real servers; those that ask for the fake run there."""
    assert re.search(r"\b6 passed\b", with_pytest("--legacy-kafka", "sandbox"))


@pytest.mark.timeout(10 * LIMIT_S)
def test_the_suite_of_fifty_tests_on_the_sandbox() -> None:
    """tests/testing/test_users_suite.py, which runs on the fake, also passes on real servers."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("--legacy-kafka", "sandbox", "tests/testing/test_users_suite.py"),
        ],
        cwd=EXAMPLES.parents[1],
        capture_output=True,
        text=True,
        timeout=9 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b50 passed\b", done.stdout)


def test_unittest() -> None:
    """The example's test passes with unittest."""
    assert "OK" in run("unittest", "test_totals_unittest.py")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--legacy-kafka", "sandbox", "--legacy-kafka-release", "7"), "no broker of release 7"),
        (("--legacy-kafka-release", "7"), "no fake broker of release 7"),
    ],
)
def test_an_unknown_release_is_an_error(options: tuple[str, ...], text: str) -> None:
    """A release that the backend does not have is an error that names the releases."""
    with pytest.raises(AssertionError, match=text):
        with_pytest(*options, "-k", "added_up")
