"""Settings change while an outcome is unknown. The look-up uses the request as it was sent, not the new settings.

Otherwise a message would be "absent" in a place where it never was, and would be sent twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.outbox.providers.kits import HERE, contact, text

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.providers.registry import provider
from semel.testing.provider_laws import dispatch_of
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.twilio import ACCOUNT, SECRET
from semel.values.delivery_state import DeliveryState, Unknown
from semel.values.notification import Notification
from semel.values.outbox import Found, LookedUp, NotificationView, Unclear
from semel.values.secret import Secret

Options = dict[str, Any]
Says = Callable[[str, str, bytes], Any]
"""What is answered to a method, a path and a body; None: nothing is, and the connection ends."""


def by(sender: str) -> Options:
    return {"account": "AC1", "token": Secret("t"), "sender": sender}


def into(contact_list: str) -> Options:
    return {"client_id": "c", "client_secret": Secret("s"), "contact_list": contact_list, "column": "phone"}


class Numbers:
    """Twilio: its list is asked by both numbers, and has those of a message as they were."""

    def __init__(self, **other: Any) -> None:
        self.sent: list[dict[str, str]] = []
        self._other = other

    def __call__(self, method: str, path: str, body: bytes) -> Any:
        if method == "POST":
            self.sent.append(dict(parse_qsl(body.decode())))
            return None
        asked = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        mine = [one for one in self.sent if (one["To"], one["From"]) == (asked["To"], asked["From"])]
        listed = [{"sid": "SM1", "to": one["To"], "body": one["Body"], "date_created": formatdate()} for one in mine]
        return {"messages": [{**one, **self._other} for one in listed]}


class Contacts:
    """Genesys: a contact is in the list that it was written to."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, method: str, path: str, body: bytes) -> Any:
        if path == "/oauth/token":
            return {"access_token": "t", "expires_in": 3600}
        if method == "POST":
            (one,) = json.loads(body)
            self.paths.append(f"{path.partition('?')[0]}/{one['id']}")
            return None
        return {"id": path.rpartition("/")[2]} if path in self.paths else 404


async def _answer(says: Says, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = head.split(" ", 2)
    lengths = [int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")]
    told = says(method, path, await reader.readexactly(sum(lengths)))
    if told is not None:
        status, body = (told, b"{}") if isinstance(told, int) else (200, json.dumps(told).encode())
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
        writer.write(f"HTTP/1.1 {status} x\r\n{fields}\r\n\r\n".encode() + body)
        await writer.drain()
    writer.close()


def looked_up(says: Says, kind: str, said: Notification, before: Options, after: Options) -> LookedUp:
    """What a look-up says by the settings after, of what was sent by those before and was not answered."""
    ms = int(1000 * time.time())
    doubted = DeliveryState(state="uncertain", crossed_ms=ms, keyed_ms=ms, doubt_ms=ms)

    async def story() -> LookedUp:
        server = await asyncio.start_server(partial(_answer, says), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        here = {"url": url, "allow": HERE, **({} if kind == "twilio" else {"login_url": url})}
        first, second = (provider(kind, "p", {**here, **options}) for options in (before, after))
        try:
            dispatch = dispatch_of(said)
            request = first.prepare(dispatch)
            assert isinstance(await first.send(dispatch, request), Unknown)
            return await second.look_up(replace(dispatch, delivery_state=doubted, request=request))
        finally:
            await first.close()
            await second.close()
            server.close()
            await server.wait_closed()

    return asyncio.run(story())


def test_a_message_is_looked_up_by_the_number_it_was_sent_from() -> None:
    said = text("moved")
    assert looked_up(Numbers(), "twilio", said, by("+491"), by("+492")) == Found("SM1")
    assert looked_up(Numbers(), "twilio", replace(said, sender="+493"), by("+491"), by("+492")) == Found("SM1")


@pytest.mark.parametrize("sender", ["+49 170 1234567", "0170 1234567", "491701234567"])
def test_a_sender_in_another_notation_is_not_looked_up(sender: str) -> None:
    assert isinstance(looked_up(Numbers(), "twilio", text("written"), by(sender), by(sender)), Unclear)


@pytest.mark.parametrize("sender", ["ACME", "12345", "+491701234567"])
def test_a_name_and_a_short_code_are_looked_up(sender: str) -> None:
    assert looked_up(Numbers(), "twilio", text("short"), by(sender), by(sender)) == Found("SM1")


@pytest.mark.parametrize("number", [None, "+4915112345678"])
def test_a_listed_message_with_a_changed_number_makes_the_look_up_unclear(number: str | None) -> None:
    """The list was asked by this number, and answers with another one, or with none."""
    assert isinstance(looked_up(Numbers(to=number), "twilio", text("number"), by("+491"), by("+491")), Unclear)


def test_a_date_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        says = Numbers(date_created=formatdate(usegmt=True).replace("GMT", "-0000"))
        assert looked_up(says, "twilio", text("zone"), by("+491"), by("+491")) == Found("SM1")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_contact_is_looked_up_in_the_list_it_was_written_to() -> None:
    said = contact("listed")
    assert looked_up(Contacts(), "genesys-contacts", said, into("list-1"), into("list-2")) == Found(said.id.hex())


def test_a_relay_with_another_sender_finds_a_message_of_the_former_relay(
    tmp_path: Path, simulator: SimulatorProcess
) -> None:
    """The whole way: what is in doubt is sent by one relay, and looked up by the next, which has other settings."""
    simulator.tell_the_truth()
    simulator.lie("accept then drop", "twilio")
    said = text(uuid4().hex)
    given = {"account": ACCOUNT, "token": Secret(SECRET), "url": simulator.url("twilio"), "allow": HERE, "settle": 1}

    async def relayed(sender: str, *until: str) -> NotificationView:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        made = provider("twilio", "twilio", {**given, "sender": sender})
        relay = Relay(ledger.outbox, {"twilio": made}, {"sms": ["twilio"]}, random=lambda: 0.01)
        await ledger.outbox.add([said])
        running = asyncio.create_task(relay.run())
        try:
            async with asyncio.timeout(60):
                while True:
                    shown = await ledger.outbox.show(said.id)
                    if shown is not None and shown.state in until:
                        return shown
                    await asyncio.sleep(0.02)
        finally:
            await relay.stop(10.0)
            await running
            await made.close()
            await ledger.close()

    asyncio.run(relayed("+491", "uncertain", "accepted"))  # accepted: this machine was too slow to tell
    found = asyncio.run(relayed("+492", "accepted"))
    (one,) = simulator.phone(said.recipient)
    assert (one.sender, found.attempts[-1].reference) == ("+491", one.reference)
