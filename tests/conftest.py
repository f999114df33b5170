"""What holds for the whole suite: in CI nothing may skip: a part that is missing is a failure."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure in CI; an expected failure (xfail) stays what it is."""
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
    """The words of a skip, whose report is (file, line, reason)."""
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
