"""Asking for a message: one for each fact, durable, the tenant's own, and refused with a word where it is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.desk import PHONE, Desk, desk_on
from tests.service.api.live import ASKER, GLOBEX, OPERATOR, READER, SENDER, TOKENS, Client, serving

from semel.ledgers.memory import MemoryLedger
from semel.ledgers.sqlite import SqliteLedger
from semel.service.api import api
from semel.values.delivery_state import Contract, ProviderAccess
from semel.values.notification import CONTENT_MAX_BYTES, Notification


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_on(tmp_path) as desk:
        yield desk


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Where nothing is ever kept."""
    with desk_on(tmp_path_factory.mktemp("refusing")) as desk:
        yield desk


def test_the_same_call_twice_is_one_notification_and_reported_as_known(desk: Desk) -> None:
    first, second = desk.ask(), desk.ask()
    assert (first.status, second.status) == (201, 200)
    assert first.json() == {"id": first.json()["id"], "status": "added", "state": "pending"}
    assert second.json() == first.json() | {"status": "known"}
    assert first.headers["location"] == second.headers["location"] == f"/v1/notifications/{first.json()['id']}"
    assert desk.client.ask("GET", first.headers["location"]).json()["id"] == first.json()["id"]
    assert len(desk.listed().json()["items"]) == 1


def test_racing_calls_are_all_answered_and_make_one_notification(desk: Desk) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: desk.ask(), range(16)))
    assert sorted(reply.status for reply in replies) == [200] * 15 + [201]
    assert len({reply.json()["id"] for reply in replies}) == 1


def test_the_id_is_that_of_every_other_road(desk: Desk) -> None:
    notification = Notification(
        key="order-1", kind="shipping", recipient=PHONE, channel="sms", body="On its way", tenant="acme"
    )
    assert desk.send() == notification.id.hex()
    (added,) = asyncio.run(desk.ledger.outbox.add([notification]))
    assert added.status == "known"


def test_the_same_key_with_another_body_is_a_conflict_and_the_first_is_untouched(desk: Desk) -> None:
    id = desk.send()
    before = desk.show(id)
    reply = desk.ask(body="Something else")
    assert reply.status == 422
    assert reply.json()["id"] == id
    assert reply.json()["state"] == "pending"
    assert desk.show(id) == before


def test_answered_notifications_survive_the_service(tmp_path: Path) -> None:
    with desk_on(tmp_path) as desk:
        id = desk.send()
    ledger = SqliteLedger(str(tmp_path / "semel.db"))
    try:
        shown = asyncio.run(ledger.outbox.show(bytes.fromhex(id)))
    finally:
        asyncio.run(ledger.close())
    assert shown is not None
    assert shown.notification.tenant == "acme"


# ------------------------------------------------------------------------------------------------------------ keys


def test_the_key_may_come_in_the_header(desk: Desk) -> None:
    id = desk.send("order-7")
    for spelled in ("order-7", '"order-7"'):
        reply = desk.ask(None, spelled)
        assert (reply.status, reply.json()["id"]) == (200, id)
        assert desk.ask("order-7", spelled).json()["id"] == id


def test_a_key_in_the_header_is_text_in_utf_8(desk: Desk) -> None:
    id = desk.send("Größe-世界")
    reply = desk.ask(None, "Größe-世界".encode().decode("latin-1"))
    assert (reply.status, reply.json()["id"]) == (200, id)
    assert desk.ask(None, b"\xff\xfe".decode("latin-1")).status == 400


@pytest.mark.parametrize(
    "header", ['"order-1"', '"order-1";a=1', '"order-1";a;b="x y";c=?1;d=:aGk=:;e=1.5; f=tok', "order-1"]
)
def test_one_key_in_every_spelling_of_the_header_is_one_notification(desk: Desk, header: str) -> None:
    id = desk.send("order-1")
    reply = desk.ask(None, header)
    assert (reply.status, reply.json()["id"]) == (200, id)


@pytest.mark.parametrize(
    ("header", "key"),
    [(r'"a\"b"', 'a"b'), (r'"a\\b"', "a\\b"), ('"a;b=1"', "a;b=1"), ("a;b=1", "a;b=1"), (r"a\b", r"a\b")],
)
def test_a_header_in_quotes_is_unescaped_and_one_without_is_the_key_itself(desk: Desk, header: str, key: str) -> None:
    id = desk.send(key)
    reply = desk.ask(None, header)
    assert (reply.status, reply.json()["id"]) == (200, id)


@pytest.mark.parametrize(
    "header",
    [
        '"order-1',
        'order-1"',
        'or"der',
        '""order-1""',
        '"order-1"x',
        '"order-1", "order-2"',
        r'"a\b"',
        '"a";=1',
        '"a";A=1',
        '"a"; b=',
        '"Größe"'.encode().decode("latin-1"),
        '"a\tb"',
        '"',
        '""',
    ],
)
def test_a_header_with_a_wrong_quote_is_refused_and_nothing_is_added(desk: Desk, header: str) -> None:
    assert desk.ask(None, header).status == 400
    assert desk.listed().json()["items"] == []


