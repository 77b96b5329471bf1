"""Processes that are forked from one that has imported what they need: most of a start is imports.

There is one fork server for each process of tests, and it imports the last list that it was given before its first
fork. So the modules of all tests are collected in one list; each test file adds its own when it is imported.
"""

from __future__ import annotations

import multiprocessing
import subprocess
from multiprocessing.process import BaseProcess

START = multiprocessing.get_context("forkserver")
_MODULES: list[str] = []


def preload(*modules: str) -> None:
    """Let the fork server import these modules, besides those that were named before."""
    _MODULES.extend(module for module in modules if module not in _MODULES)
    START.set_forkserver_preload(_MODULES)


class Forked:
    """A process, as `subprocess.Popen` shows one."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process.name), timeout or 0.0)
        return code

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL: nothing is closed, nothing is flushed."""
        self._process.kill()
