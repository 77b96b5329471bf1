"""All provider kinds by name, with their options, and the assembly of a provider from its settings.

    provider("twilio", "sms-eu", {"account": "AC…", "token": Secret(…), "sender": "+49…"})

Options are checked at start-up. Defaults follow the providers' public references, which docs/providers.md names; they
have not been tried against live accounts. "Unverified" marks defaults that no reference confirms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from semel.ports import Provider
from semel.providers import cxone, genesys
from semel.providers.auth import Auth, AwsSignature, BasicAuth, HeaderAuth
from semel.providers.brevo import Brevo
from semel.providers.generic import METHODS, Generic
from semel.providers.options import (
    ABOVE_0,
    ADDRESS,
    COMMON,
    CXONE,
    FLAG,
    GENESYS,
    HOST,
    HTTP,
    KEY_WINDOW,
    MAIL_SENDER,
    OBJECT,
    PATH,
    PORT,
    SECRET,
    SECRETS,
    SENDER,
    SHAPE,
    STATUSES,
    TEXT,
    TEXT_MAX,
    UNVERIFIED_PATH,
    URL,
    Option,
    ProviderOptions,
    check_options,
    contract_of,
    mapping_to,
    one_of,
)
from semel.providers.resend import Resend
from semel.providers.sendgrid import SendGrid
from semel.providers.ses import Ses
from semel.providers.smtp import Smtp
from semel.providers.telnyx import Telnyx
from semel.providers.twilio import Twilio
from semel.providers.vonage import Vonage
from semel.providers.vonage import access as vonage_access
from semel.values.delivery_state import Contract
from semel.values.errors import ConfigError


class ProviderKind(NamedTuple):
    contract: Contract
    options: Mapping[str, Option]
    make: Callable[[ProviderOptions], Provider]


def provider(kind: str, name: str, options: Mapping[str, Any]) -> Provider:
    """Create the provider that the settings name `name`. Raises ConfigError."""
    if (known := KINDS.get(kind)) is None:
        raise ConfigError(f"provider {name!r}: there is no kind {kind!r}: expected one of {', '.join(KINDS)}")
    check_options(name, kind, known.options, options)
    return known.make(ProviderOptions(contract_of(known.contract, name, options), options))


def option_formats(kind: str) -> Mapping[str, str]:
    """The options of a kind that are written as "text", as a "secret", or as an object of "secrets". Options of any
    other type are left out."""
    known = KINDS.get(kind)
    formats = {SECRET: "secret", SECRETS: "secrets", **dict.fromkeys((TEXT, HOST, PATH, ADDRESS), "text")}
    options = known.options if known is not None else {}
    return {name: formats[option.type] for name, option in options.items() if option.type in formats}


# ----------------------------------------------------------------------------------------------- assembly from options


def _bearer(options: ProviderOptions, name: str) -> HeaderAuth:
    return HeaderAuth({"Authorization": options[name]}, scheme="Bearer ")


def _genesys(options: ProviderOptions) -> tuple[str, Auth]:
    region = options.get("region", "")
    url, login_url = options.get("url", ""), options.get("login_url", "")
    if not (region or (url and login_url)):
        raise ConfigError(f"provider {options.contract.name!r}: region is missing: its domain, such as mypurecloud.de")
    auth = genesys.client_credentials(
        options.contract.name,
        login_url or f"https://login.{region}",
        options["client_id"],
        options["client_secret"],
        timeout_s=options.contract.timeout_s,
        allow=options.get("allow", ()),
    )
    return url or f"https://api.{region}", auth


def _cxone(options: ProviderOptions) -> tuple[str, Auth]:
    if ("client_id" in options.values) != ("client_secret" in options.values):
        raise ConfigError(f"provider {options.contract.name!r}: client_id and client_secret belong together")
    auth = cxone.access_key(
        options.contract.name,
        options["token_url"],
        options["access_key_id"],
        options["access_key_secret"],
        client_id=options.get("client_id", ""),
        client_secret=options.get("client_secret", None),
        timeout_s=options.contract.timeout_s,
        allow=options.get("allow", ()),
    )
    return options["url"], auth


def _ses(options: ProviderOptions) -> Provider:
    auth = AwsSignature(
        "ses",
        options["region"],
        timeout_s=options.contract.timeout_s,
        key_id=options.get("access_key_id", ""),
        secret=options.get("secret_access_key", None),
    )
    url = options.get("url", f"https://email.{options['region']}.amazonaws.com")
    return Ses(url, auth, **options.keywords("sender", "configuration_set", "path", "extra"))


def _generic(options: ProviderOptions) -> Provider:
    named = ("method", "body", "as_form", "sender", "key_header", "key_path", "accepted", "answers_in_html")
    reports = ("report_id", "report_reference", "report_status", "report_words", "reference_at")
    return Generic(options["url"], HeaderAuth(options.get("headers", {})), **options.keywords(*named, *reports))


# ---------------------------------------------------------------------------------------------------------------- kinds

KINDS: Mapping[str, ProviderKind] = {
    "twilio": ProviderKind(
        Twilio.CONTRACT,
        {
            **HTTP,
            **URL,
            **TEXT_MAX,
            "account": Option(TEXT, "AC…", required=True),
            "token": Option(SECRET, "the account's auth token", required=True),
            "sender": Option(TEXT, "sender number of the account", required=True),
            "callback": Option(TEXT, "Semel's URL for status callbacks; Semel adds the notification id"),
            "settle": Option(ABOVE_0, "seconds until the message list is complete"),
        },
        lambda options: Twilio(
            options.get("url", "https://api.twilio.com"),
            BasicAuth(options["account"], options["token"]),
            **options.keywords("account", "sender", "callback", "text_max"),
        ),
    ),
    "genesys": ProviderKind(
        genesys.GenesysMessage.CONTRACT,
        {**GENESYS, **SENDER, **TEXT_MAX, "messenger": Option(TEXT, 'type of the recipient\'s address, such as "sms"')},
        lambda options: genesys.GenesysMessage(
            *_genesys(options), **options.keywords("sender", "messenger", "text_max", "extra")
        ),
    ),
    "genesys-email": ProviderKind(
        genesys.GenesysEmail.CONTRACT,
        {**GENESYS, **MAIL_SENDER, "sender_type": Option(TEXT, "direction of the mail: Outbound or Inbound")},
        lambda options: genesys.GenesysEmail(*_genesys(options), **options.keywords("sender", "sender_type", "extra")),
    ),
    "genesys-contacts": ProviderKind(
        genesys.GenesysContacts.CONTRACT,
        {
            **GENESYS,
            **KEY_WINDOW,
            "contact_list": Option(TEXT, "id of the contact list", required=True),
            "column": Option(TEXT, "column for the recipient"),
            "settle": Option(ABOVE_0, "seconds until a written contact can be read"),
        },
        lambda options: genesys.GenesysContacts(
            *_genesys(options), **options.keywords("contact_list", "column", "extra")
        ),
    ),
    "genesys-callback": ProviderKind(
        genesys.GenesysCallback.CONTRACT,
        {
            **GENESYS,
            **SENDER,
            "queue": Option(TEXT, "id of the queue", required=True),
            "reference_name": Option(TEXT, "name of the notification id in the callback's data"),
        },
        lambda options: genesys.GenesysCallback(
            *_genesys(options), **options.keywords("queue", "reference_name", "sender", "extra")
        ),
    ),
    "genesys-keyed": ProviderKind(
        genesys.GenesysKeyed.CONTRACT,
        {
            **GENESYS,
            **KEY_WINDOW,
            **UNVERIFIED_PATH,
            "key_path": Option(TEXT, "path of the key in the body"),
            "recipient_name": Option(TEXT, "field for the recipient in the body"),
        },
        lambda options: genesys.GenesysKeyed(
            *_genesys(options), **options.keywords("path", "key_path", "recipient_name", "extra")
        ),
    ),
    "cxone": ProviderKind(
        cxone.CxoneDigital.CONTRACT,
        {
            **CXONE,
            **SENDER,
            **TEXT_MAX,
            "channel": Option(TEXT, "id of the digital channel", required=True),
            "body": Option(OBJECT, "document with placeholders; the default is unverified"),
        },
        lambda options: cxone.CxoneDigital(
            *_cxone(options), **options.keywords("channel", "sender", "body", "text_max", "reference_at")
        ),
    ),
    "cxone-events": ProviderKind(
        cxone.CxoneEvents.CONTRACT,
        {
            **CXONE,
            **KEY_WINDOW,
            **UNVERIFIED_PATH,
            "key_path": Option(TEXT, "path of the key in the body"),
        },
        lambda options: cxone.CxoneEvents(*_cxone(options), **options.keywords("path", "key_path", "reference_at")),
    ),
    "sendgrid": ProviderKind(
        SendGrid.CONTRACT,
        {**HTTP, **URL, **MAIL_SENDER, **SHAPE, "api_key": Option(SECRET, "SG.…", required=True)},
        lambda options: SendGrid(
            options.get("url", "https://api.sendgrid.com"),
            _bearer(options, "api_key"),
            **options.keywords("sender", "path", "extra"),
        ),
    ),
    "ses": ProviderKind(
        Ses.CONTRACT,
        {
            **HTTP,
            **URL,
            **MAIL_SENDER,
            **SHAPE,
            "region": Option(HOST, "AWS region, such as eu-central-1", required=True),
            "configuration_set": Option(TEXT, "set whose event destination reports deliveries"),
            "access_key_id": Option(TEXT, "by default: the usual AWS credential chain"),
            "secret_access_key": Option(SECRET, "of that key"),
        },
        _ses,
    ),
    "resend": ProviderKind(
        Resend.CONTRACT,
        {**HTTP, **URL, **MAIL_SENDER, **SHAPE, **KEY_WINDOW, "api_key": Option(SECRET, "re_…", required=True)},
        lambda options: Resend(
            options.get("url", "https://api.resend.com"),
            _bearer(options, "api_key"),
            **options.keywords("sender", "path", "extra"),
        ),
    ),
    "telnyx": ProviderKind(
        Telnyx.CONTRACT,
        {
            **HTTP,
            **URL,
            **SENDER,
            **SHAPE,
            **TEXT_MAX,
            **KEY_WINDOW,
            "api_key": Option(SECRET, "KEY…", required=True),
            "callback": Option(TEXT, "Semel's URL for webhooks; the messaging profile's by default"),
        },
        lambda options: Telnyx(
            options.get("url", "https://api.telnyx.com"),
            _bearer(options, "api_key"),
            **options.keywords("sender", "path", "extra", "text_max", "callback"),
        ),
    ),
    "brevo": ProviderKind(
        Brevo.CONTRACT,
        {**HTTP, **URL, **MAIL_SENDER, **SHAPE, **KEY_WINDOW, "api_key": Option(SECRET, "xkeysib-…", required=True)},
        lambda options: Brevo(
            options.get("url", "https://api.brevo.com"),
            HeaderAuth({"api-key": options["api_key"]}),
            **options.keywords("sender", "path", "extra"),
        ),
    ),
    "vonage": ProviderKind(
        Vonage.CONTRACT,
        {
            **HTTP,
            **URL,
            **SENDER,
            **SHAPE,
            **TEXT_MAX,
            "api_key": Option(TEXT, "of the account; messages sent with it get no callbacks"),
            "api_secret": Option(SECRET, "of the account"),
            "application_id": Option(TEXT, "instead of api_key: the application whose status URL gets callbacks"),
            "private_key": Option(SECRET, "of that application"),
            "messenger": Option(TEXT, 'Vonage channel, such as "sms"'),
        },
        lambda options: Vonage(
            options.get("url", "https://api.nexmo.com"),
            vonage_access(options.contract.name, options.values),
            **options.keywords("sender", "path", "extra", "text_max", "messenger"),
        ),
    ),
    "smtp": ProviderKind(
        Smtp.CONTRACT,
        {
            **COMMON,
            **MAIL_SENDER,
            "host": Option(HOST, "host of the mail server", required=True),
            "port": Option(PORT, "587 with starttls, 465 with implicit"),
            "tls": Option(one_of("starttls", "implicit", "off"), "how the connection is secured"),
            "username": Option(TEXT, "if the server requires authentication"),
            "password": Option(SECRET, "of that user"),
            "domain": Option(HOST, "domain of the Message-ID; the sender's by default"),
        },
        lambda options: Smtp(
            options["host"],
            options.get("port", {"starttls": 587, "implicit": 465, "off": 25}[options.get("tls", "starttls")]),
            **options.keywords("sender", "tls", "username", "password", "domain"),
        ),
    ),
    "http": ProviderKind(
        Generic.CONTRACT,
        {
            **HTTP,
            **SENDER,
            **KEY_WINDOW,
            "url": Option(TEXT, "URL that receives the messages", required=True),
            "method": Option(one_of(*METHODS), "POST by default"),
            "headers": Option(SECRETS, "credentials"),
            "body": Option(OBJECT, "document with placeholders"),
            "as_form": Option(FLAG, "send the body as a form, not as JSON"),
            "key_header": Option(TEXT, "header for the key"),
            "key_path": Option(TEXT, "path of the key in the body"),
            "accepted": Option(STATUSES, "statuses that mean accepted; 2xx by default"),
            "answers_in_html": Option(FLAG, "HTML is the endpoint's own response, not a proxy's page"),
            "reference_at": Option(TEXT, "path of the message id in the response"),
            "report_id": Option(TEXT, "path of the notification id in a callback"),
            "report_reference": Option(TEXT, "path of the provider's message id in a callback"),
            "report_status": Option(TEXT, "path of the status in a callback"),
            "report_words": Option(
                mapping_to("accepted", "delivered", "undelivered", "refused"), "meaning of each status"
            ),
        },
        _generic,
    ),
}
"""To add a kind, add its module, its entry here, its dialect in the simulator and its entry in the contract test."""
