"""Mistakes in a handler are visible to a type checker before anything runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SAMPLE = Path(__file__).parent / "handlers.txt"  # no .py: it is wrong on purpose
REFUSED = {
    number for number, line in enumerate(SAMPLE.read_text("utf-8").splitlines(), 1) if line.endswith("  # refused")
}


def test_mypy_refuses_each_marked_line_and_no_other(tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(SAMPLE.read_text("utf-8"), "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    run = subprocess.run([*command, str(handlers)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = {int(number) for number in re.findall(r"handlers\.py:(\d+): error:", run.stdout)}
    assert run.returncode == 1, run.stderr
    assert found == REFUSED, run.stdout
    assert len(REFUSED) >= 9


@pytest.mark.long  # 16 s of processor time: it reads all that handlers can import
def test_pyright_refuses_each_marked_line_and_no_other(tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(SAMPLE.read_text("utf-8"), "utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error", "--pythonpath", sys.executable]
    run = subprocess.run([*command, str(handlers)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)["generalDiagnostics"]
    assert {one["range"]["start"]["line"] + 1 for one in found} == REFUSED, run.stdout
