"""What sources and brokers say of themselves, and what doctor thinks of it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from semel.settings.checking import Finding, Level, span
from semel.values.errors import SemelError

if TYPE_CHECKING:
    from semel.ports import Publisher
    from semel.service.building import Supply
    from semel.settings.schema import Settings

OUT_OF_REACH = "out of reach: "  # how an adapter begins what may be over in a moment
ASK_S = 15.0  # a broker that says nothing for so long is not there
DAY_S = 86_400
KEPT = "kept for"  # what a queue calls its retention
LEVELS: tuple[Level, ...] = ("error", "warning")
CHANGE = "see that it is there, that its name, region and credentials are right, and that this machine may reach it"

ADVICE = (  # what a driver or a broker says, and what a person can do about it
    (
        re.compile(r"Credentials\w*:|ProfileNotFound|InvalidClientTokenId|InvalidAccessKeyId|ExpiredToken|Signature"),
        "give this process credentials of AWS that are valid: a role, a profile (AWS_PROFILE), or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY",
    ),
    (re.compile(r"specify a region"), "set region where the queue's URL does not name it, or AWS_DEFAULT_REGION"),
    (re.compile(r"NonExistentQueue|QueueDoesNotExist"), "create the queue, or correct its URL and its region"),
    (re.compile(r"NOT_FOUND - no queue"), "create the queue, correct its name, or set declare = true"),
    (re.compile(r"refuses this user or password"), "correct the user and the password in its url"),
    (re.compile(r"configuration property"), "correct the options: their names and values are those of librdkafka"),
    (
        re.compile(r"EndpointConnectionError|no answer"),
        "see that this machine may reach it; an emulator, or an endpoint of your own, is named by the setting endpoint",
    ),
    (
        re.compile(r"transport failure|[Tt]imed out|Connect call failed|SSL"),
        "see that host and port are right, that this machine may reach it, and that both sides use TLS or neither does",
    ),
)

_DAYS = re.compile(r"([0-9.]+) days?")

Facts: TypeAlias = list[tuple[str, str]]


async def diagnose_sources(
    settings: Settings, supplies: Sequence[Supply], publishers: Mapping[str, Publisher]
) -> tuple[dict[str, Facts], list[Finding]]:
    """The facts of each, by its name, and what is wrong with them. Nothing raises: it becomes a finding."""
    logging.getLogger("aiormq").addHandler(logging.NullHandler())  # what it has to say is among the findings
    asked: dict[str, Callable[[], Awaitable[Facts]]] = {}
    for supply in supplies:
        asked[f"source {supply.name}"] = supply.make().diagnose
    for kind, publisher in publishers.items():
        asked[f"broker {kind}"] = publisher.diagnose
    told = await asyncio.gather(*(_told(name, ask) for name, ask in asked.items()))
    facts = dict(zip(asked, (facts for facts, _ in told), strict=True))
    findings = [finding for _, found in told for finding in found]
    for name, some in facts.items():
        findings += _too_long(name, some, settings)
    return facts, findings


async def _told(name: str, ask: Callable[[], Awaitable[Facts]]) -> tuple[Facts, list[Finding]]:
    check = name.partition(" ")[0]
    try:
        async with asyncio.timeout(ASK_S):
            facts = await ask()
    except TimeoutError:
        silent = f"{name} cannot be used: {OUT_OF_REACH}no answer within {ASK_S:g} s"
        return [], [Finding("error", silent, CHANGE, check)]
    except (SemelError, OSError) as error:
        said = str(error).rstrip(".")
        return [], [Finding("error", f"{name} cannot be used: {said}", _advice(said) or CHANGE, check)]
    found = [finding for fact, value in facts if (finding := _judged(name, fact, value, check)) is not None]
    return facts, found or [Finding("ok", f"{name} is there", check=check)]


def _judged(name: str, fact: str, value: str, check: str) -> Finding | None:
    for level in LEVELS:
        if value.startswith(f"{level}: "):
            said = value.removeprefix(f"{level}: ")
            return Finding(level, f"{name}, {fact}: {said}", _advice(said) if level == "error" else "", check)
    return None


def _advice(said: str) -> str:
    """Empty where nothing is known, or what was said tells it already."""
    return next((advice for pattern, advice in ADVICE if pattern.search(said)), "")


def _too_long(name: str, facts: Facts, settings: Settings) -> list[Finding]:
    """What a queue keeps can come again: `redelivery` covers that, and what routes remember covers it twice."""
    kept = _DAYS.fullmatch(dict(facts).get(KEPT, ""))
    kept_s = float(kept[1]) * DAY_S if kept is not None else 0.0
    if not name.startswith("source ") or kept_s <= settings.redelivery:
        return []
    what = (
        f"{name} keeps messages for {span(kept_s)}, and redelivery says that an event may come again for "
        f"{span(settings.redelivery)}: a late copy would act again"
    )
    return [
        Finding("error", what, f"set redelivery to {kept_s:.0f} or more, or keep messages for a shorter time", "source")
    ]