def test_two_keys_that_differ_are_refused(desk: Desk) -> None:
    reply = desk.ask("order-1", "order-2")
    assert reply.status == 400
    assert reply.json()["detail"].startswith("key: ")
    assert desk.listed().json()["items"] == []


def test_no_key_is_ever_made_up(desk: Desk) -> None:
    reply = desk.ask(None)
    assert reply.status == 400
    assert reply.json()["detail"].startswith("key: ")
    assert "Idempotency-Key" in reply.json()["detail"]
    assert desk.listed().json()["items"] == []


def test_an_empty_key_is_none(desk: Desk) -> None:
    assert desk.ask("").status == 400
    assert desk.client.ask("POST", "/v1/notifications", {}, Idempotency_Key="").status == 400


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"recipient": ""}, "recipient"),
        ({"recipient": " +4917012345678"}, "recipient"),
        ({"recipient": "a\u200bb"}, "recipient"),
        ({"recipient": "r" * 301}, "recipient"),
        ({"recipient": 7}, "recipient"),
        ({"kind": "a\nb"}, "kind"),
        ({"channel": "fax"}, r"^channel: .*sms, email, voice, message, event.*'fax'"),
        ({"body": None}, "body"),
        ({"body": 7}, "body"),
        ({"body": " "}, "body"),
        ({"provider": "+4917012345678"}, "provider"),  # it would stand in metrics
        ({"provider": "@sms"}, "provider"),
        ({"tenant": "globex"}, "tenant"),
        ({"generation": 2}, "generation"),
        ({"unheard": 1}, "unheard"),
        ({"priority": 10}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"not_after": "2030-01-01T00:00:00"}, "not_after"),
        ({"not_after": "tomorrow"}, "not_after"),
        ({"guard": {"window_s": 0}}, "guard.window_s"),
        ({"guard": {"window_s": 60, "keys": "x"}}, "keys"),
        ({"policy": "hope"}, r"^policy: .*hold, presume_sent, resend, give_up.*'hope'"),
        ({"data": []}, "data"),
        ({"body": "x" * CONTENT_MAX_BYTES}, "bytes"),
        ({"recipient": "${input.phone}"}, "^recipient: .*template"),
        ({"key": "order-${Flow.id}"}, "^key: .*template"),
    ],
)
def test_an_invalid_field_is_named_and_nothing_is_stored(refusing: Desk, wrong: dict[str, Any], named: str) -> None:
    reply = refusing.ask(**wrong)
    assert reply.status == 400
    assert re.search(named, reply.json()["detail"])
    assert refusing.listed().json()["items"] == []


def test_names_that_stand_twice_are_refused(desk: Desk) -> None:
    raw = b'{"key":"a","key":"b","kind":"k","recipient":"r","channel":"sms","body":"b"}'
    assert desk.client.ask("POST", "/v1/notifications", raw).status == 400


def test_every_field_of_a_request_is_stored(desk: Desk) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="milliseconds")
    asked: dict[str, Any] = {
        "body": {"nested": [1, "Größe"]},
        "channel": "event",
        "subject": "s",
        "sender": "+1",
        "template": "t",
        "data": {"name": "Ada"},
        "not_after": later,
        "priority": 2.0,
        "order": "customer-1",
        "guard": {"window_s": 60.0, "key": "g"},
        "provider": "twilio",
        "policy": "give_up",
    }
    shown = asyncio.run(desk.ledger.outbox.show(bytes.fromhex(desk.send(**asked))))
    assert shown is not None
    kept = shown.notification
    assert kept.not_after == datetime.fromisoformat(later)
    assert kept.guard is not None
    assert (kept.guard.window_s, kept.guard.key) == (60.0, "g")
    for name in ("body", "channel", "subject", "sender", "template", "data", "order", "provider", "policy"):
        assert getattr(kept, name) == asked[name], name
    assert kept.priority == 2


# ---------------------------------------------------------------------------------------------- tenants and scopes


def test_another_tenant_neither_sees_nor_moves_it(desk: Desk) -> None:
    id = desk.send()
    other = Client(desk.client.port, GLOBEX)
    assert other.ask("GET", f"/v1/notifications/{id}").status == 404
    assert other.ask("GET", f"/v1/notifications/{id}?reveal=true").status == 404
    for verb, body in (("resolve", {"resolution": "given_up"}), ("cancel", {}), ("resend", {})):
        assert other.ask("POST", f"/v1/notifications/{id}/{verb}", body | {"reason": "mine"}).status == 404
    assert other.ask("POST", "/v1/notifications/erase", {"recipient": PHONE, "reason": "mine"}).json()["erased"] == 0
    assert other.ask("GET", "/v1/notifications").json()["items"] == []
    assert other.ask("GET", "/v1/notifications/status?key=order-1").json()["status"] == "never"
    assert desk.show(id)["state"] == "pending"
    assert desk.show(id)["attempts"] == []


