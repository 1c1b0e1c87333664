"""In CI a skipped test is a failure: what was not run was not tested. Tests marked `gpu` may skip.

Invariant: with the environment variable CI set, a run that leaves out a test without that mark
does not exit 0. Imported by conftest.py, where pytest finds the two hooks.
"""

import os
from collections.abc import Generator

import pytest

NOT_SET = {"", "0", "false", "no"}


def _skips_fail() -> bool:
    return os.environ.get("CI", "").lower() not in NOT_SET


def _reason(longrepr: object) -> str:
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of one test into a failure. An expected failure is not a skip."""
    report = yield
    expected_failure = hasattr(report, "wasxfail")
    may_skip = expected_failure or item.get_closest_marker("gpu") is not None
    if report.skipped and not may_skip and _skips_fail():
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only `gpu` tests may: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure: it cannot be known to hold `gpu` only."""
    report = yield
    if report.outcome == "skipped" and _skips_fail():
        reason = _reason(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped in CI, mark its tests instead: {reason}"
    return report
