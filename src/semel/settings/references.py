"""Reads secrets by reference: "env:NAME" or "file:path". A settings file therefore contains no secrets.

An error names the reference. It never repeats a text that is not a reference, because it may be the secret itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from semel.settings.validation import BadReference, Form, ReadSecret
from semel.values.secret import Secret

SECRET_MAX_BYTES = 16 * 1024  # the longest header that servers take; a key is far shorter

_REFERENCE = re.compile(r"(?P<before>[!-~]+ +)?(?P<kind>env|file):(?P<target>.*)", re.DOTALL)
_IN_URL = re.compile(r"(?P<before>[a-z+]+://[^:@/?#]*:)(?P<kind>env|file):(?P<target>[^@]*)(?P<after>@.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERAL = 'a secret must not be written in the settings: write "env:NAME" for a variable, or "file:path" for a file'


def reader(environ: Mapping[str, str], folder: Path) -> ReadSecret:
    """Create a reader of references. A relative path is relative to `folder`.

    A "plain" setting may have a word such as "Bearer" before the reference, or be no reference at all. The password
    of a URL may be a reference.
    """

    def value_of(match: re.Match[str]) -> str:
        return _variable(match["target"], environ) if match["kind"] == "env" else _file(match["target"], folder)

    def read(written: str, form: Form) -> Secret:
        if form == "url" and (within := _IN_URL.fullmatch(written)) is not None:
            return Secret(within["before"] + quote(value_of(within), safe="") + within["after"], written)
        match = _REFERENCE.fullmatch(written)
        if form != "reference" and match is None:
            if not written:
                raise BadReference("it is empty")
            return Secret(written)
        if match is None or (match["before"] and form != "plain"):
            raise BadReference(_LITERAL)
        before = match["before"] or ""
        return Secret(before + value_of(match), f"{before}{match['kind']}:{match['target']}")

    return read


def variables_in(document: object) -> set[str]:
    """The environment variables that references in a document name."""
    if isinstance(document, str):
        match = _REFERENCE.fullmatch(document) or _IN_URL.fullmatch(document)
        return {match["target"]} if match is not None and match["kind"] == "env" else set()
    inside = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return set().union(*map(variables_in, inside))


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if not _VARIABLE.fullmatch(name):
        raise BadReference('the text after "env:" is not the name of a variable')
    value = environ.get(name)
    if value is None:
        raise BadReference(f"env:{name}: the variable {name} is not set")
    return _usable(value, f"env:{name}: the variable")


def _file(target: str, folder: Path) -> str:
    if not target.isprintable() or not target:
        raise BadReference('the text after "file:" is not a path')
    path = folder / target
    try:
        with path.open("rb") as file:
            content = file.read(SECRET_MAX_BYTES + 1)
    except OSError as error:
        raise BadReference(f"file:{target}: {path} cannot be read: {error.strerror or type(error).__name__}") from None
    if len(content) > SECRET_MAX_BYTES:
        raise BadReference(f"file:{target}: {path} has more than {SECRET_MAX_BYTES:,} bytes")
    return _usable(content.decode("utf-8", "surrogateescape").rstrip("\r\n"), f"file:{target}: {path}")


def _usable(value: str, what: str) -> str:
    if not value:
        raise BadReference(f"{what} is empty")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise BadReference(f"{what} is not UTF-8")
    return value
