"""docs/glossary.md and the public names use the same words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec import Struct
from tools.ratchet import retired_words

import semel
from semel.cli.main import app as command_line
from semel.service.api.routes import description
from semel.service.metrics import FAMILIES
from semel.settings import schema

PAGE = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text("utf-8")
WORDS = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE, re.MULTILINE))
del WORDS["word"]  # the heading

# A word on the left is a synonym that a public name must not use; the glossary has the word on the right.
SYNONYMS = {
    "fence": "token",
    "dedup": "duplicate",
    "idempotency": "key",
    "lock": "lease",
    "job": "run",
    "gateway": "provider",
}
WORDS_OF_OTHERS = {"semel_fence_refusals_total": "a fenced write is the usual name for a write that a token refuses"}


def python_names() -> Iterator[str]:
    for name in semel.__all__:
        yield name
        found = getattr(semel, name)
        if inspect.isclass(found):
            yield from (member for member in vars(found) if not member.startswith("_"))


def setting_names() -> Iterator[str]:
    for found in vars(schema).values():
        if inspect.isclass(found) and issubclass(found, Struct):
            yield from found.__struct_fields__


def http_names() -> Iterator[str]:
    def names_in(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from part.get("properties", {}) if isinstance(part.get("properties"), dict) else ()
            yield from [part["operationId"]] if "operationId" in part else []
            part = list(part.values())
        if isinstance(part, list):
            for inner in part:
                yield from names_in(inner)

    yield from names_in(description())


def command_names() -> Iterator[str]:
    def names_in(command: Any) -> Iterator[str]:
        yield command.name or ""
        yield from (option for parameter in command.params for option in parameter.opts)
        for inner in getattr(command, "commands", {}).values():
            yield from names_in(inner)

    yield from names_in(typer.main.get_command(command_line))


NAMES = {
    "Python": sorted(set(python_names())),
    "settings": sorted(set(setting_names())),
    "metrics": sorted(family.name for family in FAMILIES),
    "HTTP": sorted(set(http_names())),
    "command line": sorted(set(command_names())),
}


def test_the_glossary_has_25_to_35_words_with_one_sentence_each() -> None:
    assert 25 <= len(WORDS) <= 35
    assert [word for word, meaning in WORDS.items() if not re.fullmatch(r"[A-Z][^.]*\.", meaning)] == []


@pytest.mark.parametrize("where", NAMES)
def test_a_public_name_uses_no_retired_word_and_no_synonym(where: str) -> None:
    assert NAMES[where]
    assert [name for name in NAMES[where] if retired_words(name)] == []
    found = [(name, word) for name in NAMES[where] for word in SYNONYMS if word in name.lower()]
    assert [(name, word) for name, word in found if name not in WORDS_OF_OTHERS] == []


def test_every_word_of_the_glossary_is_used_by_a_name() -> None:
    names = [name for names in NAMES.values() for name in names]
    for path in Path(semel.__file__).parent.rglob("*.py"):
        names += [path.parent.name, path.stem, *re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE)]
    words = " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).lower() for name in names)
    assert [word for word in WORDS if re.sub(r"(y|e)$", "", word) not in words] == []
