"""How tests are collected and counted, and the settings of Hypothesis."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from tempfile import gettempdir
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

# A shell lets its background jobs ignore SIGINT, and so does what such a job starts: nothing could be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


FIRST_WORKER = "gw0"
COLLECT_S = 300.0  # the others collect by themselves then


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Report:
    """The first worker collects ahead of the others: those find all files compiled, which is most of a collection."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return (yield)
    collected = Path(gettempdir()) / f"semel-collected-{worker['testrunuid']}"
    if worker["workerid"] == FIRST_WORKER:
        session.config.add_cleanup(lambda: collected.unlink(missing_ok=True))  # the others begin only with this one
        try:
            return (yield)
        finally:
            collected.touch()
    deadline = time.monotonic() + COLLECT_S
    while not collected.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return (yield)


def pytest_collection_finish() -> None:
    """The tests themselves live as long as the run, so the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


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
