"""`ctx.notify`: what a handler wants to be sent is in the outbox when its outcome is recorded, and else it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from semel import ConfigError, Context, Event, Retry, Semel
from semel.values.errors import WrongNotification
from semel.values.notification import Notification
from semel.values.outbox import NotificationQuery, NotificationView

BODY = {"id": "1", "type": "a", "data": {}}
SAID: dict[str, Any] = {"kind": "shipping", "recipient": "+491", "channel": "sms", "body": "On its way"}


def story(tmp_path: Path, tell: Callable[[Semel], Awaitable[None]], ledger: str = "") -> None:
    async def whole() -> None:
        async with Semel(ledger or f"sqlite:///{tmp_path}/semel.db", random=lambda: 0.0) as app:
            await tell(app)

    asyncio.run(whole())


async def listed(app: Semel) -> list[NotificationView]:
    outbox: Any = app.ledger.outbox  # type: ignore[attr-defined]
    found: list[NotificationView] = await outbox.find(NotificationQuery())
    return found


@pytest.mark.parametrize("effect", ["transaction", "keyed", "retry", "park"])
@pytest.mark.parametrize("sync", [False, True])
def test_it_is_there_once_when_the_event_is_done(tmp_path: Path, effect: Any, sync: bool) -> None:
    async def tell(app: Semel) -> None:
        ids: list[str] = []

        async def handle(event: Event, ctx: Context) -> str:
            ids.append(ctx.notify(**SAID))
            return ctx.key

        def handle_sync(event: Event, ctx: Context) -> str:
            ids.append(ctx.notify(**SAID))
            return ctx.key

        app.on("a", effect=effect)(handle_sync if sync else handle)
        outcome = await app.process(BODY)
        assert outcome.status == "done"
        assert (await app.process(BODY)).status == "duplicate"
        (shown,) = await listed(app)
        assert (shown.id, shown.state, shown.notification.key) == (ids[0], "pending", outcome.result)

    story(tmp_path, tell)


@pytest.mark.parametrize("effect", ["transaction", "retry"])
def test_what_fails_has_sent_nothing_and_another_attempt_asks_for_the_same(tmp_path: Path, effect: Any) -> None:
    async def tell(app: Semel) -> None:
        @app.on("a", effect=effect)
        async def handle(event: Event, ctx: Context) -> None:
            ctx.notify(**SAID)
            if ctx.attempt == 1:
                raise Retry(after=0)

        assert (await app.process(BODY)).status == "retry"
        assert await listed(app) == []
        assert (await app.process(BODY)).status == "done"
        assert len(await listed(app)) == 1

    story(tmp_path, tell)


@pytest.mark.parametrize("effect", ["transaction", "retry"])
def test_a_conflict_is_dead_and_changes_nothing(tmp_path: Path, effect: Any) -> None:
    async def tell(app: Semel) -> None:
        @app.on("a", effect=effect)
        async def handle(event: Event, ctx: Context) -> None:
            if effect == "transaction":
                ctx.tx.execute("create table if not exists mine (id text)")
                ctx.tx.execute("insert into mine values (?)", (event.id,))
            ctx.notify(**{**SAID, "key": "order-1", "body": f"for {event.id}"})

        assert (await app.process(BODY)).status == "done"
        outcome = await app.process({**BODY, "id": "2"})
        assert outcome.status == "dead"
        assert "content" in outcome.reason
        (shown,) = await listed(app)
        assert shown.notification.body == "for 1"

        @app.on("look", effect="transaction")
        async def look(event: Event, ctx: Context) -> list[Any]:
            return [id for (id,) in ctx.tx.execute("select id from mine")] if effect == "transaction" else []

        seen = await app.process({**BODY, "id": "3", "type": "look"})
        assert seen.result == (["1"] if effect == "transaction" else []), "its writes were undone"

    story(tmp_path, tell)


@pytest.mark.parametrize("said", [{"channel": "fax"}, {"body": object()}, {"recipient": ""}, {"nonsense": 1}])
def test_what_cannot_be_sent_is_told_to_the_handler(tmp_path: Path, said: dict[str, Any]) -> None:
    async def tell(app: Semel) -> None:
        @app.on("a", max_attempts=1)
        async def handle(event: Event, ctx: Context) -> None:
            with pytest.raises((ConfigError, TypeError)):
                ctx.notify(**{**SAID, **said})

        assert (await app.process(BODY)).status == "done"
        assert await listed(app) == []

    story(tmp_path, tell)


def test_a_ledger_without_an_outbox_says_so(tmp_path: Path) -> None:
    async def tell(app: Semel) -> None:
        @app.on("a", max_attempts=1)
        async def handle(event: Event, ctx: Context) -> None:
            ctx.notify(**SAID)

        outcome = await app.process(BODY)
        assert outcome.status == "dead"
        assert "outbox" in outcome.reason

    story(tmp_path, tell, "memory://")


@pytest.mark.parametrize("effect", ["transaction", "retry"])
def test_what_comes_after_the_handler_has_returned_is_not_taken_and_lost(tmp_path: Path, effect: Any) -> None:
    async def tell(app: Semel) -> None:
        left: list[Context] = []

        @app.on("a", effect=effect)
        async def handle(event: Event, ctx: Context) -> None:
            left.append(ctx)
            ctx.notify(**SAID)

        assert (await app.process(BODY)).status == "done"
        with pytest.raises(ConfigError, match="handler"):
            left[0].notify(**SAID, key="late")
        assert len(await listed(app)) == 1

    story(tmp_path, tell)


# ---------------------------------------------------------------------------------------------- what can never be sent

WRONG: list[dict[str, Any]] = [
    {"channel": "fax"},
    {"body": object()},
    {"recipient": ""},
    {"nonsense": 1},
    {"body": None},
]


@pytest.mark.parametrize("said", WRONG, ids=lambda said: next(iter(said)))
@pytest.mark.parametrize(
    ("effect", "status"), [("transaction", "dead"), ("keyed", "dead"), ("retry", "dead"), ("park", "uncertain")]
)
def test_an_event_whose_message_can_never_be_sent_is_given_up_at_once(
    tmp_path: Path, effect: Any, status: str, said: dict[str, Any]
) -> None:
    """Of `park` nobody knows how far it came: it is not called dead, and is not tried again either."""

    async def tell(app: Semel) -> None:
        attempts = 0

        @app.on("a", effect=effect, max_attempts=9)
        async def handle(event: Event, ctx: Context) -> None:
            nonlocal attempts
            attempts += 1
            ctx.notify(**SAID, key="fine")
            ctx.notify(**{**SAID, **said})

        outcome = await app.process(BODY)
        assert outcome.status == status
        assert "Wrong" in outcome.reason
        await app.process(BODY)
        assert attempts == 1
        assert await listed(app) == [], "nothing of it is sent"

    story(tmp_path, tell)


@pytest.mark.parametrize("sync", [False, True])
def test_a_message_that_is_made_before_it_is_asked_for_is_judged_alike(tmp_path: Path, sync: bool) -> None:
    async def tell(app: Semel) -> None:
        def handle_sync(event: Event, ctx: Context) -> None:
            ctx.notify(Notification(**{**SAID, "key": "k", "recipient": " "}))

        async def handle(event: Event, ctx: Context) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.to_thread(handle_sync, event, ctx))

        app.on("a", max_attempts=9)(handle_sync if sync else handle)
        outcome = await app.process(BODY)
        assert outcome.status == "dead", "the first of nine attempts is the last"

    story(tmp_path, tell)


@pytest.mark.parametrize("caught", [ConfigError, TypeError, Exception])
def test_a_handler_may_catch_it_and_send_something_else(tmp_path: Path, caught: type[Exception]) -> None:
    async def tell(app: Semel) -> None:
        @app.on("a")
        async def handle(event: Event, ctx: Context) -> None:
            try:
                ctx.notify(**SAID, nonsense=1)  # type: ignore[call-overload]
            except caught:
                ctx.notify(**{**SAID, "body": "in other words"})

        assert (await app.process(BODY)).status == "done"
        (shown,) = await listed(app)
        assert shown.notification.body == "in other words"

    story(tmp_path, tell)


def test_what_another_attempt_may_mend_is_tried_again(tmp_path: Path) -> None:
    """An error that the handler made of it is the handler's own, and so is one that came beside it."""

    async def tell(app: Semel) -> None:
        @app.on("a", max_attempts=9)
        async def handle(event: Event, ctx: Context) -> None:
            wrong = WrongNotification("recipient: …")
            match ctx.attempt:
                case 1:
                    raise RuntimeError("the address book is empty") from wrong
                case 2:
                    raise ExceptionGroup("two tasks", [wrong, ConnectionError("down")])
                case _:
                    raise ExceptionGroup("two tasks", [wrong, ExceptionGroup("of them", [wrong])])

        assert [(await app.process(BODY)).status for _ in range(3)] == ["retry", "retry", "dead"]

    story(tmp_path, tell)
