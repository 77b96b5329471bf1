"""The flow, seen from outside: what a deliverer is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import ConfigError, Context, Event, MalformedEvent, Outcome, Reject, Retry, Semel, keys, latest


@both_ledgers
def test_an_event_has_its_effect_once_and_copies_get_the_stored_result(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        ran: list[str] = []
        async with app_on(ledger, tmp_path) as app:

            @app.on("interaction.*")
            async def open_ticket(event: Event, ctx: Context) -> dict[str, int]:
                ran.append(ctx.key)
                return {"ticket": 7}

            body = message("a")
            first = await app.process(body)
            again = await app.process(json.dumps(body, indent=2))
        assert (first.status, first.result) == ("done", {"ticket": 7})
        assert (again.status, again.result) == ("duplicate", {"ticket": 7})
        assert ran == [first.key]

    run(story())


@both_ledgers
def test_bytes_text_and_dict_are_one_event(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[str]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None: ...

            body = message("é")
            bodies: list[Any] = [
                body,
                json.dumps(body),
                json.dumps(body).encode(),
                bytearray(json.dumps(body).encode()),
            ]
            return [outcome.status for outcome in await app.process_many(bodies)]

    assert run(story()) == ["done", "duplicate", "duplicate", "duplicate"]


@both_ledgers
def test_the_same_id_with_another_payload_is_a_conflict(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[Outcome]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None: ...

            return [await app.process(message("a", n=1)), await app.process(message("a", n=2))]

    first, second = run(story())
    assert (first.status, second.status) == ("done", "conflict")
    assert "payload" in second.reason


@both_ledgers
def test_under_a_business_key_another_event_of_the_same_fact_is_a_duplicate(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[str]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", key=keys.fields("data.conversation"))
            async def handle(event: Event, ctx: Context) -> None: ...

            bodies = [message(conversation="c1", n=1), message(conversation="c1", n=2), message(conversation="c2")]
            return [(await app.process(body)).status for body in bodies]

    assert run(story()) == ["done", "duplicate", "done"]


@both_ledgers
def test_each_handler_of_an_event_has_its_own_record(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        attempts = {"one": 0, "two": 0}
        async with app_on(ledger, tmp_path) as app:

            @app.on("interaction.created")
            async def one(event: Event, ctx: Context) -> str:
                attempts["one"] += 1
                event.body["spoilt"] = True
                return "one"

            @app.on("interaction.*")
            async def two(event: Event, ctx: Context) -> str:
                attempts["two"] += 1
                assert "spoilt" not in event.body
                if attempts["two"] == 1:
                    raise Retry(after=0)
                return "two"

            body = message("a")
            first = await app.process(body)
            assert first.status == "retry"
            assert {part.handler: part.status for part in first.parts} == {"one": "done", "two": "retry"}
            second = await app.process(body)
            assert second.status == "done"
            assert second.result == {"one": "one", "two": "two"}
            assert attempts == {"one": 1, "two": 2}

    run(story())


@both_ledgers
def test_sync_handlers_run_in_threads(ledger: str, tmp_path: Path) -> None:
    async def story() -> tuple[bool, Outcome]:
        import threading

        main = threading.get_ident()
        seen: list[int] = []
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            def handle(event: Event, ctx: Context) -> str:
                seen.append(threading.get_ident())
                return "ok"

            outcome = await app.process(message())
        return main not in seen and len(seen) == 1, outcome

    elsewhere, outcome = run(story())
    assert elsewhere
    assert outcome.result == "ok"


@both_ledgers
def test_an_exception_is_retried_with_full_jitter_until_the_attempts_are_used_up(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[Outcome]:
        async with app_on(ledger, tmp_path, random=lambda: 0.0) as app:

            @app.on("**", max_attempts=3)
            async def handle(event: Event, ctx: Context) -> None:
                raise ValueError(f"attempt {ctx.attempt}")

            body = message("a")
            outcomes = [await app.process(body) for _ in range(4)]
            (dead_letter,) = await app.entries("dead")
            assert dead_letter.event is not None
            assert json.loads(dead_letter.event)["id"] == "a"
            assert dead_letter.attempts == 3
            return outcomes

    outcomes = run(story())
    assert [outcome.status for outcome in outcomes] == ["retry", "retry", "dead", "duplicate"]
    assert outcomes[0].reason == "ValueError: attempt 1"
    for outcome in outcomes[2:]:
        assert "3 attempts" in outcome.reason
        assert outcome.reason.endswith("ValueError: attempt 3")


@both_ledgers
def test_retry_honours_its_delay_and_an_early_delivery_is_busy_not_a_failure(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        attempts: list[int] = []
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", max_attempts=2)
            async def handle(event: Event, ctx: Context) -> Retry | None:
                attempts.append(ctx.attempt)
                return Retry(after=0.3) if ctx.attempt == 1 else None

            body = message()
            first = await app.process(body)
            assert (first.status, first.after) == ("retry", 0.3)
            for _ in range(5):
                early = await app.process(body)
                assert early.status == "busy"
                assert early.after is not None
                assert 0 < early.after <= 0.3
            await asyncio.sleep(0.35)
            assert (await app.process(body)).status == "done"
            assert attempts == [1, 2]

    run(story())


@both_ledgers
def test_a_reject_is_dead_at_once_and_stays_so(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                raise Reject("no such customer")

            body = message()
            first, second = await app.process(body), await app.process(body)
            assert (first.status, first.reason, first.final) == ("dead", "no such customer", True)
            assert second.status == "duplicate"
            assert ("dead" in second.reason, "no such customer" in second.reason) == (True, True)

    run(story())


@both_ledgers
@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("x" * 70_000, "65,536"),
        (object(), "JSON"),
        (json.loads("[" * 800 + "]" * 800), "64"),
    ],
    ids=["too large", "not JSON", "too deep"],
)
def test_a_result_that_cannot_be_kept_does_not_repeat_the_effect(
    ledger: str, tmp_path: Path, result: object, said: str
) -> None:
    async def story() -> None:
        ran: list[int] = []
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> object:
                ran.append(ctx.attempt)
                return result

            body = message()
            first, second = await app.process(body), await app.process(body)
            assert first.status == "dead"
            assert said in first.reason
            assert second.status == "duplicate"
            assert ran == [1]

    run(story())


@both_ledgers
def test_copies_in_one_batch_are_decided_one_after_the_other(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        ran: list[str] = []
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> str:
                ran.append(event.id)
                await asyncio.sleep(0.01)
                return event.id

            a, b = message("a"), message("b")
            outcomes = await app.process_many([a, b, a, a, b])
            assert [outcome.status for outcome in outcomes] == ["done", "done", *["duplicate"] * 3]
            assert [outcome.result for outcome in outcomes] == ["a", "b", "a", "a", "b"]
            assert sorted(ran) == ["a", "b"]

    run(story())


@both_ledgers
def test_a_malformed_body_is_an_error_alone_and_an_outcome_in_a_batch_and_leaves_nothing(
    ledger: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None: ...

            bad = b'{"id":"x","type":"t","data":{"a":1,"a":2}}'
            with pytest.raises(MalformedEvent, match="'a'"):
                await app.process(bad)
            unfit: list[Any] = [1.5, {"id": "y", "type": "t", "n": {1}}]
            outcomes = await app.process_many([bad, message("ok"), *unfit])
            assert "float" in outcomes[2].reason
            assert "JSON" in outcomes[3].reason
            assert [outcome.status for outcome in outcomes] == ["malformed", "done", "malformed", "malformed"]
            assert [entry.text for entry in await app.entries()] == ["ok"]

    run(story())


@both_ledgers
def test_a_key_strategy_that_fails_concerns_its_event_only(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[Outcome]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", key=lambda event: str(event.body["order"]))
            async def handle(event: Event, ctx: Context) -> None: ...

            return await app.process_many([message(order=1), message(), message(order="")])

    done, failed, empty = run(story())
    assert done.status == "done"
    assert failed.status == "dead"
    assert "'order'" in failed.reason
    assert empty.status == "dead"
    assert "empty" in empty.reason


@both_ledgers
def test_an_event_for_nobody_is_ignored(ledger: str, tmp_path: Path) -> None:
    async def story() -> Outcome:
        async with app_on(ledger, tmp_path) as app:
            return await app.process(message())

    assert run(story()).status == "ignored"


@both_ledgers
def test_tenants_do_not_share_keys(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[str]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> str:
                return event.tenant

            body = message()
            return [(await app.process(body, tenant=tenant)).status for tenant in ("a", "b", "a")]

    assert run(story()) == ["done", "done", "duplicate"]


@both_ledgers
def test_known_under_either_tier_means_duplicate(ledger: str, tmp_path: Path) -> None:
    def bridged(bus_id: str, conversation: str) -> dict[str, Any]:
        detail = {"eventId": f"{bus_id}-{conversation}", "eventType": "t", "body": {"conversationId": conversation}}
        return {"id": bus_id, "detail-type": "t", "source": "genesys.cloud", "detail": detail}

    async def story() -> list[str]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("t", key=keys.tiers(keys.delivery, keys.fields("detail.body.conversationId")))
            async def handle(event: Event, ctx: Context) -> None: ...

            bodies = [bridged("d1", "c1"), bridged("d2", "c1"), bridged("d1", "c2"), bridged("d3", "c3")]
            return [(await app.process(body)).status for body in bodies]

    assert run(story()) == ["done", "duplicate", "duplicate", "done"]


@both_ledgers
def test_an_older_event_of_a_subject_is_stale_and_an_equal_one_is_not(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[str]:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", order=latest(subject="data.user", by="data.at"))
            async def handle(event: Event, ctx: Context) -> None: ...

            events = [("u", 10), ("u", 12), ("u", 11), ("u", 12), ("v", 1), ("u", "1970-01-01T00:00:00.013Z")]
            return [(await app.process(message(user=user, at=at))).status for user, at in events]

    assert run(story()) == ["done", "done", "stale", "done", "done", "done"]


@both_ledgers
def test_events_of_one_subject_do_not_run_at_the_same_time(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        running: list[str] = []
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", order=latest(subject="data.user", by="data.at"))
            async def handle(event: Event, ctx: Context) -> None:
                assert not running
                running.append(event.id)
                await asyncio.sleep(0.05)
                running.clear()

            together = await asyncio.gather(*[app.process(message(user="u", at=at)) for at in range(3)])
            assert sorted(outcome.status for outcome in together) == ["busy", "busy", "done"]
            batch = await app.process_many([message(user="w", at=at) for at in (1, 3, 2)])
            assert [outcome.status for outcome in batch] == ["done", "done", "stale"]

    run(story())


def test_registering_says_what_is_wrong() -> None:
    app = Semel("memory://")
    app.on("a.*")(_nothing)
    for wrong in (
        lambda: app.on(),
        lambda: app.on("a..b")(_nothing),
        lambda: app.on("a.b*")(_nothing),
        lambda: app.on("**.a")(_nothing),
        lambda: app.on("b")(_nothing),
        lambda: app.on("b", effect="twice"),  # type: ignore[arg-type]
        lambda: app.on("b", effect="transaction"),
        lambda: app.on("b", max_attempts=0),
        lambda: app.on("b", probe=_nothing),
        lambda: app.on("b", effect="park", probe="p"),  # type: ignore[arg-type]
        lambda: app.on("b", window=5),
        lambda: app.on("b", retention="38d"),  # type: ignore[arg-type]
        lambda: app.on("b", timeout=-1),
        lambda: app.on("b")(lambda event: None),  # type: ignore[type-var]
        lambda: app.on("b")(_yields),
        lambda: run(app.entries("deaad")),
        lambda: Semel("sqlite:/x.db"),
        lambda: Semel("sqlite:///:memory:"),
        lambda: Semel(5),  # type: ignore[arg-type]
        lambda: Semel("mysql://x"),
        lambda: Semel("sqlite://x.db"),
        lambda: Semel("sqlite:///x.db?sync=off"),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_guarantees_are_computed_from_effect_and_ledger(tmp_path: Path) -> None:
    app = Semel(f"sqlite:///{tmp_path}/x.db?synchronous=normal")
    app.on("a", effect="transaction", name="charge")(_nothing)
    app.on("a", effect="keyed", window=86_400, name="notify")(_nothing)
    charge, notify = app.guarantees()
    assert "exactly once" in charge.promise
    assert "power loss" in charge.caveat
    assert "1 d" in notify.promise
    assert "effectively once" in notify.promise
    assert "notify" in str(notify)


def test_process_sync_keeps_one_loop_alive(tmp_path: Path) -> None:
    app = app_on("sqlite", tmp_path)
    loops: set[int] = set()

    @app.on("**")
    async def handle(event: Event, ctx: Context) -> str:
        loops.add(id(asyncio.get_running_loop()))
        return "ok"

    body = message()
    assert [app.process_sync(body).status, app.process_sync(body).status] == ["done", "duplicate"]
    assert app.process_sync(message()).result == "ok"
    assert len(loops) == 1
    with pytest.raises(ConfigError, match="process"):
        run(_inside(app))
    run(app.close())


async def _inside(app: Semel) -> None:
    app.process_sync(message())


async def _nothing(event: Event, ctx: Context) -> None: ...


async def _yields(event: Event, ctx: Context) -> AsyncIterator[int]:
    yield 1
