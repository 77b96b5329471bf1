"""The outbox that belongs to a ledger: in the same store, or nowhere."""

from __future__ import annotations

from typing import Protocol

from semel.ports import Ledger, Notifications, Outbox
from semel.values.errors import ConfigError


class StoredOutbox(Outbox, Notifications, Protocol):
    """An outbox with both of its sides: relays send from it, people look into it."""


def outbox_of(ledger: Ledger) -> StoredOutbox | None:
    """None: this kind of ledger keeps none."""
    outbox: StoredOutbox | None = getattr(ledger, "outbox", None)
    return outbox


def needed_outbox(ledger: Ledger) -> StoredOutbox:
    """Raises ConfigError where there is none."""
    if (outbox := outbox_of(ledger)) is None:
        raise ConfigError(
            f"a {ledger.traits.name} ledger keeps no outbox: notifications need sqlite:///file.db or postgresql://…"
        )
    return outbox
