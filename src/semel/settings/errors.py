"""Errors in settings: all faults of a file, each with its file, line and table.

TOML errors come from `tomllib`, which does not report lines of values. `locate` finds them."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from msgspec import Struct

from semel.values.errors import ConfigError

SHOWN_MAX_CHARS = 60  # of a value that is repeated in an error

SettingPath: TypeAlias = tuple[str | int, ...]
"""A path in the document: ("routes", 1, "forward")."""


class Fault(Struct, frozen=True):
    """A problem at a path. It is not reported if a path of `about` is already wrong."""

    path: SettingPath
    what: str
    about: tuple[SettingPath, ...] = ()


class SettingsProblem(Struct, frozen=True):
    """A fault with its place in the file."""

    file: str  # or the name of the environment variable
    line: int  # 0: no line, for a variable
    where: str  # the table: `[[routes]] "to-crm"`; empty at the top
    what: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.where, self.what) if part)


class SettingsError(ConfigError):
    """The settings are invalid. The text has one line per problem."""

    def __init__(self, problems: Iterable[SettingsProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{count} problems in the settings:\n" if count > 1 else ""
        return head + "\n".join(map(str, self.problems))


def quoted(text: str) -> str:
    """A value in an error: short, on one line, with control characters spelled out."""
    short = text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + "…"
    return json.dumps(short, ensure_ascii=not short.isprintable())


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most similar, or an empty text."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word[:SHOWN_MAX_CHARS].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error with the most similar known word, or an empty text."""
    near = nearest(word, known)
    return f"; did you mean {quoted(near)}?" if near else ""


# Locates settings: the line in `semel.toml`, or the environment variable, that a fault names.

_ARRAYS = {
    "endpoints": "path",
    "sources": "name",
    "routes": "name",
    "tokens": "name",
}  # the key that identifies a table in errors


class Places:
    """Finds the line, the variable and the table of a fault."""

    def __init__(self, file: str, text: str, document: Mapping[str, Any], origins: Mapping[SettingPath, str]) -> None:
        self._file = file
        self._document = document
        self._origins = origins  # settings that environment variables have set
        self._lines = locate(text)

    def problem(self, fault: Fault) -> SettingsProblem:
        variable = self._variable(fault.path)
        file, line = (variable, 0) if variable else (self._file, line_of(fault.path, self._lines))
        return SettingsProblem(file, line, table_of(fault.path, self._document), fault.what)

    def _variable(self, path: SettingPath) -> str:
        """The variable that set this path; or, if the path is not in the file, a variable that set a part of it."""
        prefixes = [path[:length] for length in range(len(path), 0, -1)]
        for prefix in prefixes:
            if prefix in self._origins:
                return self._origins[prefix]
        for prefix in prefixes:
            if prefix in self._lines:
                return ""
            for origin, variable in self._origins.items():
                if origin[: len(prefix)] == prefix:
                    return variable
        return ""


def table_of(path: SettingPath, document: Mapping[str, Any]) -> str:
    """The table that a path is in: `[[routes]] "to-crm"`. Empty at the top."""
    match path:
        case (("server" | "channels" | "outbox") as table, _, *_):
            return f"[{table}]"
        case ("providers", str(name), "callbacks", _, *_):
            return f"[providers.{plain(name)}.callbacks]"
        case (("destinations" | "brokers" | "providers") as tables, str(name), *_):
            return f"[{tables}.{plain(name)}]"
        case (("endpoints" | "sources" | "routes" | "tokens") as array, int(index), *rest):
            member = document[array][index]
            own = member.get(_ARRAYS[array]) if isinstance(member, Mapping) else None
            label = quoted(own) if isinstance(own, str) and own else f"number {index + 1}"
            return f"[[{array}]] {label}" + (" [verify]" if rest[:1] == ["verify"] and len(rest) > 1 else "")
    return ""


