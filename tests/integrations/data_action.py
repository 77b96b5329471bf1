"""A Genesys Data Action, executed as Genesys Cloud says that it does (integrations/genesys/README.md has the pages).

Of Velocity: formal references, which stay as they are when there is nothing behind them, and the one macro of the file.
Of JSONPath: names below the root.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

WAIT_S = 30.0

_REFERENCE = re.compile(r"\$\{([a-z_A-Z.]+)\}")
_URI_ENCODE = re.compile(r'\$esc\.uriEncode\("([^"]*)"\)')
_PATH = re.compile(r"\$\.([a-z_A-Z]+)")


class Failed(Exception):
    """What takes the failure output of the action in Architect."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body!r}")
        self.status = status


@dataclass
class Asked:
    """What goes over the wire."""

    url: str
    headers: dict[str, str]


def rendered(template: str, context: Mapping[str, str]) -> str:
    """References inside of a macro's quotes first, then the macro: so a value is escaped as a whole."""

    def encoded(call: re.Match[str]) -> str:
        return quote(_filled(call[1], context), safe="")

    parts: list[str] = []
    last = 0
    for call in _URI_ENCODE.finditer(template):
        parts += [_filled(template[last : call.start()], context), encoded(call)]
        last = call.end()
    return "".join([*parts, _filled(template[last:], context)])


def _filled(text: str, context: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: context.get(found[1], found[0]), text)


def request_of(action: Mapping[str, Any], inputs: Mapping[str, str], credentials: Mapping[str, str]) -> Asked:
    config = action["config"]["request"]
    assert config["requestType"] == "GET"
    context = {f"input.{name}": value for name, value in inputs.items()}
    context |= {f"credentials.{name}": value for name, value in credentials.items()}
    headers = {name: rendered(value, context) for name, value in config["headers"].items()}
    return Asked(rendered(config["requestUrlTemplate"], context), headers)


def ask(asked: Asked, host: str, port: int) -> bytes:
    """The service's address takes the place of the one in the file; everything else of the URL goes as it stands."""
    parts = urlsplit(asked.url)
    assert (parts.scheme, parts.netloc) == ("https", "semel.example.com")
    connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    try:
        connection.request("GET", asked.url.removeprefix("https://semel.example.com"), headers=asked.headers)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise Failed(answer.status, body)
    return body


def result_of(action: Mapping[str, Any], raw: bytes) -> Any:
    """Translation map, defaults for what was not found, success template. Values go in as JSON."""
    config = action["config"]["response"]
    document = json.loads(raw)
    found: dict[str, str] = {}
    for name, path in config["translationMap"].items():
        (field,) = _PATH.fullmatch(path).groups()  # type: ignore[union-attr]
        if field in document:
            found[name] = json.dumps(document[field])
        elif name in config["translationMapDefaults"]:
            found[name] = config["translationMapDefaults"][name]
    return json.loads(_filled(config["successTemplate"], found))
