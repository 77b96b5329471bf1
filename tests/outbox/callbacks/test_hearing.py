"""What a callback may move, what it has to wait for, and how few round trips it takes."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
from tests.outbox.callbacks.hearing_here import (
    Counted,
    accepted,
    all_of_it,
    crossed,
    crossed_again,
    endpoint,
    hear,
    message,
    refused,
    said,
    state,
)

from semel.core.resend import needed_outbox
from semel.http_client.client import Answered
from semel.ledgers.sqlite import SqliteLedger
from semel.ports import StoredOutbox
from semel.providers.callbacks import CALLBACKS
from semel.providers.http import HttpProvider, field
from semel.providers.registry import KINDS, provider
from semel.service import provider_callbacks as heard
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import Ingest, Scope
from semel.service.provider_callbacks import ProviderCallbacks
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport
from semel.values.secret import Secret
from semel.verifiers import SCHEMES, verifier

UNMATCHED = {"status": "recorded", "reports": 1, "unmatched": 1}
MATCHED = {"status": "recorded", "reports": 1}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def with_outbox(path: Path, story: Callable[[StoredOutbox], Awaitable[None]]) -> None:
    async def run() -> None:
        ledger = SqliteLedger(str(path / "semel.db"))
        try:
            await story(needed_outbox(ledger))
        finally:
            await ledger.close()

    asyncio.run(run())


def test_one_path_through_everything(tmp_path: Path) -> None:
    with_outbox(tmp_path, lambda outbox: all_of_it(outbox, "one"))


# ------------------------------------------------------------------------------------------------ whose message it is


def test_what_has_not_left_cannot_have_arrived(tmp_path: Path) -> None:
    """Its id can be worked out by whoever knows the customer and the order."""

    async def story(outbox: StoredOutbox) -> None:
        one = message("waiting", "mine")
        await outbox.add([one])
        for word in ("queued", "done", "lost", "no"):
            assert await hear(ProviderCallbacks(outbox), endpoint("mine"), said(word, one)) == (200, UNMATCHED)
        assert await state(outbox, one) == "pending"
        shown = await outbox.show(one.id)
        assert shown is not None
        assert not shown.attempts

    with_outbox(tmp_path, story)


def test_a_provider_that_is_next_has_not_sent_it_yet(tmp_path: Path) -> None:
    """The first one has refused it. From here on it belongs to the second one, which has not been asked."""

    async def story(outbox: StoredOutbox) -> None:
        one = message("one", "first")
        (dispatch,) = await crossed(outbox, one)
        await refused(outbox, dispatch, "second")
        shown = await outbox.show(one.id)
        assert shown is not None
        assert (shown.state, shown.provider) == ("pending", "second")
        assert await hear(ProviderCallbacks(outbox), endpoint("second"), said("done", one)) == (200, UNMATCHED)
        assert await state(outbox, one) == "pending"
        assert await hear(ProviderCallbacks(outbox), endpoint("first"), said("done", one)) == (200, MATCHED)
        assert await state(outbox, one) == "delivered", "the first one knows better than we do"

    with_outbox(tmp_path, story)


def test_two_names_of_one_account_share_a_door(tmp_path: Path) -> None:
    """Each message keeps the name that it left by, whether it is known by our id or by its reference."""

    async def story(outbox: StoredOutbox) -> None:
        hearing = ProviderCallbacks(outbox)
        one, two = message("one", "second"), message("two", "second")
        for reference, dispatch in enumerate(await crossed(outbox, one, two)):
            await accepted(outbox, dispatch, f"r-{reference}" if dispatch.id == one.id else "r-two")
        assert await hear(hearing, endpoint("first"), said("done", one)) == (200, UNMATCHED)
        assert await hear(hearing, endpoint("first"), said("done", one), aliases=("second",)) == (200, MATCHED)
        assert await hear(hearing, endpoint("first"), said("done", None, "r-two")) == (200, UNMATCHED)
        assert await hear(hearing, endpoint("first"), said("done", None, "r-two"), aliases=("second",)) == (
            200,
            MATCHED,
        )
        for each in (one, two):
            shown = await outbox.show(each.id)
            assert shown is not None
            assert (shown.state, shown.provider) == ("delivered", "second")

    with_outbox(tmp_path, story)


@pytest.mark.parametrize("reference", ["r-2", ""])
def test_what_the_second_name_of_an_account_has_taken_over_is_told_of_that_one(tmp_path: Path, reference: str) -> None:
    async def story(outbox: StoredOutbox) -> None:
        hearing, one = ProviderCallbacks(outbox), message("one", "first")
        (dispatch,) = await crossed(outbox, one)
        await refused(outbox, dispatch, "second")
        (again,) = await crossed_again(outbox, "second")
        assert await hear(hearing, endpoint("first"), said("no", one), aliases=("second",)) == (200, MATCHED)
        assert await state(outbox, one) == "sending", "the first one says it, or the second: nobody can tell"
        await accepted(outbox, again, "r-2")
        assert await hear(hearing, endpoint("first"), said("done", one, reference), aliases=("second",)) == (
            200,
            MATCHED,
        )
        shown = await outbox.show(one.id)
        assert shown is not None
        assert (shown.state, shown.provider, shown.possible_duplicates) == ("delivered", "second", 0)

    with_outbox(tmp_path, story)


# ------------------------------------------------------------------------------------------ a callback that overtakes


def test_a_callback_that_overtakes_the_answer_to_the_send_is_waited_for(tmp_path: Path) -> None:
    async def story(outbox: StoredOutbox) -> None:
        one = message("one", "mine")
        (dispatch,) = await crossed(outbox, one)
        callback = asyncio.create_task(
            hear(ProviderCallbacks(outbox), endpoint("mine", by_reference=True), said("done", None, "r"))
        )
        await asyncio.sleep(0.02)  # long enough for it to find nothing; if not, it has less to wait for
        await accepted(outbox, dispatch, "r")
        assert await callback == (200, MATCHED)
        assert await state(outbox, one) == "delivered"

    with_outbox(tmp_path, story)


def test_a_reference_that_nobody_knows_is_asked_for_again_while_it_is_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send may take longer than anybody waits. Nobody is made to come for ever."""
    monkeypatch.setattr(heard, "WAITS_S", (0.0,))

    async def story(outbox: StoredOutbox) -> None:
        clock = Clock()
        hearing, mine = ProviderCallbacks(outbox, clock), endpoint("mine", by_reference=True)
        one = message("one", "mine")
        (dispatch,) = await crossed(outbox, one)
        assert (await hear(hearing, mine, said("done", None, "r")))[0] == 503
        assert (await hear(hearing, mine, said("done", None, "r"), overload_status=429))[0] == 429
        await accepted(outbox, dispatch, "r")
        assert await hear(hearing, mine, said("done", None, "r")) == (200, MATCHED)

        assert (await hear(hearing, mine, said("done", None, "a stranger's")))[0] == 503
        clock.now += heard.YOUNG_S
        assert await hear(hearing, mine, said("done", None, "a stranger's")) == (200, UNMATCHED)

    with_outbox(tmp_path, story)


