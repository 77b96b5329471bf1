"""The rules of the suite itself: skips in CI, files that only `make proof` collects, load beside the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import EXPECTED_SKIPS, WITHOUT_LONG

ROOT = Path(__file__).parent.parent
SOON_S = 100.0
(EXPECTED,) = EXPECTED_SKIPS

SKIPS = f"""
import pytest

def test_that_runs():
    pass

@pytest.mark.skipif(True, reason="{EXPECTED} (3.99)")
def test_that_may_be_skipped():
    pass
"""
UNEXPECTED = """
import pytest

def test_that_finds_something_missing():
    pytest.skip("no such server here")
"""
MISSING_MODULE = """
import pytest
pytest.importorskip("no_module_has_this_name")
"""
ALL_LONG = """
import pytest

pytestmark = pytest.mark.long
raise ImportError("nobody should import this file")
"""
BESIDE = """
import os, sys
from pathlib import Path
children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
print(children.read_text() if children.exists() else "")
sys.exit(7)
"""


def run(folder: Path, *files: str, ci: str = "true", options: tuple[str, ...] = ()) -> tuple[int, str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    long\n    bench\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)],
        cwd=folder,
        env={**environment, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they need seconds to be imported
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    return ran.returncode, ran.stdout


def test_an_expected_skip_passes_in_ci(tmp_path: Path) -> None:
    code, out = run(tmp_path, SKIPS)
    assert code == 0, out
    assert "1 passed, 1 skipped" in out


@pytest.mark.parametrize("text", [UNEXPECTED, MISSING_MODULE], ids=["a test", "a module"])
def test_an_unexpected_skip_fails_in_ci(text: str, tmp_path: Path) -> None:
    code, out = run(tmp_path, text)
    assert code != 0
    assert "unexpected skip in CI" in out


def test_an_unexpected_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    code, out = run(tmp_path, SKIPS, UNEXPECTED, ci="")
    assert code == 0, out
    assert "1 passed, 2 skipped" in out


def test_a_file_that_is_long_as_a_whole_is_not_imported_without_long_tests(tmp_path: Path) -> None:
    code, out = run(tmp_path, SKIPS, ALL_LONG, options=("-m", WITHOUT_LONG))
    assert code == 0, out
    code, out = run(tmp_path, options=("-m", "long"))
    assert "nobody should import this file" in out


def test_the_ordinary_run_is_the_one_without_long_tests() -> None:
    assert f'"-m", "{WITHOUT_LONG}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_load_ends_with_the_command_it_is_beside(tmp_path: Path) -> None:
    """The command prints the processes that run beside it, and ends with a code of its own."""
    tool = [sys.executable, str(ROOT / "tools" / "under_load.py"), sys.executable, "-c", BESIDE]
    ran = subprocess.run(tool, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert ran.returncode == 7
    busy = [int(pid) for pid in ran.stdout.split()]
    ends = time.monotonic() + SOON_S
    while any(Path(f"/proc/{pid}").exists() for pid in busy):
        assert time.monotonic() < ends, busy
        time.sleep(0.02)
