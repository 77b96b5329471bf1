"""Options that several kinds of providers have. What one has alone is in its line of `kinds.py`."""

from __future__ import annotations

from semel.adapters.providers.options import (
    ABOVE_0,
    ADDRESS,
    ALLOWED,
    HOST,
    NUMBER,
    OBJECT,
    PATH,
    SECRET,
    STATUSES,
    TEXT,
    TEXTS,
    WHOLE,
    Option,
    lists,
    one_of,
)
from semel.values.notification import CHANNELS, POLICIES

COMMON = {
    "channels": Option(lists(*CHANNELS), "what is sent by it"),
    "timeout": Option(ABOVE_0, "for one message, signing in included"),
    "per_second": Option(NUMBER, "sends of all processes together, for one tenant; 0: no limit"),
    "concurrency": Option(WHOLE, "requests at a time, in each process"),
    "policy": Option(one_of(*POLICIES), "what happens to an unknown outcome in the end"),
    "policy_after": Option(ABOVE_0, "after the crossing"),
    "tenants": Option(TEXTS, 'tenants that may send through it; "" is the default tenant; all tenants if left out'),
    "senders": Option(TEXTS, "senders that a notification may name besides `sender`; any sender if left out"),
    "allow": Option(ALLOWED, "hosts and networks inside that may be called"),
}
HTTP = {
    **COMMON,
    "refusals": Option(STATUSES, "statuses that prove that nothing was accepted, nor will be"),
    "retriable": Option(STATUSES, "statuses that prove that nothing was accepted, this time"),
}
URL = {"url": Option(TEXT, "another one than the provider's own")}
SENDER = {"sender": Option(TEXT, "a number or an address of ours, where the notification has none")}
MAIL_SENDER = {"sender": Option(ADDRESS, SENDER["sender"].says)}
SHAPE = {
    "path": Option(PATH, "behind the URL, another one than the provider's own"),
    "extra": Option(OBJECT, "fields that are added to each body"),
}
GUESSED = {"path": Option(PATH, "behind the URL; not among our facts")}
KEY_WINDOW = {"key_window": Option(ABOVE_0, "for how long the key is relied on")}
TEXT_MAX = {"text_max": Option(WHOLE, "characters of a text, at the most")}
GENESYS = {
    **HTTP,
    "region": Option(HOST, "its domain: mypurecloud.de, say", needed=False),
    "url": Option(TEXT, "https://api.… ; left out: of the region"),
    "login_url": Option(TEXT, "https://login.… ; left out: of the region"),
    "client_id": Option(TEXT, "of an OAuth client with client credentials", needed=True),
    "client_secret": Option(SECRET, "of that client", needed=True),
    "extra": SHAPE["extra"],
}
CXONE = {
    **HTTP,
    "url": Option(TEXT, "of the tenant's API", needed=True),
    "token_url": Option(TEXT, "where an access key gets its token", needed=True),
    "access_key_id": Option(TEXT, "of a back-end application", needed=True),
    "access_key_secret": Option(SECRET, "of that key", needed=True),
    "client_id": Option(TEXT, "of the application, where its token needs it"),
    "client_secret": Option(SECRET, "of the application"),
    "reference_at": Option(TEXT, "where its answer has the message's id; not among our facts"),
}
