"""`semel`, in this process (quick) or in one of its own (real signals, real exit codes)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import typer.testing
from typer.main import get_command
from typer.testing import CliRunner

from semel.cli import main
from semel.values.errors import SemelError

ROOT = Path(__file__).parent.parent.parent
READY_S = 30
MAIN = "semel.cli.main"

# Typer builds the tree of all commands for each call, which takes longer than most commands. Here it is built once.
vars(typer.testing)["_get_command"] = cache(get_command)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def semel(*arguments: str, env: dict[str, str] | None = None) -> Ended:
    """One command in this process. A SemelError is an exit with 2, as in the console entry."""
    result = CliRunner().invoke(main.app, arguments, env={"COLUMNS": "200", **(env or {})})
    if isinstance(result.exception, SemelError):
        return Ended(2, result.stdout, f"{result.stderr}{result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """One command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", MAIN, *arguments], cwd=ROOT, text=True, **options)


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process, and the URL on its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, f"it did not start: {process.communicate()[1]}"
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def a_sink(*options: str) -> Iterator[str]:
    with running(MAIN, "sink", *options) as (_, url):
        yield url


def get(url: str) -> Any:
    with urlopen(url, timeout=READY_S) as answer:
        return json.loads(answer.read())
