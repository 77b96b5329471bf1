"""`make` finds an interpreter that works, wherever it stands on the path."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOON_S = 60.0
INACTIVE_SHIM = """#!/bin/sh
echo "pyenv: $(basename "$0"): command not found" >&2
exit 127
"""
WORKS = """#!/bin/sh
case "$1" in
  -c) echo "$0" ;;
  -V) echo "Python 3.13.0" ;;
  *) mkdir .venv ;;
esac
"""


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(ROOT / "Makefile", project)
    for tool in ("sh", "cat", "basename", "mkdir", "rm", "pwd"):  # nothing else of this machine is on the path
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / tool).symlink_to(found)
    return project


def make(project: Path, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = ":".join(str(folder) for folder in (*folders, project.parent / "tools"))
    command = [str(shutil.which("make")), "--no-print-directory", ".venv/.python"]
    return subprocess.run(
        command, cwd=project, env={"PATH": path}, capture_output=True, text=True, timeout=SOON_S, check=False
    )


def test_an_inactive_shim_does_not_hide_the_interpreter_behind_it(project: Path, tmp_path: Path) -> None:
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        program(tmp_path / "shims", name, INACTIVE_SHIM)
    real = program(tmp_path / "behind it", "python3.13", WORKS)
    made = make(project, tmp_path / "shims", real.parent)
    assert made.returncode == 0, made.stderr
    assert str(real) in (project / ".venv" / ".python").read_text()


def test_an_older_interpreter_serves_where_the_newest_is_only_a_shim(project: Path, tmp_path: Path) -> None:
    program(tmp_path / "shims", "python3.13", INACTIVE_SHIM)
    real = program(tmp_path / "shims", "python3.11", WORKS)
    made = make(project, real.parent)
    assert made.returncode == 0, made.stderr
    assert str(real) in (project / ".venv" / ".python").read_text()


def test_without_any_interpreter_that_works_nothing_is_made(project: Path, tmp_path: Path) -> None:
    program(tmp_path / "shims", "python3", INACTIVE_SHIM)
    made = make(project, tmp_path / "shims")
    assert made.returncode != 0
    assert "PYTHON=" in made.stderr
    assert not (project / ".venv").exists()
