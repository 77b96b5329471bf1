"""Who takes part: providers with contracts that differ, all of them at once, and what is sent through each.

Times are compressed. A lease is a timeout and a half, so what a killed relay held comes back after six seconds; a
look-up is believed a second and a half after the crossing, and a policy decides after two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any
from zlib import crc32

from msgspec import Struct

from semel.ports import Provider
from semel.providers.registry import provider
from semel.testing.simulator import LIES, brevo, generic, resend, sendgrid, smtp, telnyx, twilio, vonage
from semel.testing.simulator.callbacks import Mode
from semel.values.delivery_state import Contract
from semel.values.notification import Channel, Guard, Notification, Policy
from semel.values.secret import Secret

TIMEOUT_S = 4.0  # an honest answer on two noisy processors takes less; where it does not, that is a cause of its own
MARGIN = 0.5  # of the timeout: as much longer a lease is
SETTLE_S = 1.5
POLICY_S = 2.0
WINDOW_S = 600.0  # of keys that outlive the storm
SHORT_WINDOW_S = 3.0  # and of keys that do not: a lease alone is longer
GUARD_S = 3_600.0
CONCURRENCY = 16
TENANTS = ("north", "south", "west")
LATE_S = 1.0
LATENCY_S = 0.3  # of every answer: crossings are open for a while, as they are in life

HTTP_LIES = tuple(LIES)
MAIL_LIES = tuple(name for name, lie in LIES.items() if lie.hears not in ("502", "503"))  # the same thing to SMTP


class Part(Struct, frozen=True):
    """One provider, what is sent to it, and what it does to that."""

    name: str  # of the provider, in the settings
    kind: str
    dialect: str
    channel: Channel
    weight: int  # how much of the traffic it gets
    options: Mapping[str, Any]
    lies: tuple[str, ...] = HTTP_LIES
    calls: Mode = "never"
    policy: Policy = "hold"
    routed: bool = False  # notifications name no provider: this one is the first of its channel
    ordered: bool = False
    guarded: bool = False


PARTS = (
    Part(  # no key; its list tells what it has
        "twilio",
        "twilio",
        "twilio",
        "sms",
        5,
        {"account": twilio.ACCOUNT, "token": Secret(twilio.SECRET), "sender": "+490", "settle": SETTLE_S},
        ordered=True,
        guarded=True,
    ),
    Part(  # a key that it honours; 409 is said to prove that nothing came of this request
        "telnyx",
        "telnyx",
        "telnyx",
        "sms",
        5,
        {
            "api_key": Secret(telnyx.SECRET),
            "sender": "+490",
            "key_window": WINDOW_S,
            "retriable": [409, 429],
            "per_second": 40.0,
        },
        ordered=True,
        guarded=True,
    ),
    Part(  # neither key nor list: only its callbacks tell
        "vonage",
        "vonage",
        "vonage",
        "sms",
        2,
        {"api_key": vonage.KEY, "api_secret": Secret(vonage.SECRET), "sender": "semel", "per_second": 30.0},
        calls="late",
    ),
    Part(  # nothing tells
        "smtp",
        "smtp",
        "smtp",
        "email",
        2,
        {
            "host": "127.0.0.1",
            "tls": "off",
            "username": smtp.USER,
            "password": Secret(smtp.SECRET),
            "sender": "a@b.test",
        },
        lies=MAIL_LIES,
    ),
    Part(
        "sendgrid",
        "sendgrid",
        "sendgrid",
        "email",
        2,
        {"api_key": Secret(sendgrid.SECRET), "sender": "a@b.test", "policy": "resend", "policy_after": POLICY_S},
        policy="resend",
    ),
    Part(
        "hook",
        "http",
        "http",
        "message",
        2,
        {
            "headers": {"x-api-key": Secret(generic.SECRET)},
            "body": {"to": "{recipient}", "text": "{body}", "reference": "{id}"},
            "report_id": "about.reference",
            "report_reference": "about.id",
            "report_status": "state",
            "report_words": {"queued": "accepted", "done": "delivered", "lost": "undelivered"},
            "policy": "presume_sent",
            "policy_after": POLICY_S,
        },
        calls="out of order",
        policy="presume_sent",
        ordered=True,
    ),
    Part(  # the first of a pair, whose keys are soon forgotten
        "brevo",
        "brevo",
        "brevo",
        "email",
        4,
        {"api_key": Secret(brevo.SECRET), "sender": "a@b.test", "key_window": SHORT_WINDOW_S},
        calls="twice",
        routed=True,
        guarded=True,
    ),
    Part(  # the second
        "resend",
        "resend",
        "resend",
        "email",
        0,
        {"api_key": Secret(resend.SECRET), "sender": "a@b.test", "key_window": WINDOW_S},
        lies=("accept then drop", "500 after sending", "409", "429"),
    ),
)
ROUTES = {"email": ["brevo", "resend"]}
BY_NAME = {part.name: part for part in PARTS}
FALLBACK = "resend"


def opened(part: Part, base: str, mail_port: int, **changed: Any) -> Provider:
    """As the settings would: `base` is the simulator's URL."""
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "concurrency": CONCURRENCY, "allow": ["127.0.0.1"]}
    match part.kind:
        case "smtp":
            options["port"] = mail_port
        case "http":
            options["url"] = f"{base}/{part.dialect}/messages"
        case _:
            options["url"] = f"{base}/{part.dialect}"
    return provider(part.kind, part.name, {**options, **part.options, **changed})


def contracts() -> dict[str, Contract]:
    return {part.name: opened(part, "http://127.0.0.1:1", 1).contract for part in PARTS}


def is_ambiguous(lie: str, part: Part, contract: Contract) -> bool:
    """Whether this contract lets nobody know, after that."""
    hears = LIES[lie].hears if lie else "the answer"
    if part.kind == "smtp":
        return hears not in ("the answer", "429", "400", "409")  # 450 and 550 before the dot, 451 behind it
    if hears == "the answer":
        return False
    return not (hears.isdecimal() and int(hears) in contract.refusals | contract.retriable)


# ------------------------------------------------------------------------------------------------------ what is sent

CHAIN = 5  # notifications with one order key
GROUP = 3  # notifications with one guard


def traffic(total: int, parts: Sequence[Part] = PARTS) -> list[Notification]:
    """Of all parts, mixed, in the order in which they are to be added. The body of each names it in every book."""
    weights = sum(part.weight for part in parts)
    said = [one for part in parts for one in _of(part, round(total * part.weight / weights))]
    Random(total).shuffle(said)
    return said


def _of(part: Part, count: int) -> Iterator[Notification]:
    """A fifth in chains and a fifth under guards, where this part has such; the rest as they come."""
    special = count // 5
    for number in range(count):
        tenant = TENANTS[number % len(TENANTS)]
        name = f"{part.name}-{number}"
        order, guard, who = "", None, name
        if part.ordered and number < special:
            order = f"{part.name}-chain-{number // (len(TENANTS) * CHAIN)}"  # of each tenant one
        elif part.guarded and number < 2 * special:
            guard, who = Guard(window_s=GUARD_S), f"{part.name}-group-{number // (len(TENANTS) * GROUP)}"
        yield Notification(
            key=name,
            kind="proof",
            recipient=f"{who}@example.test" if part.channel == "email" else f"+49{crc32(who.encode())}",
            channel=part.channel,
            body=name,
            subject="proof" if part.channel == "email" else "",
            tenant=tenant,
            order=order,
            guard=guard,
            provider="" if part.routed else part.name,
        )
