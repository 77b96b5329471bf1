"""Semel: contact-centre events take effect once, and customer messages go out once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel import outbox, providers, sources
    from semel.app import Semel
    from semel.core.handler_run import Context
    from semel.ports import Entry, PostgresTx, SqliteTx
    from semel.values import keys
    from semel.values.effect import Guarantee
    from semel.values.errors import (
        ConfigError,
        LeaseLost,
        LedgerUnavailable,
        MalformedEvent,
        NoKey,
        SemelError,
        TransactionOver,
    )
    from semel.values.event import Event
    from semel.values.keys import latest
    from semel.values.notification import Guard, Notification
    from semel.values.outcome import NotNow, Outcome, Reject, Retry

__version__ = "0.1.0"

# Loaded when first used, so that importing only values or errors does not import asyncio: a Lambda starts cold.
_HOME = {
    "ConfigError": "semel.values.errors",
    "Context": "semel.core.handler_run",
    "Entry": "semel.ports",
    "Event": "semel.values.event",
    "Guard": "semel.values.notification",
    "Guarantee": "semel.values.effect",
    "LeaseLost": "semel.values.errors",
    "LedgerUnavailable": "semel.values.errors",
    "MalformedEvent": "semel.values.errors",
    "NoKey": "semel.values.errors",
    "NotNow": "semel.values.outcome",
    "PostgresTx": "semel.ports",
    "SqliteTx": "semel.ports",
    "Notification": "semel.values.notification",
    "Outcome": "semel.values.outcome",
    "Reject": "semel.values.outcome",
    "Retry": "semel.values.outcome",
    "Semel": "semel.app",
    "SemelError": "semel.values.errors",
    "TransactionOver": "semel.values.errors",
    "latest": "semel.values.keys",
}

_MODULES = {
    "keys": "semel.values.keys",
    "outbox": "semel.outbox",
    "providers": "semel.providers",
    "sources": "semel.sources",
}

__all__ = [
    "ConfigError",
    "Context",
    "Entry",
    "Event",
    "Guarantee",
    "Guard",
    "LeaseLost",
    "LedgerUnavailable",
    "MalformedEvent",
    "NoKey",
    "NotNow",
    "Notification",
    "Outcome",
    "PostgresTx",
    "Reject",
    "Retry",
    "Semel",
    "SemelError",
    "SqliteTx",
    "TransactionOver",
    "keys",
    "latest",
    "outbox",
    "providers",
    "sources",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
