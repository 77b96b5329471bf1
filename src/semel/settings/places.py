"""Where a fault stands, in the words of whoever wrote the settings: file and line or variable, table, name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.settings.lines import line_of, locate
from semel.settings.problems import Fault, Path, Problem, quoted

_ARRAYS = {
    "endpoints": "path",
    "sources": "name",
    "routes": "name",
    "tokens": "name",
}  # by what people tell them apart


class Places:
    """Puts faults into their places."""

    def __init__(self, file: str, text: str, document: Mapping[str, Any], origins: Mapping[Path, str]) -> None:
        self._file = file
        self._document = document
        self._origins = origins  # what was set by variables
        self._lines = locate(text)

    def problem(self, fault: Fault) -> Problem:
        variable = self._variable(fault.path)
        file, line = (variable, 0) if variable else (self._file, line_of(fault.path, self._lines))
        return Problem(file, line, table_of(fault.path, self._document), fault.what)

    def _variable(self, path: Path) -> str:
        """The variable that set this; or, where the file says nothing of it, one that set a part of it."""
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


def table_of(path: Path, document: Mapping[str, Any]) -> str:
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


def named(path: Path) -> str:
    """The setting as it is called inside its table: topics[1], headers.x-api-key."""
    inside = path[2:] if len(path) > 2 and path[0] in (*_ARRAYS, "destinations", "brokers", "providers") else path
    inside = inside[1:] if len(inside) > 1 and inside[0] == "callbacks" else inside
    inside = inside[1:] if len(inside) > 1 and inside[0] in ("server", "channels", "outbox", "verify") else inside
    return "".join(f"[{part}]" if isinstance(part, int) else f".{plain(part)}" for part in inside).lstrip(".")


def plain(name: str) -> str:
    """A name of the file, in quotes where a terminal would stumble over it."""
    return name if name.isprintable() and name else quoted(name)