def test_a_stranger_of_a_provider_that_has_our_id_is_not_waited_for(tmp_path: Path) -> None:
    """Others send by the same account: their callbacks are answered at once, and do not come again."""

    async def story(outbox: StoredOutbox) -> None:
        assert await hear(ProviderCallbacks(outbox), endpoint("mine"), said("done", None, "r")) == (200, UNMATCHED)

    with_outbox(tmp_path, story)


def test_few_wait_at_a_time_and_the_others_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "WAITING_MAX", 2)
    monkeypatch.setattr(heard, "WAITS_S", (3_600.0,))

    async def story(outbox: StoredOutbox) -> None:
        hearing, mine = ProviderCallbacks(outbox), endpoint("mine", by_reference=True)
        calls = [asyncio.create_task(hear(hearing, mine, said("done", None, f"r{n}"))) for n in range(5)]
        done, waiting = await asyncio.wait(calls, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 3:
            more, waiting = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert more
            done |= more
        assert [one.result()[0] for one in done] == [503] * 3
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)

    with_outbox(tmp_path, story)


def test_strangers_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "UNKNOWN_MAX", 10)
    strangers = heard._UnknownReferences(Clock())
    for number in range(1_000):
        assert strangers.any_young([DeliveryReport("delivered", None, "p", str(number))])
    assert len(strangers._since) == 10


