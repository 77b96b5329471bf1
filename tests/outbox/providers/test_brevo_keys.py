"""Brevo tells that it knows a key, and not what became of the request that had it. To read more from that loses mails.

Its answers are scripted, on a real socket, and the relay is the real one: a word that means nothing at one attempt must
not come to mean something at the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.outbox.providers.kits import HERE, mail

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.providers.registry import provider
from semel.values.outbox import NotificationView
from semel.values.secret import Secret

KNOWN = '400 {"code":"duplicate_parameter","message":"the key is known"}'
LOST = ""
LIMITED = '429 {"code":"too_many_requests"}'
CREDENTIAL_STATUSES = '401 {"code":"unauthorized"}'
REFUSED = '403 {"code":"permission_denied"}'
FAILED = '500 {"code":"internal"}'
ASKED_LEAST = 5  # so often it has said the same


def final_view(tmp_path: Path, script: Sequence[str]) -> NotificationView:
    """How a mail stands after these answers, and then KNOWN to all that comes, some times over or until it is over."""
    said = mail("known")
    answers = list(script)
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        assert said.id.hex().encode() in (await reader.readexactly(length)).replace(b"-", b"")
        asked += 1
        status, _, body = (answers.pop(0) if answers else KNOWN).partition(" ")
        if status:
            kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
            writer.write(f"HTTP/1.1 {status} x\r\n{kind}\r\n\r\n{body}".encode())
            await writer.drain()
        writer.close()

    async def story() -> NotificationView:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = {"url": url, "api_key": Secret("k"), "sender": "shop@example.test", "allow": HERE}
        brevo = provider("brevo", "brevo", options)
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        relay = Relay(ledger.outbox, {"brevo": brevo}, {"email": ["brevo"]}, random=lambda: 0.001)
        await ledger.outbox.add([said])
        running = asyncio.create_task(relay.run())
        try:
            async with asyncio.timeout(60):
                while True:
                    shown = await ledger.outbox.show(said.id)
                    assert shown is not None
                    if shown.state not in ("pending", "sending", "uncertain") or asked >= len(script) + ASKED_LEAST:
                        return shown
                    await asyncio.sleep(0.02)
        finally:
            await relay.stop(10.0)
            await running
            await brevo.close()
            await ledger.close()
            server.close()
            await server.wait_closed()

    shown = asyncio.run(story())
    assert not answers, "inconclusive: it has not heard all of it"
    return shown


@pytest.mark.parametrize("script", [[LOST], [FAILED], [LOST, FAILED, LOST], [LOST, LIMITED], [LIMITED, LOST]])
def test_a_known_key_after_an_unknown_outcome_proves_acceptance(tmp_path: Path, script: list[str]) -> None:
    shown = final_view(tmp_path, script)
    assert (shown.state, shown.attempts[-1].outcome) == ("accepted", "accepted")


@pytest.mark.parametrize("script", [[LIMITED], [CREDENTIAL_STATUSES, LOST], [LOST, REFUSED], [KNOWN], [LIMITED, KNOWN]])
def test_a_known_key_after_a_refusal_proves_nothing(tmp_path: Path, script: list[str]) -> None:
    """However often it is said: what is unknown does not become an acceptance by being asked again."""
    shown = final_view(tmp_path, script)
    assert shown.state in ("uncertain", "sending")
    assert "accepted" not in {attempt.outcome for attempt in shown.attempts}
