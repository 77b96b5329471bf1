"""The service that the proofs call and kill: real doors on a real server, with a relay beside them, as `semel run` puts
them together. Its argument is a `Plan`; it says its port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from tests.outbox.callbacks.signing import public_url
from tests.service.verification.sns_sender import TOPIC

from semel.app import Semel
from semel.core.relay import Relay
from semel.core.resend import needed_outbox
from semel.ports import Provider
from semel.providers.callbacks import CALLBACKS
from semel.providers.registry import provider
from semel.service import responses
from semel.service.delivery_handler import DeliveryHandler
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import Ingest, Receive, Scope, Send, reply
from semel.testing.simulator import brevo, generic, resend, sendgrid, ses, telnyx, twilio, vonage
from semel.testing.simulator.callbacks import BREVO, HMAC, VONAGE, WHSEC, public_keys
from semel.values.delivery_state import State
from semel.values.outbox import DeliveryReport
from semel.values.secret import Secret
from semel.verifiers import unwrap, verifier

SENDER = "Semel Shop <shop@example.test>"
REPORTED: dict[str, Any] = {
    "headers": {"X-API-Key": Secret(generic.SECRET)},
    "body": {"to": "{recipient}", "text": "{body}", "reference": "{id}"},
    "report_reference": "about.id",
    "report_status": "state",
    "report_words": {"queued": "accepted", "done": "delivered", "lost": "undelivered"},
}
VERIFY: dict[str, dict[str, Any]] = {
    "twilio": {"secrets": [twilio.SECRET, "older"]},
    "sendgrid": {"secrets": [public_keys()["sendgrid"]]},
    "resend": {"secrets": [WHSEC]},
    "telnyx": {"secrets": [public_keys()["telnyx"]]},
    "vonage": {"secrets": [VONAGE]},
    "brevo": {"secrets": [BREVO], "header": "authorization"},
    "http": {"secrets": [HMAC]},
    "ses": {"secrets": [], "topics": [TOPIC]},
}


class Plan(msgspec.Struct, frozen=True):
    ledger: str
    simulator: str  # its URL
    notary: str  # whom the providers call
    certificate: str  # a file: SNS's
    armed: str  # a file: while it is there, the process dies between a word that is written and its answer


def kind_of(name: str) -> str:
    return name.partition("-")[0]


def options(name: str, plan: Plan) -> dict[str, Any]:
    url, told = f"{plan.simulator}/{kind_of(name)}", f"{plan.notary}/{name}"
    known: dict[str, dict[str, Any]] = {
        "twilio": {
            "account": twilio.ACCOUNT,
            "token": Secret(twilio.SECRET),
            "sender": "+490",
            "callback": told,
        },
        "sendgrid": {"api_key": Secret(sendgrid.SECRET), "sender": SENDER},
        "ses": {
            "region": ses.REGION,
            "access_key_id": ses.KEY_ID,
            "secret_access_key": Secret(ses.SECRET),
            "sender": SENDER,
        },
        "resend": {"api_key": Secret(resend.SECRET), "sender": SENDER},
        "telnyx": {"api_key": Secret(telnyx.SECRET), "sender": "+490", "callback": told},
        "brevo": {"api_key": Secret(brevo.SECRET), "sender": SENDER},
        "vonage": {"api_key": vonage.KEY, "api_secret": Secret(vonage.SECRET), "sender": "490"},
        "http": {**REPORTED, "url": f"{url}/messages", "report_id": "about.reference"},
        "http-reference": {**REPORTED, "url": f"{url}/messages"},
    }
    return {"url": url, "allow": ["127.0.0.1"], **known[name]}


NAMES = ("twilio", "sendgrid", "ses", "resend", "telnyx", "brevo", "vonage", "http", "http-reference")


def door(name: str, provider: Provider, plan: Plan) -> ServedEndpoint:
    """As the settings' [providers.NAME.callbacks] make it."""
    kind = kind_of(name)
    calls = CALLBACKS[kind]
    pem = Path(plan.certificate).read_bytes()

    async def fetch(url: str) -> bytes:
        return pem

    besides: dict[str, dict[str, Any]] = {"twilio": {"url": public_url(name)}, "ses": {"fetch": fetch}}
    return ServedEndpoint(
        f"/callbacks/{name}",
        verifier=verifier(calls.scheme, **VERIFY[kind], **besides.get(kind, {})),
        unwrap=_event if calls.scheme == "sns" else None,
        overload_status=calls.again,
        body_max=calls.body_max or 256 * 1024,
        callback_provider=provider,
    )


def _event(body: bytes) -> bytes | None:
    message = unwrap(body)
    return message.message if message.type == "Notification" else None


class Mortal:
    """An outbox whose process can be made to die when a word is durable and nobody has been told."""

    def __init__(self, outbox: Any, armed: Path) -> None:
        self._outbox = outbox
        self._armed = armed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def apply_reports(self, reports: Sequence[DeliveryReport]) -> list[State | None]:
        states: list[State | None] = await self._outbox.apply_reports(reports)
        if self._armed.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return states


class Service:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._app = Semel(plan.ledger)
        self._ingest: Ingest | None = None
        self._relaying: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self._start()
            await send({"type": "lifespan.startup.complete"})
            return
        assert self._ingest is not None
        if (at := self._ingest.endpoints.get(scope["path"])) is None:
            await reply(responses.NOT_FOUND, send)
        else:
            await self._ingest.deliver(at, scope, receive, send)

    def _start(self) -> None:
        outbox: Any = Mortal(needed_outbox(self._app.ledger), Path(self._plan.armed))
        providers = {name: provider(kind_of(name), name, options(name, self._plan)) for name in NAMES}
        doors = [door(name, one, self._plan) for name, one in providers.items()]
        self._ingest = Ingest(DeliveryHandler(self._app), doors, outbox=outbox)
        self._relaying = asyncio.create_task(Relay(outbox, providers, {}, margin_s=5.0).run())


def main(plan: Plan) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(Service(plan), lifespan="on", log_level="warning", ws="none", proxy_headers=False)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Plan))
