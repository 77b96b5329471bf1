"""Adds a notification from the command line to the outbox (`semel notify send`). A relay sends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from semel.cli.describe import instant_ms, span_s
from semel.cli.find import now_ms, outbox_at
from semel.cli.ledger_place import Place
from semel.settings.adapter_options import channels_of
from semel.settings.loading import CONFIG, FILE, load
from semel.values.delivery_state import ProviderAccess
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import CONTENT_MAX_BYTES, Guard, Notification, read_content
from semel.values.outbox import NotificationView
from semel.values.strict_json import parse
from semel.wiring import open_ledger
from semel.wiring import provider as open_provider

CONTENT_FIELDS = ("body", "subject", "sender", "template", "data")
OPTION_FIELDS = ("not_after", "priority", "order", "guard", "provider", "policy")


class AddResult(Struct, frozen=True, kw_only=True):
    """The result of `semel notify send`."""

    id: str
    status: Literal["added", "known", "conflict"]
    state: str
    dry_run: bool = False
    differs: list[str] = []  # content fields in which the known one differs
    ignored: list[str] = []  # options in which the known one differs; they are not part of its identity


def has_settings(config: Path | None) -> bool:
    """Whether settings name the ledger. Then a ledger file that does not exist yet may be created."""
    return config is not None or CONFIG in os.environ or Path(FILE).exists()


async def add(where: Place, notification: Notification, dry_run: bool, *, create: bool = False) -> AddResult:
    """Add to the outbox, unless it is known; a dry run only reads. `create`: create a missing ledger file."""
    content = read_content(notification.content)  # refuses invalid content before anything is opened
    if create:
        await _create(where)
    async with outbox_at(where) as outbox:
        before = await outbox.show(notification.id)
        differs, ignored = _differences(before, notification, content)
        if dry_run:
            status: Any = "added" if before is None else "conflict" if differs else "known"
            state = "pending" if before is None else before.state
            id = notification.id.hex()
            return AddResult(id=id, status=status, state=state, dry_run=True, differs=differs, ignored=ignored)
        (added,) = await outbox.add([notification])
        if added.status != "added" and before is None:  # another caller added it meanwhile
            differs, ignored = _differences(await outbox.show(notification.id), notification, content)
    return AddResult(id=added.id, status=added.status, state=added.state, differs=differs, ignored=ignored)


async def _create(where: Place) -> None:
    """Create a missing ledger file, as a starting service would."""
    url = where.ledger.reveal()
    if url.startswith("sqlite:"):
        ledger = open_ledger(url)
        try:
            await ledger.claim([])
        finally:
            await ledger.close()


def _differences(
    known: NotificationView | None, notification: Notification, content: Any
) -> tuple[list[str], list[str]]:
    """The names of differing fields. Their values are customer data and are never shown."""
    if known is None or known.erased:
        return [], []
    was, now, new_content = asdict(known.notification), asdict(notification), asdict(content)
    differs = [name for name in CONTENT_FIELDS if was[name] != new_content[name]]
    ignored = [name for name in OPTION_FIELDS if _comparable(was[name]) != _comparable(now[name])]
    return differs, ignored


def _comparable(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value


def access_by_settings(config: Path | None) -> ProviderAccess:
    """The providers of the settings, and the tenants that each one serves."""
    settings = load(config, os.environ)
    providers = {name: open_provider(entry.kind, name, entry.options) for name, entry in settings.providers.items()}
    contracts = {name: provider.contract for name, provider in providers.items()}
    return ProviderAccess(contracts, channels_of(settings, providers))


def missing_provider(access: ProviderAccess, provider: str, channel: str) -> str:
    """Why no provider of these settings sends it. A relay may have other settings, so this is no error."""
    if provider:
        known = provider in access.contracts
        return "" if known else f"the settings have no provider {provider!r}: it waits for a relay that has one"
    if not access.contracts:
        return "the settings have no provider: it waits for a relay that has one"
    sent = bool(access.routes.get(channel))
    return "" if sent else f"no provider of the settings sends {channel}: it waits for a relay that has one"


# --------------------------------------------------------------------------------------------- from the command line


def body_of(body: str | None, file: Path | None, channel: str) -> Any:
    """The body: a text, or for the channel "event" a JSON document. The line feed at the end of a file comes from the
    editor and is removed."""
    if body is not None and file is not None:
        raise ConfigError("--body and --body-file exclude each other: pass one of them")
    if file is not None:
        body = _read(file)
    if body is not None and not body.strip():
        raise ConfigError("the body is empty")
    if body is None or channel != "event":
        return body
    return _document("--body", body)


def data_of(text: str) -> Mapping[str, Any]:
    if not text:
        return {}
    found = _document("--data", text)
    if not isinstance(found, dict):
        raise ConfigError('--data: expected a JSON object, {"name": "value", …}')
    return found


def _document(option: str, text: str) -> Any:
    try:
        return parse(text.encode())
    except (MalformedEvent, UnicodeEncodeError) as error:
        raise ConfigError(f"{option}: expected JSON: {error}") from None


def _read(file: Path) -> str:
    try:
        if str(file) == "-":
            raw = sys.stdin.buffer.read(CONTENT_MAX_BYTES + 1)
        else:
            with file.open("rb") as opened:
                raw = opened.read(CONTENT_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--body-file {file}: {error.strerror or error}") from None
    if len(raw) > CONTENT_MAX_BYTES:
        raise ConfigError(f"--body-file {file}: it has more than {CONTENT_MAX_BYTES:,} bytes")
    try:
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--body-file {file}: it is not UTF-8, at byte {error.start:,}") from None


def not_after_of(text: str) -> datetime | None:
    """Parse a time, or a duration from now."""
    if not text:
        return None
    try:
        ahead_s = span_s(text)
        at_ms = now_ms() + 1000 * ahead_s if ahead_s is not None else instant_ms(text, now_ms())
        found = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"--not-after {text!r}: expected a time such as 2026-03-19T22:00, or 2h, 3d from now"
        ) from None
    if found.timestamp() <= time.time():
        raise ConfigError(f"--not-after {text}: this time has passed")
    return found


def guard_of(window: str, key: str) -> Guard | None:
    if not window:
        if key:
            raise ConfigError("--guard-key needs --guard, the time in which one message suppresses others: --guard 24h")
        return None
    window_s = span_s(window)
    if not window_s:
        raise ConfigError(f"--guard {window!r}: expected a length of time, 90s, 30m, 24h, 7d")
    return Guard(window_s=float(window_s), key=key)
