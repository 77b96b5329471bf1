"""On which line of a TOML text a value stands. tomllib does not tell, and an error without its line is half an error.

The text is one that tomllib has accepted, so this only has to find its way, not to judge.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping

from semel.settings.problems import Path

_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_TEXTS = (  # the long ones first; a text may end with two quotes of its own before the three that close it
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


def locate(text: str) -> dict[Path, int]:
    """The line of every key, table and member of an array, counted from 1."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


def line_of(path: Path, lines: Mapping[Path, int]) -> int:
    """The line of the nearest enclosing thing that has one; 0 where nothing has."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0


class _Scanner:
    """Walks over the text once and notes where each thing begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[Path, int] = {}
        self._last: dict[Path, int] = {}  # of every [[array]]: the index of its newest table

    def scan(self) -> dict[Path, int]:
        table: Path = ()
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

    def _table(self, key: Path, line: int) -> Path:
        """[a.b]: under an array of tables it belongs to the newest of them."""
        path: Path = ()
        for name in key:
            path = (*path, name)
            self._lines.setdefault(path, line)
            if path in self._last:
                path = (*path, self._last[path])
        return path

    def _array_table(self, key: Path, line: int) -> Path:
        array = (*self._table(key[:-1], line), key[-1])
        self._last[array] = self._last.get(array, -1) + 1
        path = (*array, self._last[array])
        self._lines.setdefault(array, line)
        self._lines[path] = line
        return path

    def _pair(self, table: Path) -> None:
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

    def _value(self, path: Path) -> None:
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

    def _key(self) -> Path:
        """a."b".c, up to what follows it."""
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
        assert found is not None, f"line {self._line()}: this is no TOML"
        return found

    def _skip_blank(self) -> None:
        self._at = self._match(_BLANK).end()

    def _take(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) if found else 0
        return found

    def _line(self) -> int:
        return bisect_left(self._ends, self._at) + 1
