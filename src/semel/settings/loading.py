"""Loads `semel.toml`: file → document → variables → types → rules. All problems are reported at once."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.settings.errors import Places, SettingPath, SettingsError, SettingsProblem, did_you_mean, quoted
from semel.settings.references import reader, variables_in
from semel.settings.rules import broken_rules
from semel.settings.schema import ProviderSettings, Settings
from semel.settings.validation import kinds_of, shape, unwrapped
from semel.values.secret import Secret
from semel.wiring import provider_option_types

# `SEMEL_…` variables override settings:
#
#     SEMEL_LEDGER=memory://    SEMEL_SERVER__PORT=9000    SEMEL_DESTINATIONS__CRM__URL=https://crm.example/events
#
# Two underscores separate a table from its key. Names are case-insensitive; _ also stands for - and . in the name of a
# destination or header. A value is parsed as TOML if the result has the type of the setting; otherwise it is a text. A
# list is a TOML array and replaces the whole list.

PREFIX = "SEMEL_"
CONFIG = "SEMEL_CONFIG"  # the path of the settings file
_TESTS = "SEMEL_TEST_"

# Kubernetes sets variables of these names in every pod of a namespace with a Service named "semel" or "semel-…".
_LINKS = re.compile(
    r"SEMEL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_LINK_PORT = re.compile(r"(tcp|udp|sctp)://\S+")


class _Unknown(Exception):
    """The variable names no setting. The text has the reason; it is empty if there is no such name."""


def override(
    document: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[SettingPath, str], list[SettingsProblem]]:
    """Write the variables into the document. Returns the path that each one set, and the problems of the others."""
    origins: dict[SettingPath, str] = {}
    wrong: dict[str, str] = {}
    for variable, value in _ours(environ):
        try:
            path, kind = _target(variable[len(PREFIX) :].split("__"), document)
        except _Unknown as unknown:
            wrong[variable] = str(unknown)
            continue
        if path in origins:
            wrong[variable] = f"sets the same setting as {origins[path]}: remove one of them"
        elif any("\ud800" <= char <= "\udfff" for char in value):
            wrong[variable] = "its value is not UTF-8"
        else:
            origins[path] = variable
            _write(document, path, _read_variable(value, kind))
    for variable in variables_in(document):
        wrong.pop(variable, None)  # it contains a secret, and may have any name
    return origins, [SettingsProblem(name, 0, "", what or _unknown(name, document)) for name, what in wrong.items()]


def _ours(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that set a setting, sorted by name."""
    for variable, value in sorted(environ.items()):
        name = variable.upper()
        if not name.startswith(PREFIX) or name == CONFIG or name.startswith(_TESTS):
            continue
        if _LINKS.fullmatch(name) or (name.endswith("_PORT") and _LINK_PORT.fullmatch(value)):
            continue
        yield variable, value


def _target(names: list[str], document: dict[str, Any]) -> tuple[SettingPath, Any]:
    """The path that a variable sets, and the type of that setting."""
    kind: Any = Settings
    path: SettingPath = ()
    table: Any = document
    for name in names:
        bare, _ = unwrapped(kind)
        if isinstance(bare, type) and issubclass(bare, Struct):
            key = name.lower()
            kind = kinds_of(bare).get(key)
            if kind is None and bare is ProviderSettings:
                kind = _option(key, table)
            if kind is None:
                raise _Unknown
        elif get_origin(bare) is dict:
            kind = get_args(bare)[1]
            key = _own_name(name, table, header=unwrapped(kind)[0] is Secret)
        elif get_origin(bare) is list:
            raise _Unknown(f"sets a part of a list; set the whole list in {_variable(path)}, as a TOML array")
        else:
            raise _Unknown
        path = (*path, key)
        table = table.get(key) if isinstance(table, dict) else None
    bare, _ = unwrapped(kind)
    if get_origin(bare) is dict or (isinstance(bare, type) and issubclass(bare, Struct)):
        raise _Unknown(f"names a table; set one of its settings, as {_variable((*path, '…'))}")
    return path, kind


def _option(name: str, table: object) -> Any:
    """The type of a provider option. A text stays a text, even if it looks like a number."""
    kind = table.get("kind") if isinstance(table, dict) else None
    bare, _ = unwrapped(provider_option_types(kind).get(name) if isinstance(kind, str) else None)
    return bare if bare in (str, Secret) else Any


def _own_name(name: str, table: object, *, header: bool) -> str:
    """The matching name in the file. Names of variables have no - or . and are often in capitals."""
    if not name:
        raise _Unknown
    names = [key for key in (table if isinstance(table, dict) else ()) if _plain(key) == _plain(name)]
    if len(names) > 1:
        raise _Unknown(f"is ambiguous: it can mean {' and '.join(map(quoted, names))}")
    return names[0] if names else name.lower().replace("_", "-") if header else name.lower()


def _plain(name: str) -> str:
    return re.sub(r"[.-]", "_", name).lower()


def _read_variable(value: str, kind: Any) -> Any:
    """Parse the value as TOML if the result has the right type; otherwise keep the text, for the type check."""
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return value
    if set(parsed) != {"value"} or not _has_type(parsed["value"], kind):
        return value
    return parsed["value"]


