"""What is wrong with the settings: found all at once, each told with its place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeAlias

from msgspec import Struct

from semel.values.errors import ConfigError

SHOWN_MAX_CHARS = 60  # of a value that is repeated in an error

SettingPath: TypeAlias = tuple[str | int, ...]
"""Where in the document: ("routes", 1, "forward")."""


class Fault(Struct, frozen=True):
    """Something wrong at a path. It is not told when what it is about is wrong already."""

    path: SettingPath
    what: str
    about: tuple[SettingPath, ...] = ()


class Problem(Struct, frozen=True):
    """A fault, as it is told to people."""

    file: str  # or the name of the variable that overrides it
    line: int  # 0: none, as of a variable
    where: str  # the table: `[[routes]] "to-crm"`; empty at the top
    what: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.where, self.what) if part)


class SettingsError(ConfigError):
    """The settings cannot be used. Its text has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        many = len(self.problems)
        head = f"{many} problems in the settings:\n" if many > 1 else ""
        return head + "\n".join(map(str, self.problems))


def quoted(text: str) -> str:
    """A value in an error: short, on one line, with control characters spelled out."""
    short = text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + "…"
    return json.dumps(short, ensure_ascii=not short.isprintable())


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word[:SHOWN_MAX_CHARS].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names what was probably meant."""
    near = nearest(word, known)
    return f"; did you mean {quoted(near)}?" if near else ""
