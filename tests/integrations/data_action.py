"""A Genesys Data Action, executed as Genesys Cloud says that it does (integrations/genesys/README.md has the pages).

Of Velocity: formal references, which stay as they are when there is nothing behind them, and the macros of the files.
Of JSONPath: names below the root.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import jsonschema_rs

FOLDER = Path(__file__).parents[2] / "integrations" / "genesys"
WAIT_S = 30.0

_REFERENCE = re.compile(r"\$\{([a-z_A-Z.]+)\}")
_MACRO = re.compile(r'\$esc\.(uriEncode|jsonString)\("([^"]*)"\)')
_PATH = re.compile(r"\$\.([a-z_A-Z]+)")


def action_of(name: str) -> dict[str, Any]:
    action: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return action


class Failed(Exception):
    """What takes the failure output of the action in Architect."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body!r}")
        self.status = status


@dataclass
class Asked:
    """What goes over the wire."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None


def rendered(template: str, context: Mapping[str, str]) -> str:
    """References inside of a macro's quotes first, then the macro: so a value is escaped as a whole."""

    macros: dict[str, Callable[[str], str]] = {
        "uriEncode": lambda text: quote(text, safe=""),
        "jsonString": lambda text: json.dumps(text)[1:-1],
    }
    parts: list[str] = []
    last = 0
    for call in _MACRO.finditer(template):
        parts += [_filled(template[last : call.start()], context), macros[call[1]](_filled(call[2], context))]
        last = call.end()
    return "".join([*parts, _filled(template[last:], context)])


def _filled(text: str, context: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: context.get(found[1], found[0]), text)


def request_of(action: Mapping[str, Any], inputs: Mapping[str, str], credentials: Mapping[str, str]) -> Asked:
    config = action["config"]["request"]
    context = {f"input.{name}": value for name, value in inputs.items()}
    context |= {f"credentials.{name}": value for name, value in credentials.items()}
    headers = {name: rendered(value, context) for name, value in config["headers"].items()}
    has_body = config["requestType"] == "POST"  # a GET has none, whatever its template says
    body = rendered(config["requestTemplate"], context).encode() if has_body else None
    return Asked(config["requestType"], rendered(config["requestUrlTemplate"], context), headers, body)


def ask(asked: Asked, host: str, port: int) -> bytes:
    """The service's address takes the place of the one in the file; everything else of the URL goes as it stands."""
    parts = urlsplit(asked.url)
    assert (parts.scheme, parts.netloc) == ("https", "semel.example.com")
    connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    try:
        target = asked.url.removeprefix("https://semel.example.com")
        connection.request(asked.method, target, asked.body, asked.headers)
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


def executed(action: Mapping[str, Any], port: int, token: str, inputs: Mapping[str, str]) -> dict[str, Any]:
    """The whole way: its contract, the request, a live service, the answer, its contract. Raises Failed."""
    jsonschema_rs.validate(action["contract"]["input"]["inputSchema"], inputs)
    asked = request_of(action, inputs, {"token": token})
    result: dict[str, Any] = result_of(action, ask(asked, "127.0.0.1", port))
    jsonschema_rs.validate(action["contract"]["output"]["successSchema"], result)
    return result
