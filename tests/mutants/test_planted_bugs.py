"""Every planted bug is noticed by the test it names; without it that test passes (the suite itself shows that)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants.catalogue import MUTANTS as CORE_MUTANTS
from tests.mutants.catalogue import Mutant
from tests.mutants.identity_catalogue import IDENTITY_MUTANTS
from tests.mutants.outbox_catalogue import OUTBOX_MUTANTS
from tests.mutants.service_catalogue import SERVICE_MUTANTS
from tests.mutants.store_catalogue import STORE_MUTANTS

ROOT = Path(__file__).parents[2]
MUTANTS = [*CORE_MUTANTS, *SERVICE_MUTANTS, *STORE_MUTANTS, *OUTBOX_MUTANTS, *IDENTITY_MUTANTS]
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they need 1.5 s to be imported
TESTS_FAILED = 1  # pytest's exit code; 2 to 5 mean that it did not get to test anything


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    plant(mutant, tmp_path / "semel")
    killer = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_timeout",
            "-m",
            "not bench",
            mutant.killer,
        ],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert killer.returncode == TESTS_FAILED, f"{mutant.killer} does not notice it:\n{killer.stdout[-3000:]}"


def plant(mutant: Mutant, package: Path) -> None:
    """A copy of the package with the bug in it. A bug that does not land proves nothing."""
    changed = with_bug(mutant)
    shutil.copytree(ROOT / "src" / "semel", package)  # with the compiled files of all modules that stay as they are
    file = package / mutant.file
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    file.write_text(changed)


def with_bug(mutant: Mutant) -> str:
    source = (ROOT / "src" / "semel" / mutant.file).read_text()
    assert source.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed, plant it anew"
    changed = source.replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")
    return changed


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_can_be_planted(mutant: Mutant) -> None:
    """In every run, so that a change of its place is seen before `make proof`."""
    assert with_bug(mutant)


def test_there_are_enough_of_them_and_each_names_its_killer() -> None:
    assert len(MUTANTS) >= 15
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        file, _, name = mutant.killer.partition("::")
        assert (ROOT / file).is_file()
        test = name.rpartition("::")[2]
        law = [*(ROOT / "src/semel/testing/laws").glob("*.py"), ROOT / file]
        assert not test or any(f"def {test}(" in path.read_text() for path in law), mutant.killer
