"""Senders with different secrets choose their own ids, and do not meet in one id space."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.settings.writing import loaded

from semel import Semel
from semel.service.assembly import served_endpoints
from semel.service.delivery_handler import DeliveryHandler
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import Ingest
from semel.values.event import DecodeOptions

KEYS = {"/a": b"secret of a", "/b": b"secret of b"}
TWO_SECRETS = """
[[endpoints]]
path = "/a"
mode = "inline"
verify = {scheme = "header", secrets = ["env:A"]}
[[endpoints]]
path = "/b"
mode = "inline"
verify = {scheme = "header", secrets = ["env:B"]}
"""
PAYMENT = {"id": "pay-1001", "type": "payment", "data": {"amount": 5}}
MESSAGE = {"id": "pay-1001", "channel": {"messageId": "m", "to": {"id": "c"}}, "type": "Text", "text": "hello"}
CLOUD_EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "payment", "data": {"amount": 5}}
GENESYS = {
    "id": "bus-1",
    "detail-type": "v2.detail.events.conversation.{id}.acw",
    "source": "aws.partner/genesys.com/cloud/org-1/bus",
    "detail": {
        "topicName": "v2.detail.events.conversation.c-1.acw",
        "eventBody": {"eventTime": 1649237504949, "conversationId": "c-1", "participantId": "p", "sessionId": "s"},
    },
}


def endpoints(folder: Path, text: str, own: DecodeOptions | None = None) -> list[ServedEndpoint]:
    settings = loaded(folder, text, A=KEYS["/a"].decode(), B=KEYS["/b"].decode())
    return served_endpoints(settings, own=own or DecodeOptions())


def posted(given: list[ServedEndpoint], *deliveries: tuple[str, dict[str, Any]]) -> list[tuple[int, str]]:
    """Status and outcome of each delivery, in order, of one app."""

    async def story() -> list[tuple[int, str]]:
        async with Semel("memory://") as app:
            app.on("**", name="all")(lambda event, ctx: None)
            ingest = Ingest(DeliveryHandler(app), given)
            return [await _post(ingest, path, document) for path, document in deliveries]

    return asyncio.run(story())


async def _post(ingest: Ingest, path: str, document: dict[str, Any]) -> tuple[int, str]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(document).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"method": "POST", "path": path, "headers": [(b"x-api-key", KEYS.get(path, b""))]}
    await ingest.deliver(ingest.endpoints[path], scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"]).get("status", "")


@pytest.mark.parametrize("document", [PAYMENT, MESSAGE], ids=["webhook", "open-messaging"])
def test_one_id_of_two_senders_with_secrets_of_their_own_is_two_events(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    other = {**document, "data": {"amount": 7}, "text": "goodbye"}
    given = endpoints(tmp_path, TWO_SECRETS)
    first, second, again = posted(given, ("/a", document), ("/b", other), ("/b", other))
    assert (first, second) == ((200, "processed"), (200, "processed"))
    assert again == (200, "duplicate")


def test_one_id_of_two_endpoints_with_id_paths_is_two_events(tmp_path: Path) -> None:
    text = '[[endpoints]]\npath = "/{}"\nmode = "inline"\nid_path = "ref"\n'
    given = endpoints(tmp_path, text.format("a") + text.format("b"))
    assert posted(given, ("/a", {"ref": 1, "x": 1}), ("/b", {"ref": 1, "x": 2})) == [(200, "processed")] * 2


@pytest.mark.parametrize("document", [CLOUD_EVENT, GENESYS], ids=["cloudevents", "genesys"])
def test_an_event_that_names_its_origin_is_one_event_at_both_endpoints(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    given = endpoints(tmp_path, TWO_SECRETS)
    assert posted(given, ("/a", document), ("/b", document)) == [(200, "processed"), (200, "duplicate")]


@pytest.mark.parametrize("verify", ["", 'verify = {scheme = "none"}\n'])
def test_endpoints_without_verification_share_one_id_space(tmp_path: Path, verify: str) -> None:
    text = f'[[endpoints]]\npath = "/c"\nmode = "inline"\n{verify}[[endpoints]]\npath = "/d"\nmode = "inline"\n{verify}'
    given = endpoints(tmp_path, text)
    assert posted(given, ("/c", PAYMENT), ("/d", PAYMENT)) == [(200, "processed"), (200, "duplicate")]


@pytest.mark.parametrize("where", ["top", "endpoint", "app"])
def test_an_origin_that_is_set_is_that_of_all_shapes(tmp_path: Path, where: str) -> None:
    text = TWO_SECRETS.replace("mode =", 'origin = "shop"\nmode =') if where == "endpoint" else TWO_SECRETS
    text = 'origin = "shop"\n' + text if where == "top" else text
    own = (
        DecodeOptions(origin="shop") if where != "endpoint" else DecodeOptions()
    )  # the app of a file has the origin of the file
    given = endpoints(tmp_path, text, own)
    assert posted(given, ("/a", PAYMENT), ("/b", PAYMENT)) == [(200, "processed"), (200, "duplicate")]


def test_a_verified_endpoint_keeps_how_an_app_in_python_decodes(tmp_path: Path) -> None:
    own = DecodeOptions("shop", "ref", "kind")
    (first, _) = endpoints(tmp_path, TWO_SECRETS, own)
    assert first.decode_options == DecodeOptions("shop", "ref", "kind", default_origin="/a")


def test_a_verified_mounted_application_has_an_id_space_of_its_own() -> None:
    app = Semel("memory://")
    given = [app.asgi(path, verify="header", secrets=[KEYS[path].decode()])._endpoint for path in ("/a", "/b")]
    other = {**PAYMENT, "data": {"amount": 7}}
    assert posted(given, ("/a", PAYMENT), ("/b", other)) == [(200, "processed")] * 2
    shared = [app.asgi(path, verify="header", secrets=[KEYS[path].decode()], origin="o")._endpoint for path in KEYS]
    assert posted(shared, ("/a", PAYMENT), ("/b", PAYMENT)) == [(200, "processed"), (200, "duplicate")]
