"""Semel: contact-centre events act once, customer messages go out once."""

from semel.app import Semel
from semel.core.act import Context
from semel.values import keys
from semel.values.effect import Guarantee
from semel.values.errors import (
    ConfigError,
    LedgerUnavailable,
    MalformedEvent,
    NoKey,
    SemelError,
    TransactionOver,
)
from semel.values.event import Event
from semel.values.keys import latest
from semel.values.outcome import Outcome, Reject, Retry

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Context",
    "Event",
    "Guarantee",
    "LedgerUnavailable",
    "MalformedEvent",
    "NoKey",
    "Outcome",
    "Reject",
    "Retry",
    "Semel",
    "SemelError",
    "TransactionOver",
    "keys",
    "latest",
]
