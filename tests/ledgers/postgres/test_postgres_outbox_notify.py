"""`semel.notify`, the outbox in plain SQL, adds the same rows as Python."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unicodedata import category
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest
from tests.ledgers.postgres.opening import SOON_S, connected, opened
from tests.support.servers.postgres import PostgresServer

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import Harness, OutboxCaller, keys_of, notification, people, provider
from semel.values.notification import Guard, Notification, recipient_digest
from semel.values.outbox import Crossed, Decision, Held

NAMES = {"order": "order_key"}


@pytest.fixture
def harness(url: str) -> Harness:
    return Harness(open=partial(PostgresLedger.from_url, url), unit_ms=6_000)


@pytest.fixture
def ledger(harness: Harness) -> Iterator[OutboxCaller]:
    with OutboxCaller(harness.open) as sender:
        yield sender


def arguments(one: Notification) -> dict[str, Any]:
    """The call in plain SQL."""
    said = {NAMES.get(name, name): getattr(one, name) for name in one.__struct_fields__}
    guard: Guard | None = said.pop("guard")
    if guard is not None:
        said |= {"guard_window": f"{guard.window_s} s", "guard_key": guard.key}
    if said["not_after"] is not None:
        said["not_after"] = said["not_after"].isoformat()
    for name in ("body", "data"):
        said[name] = None if said[name] is None else msgspec.json.encode(said[name]).decode()
    return {name: value for name, value in said.items() if value is not None}


async def notify(connection: Any, said: dict[str, Any], schema: str = "semel") -> tuple[str, str]:
    casts = {"guard_window": "::text::interval", "not_after": "::text::timestamptz"}
    named = ", ".join(f"{name} => ${at}{casts.get(name, '')}" for at, name in enumerate(said, 1))
    row = await connection.fetchrow(f"select id, status from {schema}.notify({named})", *said.values())
    return row["id"], row["status"]


def notified(url: str, *saids: dict[str, Any]) -> list[tuple[str, str]]:
    async def run() -> list[tuple[str, str]]:
        async with connected(url) as connection:
            return [await notify(connection, said) for said in saids]

    return asyncio.run(run())


def everything(harness: Harness, **said: Any) -> Notification:
    return notification(
        harness,
        **{
            "body": {"text": "é – 漢字 \U0001f4de", "z": [1, 2.5, None, True], "a": {"é": 1, "b": -0.001}},
            "subject": "s\n\t ü",
            "sender": "+490",
            "template": "t",
            "data": {"b": None, "a": [1], "aa": "x"},
            "not_after": datetime(2100, 1, 1, tzinfo=UTC),
            "priority": 2,
            "order": "customer-1",
            "guard": Guard(window_s=60.5, key="g"),
            "policy": "resend",
            "generation": 3,
            **said,
        },
    )


SAID: list[dict[str, Any]] = [
    {},
    {"body": 'a text: é – 漢字 \U0001f4de \\ " \n'},
    {"body": "x", "subject": "only that"},
    {"body": [], "channel": "event"},
    {"body": False, "channel": "event"},
    {"body": 12345678901234567890123, "channel": "event"},
    {"body": 1e20, "channel": "event"},
    {"body": 0.1, "channel": "event"},
    {"body": {"n": 1e-7, "m": -0.0, "k": 1e16}, "channel": "event"},
    {"body": None, "template": "shipped", "data": {"name": "Ada", "n": {"x": [{}]}}},
    {"key": "ключ/🔑", "recipient": "ä@example.org", "kind": "x y", "tenant_suffix": "ß"},
]


@pytest.mark.parametrize("said", [*SAID, None], ids=[*map(str, range(len(SAID))), "everything"])
@pytest.mark.parametrize("first", ["sql", "python"])
def test_a_notification_added_by_sql_and_by_python_is_one(
    url: str, harness: Harness, ledger: OutboxCaller, said: dict[str, Any] | None, first: str
) -> None:
    one = everything(harness) if said is None else notification(harness, **_fitted(harness, said))
    if first == "sql":
        assert notified(url, arguments(one)) == [(one.id.hex(), "added")]
        assert [added.status for added in ledger.add(one)] == ["known"]
    else:
        ledger.add(one)
        assert notified(url, arguments(one)) == [(one.id.hex(), "known")]
    assert notified(url, arguments(one)) == [(one.id.hex(), "known")]
    dispatch = ledger.take_one(harness)
    assert (dispatch.id, dispatch.notification) == (one.id, one)
    assert dispatch.delivery_state.policy == (one.policy or "hold")
    assert dispatch.delivery_state.provider == one.provider
    if first == "python":
        assert dispatch.content == one.content, "byte by byte"


def _fitted(harness: Harness, said: dict[str, Any]) -> dict[str, Any]:
    said = dict(said)
    if suffix := said.pop("tenant_suffix", ""):
        said["tenant"] = f"{harness.namespace} {suffix}"
    return said


@pytest.mark.parametrize(
    "other", [{"body": "other"}, {"subject": "s"}, {"sender": "+1"}, {"template": "t"}, {"data": {"a": 1}}]
)
def test_another_content_is_a_conflict_from_sql_and_from_python(
    url: str, harness: Harness, ledger: OutboxCaller, other: dict[str, Any]
) -> None:
    one, two = notification(harness), notification(harness, **other)
    assert notified(url, arguments(one), arguments(two)) == [(one.id.hex(), "added"), (one.id.hex(), "conflict")]
    assert [added.status for added in ledger.add(two, one, two)] == ["conflict", "known", "conflict"]
    assert ledger.take_one(harness).notification == one


def test_content_that_jsonb_cannot_hold_is_compared_byte_by_byte(harness: Harness, ledger: OutboxCaller) -> None:
    one, two = notification(harness, body="a\0b"), notification(harness, body="a\0c")
    assert [added.status for added in ledger.add(one, one, two)] == ["added", "known", "conflict"]
    assert ledger.take_one(harness).notification == one


def test_a_notification_commits_or_rolls_back_with_the_callers_transaction(
    url: str, harness: Harness, ledger: OutboxCaller
) -> None:
    one, two = notification(harness, "kept"), notification(harness, "undone")

    async def run() -> None:
        async with connected(url) as connection:
            await connection.execute("create table if not exists orders (name text)")
            kept = connection.transaction()
            await kept.start()
            await connection.execute("insert into orders values ('kept')")
            await notify(connection, arguments(one))
            await kept.commit()
            undone = connection.transaction()
            await undone.start()
            assert (await notify(connection, arguments(two)))[1] == "added"
            await undone.rollback()

    asyncio.run(run())
    assert keys_of(ledger.take(harness)) == ["kept"]
    assert notified(url, arguments(two)) == [(two.id.hex(), "added")]


def test_a_guard_holds_between_sql_and_python(url: str, harness: Harness, ledger: OutboxCaller) -> None:
    for name, guard in (("default", Guard(window_s=3600)), ("chosen", Guard(window_s=3600, key="k"))):
        one = notification(harness, f"{name} 1", guard=guard, kind=name)
        two = notification(harness, f"{name} 2", guard=guard, kind=name)
        notified(url, arguments(one))
        ledger.add(two)
        first, second = ledger.take(harness)
        assert ledger.cross(first, second) == [Crossed(), Held(first.id)]


def test_an_order_holds_between_sql_and_python(url: str, harness: Harness, ledger: OutboxCaller) -> None:
    notified(url, arguments(notification(harness, "1", order="o")))
    ledger.add(notification(harness, "2", order="o"))
    notified(url, arguments(notification(harness, "3", order="o")))
    assert keys_of(ledger.take(harness)) == ["1"]


def test_four_arguments_and_a_body_are_enough(url: str, harness: Harness) -> None:
    async def run() -> list[Any]:
        async with connected(url) as connection:
            rows = await connection.fetch(
                f"select * from semel.notify('{harness.namespace}', 'shipping', '+491', 'sms', '\"On its way\"')"
            )
            return list(rows[0])

    one = Notification(key=harness.namespace, kind="shipping", recipient="+491", channel="sms", body="On its way")
    assert asyncio.run(run()) == [one.id.hex(), "added"]


# ---------------------------------------------------------------------------------------------------------- mistakes

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "key 1 300"),
    ({"key": None}, "key 1 300"),
    ({"kind": "x" * 301}, "kind 1 300"),
    ({"recipient": " +491"}, "recipient"),
    ({"recipient": "+49\n1"}, "recipient"),
    ({"order_key": "a\u200b"}, "order_key"),
    ({"tenant": None}, "tenant 0 300"),
    ({"guard_key": "\t", "guard_window": "1 s"}, "guard_key"),
    ({"channel": "fax"}, "channel='fax' sms email voice message event"),
    ({"channel": None}, "channel=NULL"),
    ({"policy": "hope"}, "policy='hope' hold presume_sent resend give_up"),
    ({"body": None}, "body template"),
    ({"body": "null"}, "body template"),
    ({"body": "1e400"}, "1e308"),
    ({"data": '{"a": [{"b": -1e309}]}'}, "1e308"),
    ({"body": "[" * 300 + "]" * 300}, "200"),
    ({"data": "[]"}, "data JSON object"),
    ({"priority": 10}, "priority='10' 0 9"),
    ({"priority": None}, "priority=NULL"),
    ({"generation": 0}, "generation='0' 1"),
    ({"guard_window": "0 s"}, "guard_window 400"),
    ({"guard_window": "500 days"}, "guard_window 400"),
    ({"guard_key": "k"}, "guard_key guard_window"),
    ({"not_after": "infinity"}, "not_after=infinity"),
    ({"body": f'"{"x" * 262_144}"'}, "262156 262144"),
]


@pytest.mark.parametrize(
    ("wrong", "names"), WRONG, ids=[f"{at} {next(iter(one))}" for at, (one, _) in enumerate(WRONG)]
)
def test_mistakes_are_reported_and_nothing_is_added(
    url: str, harness: Harness, wrong: dict[str, Any], names: str
) -> None:
    said = {**arguments(notification(harness)), **wrong}
    before = stored(url)
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        notified(url, said)
    assert [name for name in names.split() if name not in str(refused.value)] == []
    assert stored(url) == before


def stored(url: str) -> int:
    async def count() -> int:
        async with connected(url) as connection:
            return int(await connection.fetchval("select count(*) from semel.notification"))

    return asyncio.run(count())


def test_sql_refuses_exactly_the_characters_that_python_cannot_print(url: str) -> None:
    """All characters of this Python. The server may know a later version of Unicode."""
    sql = """
        create function pg_temp.refused(letter text) returns boolean language plpgsql as $$
        begin
            perform semel.check_text('key', letter, 1);
            return false;
        exception when invalid_parameter_value then
            return true;
        end $$;
    """

    async def run() -> set[int]:
        async with connected(url) as connection:
            await connection.execute(sql)
            rows = await connection.fetch(
                "select n from unnest($1::integer[]) n where pg_temp.refused('a' || chr(n) || 'a')", points
            )
            return {n for (n,) in rows}

    known = [n for n in range(1, sys.maxunicode + 1) if category(chr(n)) not in ("Cn", "Cs")]
    points = [n for n in known if n < 0x3400 or n % 97 == 0 or category(chr(n)) in ("Cc", "Cf", "Zs", "Zl", "Zp")]
    assert asyncio.run(run()) == {n for n in points if not chr(n).isprintable()}


def test_characters_that_this_python_does_not_know_do_not_block_a_take(
    url: str, harness: Harness, ledger: OutboxCaller
) -> None:
    """They are in a later version of Unicode, which another Python supports."""
    newer = next(chr(n) for n in range(0x1FA00, 0x1FBFF) if not chr(n).isprintable())
    said = arguments(notification(harness, "known"))
    notified(url, said, {**said, "key": f"newer {newer}", "kind": "x", "order_key": newer})
    taken = {one.notification.key: one for one in ledger.take(harness)}
    assert set(taken) == {"known", f"newer {newer}"}
    odd = taken[f"newer {newer}"]
    assert (odd.notification.kind, odd.notification.order, odd.notification.id) == ("x", newer, odd.id)
    assert ledger.cross(odd) == [Crossed()]


# ------------------------------------------------------------------------------------------------------------ places


def test_a_role_may_notify_without_any_other_privilege(url: str, harness: Harness, postgres: PostgresServer) -> None:
    if postgres.is_given:
        pytest.skip("roles of a given server are not ours to make")
    place = urlsplit(url)
    role = f"shop_{harness.namespace}"

    async def run() -> None:
        said = arguments(notification(harness))
        async with connected(url) as owner:
            await owner.execute(f"create role {role} login password 'x'; grant usage on schema semel to {role}")
            try:
                theirs = f"postgresql://{role}:x@{place.hostname}:{place.port}{place.path}"
                async with connected(theirs) as shop:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="notify"):
                        await notify(shop, said)
                    await owner.execute(f"grant execute on function semel.notify to {role}")
                    await shop.execute("create temp table notification (id text); set search_path = pg_temp, semel")
                    assert (await notify(shop, said))[1] == "added"
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await shop.fetch("select * from semel.notification")
            finally:
                await owner.execute(f"drop owned by {role}; drop role {role}")

    asyncio.run(run())


def test_notify_is_in_the_schema_of_its_ledger(empty_database: str, harness: Harness) -> None:
    async def run() -> None:
        async with opened(empty_database, "?schema=other") as ledger, connected(empty_database) as connection:
            await ledger.migrate()
            one = notification(harness, guard=Guard(window_s=5), order="o")
            assert await notify(connection, arguments(one), "other") == (one.id.hex(), "added")
            assert [added.status for added in await ledger.outbox.add([one])] == ["known"]
            assert (await ledger.outbox.status(one.tenant, key=one.key)).answer == "pending"

    asyncio.run(run())


def test_sql_uses_the_lanes_of_python(url: str, harness: Harness, ledger: OutboxCaller) -> None:
    named, unnamed = notification(harness, "named"), notification(harness, "unnamed", provider="", channel="voice")
    notified(url, arguments(named), arguments(unnamed))

    async def run() -> dict[str, str]:
        async with connected(url) as connection:
            rows = await connection.fetch(
                "select key, lane from semel.dispatch join semel.notification using (id) "
                "where recipient_digest = any ($1)",
                [recipient_digest(named.tenant, named.recipient)],
            )
            return dict(tuple(row) for row in rows)

    assert asyncio.run(run()) == {"named": provider(harness), "unnamed": "@voice"}


def test_an_unreadable_notification_does_not_block_others(
    url: str, harness: Harness, ledger: OutboxCaller, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that was changed by hand."""
    ledger.add(notification(harness, "broken"), notification(harness, "whole"))
    broken = notification(harness, "broken").id

    async def run() -> None:
        async with connected(url) as connection:
            await connection.execute("update semel.notification set content = '{' where id = $1", broken)

    asyncio.run(run())
    assert keys_of(ledger.take(harness)) == ["whole"]
    assert broken.hex() in caplog.text
    asked = ledger.ledger.outbox.show(broken)  # type: ignore[attr-defined]
    assert "read" in ledger.run(asked).notification.body, "a note in place of the text"


