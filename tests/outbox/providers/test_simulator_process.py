"""The simulator as a command, and requests as in the guides of the platforms."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from semel.testing.simulator import SimulatorProcess, cxone, genesys


def test_it_runs_without_standard_input_and_says_where_it_listens() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.testing.simulator"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        found = re.search(r"http://127\.0\.0\.1:(\d+)/NAME", lines[0])
        assert found is not None, lines
        assert "twilio" in lines[0]
        assert "SMTP" in lines[1]
        with urlopen(f"http://127.0.0.1:{found[1]}/_simulator/phone", timeout=20) as answer:
            assert json.loads(answer.read()) == []
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as running:
        yield running


def asked(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    try:
        with urlopen(Request(url, body, headers), timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def token(simulator: SimulatorProcess, provider: str, path: str, form: dict[str, str], **headers: str) -> str:
    status, said = asked(f"{simulator.url(provider)}{path}", urlencode(form).encode(), headers)
    assert status == 200, said
    found: str = said["access_token"]
    return found


GENESYS = [
    # developer.genesys.cloud: agentless SMS notifications
    (
        "/api/v2/conversations/messages/agentless",
        {"fromAddress": "+13175550100", "toAddress": "+13175550101", "toAddressMessengerType": "sms", "textBody": "Hi"},
    ),
    # developer.genesys.cloud: outbound open messages
    (
        "/api/v2/conversations/messages/agentless",
        {
            "fromAddress": "5a3f0c7e-integration",
            "toAddress": "user@example.com",
            "toAddressMessengerType": "open",
            "textBody": "Hi",
        },
    ),
    (
        "/api/v2/conversations/messages/agentless",
        {
            "fromAddress": "+13175550100",
            "toAddress": "+13175550101",
            "toAddressMessengerType": "whatsapp",
            "messagingTemplate": {"responseId": "r-1", "parameters": [{"id": "name", "value": "Ada"}]},
        },
    ),
    (
        "/api/v2/conversations/emails/agentless",
        {
            "senderType": "Outbound",
            "fromAddress": {"email": "shop@example.com", "name": "Shop"},
            "toAddresses": [{"email": "a@example.com"}, {"email": "b@example.com"}],
            "subject": "Hi",
            "textBody": "Hi",
        },
    ),
    (
        "/api/v2/conversations/callbacks",
        {"queueId": "q-1", "callbackNumbers": ["+13175550101"], "callbackUserName": "Ada", "countryCode": "US"},
    ),
    ("/api/v2/conversations/calls", {"phoneNumber": "+13175550101", "callFromQueueId": "q-1"}),
    (
        "/api/v2/outbound/contactlists/list-1/contacts",
        [{"contactListId": "list-1", "data": {"FirstName": "Ada", "CellPhone": "+13175550101"}, "callable": True}],
    ),
    (
        "/api/v2/outbound/contacts",
        {"idempotencyKey": "k-1", "contactListId": "list-1", "data": {"phone": "+13175550101", "text": "Hi"}},
    ),
]


@pytest.mark.parametrize(
    ("path", "document"), GENESYS, ids=[f"{n}-{p.rsplit('/', 1)[1]}" for n, (p, _) in enumerate(GENESYS)]
)
def test_documents_of_the_genesys_guides_are_accepted(simulator: SimulatorProcess, path: str, document: Any) -> None:
    credentials = b64encode(f"{genesys.CLIENT}:{genesys.SECRET}".encode()).decode()
    bearer = token(
        simulator, "genesys", "/oauth/token", {"grant_type": "client_credentials"}, Authorization=f"Basic {credentials}"
    )
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    status, said = asked(f"{simulator.url('genesys')}{path}", json.dumps(document).encode(), headers)
    assert 200 <= status < 300, said


CXONE = [
    (
        "/dfo/3.0/channels/sms_1/outbound",
        {
            "thread": {"idOnExternalPlatform": "thread-1"},
            "messageContent": {"type": "TEXT", "payload": {"text": "Hi"}},
            "recipients": [{"idOnExternalPlatform": "+13175550101", "name": "Ada", "isPrimary": True}],
        },
    ),
    (
        "/dfo/3.0/channels/sms_1/outbound",
        {
            "messageContent": {"type": "TEXT", "payload": {"text": "Hi"}, "fallbackText": "Hi"},
            "recipients": [{"idOnExternalPlatform": "+13175550101"}, {"idOnExternalPlatform": "+13175550102"}],
        },
    ),
    (
        "/dfo/3.0/channels/chat_1/outbound",
        {
            "thread": {"idOnExternalPlatform": "thread-1"},
            "messageContent": {"type": "PLUGIN", "payload": {"elements": [{"id": "e", "type": "TEXT", "text": "Hi"}]}},
            "endUserRecipients": [{"idOnExternalPlatform": "user-1"}],
        },
    ),
    ("/api/v2/events", {"idempotencyKey": "k-2", "type": "reminder", "data": {"contactId": "c-1", "text": "Hi"}}),
]


@pytest.mark.parametrize(
    ("path", "document"), CXONE, ids=[f"{n}-{p.rsplit('/', 1)[1]}" for n, (p, _) in enumerate(CXONE)]
)
def test_documents_of_the_cxone_guides_are_accepted(simulator: SimulatorProcess, path: str, document: Any) -> None:
    form = {"grant_type": "password", "username": cxone.KEY_ID, "password": cxone.SECRET}
    bearer = token(simulator, "cxone", "/auth/token", {**form, "client_id": "app", "client_secret": "secret"})
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    status, said = asked(f"{simulator.url('cxone')}{path}", json.dumps(document).encode(), headers)
    assert 200 <= status < 300, said


@pytest.mark.parametrize("document", [{}, [], {"recipients": []}, {"recipients": [{}], "messageContent": {}}])
def test_an_invalid_message_is_refused(simulator: SimulatorProcess, document: Any) -> None:
    form = {"grant_type": "password", "username": cxone.KEY_ID, "password": cxone.SECRET}
    headers = {"Authorization": f"Bearer {token(simulator, 'cxone', '/auth/token', form)}"}
    url = f"{simulator.url('cxone')}/dfo/3.0/channels/sms_1/outbound"
    assert asked(url, json.dumps(document).encode(), headers)[0] == 400
