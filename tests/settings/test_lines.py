"""The line of each value in a TOML file."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.settings.errors import SettingPath, line_of, locate

EXAMPLE = """\
# a comment with a = 1
ledger = "x"            # and one behind

[server]
port = 8080
"quoted key" = 1
a.b . "c.d" = 2

[[routes]]
name = "first"
topics = [
    "a.*",  # a comment, with ] in it
    'b.**',
]
text = \"\"\"
[[routes]]
name = "not this one"
\\\"\"\" \"\"\"\"

[routes.inside]
x = 1

[[routes]]
name = "second"
verify = { scheme = "genesys", nested = { deep = [1, 2] } }
[[routes.more]]
y = 1
[[routes.more]]
y = 2
[destinations.crm.headers]
A = 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("ledger",), 2),
        (("server",), 4),
        (("server", "port"), 5),
        (("server", "quoted key"), 6),
        (("server", "a", "b", "c.d"), 7),
        (("routes",), 9),
        (("routes", 0), 9),
        (("routes", 0, "name"), 10),
        (("routes", 0, "topics"), 11),
        (("routes", 0, "topics", 0), 12),
        (("routes", 0, "topics", 1), 13),
        (("routes", 0, "text"), 15),
        (("routes", 0, "inside", "x"), 21),
        (("routes", 1), 23),
        (("routes", 1, "name"), 24),
        (("routes", 1, "verify", "nested", "deep", 1), 25),
        (("routes", 1, "more", 0, "y"), 27),
        (("routes", 1, "more", 1, "y"), 29),
        (("destinations", "crm", "headers"), 30),
        (("destinations", "crm", "headers", "A"), 31),
    ],
)
def test_each_key_has_its_line(path: SettingPath, line: int) -> None:
    assert tomllib.loads(EXAMPLE)
    assert locate(EXAMPLE)[path] == line


def test_a_missing_path_has_the_line_of_its_table() -> None:
    lines = locate(EXAMPLE)
    assert line_of(("routes", 1, "forward"), lines) == 23
    assert line_of(("server", "port", "deeper"), lines) == 5
    assert line_of(("tokens", 0, "name"), lines) == 0


def test_lines_that_end_as_on_windows_are_counted_once() -> None:
    assert locate(EXAMPLE.replace("\n", "\r\n")) == locate(EXAMPLE)


class Writer:
    """Writes a random document in which every value tells the line it stands on."""

    def __init__(self, choice: random.Random) -> None:
        self.lines: list[str] = [""]
        self._choice = choice
        self._names = 0
        self._arrays: list[list[str]] = []

    def document(self) -> str:
        for _ in range(self._choice.randint(0, 4)):
            self._pair()
        for _ in range(self._choice.randint(0, 8)):
            self._header()
            for _ in range(self._choice.randint(0, 4)):
                self._pair()
        return "\n".join(self.lines)

    def _put(self, text: str) -> None:
        first, *others = text.split("\n")
        self.lines[-1] += first
        self.lines += others

    def _end(self) -> None:
        self._put(self._choice.choice(["\n", "  # a = [1\n", "\n\n", '\n# "\n', "\t\n"]))

    def _name(self) -> str:
        self._names += 1
        form = self._choice.choice(["k-{}", '"k {}"', "'k.{}'", '"\\u00e9\\"]{}"', '"#{}"', "{}"])
        return form.format(self._names)

    def _header(self) -> None:
        known = self._choice.choice(self._arrays) if self._arrays and self._choice.random() < 0.7 else []
        blank = self._choice.choice(["", " "])
        if known and self._choice.random() < 0.5:
            keys, array = known, True  # another table of the same array
        else:
            keys, array = (
                [*known, *(self._name() for _ in range(self._choice.randint(1, 2)))],
                self._choice.random() < 0.5,
            )
            if array:
                self._arrays.append(keys)
        if array:  # the arrays inside of the one before are begun anew
            self._arrays = [one for one in self._arrays if one[: len(keys)] != keys or one == keys]
        written = f"{blank}.{blank}".join(keys)
        self._put(f"[[{blank}{written}{blank}]]" if array else f"[{blank}{written}{blank}]")
        self._end()

    def _pair(self) -> None:
        self._put(".".join(self._name() for _ in range(self._choice.choice([1, 1, 1, 2, 3]))))
        self._put(self._choice.choice([" = ", "=", "\t=  "]))
        self._value(3)
        self._end()

    def _value(self, depth: int, inline: bool = False) -> None:
        line = len(self.lines)
        kinds = ["number", "text", "literal"]
        kinds += ["long", "long literal"] if not inline else []
        kinds += ["array", "table"] if depth else []
        match self._choice.choice(kinds):
            case "number":
                self._put(str(line))
            case "text":
                self._put(f'"{line}: \\"] # {{ \\\\"')
            case "literal":
                self._put(f"'{line}: \" ]}} [[x]] \\'")
            case "long":
                ending = self._choice.choice(['"""', '""""', '"""""'])
                self._put(f'"""{line}: ""\n[[x]]\na = 1 # "" \\""" \\\\\n{ending}')
            case "long literal":
                ending = self._choice.choice(["'''", "''''", "'''''"])
                self._put(f"'''{line}: ''\n[y]\n\"\"\" \\\nb = 2{ending}")
            case "array":
                self._put("[")
                for _ in range(self._choice.randint(0, 3)):
                    self._put("" if inline else self._choice.choice(["", " ", "\n", " # ]\n  "]))
                    self._value(depth - 1, inline)
                    self._put(self._choice.choice([",", " , "]))
                self._put("]")
            case "table":
                self._put("{")
                for at in range(self._choice.randint(0, 3)):
                    self._put(
                        (", " if at else " ")
                        + ".".join(self._name() for _ in range(self._choice.randint(1, 2)))
                        + " = "
                    )
                    self._value(depth - 1, inline=True)
                self._put(" }")


def leaves(value: Any, path: SettingPath = ()) -> Iterator[tuple[SettingPath, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value


def places(value: Any, path: SettingPath = ()) -> Iterator[SettingPath]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        yield (*path, key)
        yield from places(inner, (*path, key))


@given(st.integers(0, 2**64))
def test_every_value_of_any_document_is_found_on_its_line(seed: int) -> None:
    text = Writer(random.Random(seed)).document()
    document = tomllib.loads(text)  # a document that is no TOML would prove nothing
    lines = locate(text)
    assert set(lines) == set(places(document)), text
    for path, value in leaves(document):
        written = int(re.match(r"\d+", str(value))[0])  # type: ignore[index]
        assert lines[path] == written, (path, text)
    for path, line in lines.items():
        assert all(line <= lines[inner] for inner in lines if inner[: len(path)] == path), (path, text)


def test_the_generated_documents_are_worth_something() -> None:
    texts = [Writer(random.Random(seed)).document() for seed in range(300)]
    found = [locate(text) for text in texts]
    assert any("[[" in text for text in texts)
    assert any(len(path) > 5 for lines in found for path in lines)
    assert any(sum(isinstance(part, int) for part in path) > 1 for lines in found for path in lines)
    assert max(map(len, found)) > 30