def test_strangers_are_in_the_log_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(outbox: StoredOutbox) -> None:
        clock = Clock()
        hearing = ProviderCallbacks(outbox, clock)
        for _ in range(100):
            await hear(hearing, endpoint("mine"), said("done", None, "r"))
        clock.now += heard.UNMATCHED_EVERY_S
        await hear(hearing, endpoint("mine"), said("done", None, "r"))

    with caplog.at_level(logging.WARNING, "semel"):
        with_outbox(tmp_path, story)
    assert [record.getMessage().rpartition("count=")[2] for record in caplog.records] == ["1", "100"]


# ------------------------------------------------------------------------------------------------------- many at once


def sendgrid() -> Any:
    return provider("sendgrid", "mails", {"api_key": Secret("SG.x"), "sender": "a@example.test"})


def mail(number: int) -> Notification:
    to = f"r{number}@example.test"
    return Notification(
        key=f"m{number}", kind="k", recipient=to, channel="email", subject="s", body="b", provider="mails"
    )


def test_a_body_of_a_thousand_events_travels_in_a_few_batches(tmp_path: Path) -> None:
    async def story(outbox: StoredOutbox) -> None:
        counted: Any = Counted(outbox)
        mails = [mail(number) for number in range(1_000)]
        await crossed(outbox, *mails)
        events = [
            {"event": "delivered", "semel_id": one.id.hex(), "sg_message_id": f"s{n}.x"} for n, one in enumerate(mails)
        ]
        strangers = [{"event": "delivered", "sg_message_id": f"t{n}.x"} for n in range(7)]
        answer = await hear(ProviderCallbacks(counted), sendgrid(), msgspec.json.encode(events + strangers))
        assert answer == (200, {"status": "recorded", "reports": 1_007, "unmatched": 7})
        assert counted.batches == [heard.CHUNK] * 5 + [7], "and the strangers, by their references"
        assert {await state(outbox, one) for one in mails[::100]} == {"delivered"}

    with_outbox(tmp_path, story)


def test_callbacks_that_come_together_travel_together(tmp_path: Path) -> None:
    async def story(outbox: StoredOutbox) -> None:
        counted: Any = Counted(outbox)
        hearing, mine = ProviderCallbacks(counted), endpoint("mine")
        all = [message(str(number), "mine") for number in range(64)]
        await crossed(outbox, *all)
        answers = await asyncio.gather(*[hear(hearing, mine, said("done", one)) for one in all])
        assert answers == [(200, MATCHED)] * 64
        assert counted.batches == [64]

    with_outbox(tmp_path, story)


# -------------------------------------------------------------------------------------------------- the store is away


class Away(Counted):
    async def show(self, id: bytes) -> Any:
        raise LedgerUnavailable("nobody is there")


class Stuck(Counted):
    async def show(self, id: bytes) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("away", [Away, Stuck])
def test_what_cannot_be_recorded_is_to_come_again(
    tmp_path: Path, away: type[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heard, "PATIENCE_S", 0.1)

    async def story(outbox: StoredOutbox) -> None:
        hearing = ProviderCallbacks(away(outbox))
        status, problem = await hear(hearing, endpoint("mine"), said("done", message("one", "mine")))
        assert (status, problem["status"]) == (503, 503)

    with_outbox(tmp_path, story)


# --------------------------------------------------------------------------------------------------- what is believed


async def delivered(
    ingest: Ingest, door: ServedEndpoint, body: bytes, query: str, *headers: tuple[bytes, bytes]
) -> int:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "POST", "path": door.path, "query_string": query.encode()}
    await ingest.deliver(door, {**scope, "headers": list(headers)}, receive, send)
    return int(sent[0]["status"])


def twilio(**more: Any) -> Any:
    return provider("twilio", "mine", {"account": "AC1", "token": Secret("t"), "sender": "+490", **more})