def test_each_path_needs_its_own_scope(desk: Desk) -> None:
    id = desk.send()
    reason = {"reason": "why"}
    needs: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/notifications", {}, SENDER),
        ("GET", "/v1/notifications", None, ASKER),
        ("GET", "/v1/notifications/status?key=k", None, ASKER),
        ("GET", f"/v1/notifications/{id}", None, ASKER),
        ("POST", f"/v1/notifications/{id}/resolve", reason | {"resolution": "sent"}, OPERATOR),
        ("POST", f"/v1/notifications/{id}/cancel", reason, OPERATOR),
        ("POST", f"/v1/notifications/{id}/resend", reason, OPERATOR),
        ("POST", "/v1/notifications/erase", reason | {"recipient": "r"}, OPERATOR),
    ]
    for method, path, body, right in needs:
        for who in (SENDER, ASKER, OPERATOR, READER):
            status = Client(desk.client.port, who).ask(method, path, body).status
            assert (status == 403) == (who != right), (method, path, who, status)
        assert Client(desk.client.port, None).ask(method, path, body).status == 401


def test_to_reveal_needs_both_to_read_and_to_decide(desk: Desk) -> None:
    id = desk.send()
    for path in (f"/v1/notifications/{id}?reveal=true", "/v1/notifications?reveal=true"):
        assert Client(desk.client.port, ASKER).ask("GET", path).status == 403
        assert Client(desk.client.port, OPERATOR).ask("GET", path).status == 403
        assert desk.client.ask("GET", path).status == 200


# --------------------------------------------------------------------------------------------------------- showing


def test_recipient_and_content_are_masked_unless_they_are_revealed(desk: Desk) -> None:
    id = desk.send(f"order for {PHONE}", body="the secret word", subject="hush", order=PHONE)
    desk.decide(id, "cancel", f"{PHONE} has called")
    for path in (f"/v1/notifications/{id}", "/v1/notifications"):
        masked = desk.client.ask("GET", path)
        assert PHONE.encode() not in masked.body
        assert b"secret" not in masked.body
        assert b"hush" not in masked.body
        assert b"+49\xe2\x80\xa65678" in masked.body
        shown = masked.json()
        content = shown.get("items", [shown])[0]["content"]
        assert re.findall(r"\d+", content) == ["15", "4"], "the lengths of body and subject"
        clear = desk.client.ask("GET", f"{path}?reveal=true")
        assert PHONE.encode() in clear.body
        assert b"the secret word" in clear.body
        assert b"hush" in clear.body


@pytest.mark.parametrize("id", ["0" * 31, "0" * 33, "A" * 32, "erased", "status2", "%00", "%C3%A9" * 32, "..%2f"])
def test_an_id_is_32_digits_in_lower_case(refusing: Desk, id: str) -> None:
    reply = refusing.client.ask("GET", f"/v1/notifications/{id}")
    assert reply.status == (404 if "/" in id or "2f" in id else 400)
    assert reply.json()["status"] == reply.status


def test_an_unknown_id_is_not_found(desk: Desk) -> None:
    assert desk.client.ask("GET", f"/v1/notifications/{'0' * 32}").status == 404
    assert desk.decide("0" * 32, "resend").status == 404


def test_the_error_of_a_ledger_without_an_outbox_names_those_with_one(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    with serving(api(ledger, TOKENS, catalog=ledger)) as client:
        for method, path in (("POST", ""), ("GET", ""), ("GET", "/status?key=k"), ("POST", f"/{'0' * 32}/resend")):
            reply = client.ask(method, f"/v1/notifications{path}", {} if method == "POST" else None)
            assert reply.status == 501
            assert all(name in reply.json()["detail"] for name in ("sqlite", "postgresql"))
        assert Client(client.port, None).ask("GET", "/v1/notifications").status == 401


def test_a_token_cannot_send_through_the_provider_of_another_tenant(tmp_path: Path) -> None:
    own = Contract(name="acme-sms", channels=("sms",), tenants=frozenset({"acme"}))
    other = Contract(name="globex-sms", channels=("sms", "voice"), tenants=frozenset({"globex"}))
    access = ProviderAccess({one.name: one for one in (own, other)}, {"sms": ["acme-sms"], "voice": ["globex-sms"]})
    with desk_on(tmp_path, access=access) as desk:
        assert desk.ask("1", provider="acme-sms").status == 201
        assert desk.ask("2").status == 201
        for refused in (desk.ask("3", provider="globex-sms"), desk.ask("4", channel="voice")):
            assert refused.status == 403
        assert [one["key"] for one in desk.listed().json()["items"]] == ["2", "1"]