def test_a_notification_purged_during_notify_is_added_again(fresh_url: str) -> None:
    """Otherwise the caller would continue without a message and without a result."""
    said = {"key": "k", "kind": "shipping", "recipient": "+491", "channel": "sms", "body": '"On its way"'}
    pause = """
        create function public.pause() returns trigger language plpgsql
        as $$ begin perform pg_advisory_xact_lock(77); return null; end $$;
        create trigger pause after insert on semel.notification for each statement execute function public.pause();
    """

    async def story() -> str:
        async with connected(fresh_url) as eye, connected(fresh_url) as blocker, connected(fresh_url) as caller:
            await notify(eye, said)
            await eye.execute("delete from semel.dispatch")  # it was sent
            await eye.execute(pause)
            async with blocker.transaction():
                await blocker.execute("select pg_advisory_xact_lock(77)")
                answer = asyncio.create_task(notify(caller, said))  # it has read the old one when it waits
                waits = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
                async with asyncio.timeout(SOON_S):
                    while not await eye.fetchval(waits):
                        await eye.execute("select pg_sleep(0.01)")
                await eye.execute("delete from semel.notification")
            status = (await answer)[1]
            assert await eye.fetchval("select count(*) from semel.dispatch") == 1
            return status

    assert asyncio.run(story()) == "added"


