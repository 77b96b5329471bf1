"""The library installs without the packages of the command line."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from semel.__main__ import CLI_PACKAGES

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[; ]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_the_library_depends_on_two_packages_and_the_service_on_the_command_line() -> None:
    assert packages(PROJECT["dependencies"]) == {"msgspec", "apsw"}
    assert packages(PROJECT["optional-dependencies"]["cli"]) == set(CLI_PACKAGES)
    assert "semel[cli]" in PROJECT["optional-dependencies"]["service"]


def test_the_command_without_its_packages_names_the_extra_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from semel.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert "semel[cli]" in run.stderr
    assert "Traceback" not in run.stderr
