"""Every kind of provider by its name, with its options. The one place that puts a provider together from settings.

    provider("twilio", "sms-eu", {"account": "AC…", "token": Secret(…), "sender": "+49…"})

Options are checked before anything is sent. Defaults are those of the providers' public references (docs/providers.md
names them), and nobody here has seen them work; "not among our facts" marks what no reference told us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from semel.adapters.providers import cxone, genesys
from semel.adapters.providers.auth import Auth, Basic, Headers
from semel.adapters.providers.brevo import Brevo
from semel.adapters.providers.generic import METHODS, Generic
from semel.adapters.providers.given import Given, contract_of
from semel.adapters.providers.options import (
    ABOVE_0,
    ADDRESS,
    FLAG,
    HOST,
    OBJECT,
    PATH,
    PORT,
    SECRET,
    SECRETS,
    STATUSES,
    TEXT,
    Option,
    check,
    one_of,
    words,
)
from semel.adapters.providers.resend import Resend
from semel.adapters.providers.sendgrid import SendGrid
from semel.adapters.providers.ses import Ses
from semel.adapters.providers.shared import (
    COMMON,
    CXONE,
    GENESYS,
    GUESSED,
    HTTP,
    KEY_WINDOW,
    MAIL_SENDER,
    SENDER,
    SHAPE,
    TEXT_MAX,
    URL,
)
from semel.adapters.providers.signing import Signature
from semel.adapters.providers.smtp import Smtp
from semel.adapters.providers.telnyx import Telnyx
from semel.adapters.providers.twilio import Twilio
from semel.adapters.providers.vonage import Vonage
from semel.adapters.providers.vonage import access as vonage_access
from semel.ports import Provider
from semel.values.errors import ConfigError
from semel.values.sending import Contract


class Kind(NamedTuple):
    contract: Contract
    options: Mapping[str, Option]
    make: Callable[[Given], Provider]


def provider(kind: str, name: str, options: Mapping[str, Any]) -> Provider:
    """The provider that the settings call `name`. Raises ConfigError."""
    if (known := KINDS.get(kind)) is None:
        raise ConfigError(f"provider {name!r}: there is no kind {kind!r}: expected one of {', '.join(KINDS)}")
    check(name, kind, known.options, options)
    return known.make(Given(contract_of(known.contract, name, options), options))


def forms(kind: str) -> Mapping[str, str]:
    """How options of a kind are written: "text", "secret", or "secrets" by a name; the others as they are."""
    known = KINDS.get(kind)
    written = {SECRET: "secret", SECRETS: "secrets", **dict.fromkeys((TEXT, HOST, PATH, ADDRESS), "text")}
    options = known.options if known is not None else {}
    return {name: written[option.form] for name, option in options.items() if option.form in written}


# -------------------------------------------------------------------------------------------- put together from options


def _bearer(given: Given, name: str) -> Headers:
    return Headers({"Authorization": given[name]}, scheme="Bearer ")


def _genesys(given: Given) -> tuple[str, Auth]:
    region = given.get("region", "")
    url, login_url = given.get("url", ""), given.get("login_url", "")
    if not (region or (url and login_url)):
        raise ConfigError(f"provider {given.contract.name!r}: region is missing: its domain, mypurecloud.de, say")
    auth = genesys.client_credentials(
        given.contract.name,
        login_url or f"https://login.{region}",
        given["client_id"],
        given["client_secret"],
        timeout_s=given.contract.timeout_s,
        allow=given.get("allow", ()),
    )
    return url or f"https://api.{region}", auth


def _cxone(given: Given) -> tuple[str, Auth]:
    if ("client_id" in given.options) != ("client_secret" in given.options):
        raise ConfigError(f"provider {given.contract.name!r}: client_id and client_secret belong together")
    auth = cxone.access_key(
        given.contract.name,
        given["token_url"],
        given["access_key_id"],
        given["access_key_secret"],
        client_id=given.get("client_id", ""),
        client_secret=given.get("client_secret", None),
        timeout_s=given.contract.timeout_s,
        allow=given.get("allow", ()),
    )
    return given["url"], auth


def _ses(given: Given) -> Provider:
    auth = Signature(
        "ses",
        given["region"],
        timeout_s=given.contract.timeout_s,
        key_id=given.get("access_key_id", ""),
        secret=given.get("secret_access_key", None),
    )
    url = given.get("url", f"https://email.{given['region']}.amazonaws.com")
    return Ses(url, auth, **given.some("sender", "configuration_set", "path", "extra"))


def _generic(given: Given) -> Provider:
    named = ("method", "body", "as_form", "sender", "key_header", "key_path", "accepted", "answers_in_html")
    reports = ("report_id", "report_reference", "report_status", "report_words", "reference_at")
    return Generic(given["url"], Headers(given.get("headers", {})), **given.some(*named, *reports))


# ---------------------------------------------------------------------------------------------------------- all of them

KINDS: Mapping[str, Kind] = {
    "twilio": Kind(
        Twilio.CONTRACT,
        {
            **HTTP,
            **URL,
            **TEXT_MAX,
            "account": Option(TEXT, "AC…", needed=True),
            "token": Option(SECRET, "the account's auth token", needed=True),
            "sender": Option(TEXT, "a number of ours", needed=True),
            "callback": Option(TEXT, "Semel's own URL for its status callbacks; our id is added"),
            "settle": Option(ABOVE_0, "until its list has what it will have"),
        },
        lambda given: Twilio(
            given.get("url", "https://api.twilio.com"),
            Basic(given["account"], given["token"]),
            **given.some("account", "sender", "callback", "text_max"),
        ),
    ),
    "genesys": Kind(
        genesys.GenesysMessage.CONTRACT,
        {**GENESYS, **SENDER, **TEXT_MAX, "messenger": Option(TEXT, 'the type of the recipient\'s address: "sms"')},
        lambda given: genesys.GenesysMessage(
            *_genesys(given), **given.some("sender", "messenger", "text_max", "extra")
        ),
    ),
    "genesys-email": Kind(
        genesys.GenesysEmail.CONTRACT,
        {**GENESYS, **MAIL_SENDER, "sender_type": Option(TEXT, "the direction of the mail, Outbound or Inbound")},
        lambda given: genesys.GenesysEmail(*_genesys(given), **given.some("sender", "sender_type", "extra")),
    ),
    "genesys-contacts": Kind(
        genesys.GenesysContacts.CONTRACT,
        {
            **GENESYS,
            **KEY_WINDOW,
            "contact_list": Option(TEXT, "its id", needed=True),
            "column": Option(TEXT, "where the recipient goes"),
            "settle": Option(ABOVE_0, "until a contact that was written can be read"),
        },
        lambda given: genesys.GenesysContacts(*_genesys(given), **given.some("contact_list", "column", "extra")),
    ),
    "genesys-callback": Kind(
        genesys.GenesysCallback.CONTRACT,
        {
            **GENESYS,
            **SENDER,
            "queue": Option(TEXT, "its id", needed=True),
            "reference_name": Option(TEXT, "the name of our reference in its data"),
        },
        lambda given: genesys.GenesysCallback(
            *_genesys(given), **given.some("queue", "reference_name", "sender", "extra")
        ),
    ),
    "genesys-keyed": Kind(
        genesys.GenesysKeyed.CONTRACT,
        {
            **GENESYS,
            **KEY_WINDOW,
            **GUESSED,
            "key_path": Option(TEXT, "where the key goes in the body"),
            "recipient_name": Option(TEXT, "where the recipient goes in the body"),
        },
        lambda given: genesys.GenesysKeyed(
            *_genesys(given), **given.some("path", "key_path", "recipient_name", "extra")
        ),
    ),
    "cxone": Kind(
        cxone.CxoneDigital.CONTRACT,
        {
            **CXONE,
            **SENDER,
            **TEXT_MAX,
            "channel": Option(TEXT, "the digital channel's id", needed=True),
            "body": Option(OBJECT, "a document with gaps; not among our facts"),
        },
        lambda given: cxone.CxoneDigital(
            *_cxone(given), **given.some("channel", "sender", "body", "text_max", "reference_at")
        ),
    ),
    "cxone-events": Kind(
        cxone.CxoneEvents.CONTRACT,
        {
            **CXONE,
            **KEY_WINDOW,
            **GUESSED,
            "key_path": Option(TEXT, "where the key goes in the body"),
        },
        lambda given: cxone.CxoneEvents(*_cxone(given), **given.some("path", "key_path", "reference_at")),
    ),
    "sendgrid": Kind(
        SendGrid.CONTRACT,
        {**HTTP, **URL, **MAIL_SENDER, **SHAPE, "api_key": Option(SECRET, "SG.…", needed=True)},
        lambda given: SendGrid(
            given.get("url", "https://api.sendgrid.com"),
            _bearer(given, "api_key"),
            **given.some("sender", "path", "extra"),
        ),
    ),
    "ses": Kind(
        Ses.CONTRACT,
        {
            **HTTP,
            **URL,
            **MAIL_SENDER,
            **SHAPE,
            "region": Option(HOST, "eu-central-1, say", needed=True),
            "configuration_set": Option(TEXT, "whose event destination tells what became of a mail"),
            "access_key_id": Option(TEXT, "left out: as any AWS program finds its credentials"),
            "secret_access_key": Option(SECRET, "of that key"),
        },
        _ses,
    ),
    "resend": Kind(
        Resend.CONTRACT,
        {**HTTP, **URL, **MAIL_SENDER, **SHAPE, **KEY_WINDOW, "api_key": Option(SECRET, "re_…", needed=True)},
        lambda given: Resend(
            given.get("url", "https://api.resend.com"),
            _bearer(given, "api_key"),
            **given.some("sender", "path", "extra"),
        ),
    ),
    "telnyx": Kind(
        Telnyx.CONTRACT,
        {
            **HTTP,
            **URL,
            **SENDER,
            **SHAPE,
            **TEXT_MAX,
            **KEY_WINDOW,
            "api_key": Option(SECRET, "KEY…", needed=True),
            "callback": Option(TEXT, "Semel's own URL for its webhooks; left out: the messaging profile's"),
        },
        lambda given: Telnyx(
            given.get("url", "https://api.telnyx.com"),
            _bearer(given, "api_key"),
            **given.some("sender", "path", "extra", "text_max", "callback"),
        ),
    ),
    "brevo": Kind(
        Brevo.CONTRACT,
        {**HTTP, **URL, **MAIL_SENDER, **SHAPE, **KEY_WINDOW, "api_key": Option(SECRET, "xkeysib-…", needed=True)},
        lambda given: Brevo(
            given.get("url", "https://api.brevo.com"),
            Headers({"api-key": given["api_key"]}),
            **given.some("sender", "path", "extra"),
        ),
    ),
    "vonage": Kind(
        Vonage.CONTRACT,
        {
            **HTTP,
            **URL,
            **SENDER,
            **SHAPE,
            **TEXT_MAX,
            "api_key": Option(TEXT, "of the account: no callbacks"),
            "api_secret": Option(SECRET, "of the account"),
            "application_id": Option(TEXT, "in its place: of an application, whose status URL is called back"),
            "private_key": Option(SECRET, "of that application"),
            "messenger": Option(TEXT, 'its channel: "sms"'),
        },
        lambda given: Vonage(
            given.get("url", "https://api.nexmo.com"),
            vonage_access(given.contract.name, given.options),
            **given.some("sender", "path", "extra", "text_max", "messenger"),
        ),
    ),
    "smtp": Kind(
        Smtp.CONTRACT,
        {
            **COMMON,
            **MAIL_SENDER,
            "host": Option(HOST, "of the mail server", needed=True),
            "port": Option(PORT, "587 with starttls, 465 with implicit"),
            "tls": Option(one_of("starttls", "implicit", "off"), "how the connection is secured"),
            "username": Option(TEXT, "where the server wants one"),
            "password": Option(SECRET, "of that user"),
            "domain": Option(HOST, "behind the @ of a Message-ID; left out: the sender's"),
        },
        lambda given: Smtp(
            given["host"],
            given.get("port", {"starttls": 587, "implicit": 465, "off": 25}[given.get("tls", "starttls")]),
            **given.some("sender", "tls", "username", "password", "domain"),
        ),
    ),
    "http": Kind(
        Generic.CONTRACT,
        {
            **HTTP,
            **SENDER,
            **KEY_WINDOW,
            "url": Option(TEXT, "where messages go", needed=True),
            "method": Option(one_of(*METHODS), "POST, if nothing is said"),
            "headers": Option(SECRETS, "who asks"),
            "body": Option(OBJECT, "a document with gaps"),
            "as_form": Option(FLAG, "the body goes as a form, not as JSON"),
            "key_header": Option(TEXT, "the header for the key"),
            "key_path": Option(TEXT, "where the key goes in the body"),
            "accepted": Option(STATUSES, "statuses that say that it was taken; left out: 2xx"),
            "answers_in_html": Option(FLAG, "a page is an answer of its own, not of a proxy in its place"),
            "reference_at": Option(TEXT, "where its answer has the message's id"),
            "report_id": Option(TEXT, "where a callback has our id"),
            "report_reference": Option(TEXT, "where a callback has its own"),
            "report_status": Option(TEXT, "where a callback has the status"),
            "report_words": Option(words("accepted", "delivered", "undelivered", "refused"), "what each status means"),
        },
        _generic,
    ),
}
"""To add one: its file, its line here, its dialect in the simulator, and its line in the contract test."""
