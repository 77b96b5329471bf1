"""`semel notify send`: from the command line into the outbox. A relay sends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from semel.cli.notifying.box import outbox_at
from semel.cli.operating.looking import now_ms
from semel.cli.operating.place import Place
from semel.cli.operating.words import instant_ms, span_s
from semel.settings.loading import FILE
from semel.settings.overrides import CONFIG
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import CONTENT_MAX_BYTES, Guard, Notification, read_content
from semel.values.outbox import Shown
from semel.values.sending import ProviderAccess
from semel.values.strict_json import parse

SAID = ("body", "subject", "sender", "template", "data")
ASKED = ("not_after", "priority", "order", "guard", "provider", "policy")


class Put(Struct, frozen=True, kw_only=True):
    """What became of it."""

    id: str
    status: Literal["added", "known", "conflict"]
    state: str
    dry_run: bool = False
    differs: list[str] = []  # what the one that is known says otherwise
    ignored: list[str] = []  # what it asks for otherwise; that does not make it another one


def has_settings(config: Path | None) -> bool:
    """Somebody wrote down where the ledger is: then a file that is not there yet may be made."""
    return config is not None or CONFIG in os.environ or Path(FILE).exists()


async def put(where: Place, notification: Notification, dry_run: bool, *, makes: bool = False) -> Put:
    """Into the outbox, unless it is known; a dry run only looks. `makes`: also the first thing in a new ledger."""
    said = read_content(notification.content)  # refuses, before anything is opened, what cannot be kept
    if makes:
        await _make(where)
    async with outbox_at(where) as box:
        before = await box.show(notification.id)
        differs, ignored = _differences(before, notification, said)
        if dry_run:
            status: Any = "added" if before is None else "conflict" if differs else "known"
            state = "pending" if before is None else before.state
            id = notification.id.hex()
            return Put(id=id, status=status, state=state, dry_run=True, differs=differs, ignored=ignored)
        (added,) = await box.add([notification])
        if added.status != "added" and before is None:  # somebody was faster
            differs, ignored = _differences(await box.show(notification.id), notification, said)
    return Put(id=added.id, status=added.status, state=added.state, differs=differs, ignored=ignored)


async def _make(where: Place) -> None:
    """A file that is not there yet, as a service that starts would."""
    from semel.wiring import open_ledger

    url = where.ledger.reveal()
    if url.startswith("sqlite:"):
        ledger = open_ledger(url)
        try:
            await ledger.claim([])
        finally:
            await ledger.close()


def _differences(known: Shown | None, asked: Notification, said: Any) -> tuple[list[str], list[str]]:
    """Names only: what it says is a customer's."""
    if known is None or known.erased:
        return [], []
    was = known.notification
    differs = [name for name in SAID if getattr(was, name) != getattr(said, name)]
    ignored = [name for name in ASKED if _comparable(getattr(was, name)) != _comparable(getattr(asked, name))]
    return differs, ignored


def _comparable(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value


def access_by_settings(config: Path | None) -> ProviderAccess:
    """The providers of the settings, and the tenants that each one serves."""
    from semel.settings.loading import load
    from semel.settings.options import channels_of
    from semel.wiring import provider as made

    settings = load(config, os.environ)
    named = {name: made(one.kind, name, one.options) for name, one in settings.providers.items()}
    return ProviderAccess({name: one.contract for name, one in named.items()}, channels_of(settings, named))


def nobody_sends(access: ProviderAccess, provider: str, channel: str) -> str:
    """Why it would wait for ever, by these settings. Those of a relay may be others, so this is no error."""
    if provider:
        known = provider in access.contracts
        return "" if known else f"the settings name no provider {provider!r}: it waits until a relay knows one"
    if not access.contracts:
        return "the settings name no provider: it waits until a relay knows one"
    sent = bool(access.routes.get(channel))
    return "" if sent else f"no provider of the settings sends {channel}: it waits until a relay knows one"


# --------------------------------------------------------------------------------------------- from the command line


def body_of(body: str | None, file: Path | None, channel: str) -> Any:
    """What it says: a text, or for the channel "event" a JSON document. A line feed at the end of a file is the
    editor's, and no part of it."""
    if body is not None and file is not None:
        raise ConfigError("--body and --body-file both say something: leave one of them out")
    if file is not None:
        body = _read(file)
    if body is not None and not body.strip():
        raise ConfigError("the body is empty: nobody wants to get that")
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
        raise ConfigError(f"--body-file {file}: it is no UTF-8, at byte {error.start:,}") from None


def not_after_of(text: str) -> datetime | None:
    """A time, or how long from now on."""
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
        raise ConfigError(f"--not-after {text}: that is over already")
    return found


def guard_of(window: str, key: str) -> Guard | None:
    if not window:
        if key:
            raise ConfigError("--guard-key: say --guard too, how long one message keeps others away: --guard 24h")
        return None
    window_s = span_s(window)
    if not window_s:
        raise ConfigError(f"--guard {window!r}: expected a length of time, 90s, 30m, 24h, 7d")
    return Guard(window_s=float(window_s), key=key)
