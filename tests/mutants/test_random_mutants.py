"""The tables of `tools/mutants.py` name files, tests and lines that are there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("semel_mutants_tool", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_every_area_has_files_and_tests(tool: ModuleType) -> None:
    files = {site.file for site in tool.all_sites()}
    for prefix, patterns in tool.TESTS:
        assert any(file.startswith(prefix) for file in files), prefix
        for pattern in patterns:
            assert list(ROOT.glob(pattern)), pattern
    for name in tool.VALUES:
        assert (ROOT / "src" / "semel" / "values" / f"{name}.py").is_file(), name


def test_every_change_without_effect_is_a_mutant_still(tool: ModuleType) -> None:
    """An entry whose line has changed was looked at for another line."""
    mutants = set()
    for site in tool.all_sites():
        _, old, new = tool.changed(site)
        mutants.add((site.file, old, new))
    assert [entry for entry in tool.EQUIVALENT if entry not in mutants] == []
