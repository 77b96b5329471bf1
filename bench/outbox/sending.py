"""Sending messages: the relay, a hand-written loop, and the bare client.

All three send through the same provider, which is created for each measurement, on the event loop of the service. The
loop is also measured with `requests`, the usual client of such loops.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeAlias

import requests
from bench.outbox.far_end import Away
from bench.outbox.plan import BATCH, Queue
from bench.stores.plan import Sample
from bench.stores.timing import Watch
from msgspec.structs import replace

from semel.core.relay import Relay, RelayBoundary
from semel.core.resend import needed_outbox
from semel.ports import Outbox, Provider, StoredOutbox
from semel.providers.registry import provider as provider_of
from semel.service.server import SWITCH_S
from semel.values.delivery_state import Accepted, DeliveryState, answered, crossed
from semel.values.notification import Notification
from semel.values.outbox import Crossed, Crossing, Dispatch, Lane, Record, lane_of
from semel.wiring import open_ledger

CHANNEL, NAME = "sms", "bench"
LEASE_MS = 60_000
SOON_S = 60.0

Send: TypeAlias = Callable[[Notification], Awaitable[str]]
"""Sends one message, and returns the provider's reference."""


def notification(number: int) -> Notification:
    body = f"Your order {number} is on its way, and is with you tomorrow between 9 and 12. Reply STOP to opt out."
    return Notification(
        key=f"order-{number}-shipped", kind="shipping", recipient=f"+49{number:011}", channel="sms", body=body
    )


def notifications(number: int, first: int = 0) -> list[Notification]:
    return [notification(first + at) for at in range(number)]


def provider_at(away: Away, concurrency: int) -> Provider:
    options = {"url": away.url, "key_header": "Idempotency-Key", "allow": ["127.0.0.1"], "concurrency": concurrency}
    return provider_of("http", NAME, options)


@contextmanager
def as_in_the_service() -> Iterator[None]:
    """Use the thread switch interval of the service between the ledger's thread and the event loop."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@asynccontextmanager
async def outbox_at(url: str) -> AsyncIterator[StoredOutbox]:
    ledger = open_ledger(url)
    try:
        yield needed_outbox(ledger)
    finally:
        await ledger.close()


# --------------------------------------------------------------------------------------------------------- measures


async def by_relay(watch: Watch, outbox: Outbox, away: Away, number: int, concurrency: int) -> Sample:
    """Relay this number of messages until the last outcome is recorded. The outbox must contain them."""
    provider = provider_at(away, concurrency)
    recorded = 0
    over = asyncio.Event()

    def observe(step: str) -> None:
        nonlocal recorded
        if step == RelayBoundary.AFTER_RECORD:
            recorded += 1
            if recorded == number:
                over.set()

    relay = Relay(outbox, {NAME: provider}, {CHANNEL: [NAME]}, observe=observe)

    async def work() -> None:
        tasks.append(asyncio.create_task(relay.run()))
        async with asyncio.timeout(SOON_S):
            await over.wait()

    tasks: list[asyncio.Task[None]] = []
    try:
        sample = await watch.timed(number, work())
    finally:
        await end(relay, tasks)
        await provider.close()
    away.check(number)
    return sample


async def end(relay: Relay, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Stop the relay and let it finish its messages in flight. A relay that does not stop in time fails the run."""
    async with asyncio.timeout(2 * SOON_S):
        await relay.stop(SOON_S)
        await asyncio.gather(*tasks)


async def by_hand(
    watch: Watch, queue: Queue, away: Away, number: int, sender: Callable[[Away], AbstractAsyncContextManager[Send]]
) -> Sample:
    """Select, send, update and commit one message after the other. A crash loses nothing, but sends a message twice."""
    async with sender(away) as send:

        async def work() -> None:
            while True:
                async with queue.one() as found:
                    if found is None:
                        return
                    said, sent = found
                    await sent(await send(said))

        sample = await watch.timed(number, work())
    away.check(number)
    return sample


@asynccontextmanager
async def our_client(away: Away) -> AsyncIterator[Send]:
    provider = provider_at(away, 1)

    async def send(said: Notification) -> str:
        return await _accepted(provider, said)

    try:
        yield send
    finally:
        await provider.close()


@asynccontextmanager
async def usual_client(away: Away) -> AsyncIterator[Send]:
    """The client that most loops use. It blocks, which does not matter to a sequential loop."""
    with requests.Session() as session:

        async def send(said: Notification) -> str:
            document = {"id": said.id.hex(), "recipient": said.recipient, "body": said.body}
            answer = session.post(away.url, json=document, headers={"Idempotency-Key": said.id.hex()}, timeout=SOON_S)
            answer.raise_for_status()
            return str(answer.json()["id"])

        yield send


async def by_client(watch: Watch, away: Away, number: int, concurrency: int) -> Sample:
    """Send this many at a time, without recording anything."""
    provider = provider_at(away, concurrency)
    waiting = iter(notifications(number))

    async def sender() -> None:
        for said in waiting:
            await _accepted(provider, said)

    async def work() -> None:
        await asyncio.gather(*[sender() for _ in range(concurrency)])

    try:
        sample = await watch.timed(number, work())
    finally:
        await provider.close()
    away.check(number)
    return sample


async def _accepted(provider: Provider, said: Notification) -> str:
    dispatch = Dispatch(said.id, 1, said, b"", DeliveryState(provider=NAME), taken_ms=0)
    answer = await provider.send(dispatch, provider.prepare(dispatch))
    if not isinstance(answer, Accepted):
        raise AssertionError(f"{answer}: its time means nothing")
    return answer.reference


# ------------------------------------------------------------------------------------------- without a relay's timing


async def add(outbox: Outbox, notifications: Sequence[Notification]) -> None:
    for at in range(0, len(notifications), BATCH * 5):
        await outbox.add(notifications[at : at + BATCH * 5])


async def carry(outbox: Outbox, room: int) -> int:
    """Run one batch through the three steps of a relay, without a provider. Returns its size."""
    lane = Lane(room, NAME)
    dispatches = await outbox.take({NAME: lane, lane_of("", CHANNEL): lane}, LEASE_MS)
    delivery_states = [crossed(replace(one.delivery_state, provider=NAME), one.taken_ms) for one in dispatches]
    gates = await outbox.cross([Crossing(*one, b"{}") for one in zip(dispatches, delivery_states, strict=True)])
    if not all(isinstance(gate, Crossed) for gate in gates):
        raise AssertionError("measured something else than messages that may leave")
    await outbox.record([_record(*one) for one in zip(dispatches, delivery_states, strict=True)])
    return len(dispatches)


def _record(dispatch: Dispatch, delivery_state: DeliveryState) -> Record:
    reference = f"m{dispatch.id.hex()}"
    answer = Accepted(reference, "200")
    after = answered(delivery_state, answer, _CONTRACT, dispatch.taken_ms, lambda: 0.0)
    return Record(dispatch, after, "accepted", answer.evidence, reference)


_CONTRACT = provider_of("http", NAME, {"url": "http://127.0.0.1:9/", "allow": ["127.0.0.1"]}).contract
