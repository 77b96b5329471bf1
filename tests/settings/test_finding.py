"""`module:app` is imported, or its error is reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.wording import lacks

from semel import Semel
from semel.cli.app_importer import find_app
from semel.values.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of one's own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(target: str) -> str:
    with pytest.raises(ConfigError) as raised:
        find_app(target)
    return str(raised.value)


def test_an_app_is_found_in_the_working_directory(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop/__init__.py").touch()
    (folder / "shop/events.py").write_text("from semel import Semel\napp = Semel('memory://')\n")
    (folder / "shop/parts.py").write_text("from shop import events\nclass inner:\n    app = events.app\n")
    found = find_app("shop.events:app")
    assert isinstance(found, Semel)
    assert find_app("shop.parts:inner.app") is found


def test_it_is_found_by_the_installed_command_too(folder: Path) -> None:
    """Not only where Python puts the working directory on its path by itself."""
    (folder / "alone.py").write_text("from semel import Semel\napp = Semel('memory://')\n")
    script = folder / "elsewhere" / "run.py"
    script.parent.mkdir()
    script.write_text("from semel.cli.app_importer import find_app\nprint(type(find_app('alone:app')).__name__)\n")
    ended = subprocess.run([sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "Semel\n", ended.stderr


@pytest.mark.parametrize("target", ["shop", "", ":", "shop:", ":app", "shop.events", "a b:app", "a:b c", "..x:app"])
def test_an_app_name_without_its_module_is_reported(folder: Path, target: str) -> None:
    assert "module:app" in refused(target)


def test_a_file_name_is_reported_with_its_module_name(folder: Path) -> None:
    assert lacks(refused("./shop/events.py"), "./shop/events.py shop.events:app") == []
    assert lacks(refused("shop/events.py:app"), ".py shop.events") == []


def test_a_missing_module_is_reported(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop/__init__.py").touch()
    assert lacks(refused("nowhere_at_all:app"), 'module "nowhere_at_all"') == []
    assert lacks(refused("shop.evnts:app"), 'module "shop.evnts"') == []


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import semel\n\nimport not_installed_here\n", 3, "ModuleNotFoundError: No module named 'not_installed_here'"),
        ("x = 1\nx.y\n", 2, "AttributeError: 'int' object has no attribute 'y'"),
        ("def f():\n    raise RuntimeError('boom')\nf()\n", 2, "RuntimeError: boom"),
        ("x = (\n", 1, "SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("import deeper_faulty\n", 1, "ZeroDivisionError: division by zero"),
        ("from semel import Semel\nSemel('nonsense')\n", 2, "ConfigError: "),
    ],
)
def test_an_error_inside_the_module_is_reported_with_its_line(folder: Path, text: str, line: int, said: str) -> None:
    (folder / "faulty.py").write_text(text)
    (folder / "deeper_faulty.py").write_text("1 / 0\n")
    told = refused("faulty:app")
    assert lacks(told, "module faulty") == []
    assert f"faulty.py, line {line}: " in told
    assert said in told


def test_a_missing_name_is_reported_with_a_suggestion(folder: Path) -> None:
    (folder / "named.py").write_text("from semel import Semel\napplication = Semel('memory://')\n")
    (folder / "plain.py").write_text("appp = 1\n")
    assert lacks(refused("named:app"), 'module named "app" "application"') == []
    assert lacks(refused("plain:app"), 'module plain "app" "appp"') == []


def test_an_object_that_is_not_an_app_is_reported(folder: Path) -> None:
    (folder / "other.py").write_text("app = 1\ndef make(): ...\n")
    assert lacks(refused("other:app"), '"other:app" Semel int') == []
    assert lacks(refused("other:make"), '"other:make" Semel function') == []