def test_an_unreadable_notification_is_released_and_can_be_cancelled(
    url: str, harness: Harness, ledger: OutboxCaller
) -> None:
    """Otherwise each relay would take it again when its lease expires."""
    said = notification(harness, "k-1")
    ledger.add(said)

    async def spoil() -> None:
        async with connected(url) as connection:
            await connection.execute("update semel.notification set content = 'no JSON' where id = $1", said.id)

    asyncio.run(spoil())
    assert ledger.take(harness) == []
    assert ledger.run(people(ledger).decide(Decision(said.id, "cancelled", "it is broken", "ada"))) == "cancelled"


RECIPIENTS = [
    ("sms", "+49 170 1234567"),
    ("voice", "0049-170-1234567"),
    ("sms", "tel:+49 (0)170/1234567"),
    ("sms", "0170 1234567"),
    ("sms", "(0)+49 170 1234567"),
    ("sms", "00 49 (170) 1234567"),
    ("sms", "joe"),
    ("email", "Maria@Example.COM"),
    ("email", "Größe@EXÄMPLE.com"),
    ("email", "A@B@C"),
    ("email", "A <B@C.D>"),
    ("message", "0049 170 1234567"),
]


@pytest.mark.parametrize(("channel", "recipient"), RECIPIENTS)
def test_sql_normalizes_recipients_as_python_does(url: str, harness: Harness, channel: str, recipient: str) -> None:
    one = notification(harness, channel=channel, recipient=recipient)
    assert notified(url, arguments(one) | {"recipient": recipient}) == [(one.id.hex(), "added")]
