"""The outbox on PostgreSQL: round trips, plans, HOT updates, lost replies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.ledgers.postgres.opening import connected, opened, soon
from tests.ledgers.postgres.plans import plans_of
from tests.ledgers.postgres.relay import Relay

from semel.ledgers.postgres import PostgresLedger, outbox_queries
from semel.ledgers.postgres import outbox as adding
from semel.ledgers.postgres import outbox as crossing
from semel.ledgers.postgres import outbox as recording
from semel.ledgers.postgres import outbox as taking
from semel.testing import harness as sender
from semel.testing.harness import Harness, OutboxCaller, answered, notification, provider, released
from semel.testing.proxy import FaultProxy
from semel.values.delivery_state import Accepted, Refused, Unknown
from semel.values.errors import LedgerUnavailable
from semel.values.notification import Guard
from semel.values.outbox import Crossed, Crossing, DeliveryReport, Dispatch, Held, Lane, Lost, NotificationQuery, Record

OURS = "semel"
LEASE_MS = 600_000


@pytest.fixture
def harness(url: str) -> Harness:
    return Harness(open=partial(PostgresLedger.from_url, url), unit_ms=6_000)


@pytest.fixture
def ledger(harness: Harness) -> Iterator[OutboxCaller]:
    with OutboxCaller(harness.open) as open_outbox_caller:
        yield open_outbox_caller


def lanes(harness: Harness, room: int = 1_000, per_second: float = 0.0) -> dict[str, Lane]:
    return {provider(harness): Lane(room, provider(harness), per_second)}


def crossings(dispatches: list[Dispatch]) -> list[Crossing]:
    return [sender.crossing(one) for one in dispatches]


# -------------------------------------------------------------------------------------------------------- round trips


def test_every_call_of_a_relay_is_one_round_trip_for_a_batch(url: str, harness: Harness) -> None:
    """A hundred notifications cost four statements, and one for their callbacks."""

    async def run() -> list[int]:
        async with Relay(url) as relay, opened(relay.url) as ledger:
            outbox = ledger.outbox

            async def carried(turn: int) -> list[int]:
                trips: list[int] = []

                async def one(work: Awaitable[Any]) -> Any:
                    before = relay.round_trips
                    answer = await work
                    trips.append(relay.round_trips - before)
                    return answer

                guard = Guard(window_s=3600)
                said = [
                    notification(harness, f"{turn} {n}", guard=guard, recipient=f"{turn} {n % 90}", order=f"{turn} {n}")
                    for n in range(100)
                ]
                await one(outbox.add([*said, *said[:10]]))
                taken = await one(outbox.take(lanes(harness, per_second=1e6), LEASE_MS))
                assert len(taken) == 100
                gates = await one(outbox.cross(crossings(taken)))
                assert [type(gate) for gate in gates] == [Crossed] * 90 + [Held] * 10
                answers = (Accepted(f"r {turn}"), Refused("no", final=True), Refused("busy", after_s=900), Unknown("?"))
                records = [answered(harness, dispatch, answers[n % 4]) for n, dispatch in enumerate(taken)]
                assert all(await one(outbox.record(records)))
                await one(outbox.apply_reports([DeliveryReport("delivered", None, provider(harness), f"r {turn}")] * 3))
                return trips

            await carried(0)  # statements are prepared in the first turn
            return await carried(1)

    trips = asyncio.run(run())
    assert trips == [1] * 5


def test_a_caller_adds_in_a_transaction_of_its_own_by_one_statement(url: str, harness: Harness) -> None:
    async def run() -> int:
        async with connected(url) as connection:
            seen: list[object] = []
            async with connection.transaction():
                await adding.add(connection, [notification(harness, "types are asked for once")], None, OURS)
                with connection.query_logger(seen.append):
                    await adding.add(connection, [notification(harness, f"{n}") for n in range(5)], None, OURS)
                    await asyncio.sleep(0)
            return len(seen)

    assert asyncio.run(run()) == 1


# -------------------------------------------------------------------------------------------------------------- plans

FINISHED = """
    insert into semel.notification (id, recipient_digest, generation, tenant, key, kind, recipient, channel, state,
                                    provider, options, content, added_ms, changed_ms)
    select decode(md5('f' || n), 'hex'), decode(md5('w' || n % 1000), 'hex'), 1, 't', 'k' || n, 'shipping', '+49' || n,
           'sms', 'delivered', 'twilio', '{}', '{"body":"On its way"}', n, n
    from generate_series($1::integer, $2::integer) n
