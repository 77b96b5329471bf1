"""Reading `semel.toml`: file → document → variables → types → rules. Everything that is wrong is told at once."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from semel.settings.overrides import CONFIG, override
from semel.settings.places import Places
from semel.settings.problems import Path as DocumentPath
from semel.settings.problems import Problem, SettingsError
from semel.settings.references import reader
from semel.settings.rules import broken_rules
from semel.settings.schema import Settings
from semel.settings.secret import Secret
from semel.settings.shaping import Shaped, shape

FILE = "semel.toml"
FILE_MAX_BYTES = 1024 * 1024  # thousands of routes; more is a wrong file

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def source(path: Path | None, environ: Mapping[str, str]) -> bytes:
    """The bytes that `load` would read, for those who load them more than once; none where there is no file."""
    file = _file(path, environ)
    return _read(file) if file is not None else b""


def load(path: Path | None, environ: Mapping[str, str], content: bytes | None = None) -> Settings:
    """The settings of a file, with `SEMEL_…` variables over them and secrets read.

    Without a path: the file that SEMEL_CONFIG names, else semel.toml in the working directory, else the defaults.
    `content` is what the file had when `source` read it: then its name and its folder matter, and no longer itself.
    Raises SettingsError with everything that is wrong.
    """
    file = _file(path, environ)
    text = _text(file, source(path, environ) if content is None else content)
    document = _parse(text, str(file))
    origins, problems = override(document, environ)
    shaped = _without_unsaid(shape(document, reader(environ, file.parent if file is not None else Path())), document)
    faults = shaped.faults + [fault for fault in broken_rules(shaped.settings) if shaped.tells(fault)]
    if faults or problems:
        places = Places(str(file or FILE), text, document, origins)
        problems += [places.problem(fault) for fault in faults]
        raise SettingsError(sorted(problems, key=lambda problem: (not problem.line, problem.line)))
    return _with_origins(shaped.settings, origins)


def _without_unsaid(shaped: Shaped, document: Mapping[str, Any]) -> Shaped:
    """Where there are sources, a path for webhooks is opened only if somebody has written it."""
    if not shaped.settings.sources or "endpoints" in document:
        return shaped
    return replace(shaped, settings=replace(shaped.settings, endpoints=[]))


def _with_origins(settings: Settings, origins: Mapping[DocumentPath, str]) -> Settings:
    """A URL that came by a variable has that for its reference: it does not stand in the file."""
    for name in ("ledger", "dead_letters"):
        url: Secret | None = getattr(settings, name)
        if url is not None and not url.reference and (name,) in origins:
            settings = replace(settings, **{name: Secret(url.reveal(), f"env:{origins[(name,)]}")})
    return settings


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if environ.get(CONFIG):
        return Path(environ[CONFIG])
    return Path(FILE) if os.path.lexists(FILE) else None  # a link that leads nowhere is a mistake, not the defaults


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        _refuse(file, "there is no such file; `semel init` writes one to start with")
    except IsADirectoryError:
        _refuse(file, f"this is a folder; name a file in it, such as {file / FILE}")
    except (OSError, ValueError) as error:
        _refuse(file, f"it cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(content) > FILE_MAX_BYTES:
        _refuse(file, f"it has more than {FILE_MAX_BYTES:,} bytes: is it the right file?")
    return content


def _text(file: Path | None, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as error:
        _refuse(file or Path(FILE), "this is not UTF-8: save it as UTF-8", content[: error.start].count(b"\n") + 1)


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and what int() thinks of a number with 5,000 digits
        found = _PLACE.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n", 0, len(text.rstrip())) + 1 if found else 0
        what = _PLACE.sub("", str(error))
        raise SettingsError([Problem(file, line, "", f"this is no TOML: {what[:1].lower()}{what[1:]}")]) from None
    except RecursionError:
        raise SettingsError([Problem(file, 0, "", "this is no TOML: it is nested too deeply")]) from None


def _refuse(file: Path, what: str, line: int = 0) -> NoReturn:
    raise SettingsError([Problem(str(file), line, "", what)]) from None
