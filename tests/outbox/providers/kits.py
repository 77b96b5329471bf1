"""Binds each provider to the contract suite: its options, valid messages, and messages that it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

from semel.ports import Provider
from semel.providers.registry import provider
from semel.testing.provider_laws import Opening, ProviderKit
from semel.testing.simulator import (
    SimulatorProcess,
    brevo,
    cxone,
    generic,
    genesys,
    resend,
    sendgrid,
    ses,
    smtp,
    telnyx,
    twilio,
    vonage,
)
from semel.testing.simulator.dialect import basic
from semel.values.notification import Notification
from semel.values.secret import Secret

WRONG = "wrong-secret-do-not-show"
HERE = ["127.0.0.1"]
TEXT = "Grüße – 漢字 \U0001f4de & <b>?\n.\nend of {name}"


def number(name: str) -> str:
    return f"+49{crc32(name.encode())}"


def text(name: str, **said: Any) -> Notification:
    wanted = {
        "key": name,
        "kind": "k",
        "recipient": number(name),
        "channel": "sms",
        "body": TEXT.replace("{name}", name),
    }
    return Notification(**{**wanted, **said})


def mail(name: str, **said: Any) -> Notification:
    body = {"text": TEXT.replace("{name}", name), "html": f"<p>Grüße, {name}</p>"}
    subject = "Ihre Bestellung – ist unterwegs, und zwar schon seit heute früh um acht \U0001f4e6"
    wanted = {"recipient": f"{name}@example.test", "channel": "email", "subject": subject, "body": body}
    return text(name, **{**wanted, **said})


def document(name: str, **said: Any) -> Notification:
    body = {"to": number(name), "text": TEXT.replace("{name}", name)}
    return text(name, **{"channel": "event", "body": body, **said})


def contact(name: str, **said: Any) -> Notification:
    return text(name, **{"channel": "event", "body": {"text": f"für {name}", "points": 5}, **said})


def as_text(said: Notification) -> tuple[str, str, str, str]:
    return said.recipient, said.body, "", ""


def as_mail(said: Notification) -> tuple[str, str, str, str]:
    return said.recipient, said.body["text"], said.subject, said.body["html"]


def as_document(said: Notification) -> tuple[str, str, str, str]:
    return said.recipient, said.body["text"], "", ""


NO_TEXTS = (text("u", body={"a": 1}), text("u", body="x" * 5_000), text("u", body=None, template="t"))
NO_MAILS = (
    mail("u", recipient="nobody"),
    mail("u", recipient="a@example.test, b@example.test"),
    mail("u", subject=""),
    mail("u", subject="one\r\nBcc: other@example.test"),
    mail("u", body={"markdown": "x"}),
    mail("u", sender="nobody"),
)
NO_TEMPLATES = mail("u", body=None, template="t")
NO_DOCUMENTS = (document("u", body="text"), document("u", body={"idempotencyKey": "mine"}))

Options = Callable[[Opening, Secret], dict[str, Any]]


def opener(kind: str, options: Options, secret: str) -> Callable[[Opening], Provider]:
    def open(opening: Opening) -> Provider:
        given = options(opening, Secret(secret if opening.right else WRONG))
        return provider(kind, f"my-{kind}", {"timeout": opening.timeout_s, "allow": HERE, **given})

    return open


def kit(
    simulator: SimulatorProcess, dialect: str, kind: str, secret: str, options: Options, user: str = "", **more: Any
) -> ProviderKit:
    proofs = [basic(user, password).removeprefix("Basic ") for password in (secret, WRONG)]
    secrets = (secret, WRONG, "do-not-show", *proofs)  # the simulator's tokens say so themselves
    return ProviderKit(simulator, dialect, opener(kind, options, secret), secrets=secrets, **more)


def short_messages(**more: Any) -> dict[str, Any]:
    return {"say": text, "reads": as_text, "unfit": NO_TEXTS, **more}


def mails(**more: Any) -> dict[str, Any]:
    return {"say": mail, "reads": as_mail, "unfit": NO_MAILS, **more}


def documents(**more: Any) -> dict[str, Any]:
    return {"say": document, "reads": as_document, "unfit": NO_DOCUMENTS, **more}


SENDER = "Semel Shop <shop@example.test>"


def twilio_kit(simulator: SimulatorProcess) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        known = {"url": opening.url, "account": twilio.ACCOUNT, "token": secret, "sender": "+490"}
        return {**known, "callback": opening.callback} if opening.callback else known

    return kit(simulator, "twilio", "twilio", twilio.SECRET, options, twilio.ACCOUNT, **short_messages())


def genesys_kit(kind: str, simulator: SimulatorProcess, more: dict[str, Any], said: dict[str, Any]) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        login_url = simulator.url("genesys")
        return {
            "url": opening.url,
            "login_url": login_url,
            "client_id": genesys.CLIENT,
            "client_secret": secret,
            **more,
        }

    return kit(simulator, "genesys", kind, genesys.SECRET, options, genesys.CLIENT, **said)


def cxone_kit(kind: str, simulator: SimulatorProcess, more: dict[str, Any], said: dict[str, Any]) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        return {
            "url": opening.url,
            "token_url": f"{simulator.url('cxone')}/auth/token",
            "access_key_id": cxone.KEY_ID,
            "access_key_secret": secret,
            **more,
        }

    return kit(simulator, "cxone", kind, cxone.SECRET, options, **said)


def api_key_kit(kind: str, secret: str, simulator: SimulatorProcess, sender: str, said: dict[str, Any]) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        return {"url": opening.url, "api_key": secret, "sender": sender}

    return kit(simulator, kind, kind, secret, options, **said)


def telnyx_kit(simulator: SimulatorProcess) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        known = {"url": opening.url, "api_key": secret, "sender": "+490"}
        return {**known, "callback": opening.callback} if opening.callback else known

    return kit(simulator, "telnyx", "telnyx", telnyx.SECRET, options, **short_messages())


def vonage_kit(simulator: SimulatorProcess) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        return {"url": opening.url, "api_key": vonage.KEY, "api_secret": secret, "sender": "490"}

    return kit(simulator, "vonage", "vonage", vonage.SECRET, options, vonage.KEY, **short_messages())


def ses_kit(simulator: SimulatorProcess) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        return {
            "url": opening.url,
            "region": ses.REGION,
            "access_key_id": ses.KEY_ID,
            "secret_access_key": secret,
            "sender": SENDER,
        }

    return kit(simulator, "ses", "ses", ses.SECRET, options, **mails())


def smtp_kit(simulator: SimulatorProcess) -> ProviderKit:
    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        """The laws speak of URLs: that of the simulator stands for its mail server."""
        parts = urlsplit(opening.url)
        ours = parts.port == simulator.port
        return {
            "host": "127.0.0.1",
            "port": simulator.mail_port if ours else parts.port,
            "tls": "implicit" if parts.scheme == "https" else "off",
            "username": smtp.USER,
            "password": secret,
            "sender": SENDER,
        }

    said = mails(limits=False, unfit=(*NO_MAILS, NO_TEMPLATES))
    return kit(simulator, "smtp", "smtp", smtp.SECRET, options, **said)


def generic_kit(simulator: SimulatorProcess, more: dict[str, Any]) -> ProviderKit:
    body = {"to": "{recipient}", "text": "{body}", "reference": "{id}", "note": "about {data.note}"}

    def options(opening: Opening, secret: Secret) -> dict[str, Any]:
        return {
            "url": f"{opening.url}/messages",
            "headers": {"X-API-Key": secret},
            "body": body,
            "report_id": "about.reference",
            "report_reference": "about.id",
            "report_status": "state",
            "report_words": {"queued": "accepted", "done": "delivered", "lost": "undelivered"},
            **more,
        }

    def say(name: str) -> Notification:
        return text(name, data={"note": "a note"})

    said: dict[str, Any] = {"say": say, "reads": as_text, "unfit": (text("u"),)}
    return kit(simulator, "http", "http", generic.SECRET, options, **said)


KITS: dict[str, Callable[[SimulatorProcess], ProviderKit]] = {
    "twilio": twilio_kit,
    "genesys": lambda simulator: genesys_kit(
        "genesys", simulator, {"sender": "+490"}, short_messages(unfit=NO_TEXTS[:2])
    ),
    "genesys-email": lambda simulator: genesys_kit("genesys-email", simulator, {"sender": SENDER}, mails()),
    "genesys-contacts": lambda simulator: genesys_kit(
        "genesys-contacts",
        simulator,
        {"contact_list": "list-1", "column": "phone"},
        {"say": contact, "reads": as_document, "unfit": (contact("u", body={"a": []}), contact("u", body={"a": None}))},
    ),
    "genesys-callback": lambda simulator: genesys_kit(
        "genesys-callback",
        simulator,
        {"queue": "queue-1"},
        {"say": lambda name: text(name, channel="voice"), "reads": as_text, "unfit": (text("u", data={"a": [1]}),)},
    ),
    "genesys-keyed": lambda simulator: genesys_kit(
        "genesys-keyed", simulator, {"key_window": 600, "recipient_name": "to"}, documents()
    ),
    "cxone": lambda simulator: cxone_kit("cxone", simulator, {"channel": "c-1"}, short_messages()),
    "cxone-events": lambda simulator: cxone_kit("cxone-events", simulator, {"key_window": 600}, documents()),
    "sendgrid": lambda simulator: api_key_kit("sendgrid", sendgrid.SECRET, simulator, SENDER, mails()),
    "ses": ses_kit,
    "resend": lambda simulator: api_key_kit(
        "resend", resend.SECRET, simulator, SENDER, mails(unfit=(*NO_MAILS, NO_TEMPLATES))
    ),
    "telnyx": telnyx_kit,
    "brevo": lambda simulator: api_key_kit("brevo", brevo.SECRET, simulator, SENDER, mails(replays=False)),
    "vonage": vonage_kit,
    "smtp": smtp_kit,
    "http-header": lambda simulator: generic_kit(simulator, {"key_header": "Idempotency-Key", "key_window": 600}),
    "http-path": lambda simulator: generic_kit(simulator, {"key_path": "meta.key", "key_window": 600}),
    "http-form": lambda simulator: generic_kit(simulator, {"as_form": True}),
}

SIGN_IN = [name for name in KITS if name.startswith(("genesys", "cxone"))]
CALL_BACK = [
    "twilio",
    "sendgrid",
    "ses",
    "resend",
    "telnyx",
    "brevo",
    "vonage",
    "http-header",
    "http-path",
    "http-form",
]