"""
ATTEMPTS = """
    insert into semel.attempt (id, token, outcome, provider, reference)
    select decode(md5('f' || n), 'hex'), n, 'accepted', 'twilio', 'r' || n
    from generate_series($1::integer, $2::integer) n
"""


async def fill(connection: Any, first: int, last: int) -> None:
    """Insert notifications that ended long ago."""
    await connection.execute(FINISHED, first, last)
    await connection.execute(ATTEMPTS, first, last)
    await connection.execute("analyze semel.notification, semel.attempt, semel.dispatch")


async def carry_all(connection: Any, harness: Harness, tag: str, guarded: bool = True) -> None:
    guard = Guard(window_s=3600) if guarded else None
    said = [notification(harness, f"{tag} {n}", guard=guard, recipient=f"{tag} {n}", order=f"{n}") for n in range(20)]
    await adding.add(connection, said, None, OURS)
    taken = await taking.take(connection, lanes(harness, per_second=1e6), LEASE_MS, None, OURS)
    assert len(taken) == 20
    assert set(await crossing.cross(connection, crossings(taken), None, OURS)) == {Crossed()}
    answers = (Accepted(f"r {tag}"), Refused("no", final=True), Unknown("?"))
    records = [answered(harness, one, answers[n % 3]) for n, one in enumerate(taken)]
    assert all(await recording.record(connection, records, None, OURS))
    await recording.apply_reports(
        connection, [DeliveryReport("delivered", None, provider(harness), f"r {tag}")], None, OURS
    )


def test_no_plan_of_a_relay_reads_more_than_its_rows(fresh_url: str, harness: Harness) -> None:
    async def run() -> list[str]:
        async with connected(fresh_url) as connection:
            await fill(connection, 1, 20_000)
        return await plans_of(fresh_url, lambda connection: carry_all(connection, harness, "one"))

    plans = asyncio.run(run())
    text = "\n".join(plans)
    assert len(plans) > 10
    assert "Seq Scan" not in text
    used = set(re.findall(r"using (\w+) on ", text)) | set(re.findall(r"Index Scan on (\w+)", text))
    assert used <= {
        *("notification_pkey", "dispatch_pkey", "dispatch_due", "dispatch_order", "guard_pkey", "rate_pkey"),
        *("attempt_pkey", "attempt_reference", "dispatch_share", "dispatch_begun"),
    }
    assert {"notification_pkey", "dispatch_due", "dispatch_order", "guard_pkey", "attempt_reference"} <= used


@pytest.mark.parametrize("by", [{"recipient": "+491", "kind": "shipping"}, {"key": "k7"}], ids=["recipient", "key"])
def test_a_status_is_one_bounded_index_scan(url: str, by: dict[str, str]) -> None:
    async def ask(connection: Any) -> None:
        for setting in ("plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_bitmapscan = off"):
            await connection.execute(f"set {setting}")  # as the ledger's own connections have them
        asked = {"recipient": "", "kind": "", "key": "", **by}
        await outbox_queries.status(connection, "t", asked["recipient"], asked["kind"], asked["key"], OURS)

    (plan,) = asyncio.run(plans_of(url, ask))
    assert "Index Scan Backward using notification_" + ("key" if "key" in by else "recipient") in plan
    assert "key" not in by or "Sort" not in plan  # of a recipient, at most two reads of 1,000 are sorted together


BUFFERS = re.compile(r"shared hit=(\d+)(?: read=(\d+))?")


async def pages_of_a_take(connection: Any, harness: Harness, tag: str) -> int:
    """Pages that a take of twenty reads, with cached plans."""
    pages = 0
    for turn in range(3):
        said = [notification(harness, f"{tag} {turn} {n}") for n in range(20)]
        await adding.add(connection, said, None, OURS)
        rows = await connection.fetch(
            "explain (analyze, buffers) select * from semel.take_notifications($1, $2, $3, $4, 1000, 600000, null)",
            *([provider(harness)], [1000], [provider(harness)], [0.0]),
        )
        text = "\n".join(row[0] for row in rows)
        assert "rows=20" in text, text
        found = BUFFERS.search(text)
        assert found is not None
        pages = int(found[1]) + int(found[2] or 0)
    return pages


@pytest.mark.parametrize("many", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_take_reads_as_many_pages_however_much_was_sent_before(fresh_url: str, harness: Harness, many: int) -> None:
    async def run() -> tuple[int, int]:
        async with connected(fresh_url) as connection:
            await fill(connection, 1, 1_000)
            few = await pages_of_a_take(connection, harness, "few")
            for first in range(1_001, many, 100_000):
                await fill(connection, first, min(many, first + 99_999))
            return few, await pages_of_a_take(connection, harness, "many")

    few, then = asyncio.run(run())
    assert then <= 1.5 * few, f"{few} pages with 1,000 finished ones, {then} with {many:,}"


def test_the_writes_to_a_notification_are_hot_updates(fresh_url: str, harness: Harness) -> None:
    async def run() -> None:
        async with opened(fresh_url) as ledger, connected(fresh_url) as connection:
            outbox = ledger.outbox
            for turn in range(10):
                await outbox.add([notification(harness, f"{turn} {n}") for n in range(100)])
                taken = await outbox.take(lanes(harness), LEASE_MS)
                await outbox.cross(crossings(taken))
                assert all(await outbox.record([answered(harness, one, Accepted("r")) for one in taken]))
                await outbox.apply_reports([DeliveryReport("delivered", one.id) for one in taken])
            await ledger.close()  # its statistics are reported at the end

            async def told() -> bool:
                await connection.execute("select pg_stat_clear_snapshot()")
                rows = await connection.fetch(
                    "select relname, n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'semel'"
                )
                found = {name: (updated, hot) for name, updated, hot in rows}
                updated, hot = found["notification"]
                assert hot >= 0.9 * updated, f"of {updated} updates {hot} were HOT"
                assert found["attempt"] == (0, 0)
                return bool(updated == 3_000)

            await soon(told)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sought", "index"),
    [
        ({}, "notification_added"),
        ({"state": "failed"}, "notification_ended"),
        ({"possible_duplicates": True}, "notification_duplicates"),
        ({"tenant": "t", "key": "k7"}, "notification_key"),
        ({"tenant": "t", "recipient": "+491"}, "notification_recipient"),
    ],
    ids=str,
)
def test_every_filter_of_operators_has_an_index(
    fresh_url: str, sought: dict[str, Any], index: str, filled: Callable[[str], None]
) -> None:
    filled(fresh_url)
    plans = asyncio.run(
        plans_of(fresh_url, lambda connection: outbox_queries.find(connection, NotificationQuery(**sought), OURS))
    )
    assert index in "\n".join(plans)


@pytest.fixture
def filled() -> Callable[[str], None]:
    async def run(url: str) -> None:
        async with connected(url) as connection:
            await fill(connection, 1, 20_000)

    return lambda url: asyncio.run(run(url))


# -------------------------------------------------------------------------------------------------------- lost replies


def test_a_crossing_whose_reply_was_lost_can_be_undone(url: str, harness: Harness, ledger: OutboxCaller) -> None:
    place = urlsplit(url)
    one, two = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))

    async def run(proxy: FaultProxy) -> Dispatch:
        async with opened(proxy.url(url), "?pool=1") as other:
            await other.outbox.add([one])
            (dispatch,) = await other.outbox.take(lanes(harness), LEASE_MS)
            await other.outbox.cross([sender.crossing(_renumbered(dispatch))])  # prepared
            proxy.lose("reply")
            with pytest.raises(LedgerUnavailable):
                await other.outbox.cross([sender.crossing(dispatch)])
            assert proxy.seen.lost_replies == 1, "inconclusive: it was answered"
            assert (await other.outbox.status(one.tenant, key=one.key)).state == "sending"
            assert await other.outbox.record(
                [Record(dispatch, dispatch.delivery_state, "released", "not answered")]
            ) == [True]
            return dispatch

    with FaultProxy(place.hostname or "", place.port or 5432) as proxy:
        dispatch = asyncio.run(run(proxy))
    assert ledger.cross(dispatch) == [Lost()], "it was given back"
    ledger.add(two)
    first, second = ledger.take(harness)
    assert not first.vanished
    assert (first.delivery_state.state, first.delivery_state.attempts, first.request) == ("pending", 0, b"request")
    assert ledger.cross(second, first) == [Held(one.id), Crossed()], "the guard is still its own"
    found = ledger.run(ledger.ledger.outbox.show(one.id))  # type: ignore[attr-defined]
    assert [(done.outcome, done.crossed_ms > 0) for done in found.attempts] == [("released", False), ("", True)]


def _renumbered(dispatch: Dispatch) -> Dispatch:
    return Dispatch(
        dispatch.id, -1, dispatch.notification, dispatch.content, dispatch.delivery_state, dispatch.taken_ms
    )


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_record_whose_reply_was_lost_is_written_once(url: str, harness: Harness, lost: Any) -> None:
    place = urlsplit(url)

    async def run(proxy: FaultProxy) -> None:
        async with opened(proxy.url(url), "?pool=1") as ledger:
            await ledger.outbox.add([notification(harness)])
            (dispatch,) = await ledger.outbox.take(lanes(harness), LEASE_MS)
            await ledger.outbox.cross([sender.crossing(dispatch)])
            record = answered(harness, dispatch, Accepted("r", "202"))
            await ledger.outbox.record([released(_renumbered(dispatch))])  # prepared
            proxy.lose(lost)
            with pytest.raises(LedgerUnavailable):
                await ledger.outbox.record([record])
            assert (proxy.seen.lost_replies, proxy.seen.lost_requests) == ((1, 0) if lost == "reply" else (0, 1))
            assert await ledger.outbox.record([record, record]) == [True, True]
            assert await ledger.outbox.record([record]) == [True]
            found = await ledger.outbox.show(dispatch.id)
            assert found is not None
            assert [(one.outcome, one.evidence) for one in found.attempts] == [("accepted", "202")]

    with FaultProxy(place.hostname or "", place.port or 5432) as proxy:
        asyncio.run(run(proxy))


def test_a_cancelled_take_leaves_nothing_taken(url: str, harness: Harness) -> None:
    async def run() -> None:
        async with opened(url) as ledger, connected(url) as other:
            said = [notification(harness, f"{n}") for n in range(3)]
            await ledger.outbox.add(said)
            async with other.transaction():
                await other.execute("lock table semel.dispatch in access exclusive mode")
                asked = asyncio.create_task(ledger.outbox.take(lanes(harness), LEASE_MS))
                waits = "select bool_or(not granted) from pg_locks where relation = 'semel.dispatch'::regclass"
                while not (asked.done() or await other.fetchval(waits)):  # noqa: ASYNC110  the server says so
                    await asyncio.sleep(0.01)
                assert not asked.done(), "inconclusive: it did not wait"
                asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert len(await ledger.outbox.take(lanes(harness), LEASE_MS)) == 3

    asyncio.run(run())