def named(path: SettingPath) -> str:
    """The name of a setting within its table: topics[1], headers.x-api-key."""
    inside = path[2:] if len(path) > 2 and path[0] in (*_ARRAYS, "destinations", "brokers", "providers") else path
    inside = inside[1:] if len(inside) > 1 and inside[0] == "callbacks" else inside
    inside = inside[1:] if len(inside) > 1 and inside[0] in ("server", "channels", "outbox", "verify") else inside
    return "".join(f"[{part}]" if isinstance(part, int) else f".{plain(part)}" for part in inside).lstrip(".")


def plain(name: str) -> str:
    """A name in the file, quoted if it is empty or not printable."""
    return name if name.isprintable() and name else quoted(name)


# The lines of a TOML text. `tomllib` has accepted the text already, so the scanner does not validate it.

_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_TEXTS = (  # long forms first; a text may end with two quotes before the three that close it
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


def locate(text: str) -> dict[SettingPath, int]:
    """The line of every key, table and member of an array, counted from 1."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


def line_of(path: SettingPath, lines: Mapping[SettingPath, int]) -> int:
    """The line of the path or of its nearest enclosing table; 0 if there is none."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0


class _Scanner:
    """Scans the text once and records the line of each key, table and array member."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[SettingPath, int] = {}
        self._last: dict[SettingPath, int] = {}  # the index of the newest table of each [[array]]

    def scan(self) -> dict[SettingPath, int]:
        table: SettingPath = ()
        self._skip_blank()
        while self._at < len(self._text):
            line = self._line()
            if self._take("[["):
                table = self._array_table(self._key(), line)
                self._take("]]")
            elif self._take("["):
                table = self._table(self._key(), line)
                self._take("]")
            else:
                self._pair(table)
            self._skip_blank()
        return self._lines

    def _table(self, key: SettingPath, line: int) -> SettingPath:
        """[a.b]: below an array of tables it belongs to the newest table."""
        path: SettingPath = ()
        for name in key:
            path = (*path, name)
            self._lines.setdefault(path, line)
            if path in self._last:
                path = (*path, self._last[path])
        return path

    def _array_table(self, key: SettingPath, line: int) -> SettingPath:
        array = (*self._table(key[:-1], line), key[-1])
        self._last[array] = self._last.get(array, -1) + 1
        path = (*array, self._last[array])
        self._lines.setdefault(array, line)
        self._lines[path] = line
        return path

    def _pair(self, table: SettingPath) -> None:
        """key = value"""
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self._lines.setdefault(path, line)
        self._skip_blank()
        self._take("=")
        self._skip_blank()
        self._value(path)

    def _value(self, path: SettingPath) -> None:
        if self._take("["):
            index = 0
            self._skip_blank()
            while not self._take("]"):
                self._lines[(*path, index)] = self._line()
                self._value((*path, index))
                index += 1
                self._next()
        elif self._take("{"):
            self._skip_blank()
            while not self._take("}"):
                self._pair(path)
                self._next()
        else:
            self._at = self._text_end() or self._match(_SCALAR).end()

    def _next(self) -> None:
        self._skip_blank()
        self._take(",")
        self._skip_blank()

    def _key(self) -> SettingPath:
        """A dotted key such as a."b".c."""
        self._skip_blank()
        names: list[str] = []
        while True:
            begun = self._at
            self._at = self._text_end() or self._match(_BARE_KEY).end()
            name = self._text[begun : self._at]
            names.append(tomllib.loads(f"key = {name}")["key"] if name[0] in "\"'" else name)
            dot = _DOT.match(self._text, self._at)
            if dot is None:
                self._skip_blank()
                return tuple(names)
            self._at = dot.end()

    def _text_end(self) -> int | None:
        if self._text[self._at] in "\"'":
            for pattern in _TEXTS:
                if found := pattern.match(self._text, self._at):
                    return found.end()
        return None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        assert found is not None, f"line {self._line()}: not valid TOML"
        return found

    def _skip_blank(self) -> None:
        self._at = self._match(_BLANK).end()

    def _take(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) if found else 0
        return found

    def _line(self) -> int:
        return bisect_left(self._ends, self._at) + 1
