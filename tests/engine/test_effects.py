"""What each effect promises when a holder vanishes. Here a holder vanishes by leaving its lease to lapse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event, Retry, Semel, keys, latest
from semel.values.claim import Granted

LEASE_S = 0.5  # a busy machine comes to its handler in this time


async def vanish(app: Semel, body: dict[str, Any], times: int = 1, lease_s: float = LEASE_S) -> None:
    """Claim as a worker does, and never come back."""
    handler = app._router.handlers[0]
    from semel.app import to_bytes
    from semel.wiring import decode

    for _ in range(times):
        (verdict,) = await app.ledger.claim([handler.claim_for(decode(to_bytes(body)))])
        assert isinstance(verdict, Granted)
        await asyncio.sleep(lease_s + 0.02)


@both_ledgers
def test_park_never_runs_again_and_lists_what_is_in_doubt(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=LEASE_S) as app:
            runs: list[int] = []

            @app.on("**", effect="park")
            async def charge(event: Event, ctx: Context) -> None:
                runs.append(ctx.attempt)

            body = message("a")
            await vanish(app, body)
            outcome = await app.process(body)
            assert outcome.status == "uncertain"
            assert (await app.process(body)).status == "duplicate"
            (entry,) = await app.entries("uncertain")
            assert (entry.text, entry.key) == ("a", outcome.key)
            assert entry.event is not None
            assert runs == []

    run(story())


@both_ledgers
@pytest.mark.parametrize(
    ("probe", "status", "ran"),
    [("happened", "done", 0), (Retry(), "done", 1), (None, "uncertain", 0), (ValueError("down"), "uncertain", 0)],
    ids=["it happened", "it did not", "unknown", "the probe fails"],
)
def test_a_probe_decides_what_became_of_a_vanished_run(
    ledger: str, tmp_path: Path, probe: Any, status: str, ran: int
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=1.0) as app:
            runs: list[int] = []

            async def look(event: Event, ctx: Context) -> Any:
                if isinstance(probe, Exception):
                    raise probe
                return probe

            @app.on("**", effect="park", probe=look)
            async def charge(event: Event, ctx: Context) -> None:
                runs.append(ctx.attempt)

            body = message()
            await vanish(app, body, lease_s=1.0)
            assert (await app.process(body)).status == status
            assert len(runs) == ran

    run(story())


@both_ledgers
def test_park_treats_an_exception_as_in_doubt_and_an_explicit_retry_as_not_done(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", effect="park")
            async def charge(event: Event, ctx: Context) -> str:
                if event.body["how"] == "raise":
                    raise OSError("reset")
                if ctx.attempt == 1:
                    raise Retry(after=0)
                return "ok"

            raised = message(how="raise")
            assert (await app.process(raised)).status == "uncertain"
            later = message(how="retry")
            assert (await app.process(later)).status == "retry"
            assert (await app.process(later)).result == "ok"

    run(story())


@both_ledgers
def test_keyed_tries_again_with_the_same_key_until_four_fifths_of_the_window(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=LEASE_S) as app:
            seen: list[str] = []

            @app.on("**", effect="keyed", window=4.0)
            async def send(event: Event, ctx: Context) -> None:
                seen.append(ctx.key)
                raise Retry(after=0)

            body = message()
            await vanish(app, body)
            assert (await app.process(body)).status == "retry"
            assert (await app.process(body)).status == "retry"
            assert len(set(seen)) == 1
            await asyncio.sleep(3.0)
            outcome = await app.process(body)
            assert outcome.status == "uncertain"
            assert "key" in outcome.reason
            assert len(seen) == 2

    run(story())


@both_ledgers
def test_fenced_gets_a_higher_token_with_every_grant(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=LEASE_S) as app:
            tokens: list[int] = []

            @app.on("**", effect="fenced")
            async def write(event: Event, ctx: Context) -> None:
                tokens.append(ctx.token)
                if len(tokens) < 3:
                    raise Retry(after=0)

            body = message()
            for _ in range(3):
                await app.process(body)
            await app.process(message())
            assert tokens == sorted(set(tokens))
            assert len(tokens) == 4

    run(story())


@both_ledgers
def test_a_crash_counts_as_an_attempt_and_a_poison_event_dies(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=LEASE_S) as app:
            runs: list[int] = []

            @app.on("**", max_attempts=2)
            async def handle(event: Event, ctx: Context) -> None:
                runs.append(ctx.attempt)

            body = message()
            await vanish(app, body, times=2)
            outcome = await app.process(body)
            assert outcome.status == "dead"
            assert "2 attempts" in outcome.reason
            assert runs == []
            assert len(await app.entries("dead")) == 1

    run(story())


@both_ledgers
def test_the_key_is_fixed_before_the_handler_sees_the_event(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", key=keys.fields("data.conversation"))
            async def handle(event: Event, ctx: Context) -> None:
                event.body["conversation"] = "another"
                event.document["id"] = "another"

            body = message(conversation="c")
            assert (await app.process(body)).status == "done"
            assert (await app.process(body)).status == "duplicate"
            assert (await app.process(message(conversation="another"))).status == "done"

    run(story())


@both_ledgers
def test_park_tells_its_doubt_also_when_the_event_is_stale_meanwhile(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=LEASE_S) as app:

            @app.on("**", effect="park", order=latest(subject="data.user", by="data.at"))
            async def charge(event: Event, ctx: Context) -> None: ...

            old = message(user="u", at=1)
            await vanish(app, old)
            assert (await app.process(message(user="u", at=2))).status == "done"
            assert (await app.process(old)).status == "uncertain"
            assert (await app.process(message(user="u", at=1))).status == "stale"

    run(story())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_config_error_in_a_handler_is_a_mistake_and_not_retried(is_async: bool) -> None:
    async def story() -> None:
        async with Semel("memory://") as app:
            runs: list[int] = []

            def use(ctx: Context) -> None:
                runs.append(ctx.attempt)
                ctx.tx  # noqa: B018 - of an effect that has none

            if is_async:

                @app.on("**")
                async def wrong(event: Event, ctx: Context) -> None:
                    use(ctx)
            else:

                @app.on("**")
                def wrong_in_a_thread(event: Event, ctx: Context) -> None:
                    use(ctx)

            outcome = await app.process(message("a"))
            assert outcome.status == "dead"
            assert "ctx.tx" in outcome.reason
            assert runs == [1]

    run(story())
