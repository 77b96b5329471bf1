"""What `app.on` refuses: options that contradict each other, and handlers that the ledger cannot serve. And what it
promises of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from semel.core.handlers import Handler
from semel.ports import Ledger
from semel.values import keys
from semel.values.effect import EFFECTS, KEYED_WINDOW_S, Guarantee, guarantee
from semel.values.errors import ConfigError
from semel.values.guarantee import stall

BY_DELIVERY = "a producer's retry under a new transport id runs again"
BY_BUS = "an EventBridge event without an identity in its detail runs again if its producer retries under a new id"
TIME_MAX_S = 100 * 365 * 86_400.0  # stores count milliseconds in 64 bits


def check_options(
    ledger: Ledger,
    patterns: Sequence[object],
    *,
    key: object,
    effect: str,
    order: object,
    max_attempts: object,
    window: float,
    probe: Callable[..., Any] | None,
    fail_open: bool,
) -> None:
    """Raises ConfigError that says which one is wrong."""
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError('app.on needs a topic pattern: @app.on("v2.detail.events.conversation.*.customer.end")')
    if effect not in EFFECTS:
        raise ConfigError(f"effect={effect!r}: expected one of {', '.join(EFFECTS)}")
    if effect == "transaction" and not ledger.traits.transactional:
        raise ConfigError(
            f'effect="transaction" needs a ledger with transactions, {ledger.traits.name} has none: '
            "use SQLite, PostgreSQL or DynamoDB"
        )
    if not callable(key) or (order is not None and not isinstance(order, keys.latest)):
        raise ConfigError("key= takes a strategy of semel.keys or a callable, order= takes latest(...)")
    if probe is not None and effect != "park":
        raise ConfigError('probe= is asked what a vanished run did; only effect="park" does not simply run again')
    if effect != "keyed" and window != KEYED_WINDOW_S:
        raise ConfigError('window= is how long a downstream honours ctx.key; only effect="keyed" has one')
    if fail_open and effect in ("transaction", "park"):
        raise ConfigError(f'fail_open=True: effect="{effect}" cannot be kept without the ledger')
    if type(max_attempts) is not int or max_attempts < 1:
        raise ConfigError(f"max_attempts={max_attempts!r}: expected a whole number, 1 or more")


def check_fits(handler: Handler, ledger: Ledger) -> None:
    """Raises ConfigError where the ledger cannot do what the handler needs."""
    traits, together = ledger.traits, getattr(ledger, "together", None)
    if handler.effect == "transaction" and traits.async_handle and not handler.is_async:
        raise ConfigError(
            f"handler {handler.name!r}: on {traits.name} ctx.tx has to be awaited, so a handler with "
            'effect="transaction" is an async one: write async def'
        )
    several = "order=" if handler.order is not None else "keys.tiers" if isinstance(handler.key, keys.tiers) else ""
    if several and together is not None and not {"*", handler.name} & set(together):
        raise ConfigError(
            f"handler {handler.name!r}: {several} needs several keys of the ledger at once, and {traits.name} keeps"
            f" those of a handler in one place only where its URL says so: add together={handler.name} to it"
        )


def guaranteed(handler: Handler, ledger: Ledger) -> Guarantee:
    topics = tuple(pattern.text for pattern in handler.patterns)
    traits = ledger.traits
    promised = guarantee(handler.name, topics, handler.effect, handler.window_s, traits.name, traits.caveat)
    waking = stall(handler.effect, handler.is_async, handler.probe is not None)
    return replace(promised, repeats=_unrecognised(handler.key, topics), stall=waking)


def _unrecognised(key: keys.Strategy, topics: Sequence[str]) -> str:
    """Which repeats of an event a key does not recognise. Topics that begin with v2. are those of Genesys, which
    recognises them by itself."""
    if key is keys.delivery:
        return BY_DELIVERY
    if key is keys.event and not all(topic.startswith("v2.") for topic in topics):
        return BY_BUS
    return ""


def as_ms(name: str, seconds: object, least_s: float = 0.001) -> int:
    """A time in milliseconds. Raises ConfigError."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not least_s <= seconds <= TIME_MAX_S:
        raise ConfigError(f"{name}={seconds!r}: expected seconds, at least {least_s:g} and at most a century")
    return int(seconds * 1000)
