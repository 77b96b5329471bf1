"""A plugin of pytest for `tools/mutants.py`: records for each passed test its seconds and the functions it entered.

Functions of child processes are not seen. They are reached by the tests that the tool runs last.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = f"{os.sep}src{os.sep}semel{os.sep}"
SAVED_EVERY = 50  # tests, so that a run that is cut off is of use


class Recorder:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._entered: set[CodeType] = set()
        self._failed: set[str] = set()
        self._reached: dict[str, tuple[float, list[str]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        entered = self._entered = set()
        add = entered.add

        def enter(frame: FrameType, event: str, argument: Any) -> None:
            add(frame.f_code)

        began = time.monotonic()
        threading.settrace(enter)
        sys.settrace(enter)
        try:
            result = yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
        if item.nodeid not in self._failed:
            names = {_name(code) for code in list(entered) if PACKAGE in code.co_filename}
            self._reached[item.nodeid] = (round(time.monotonic() - began, 2), sorted(names))
        if len(self._reached) % SAVED_EVERY == 0:
            self.pytest_sessionfinish()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps(self._reached))


def _name(code: CodeType) -> str:
    """`core/relay.py Relay._carry`; a function inside another one is part of it."""
    return f"{code.co_filename.rpartition(PACKAGE)[2]} {code.co_qualname.partition('.<locals>')[0]}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ["SEMEL_MUTANTS_REACH"])))