def test_a_query_that_is_not_proven_names_nobody(tmp_path: Path) -> None:
    """A scheme that signs the body alone lets anybody who has one callback write another id beside it."""

    async def story(outbox: StoredOutbox) -> None:
        one = message("one", "mine")
        await crossed(outbox, one)
        body = b"MessageSid=SM1&MessageStatus=delivered"
        secret = (b"x-api-key", b"s3cret-that-nobody-guesses")
        digest = hmac.new(b"s3cret-that-nobody-guesses", body, "sha256").hexdigest()
        signature = (b"x-hub-signature-256", f"sha256={digest}".encode())
        hears = twilio(callback="https://example.com/")
        signs = ServedEndpoint(
            "/a", verifier=verifier("hmac-hex", secrets=["s3cret-that-nobody-guesses"]), callback_provider=hears
        )
        shows = ServedEndpoint(
            "/b", verifier=verifier("header", secrets=["s3cret-that-nobody-guesses"]), callback_provider=hears
        )
        ingest = Ingest(None, [signs, shows], outbox=outbox)  # type: ignore[arg-type]
        assert await delivered(ingest, signs, body, f"id={one.id.hex()}", signature) == 200
        assert await state(outbox, one) == "sending"
        assert await delivered(ingest, shows, body, f"id={one.id.hex()}", secret) == 200
        assert await state(outbox, one) == "delivered", "whoever knows the secret wrote the whole request"

    with_outbox(tmp_path, story)


def test_no_header_can_pass_for_the_query(tmp_path: Path) -> None:
    """Also where a server lets such a name through: what came as the query is what is verified."""

    async def story(outbox: StoredOutbox) -> None:
        url, query = "https://example.com/c", "id=1"
        text = f"{url}?{query}MessageSidSM1MessageStatusdelivered"
        signature = base64.b64encode(hmac.digest(b"t", text.encode(), "sha1"))
        door = ServedEndpoint(
            "/c", verifier=verifier("twilio", secrets=["t"], url=url), callback_provider=twilio(callback=url)
        )
        ingest = Ingest(None, [door], outbox=outbox)  # type: ignore[arg-type]
        body = b"MessageSid=SM1&MessageStatus=delivered"
        true = (b"x-twilio-signature", signature)
        assert await delivered(ingest, door, body, "id=2", true, (b":query", query.encode())) == 401
        assert await delivered(ingest, door, body, query, true, (b":query", b"id=2")) == 200

    with_outbox(tmp_path, story)


# ------------------------------------------------------------------------------------------------------- put together


def test_a_door_that_hears_needs_an_outbox() -> None:
    async def story() -> None:
        with pytest.raises(ConfigError, match="outbox"):
            Ingest(None, [ServedEndpoint("/c", callback_provider=endpoint("mine"))])  # type: ignore[arg-type]

    asyncio.run(story())


def test_the_table_of_callbacks_names_what_there_is() -> None:
    assert set(CALLBACKS) <= set(KINDS)
    assert {calls.scheme for calls in CALLBACKS.values()} <= set(SCHEMES)
    silent = {name for name in KINDS if name not in CALLBACKS}
    assert silent == {name for name in KINDS if name.startswith(("genesys", "cxone", "smtp"))}
    assert HttpProvider.reports is not type(endpoint("mine")).reports


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("https://a.example/c", "https://a.example/c?id={id}"),
        ("https://a.example/c?x=1", "https://a.example/c?x=1&id={id}"),
        ("https://a.example/c#rc=3&rp=5xx,ct,rt", "https://a.example/c?id={id}#rc=3&rp=5xx,ct,rt"),
        ("https://a.example/c?x=1#rc=3", "https://a.example/c?x=1&id={id}#rc=3"),
    ],
)
def test_our_id_stands_before_what_tells_twilio_to_come_again(tmp_path: Path, told: str, expected: str) -> None:
    async def story(outbox: StoredOutbox) -> None:
        one = message("one", "mine")
        (dispatch,) = await crossed(outbox, one)
        request = twilio(callback=told).prepare(dispatch)
        (form,) = [value for value in msgspec.json.decode(request).values() if "StatusCallback" in str(value)]
        assert parse_qs(form)["StatusCallback"] == [expected.format(id=one.id.hex())]

    with_outbox(tmp_path, story)


def test_the_page_tells_of_each_kind_what_the_table_does() -> None:
    page = (Path(__file__).parents[3] / "docs" / "callbacks.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z]+)` \| `([a-z-]+)` \| .* \| (\d+) \|$", page, re.MULTILINE)
    assert rows == [(kind, calls.scheme, str(calls.again)) for kind, calls in CALLBACKS.items()]


def test_an_answer_that_is_no_text_is_an_acceptance_without_a_reference() -> None:
    """What a provider says is not always UTF-8; it was sent all the same."""
    assert field(Answered(200, body=b'{"sid":"\xff"}'), "sid") == ""


def test_a_callback_with_an_id_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"callback.*\bid\b"):
        twilio(callback="https://a.example/c?x=1&id=")
