"""Helpers that write settings files, load them, and return their errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.settings.errors import SettingsError, SettingsProblem
from semel.settings.loading import load
from semel.settings.schema import Settings

ROUTE = '[[routes]]\nname = "all"\ntopics = ["**"]\nconsole = true\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "semel.toml"
    path.write_text(text, "utf-8")
    return path


def loaded(folder: Path, text: str, **environ: str) -> Settings:
    return load(write(folder, text), environ)


def problems(folder: Path, text: str, **environ: str) -> tuple[SettingsProblem, ...]:
    with pytest.raises(SettingsError) as raised:
        loaded(folder, text, **environ)
    return raised.value.problems


def told(folder: Path, text: str, **environ: str) -> list[str]:
    """One line for each problem, without the folder."""
    return [str(problem).replace(f"{folder}/", "") for problem in problems(folder, text, **environ)]


def as_toml(document: Mapping[str, Any]) -> str:
    """A document as TOML, one line for each key at the top."""
    return "".join(f"{_key(key)} = {_inline(value)}\n" for key, value in document.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value)) or f"{value:.6e}"
    return _key(value) if isinstance(value, str) else json.dumps(value)


def _key(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")