def _has_type(value: Any, kind: Any) -> bool:
    bare, _ = unwrapped(kind)
    if bare is Secret:
        return isinstance(value, str)
    if get_origin(bare) is list:
        return isinstance(value, list)  # its members are checked later, with their own paths
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return not isinstance(value, str) and bare in (int, float, bool)  # a number out of range is reported later
    return True


def _write(document: dict[str, Any], path: SettingPath, value: Any) -> None:
    table: Any = document
    for key in path[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            return  # the file has another value there; the type check reports it
    table[path[-1]] = value


def _variable(path: SettingPath) -> str:
    return PREFIX + "__".join(_plain(str(part)).upper() for part in path)


def _unknown(variable: str, document: dict[str, Any]) -> str:
    name, known = variable.upper(), list(map(_variable, _paths(Settings, document)))
    deeper = [
        other for other in known if other.endswith(f"__{name.removeprefix(PREFIX)}")
    ]  # the name without its tables
    return f"no such setting{did_you_mean(name, known) if len(deeper) != 1 else f'; did you mean {quoted(deeper[0])}?'}"


def _paths(kind: Any, table: object) -> Iterator[SettingPath]:
    """All paths that a variable can set, with the destinations and brokers of the file."""
    bare, _ = unwrapped(kind)
    inside = table if isinstance(table, dict) else {}
    if isinstance(bare, type) and issubclass(bare, Struct):
        for key, hint in kinds_of(bare).items():
            inner, _ = unwrapped(hint)
            optional = isinstance(inner, type) and issubclass(inner, Struct) and inner is not hint
            if key in inside or not optional:
                yield from ((key, *rest) for rest in _paths(hint, inside.get(key)))
    elif get_origin(bare) is dict:
        for key in inside:
            yield from ((key, *rest) for rest in _paths(get_args(bare)[1], inside[key]))
    else:
        yield ()


FILE = "semel.toml"
FILE_MAX_BYTES = 1024 * 1024  # enough for thousands of routes

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def source(path: Path | None, environ: Mapping[str, str]) -> bytes:
    """The content of the settings file, for callers that load it more than once; empty if there is no file."""
    file = _file(path, environ)
    return _read(file) if file is not None else b""


def load(path: Path | None, environ: Mapping[str, str], content: bytes | None = None) -> Settings:
    """Load the settings of a file, with the overrides of `SEMEL_…` variables and with secrets.

    Without a path: the file that SEMEL_CONFIG names, or semel.toml in the working directory, or the defaults.
    `content` replaces the content of the file; its path is still used for errors and relative references.
    Raises SettingsError with all problems.
    """
    file = _file(path, environ)
    text = _text(file, source(path, environ) if content is None else content)
    document = _parse(text, str(file))
    origins, problems = override(document, environ)
    shaped = shape(document, reader(environ, file.parent if file is not None else Path()))
    if shaped.settings.sources and "endpoints" not in document:  # the default endpoint is only for webhooks
        shaped = replace(shaped, settings=replace(shaped.settings, endpoints=[]))
    faults = shaped.faults + [fault for fault in broken_rules(shaped.settings) if shaped.is_new(fault)]
    if faults or problems:
        places = Places(str(file or FILE), text, document, origins)
        problems += [places.problem(fault) for fault in faults]
        raise SettingsError(sorted(problems, key=lambda problem: (not problem.line, problem.line)))
    return _with_origins(shaped.settings, origins)


def _with_origins(settings: Settings, origins: Mapping[SettingPath, str]) -> Settings:
    """Set the variable as the reference of a URL that comes from one: it is not written in the file."""
    for name, url in (("ledger", settings.ledger), ("dead_letters", settings.dead_letters)):
        if url is not None and not url.reference and (name,) in origins:
            settings = replace(settings, **{name: Secret(url.reveal(), f"env:{origins[(name,)]}")})
    return settings


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if environ.get(CONFIG):
        return Path(environ[CONFIG])
    return Path(FILE) if os.path.lexists(FILE) else None  # a dangling link is an error


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        _refuse(file, "the file does not exist; `semel init` creates one")
    except IsADirectoryError:
        _refuse(file, f"this is a folder; name a file, such as {file / FILE}")
    except (OSError, ValueError) as error:
        _refuse(file, f"it cannot be read: {error.strerror if isinstance(error, OSError) else error}")
    if len(content) > FILE_MAX_BYTES:
        _refuse(file, f"it has more than {FILE_MAX_BYTES:,} bytes: check that it is the right file")
    return content


def _text(file: Path | None, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        _refuse(file or Path(FILE), "the file is not UTF-8: save it as UTF-8", content[: error.start].count(b"\n") + 1)


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and int() for a number with 5,000 digits
        found = _PLACE.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n", 0, len(text.rstrip())) + 1 if found else 0
        what = _PLACE.sub("", str(error))
        raise SettingsError(
            [SettingsProblem(file, line, "", f"not valid TOML: {what[:1].lower()}{what[1:]}")]
        ) from None
    except RecursionError:
        raise SettingsError([SettingsProblem(file, 0, "", "not valid TOML: nested too deeply")]) from None


def _refuse(file: Path, what: str, line: int = 0) -> NoReturn:
    raise SettingsError([SettingsProblem(str(file), line, "", what)]) from None
