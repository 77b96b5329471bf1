"""How tests are collected and counted, and the settings of Hypothesis."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("semel.testing")  # the shipped laws explain their failures like tests do

# No deadline and no check of speed: a slow machine is not a bug. The blob lets a failure elsewhere be replayed here.
settings.register_profile(
    "semel", max_examples=50, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("proof", settings.get_profile("semel"), max_examples=300)  # of `make proof`
settings.load_profile("semel")

Report: TypeAlias = Generator[None, Any, Any]

WITHOUT_LONG = "not long and not bench"  # as in pyproject.toml
ALL_LONG = "\npytestmark = pytest.mark.long"

# Skips that CI accepts, by how their reason begins, and why no CI can run them.
EXPECTED_SKIPS = {
    "sqlite3 of this Python is sound": "the test is about the SQLite of older Pythons, which other interpreters bring",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which everything is long is not imported for a run without long tests: some take seconds for that."""
    if collection_path.suffix != ".py" or config.getoption("markexpr") != WITHOUT_LONG:
        return None
    return True if ALL_LONG in collection_path.read_text("utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Report:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Report:
    report = yield
    if report.skipped:
        _fail_in_ci(report)
    return report


def _fail_in_ci(report: Any) -> None:
    """A skip that nobody expects fails in CI: a test that never runs proves nothing."""
    if not os.environ.get("CI"):
        return
    reason = str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    if not reason.startswith(tuple(EXPECTED_SKIPS)):
        report.outcome = "failed"
        report.longrepr = f"unexpected skip in CI: {reason or report.longrepr}"
