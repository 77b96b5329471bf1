"""`ctx.notify` on PostgreSQL: the handler's rows, its message and its outcome commit together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from tests.ledgers.postgres.opening import connected

from semel import Context, Event, Retry, Semel
from semel.values.outbox import NotificationQuery, NotificationView

SAID: dict[str, Any] = {"kind": "shipping", "recipient": "+491", "channel": "sms"}


async def listed(app: Semel, tenant: str) -> list[NotificationView]:
    outbox: Any = app.ledger.outbox  # type: ignore[attr-defined]
    found: list[NotificationView] = await outbox.find(NotificationQuery(tenant=tenant))
    return found


async def rows(url: str, tenant: str) -> list[str]:
    async with connected(url) as connection:
        return [row[0] for row in await connection.fetch("select id from mine where tenant = $1 order by id", tenant)]


def body(id: str) -> dict[str, Any]:
    return {"id": id, "type": "a", "data": {}}


@pytest.mark.parametrize("effect", ["transaction", "retry"])
def test_a_notification_commits_with_the_outcome_and_a_conflict_undoes_both(url: str, effect: Any) -> None:
    tenant = uuid4().hex

    async def story() -> None:
        async with connected(url) as connection:
            await connection.execute("create table if not exists mine (tenant text, id text)")
        async with Semel(url, tenant=tenant, random=lambda: 0.0) as app:

            @app.on("a", effect=effect)
            async def handle(event: Event, ctx: Context) -> None:
                if effect == "transaction":
                    await ctx.tx.execute("set local role none")
                    await ctx.tx.execute("insert into mine values ($1, $2)", tenant, event.id)
                ctx.notify(**SAID, key="order-1", body=f"for {event.id[0]}")
                if ctx.attempt == 1:
                    raise Retry(after=0)

            assert (await app.process(body("1"))).status == "retry"
            assert await listed(app, tenant) == []
            assert (await app.process(body("1"))).status == "done"
            assert (await app.process(body("1"))).status == "duplicate"
            await app.process(body("1 again"))
            assert (await app.process(body("1 again"))).status == "done", "it says the same: one message"
            await app.process(body("2"))
            outcome = await app.process(body("2"))
            assert (outcome.status, "content" in outcome.reason) == ("dead", True)
            (shown,) = await listed(app, tenant)
            assert (shown.state, shown.notification.body) == ("pending", "for 1")
            assert await rows(url, tenant) == (["1", "1 again"] if effect == "transaction" else [])

    asyncio.run(story())


def test_a_statement_that_was_not_awaited_sends_nothing(url: str) -> None:
    tenant = uuid4().hex

    async def story() -> None:
        async with Semel(url, tenant=tenant) as app:

            @app.on("a", effect="transaction", max_attempts=1)
            async def handle(event: Event, ctx: Context) -> None:
                ctx.tx.execute("select 1")
                ctx.notify(**SAID, body="text")

            assert (await app.process(body("1"))).status == "dead"
            assert await listed(app, tenant) == []

    asyncio.run(story())


@pytest.mark.parametrize("wrong", ["arguments", "conflict"])
@pytest.mark.parametrize("effect", ["transaction", "keyed", "retry", "park"])
def test_a_message_that_can_never_be_sent_rejects_its_event(url: str, effect: Any, wrong: str) -> None:
    tenant = uuid4().hex
    attempts = 0

    async def story() -> None:
        async with connected(url) as connection:
            await connection.execute("create table if not exists mine (tenant text, id text)")
        async with Semel(url, tenant=tenant, random=lambda: 0.0) as app:

            @app.on("a", effect=effect, max_attempts=9)
            async def handle(event: Event, ctx: Context) -> None:
                nonlocal attempts
                attempts += 1
                if effect == "transaction":
                    await ctx.tx.execute("insert into mine values ($1, $2)", tenant, event.id)
                ctx.notify(**SAID, key="order-1", body="On its way")
                ctx.notify(**SAID, key="order-1", body="Gone" if wrong == "conflict" else "")

            outcome = await app.process(body("1"))
            in_doubt = effect == "park" and wrong == "arguments"  # it raised, so its effect is uncertain
            assert outcome.status == ("uncertain" if in_doubt else "dead")
            assert ("content" if wrong == "conflict" else "body") in outcome.reason
            await app.process(body("1"))
            assert attempts == 1
            assert await listed(app, tenant) == []
            assert await rows(url, tenant) == []

    asyncio.run(story())
