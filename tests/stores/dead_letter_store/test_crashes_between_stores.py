"""Two stores have no common transaction: whatever a crash between two steps leaves behind is put right, or listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.facts import rendered
from tests.stores.dead_letter_store.broken import Crash, Scene, out_of_reach

from semel.ports import EntryQuery, Inbox
from semel.testing.harness import InboxCaller
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Finished
from semel.values.outcome import Done, Reject, Retry, Uncertain

SETTLING = ["after renew in ledger", "before keep in letterbox", "after keep in letterbox", "before settle in ledger"]
SETTLED = "after settle in ledger"


everywhere = pytest.mark.parametrize("scene", ["sqlite", "redis", "dynamodb"], indirect=True)


@pytest.fixture(params=["redis"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A real ledger; its letters are in SQLite."""
    url = ""
    if request.param == "redis":
        url = str(request.getfixturevalue("redis_url"))
    elif request.param == "dynamodb":
        url = request.getfixturevalue("dynamodb").url(f"semel-{uuid4().hex}")
    scene = Scene(tmp_path, request.param, url)
    yield scene
    scene.close()


def give_up(clerk: InboxCaller, granted: Granted, reason: str = "no", event: bytes = b"{}") -> bool:
    (held,) = clerk.settle_all([Settlement(granted.lease, Reject(reason), DeadLetter(event, granted.attempt))])
    return held


def listed(clerk: InboxCaller, claim: Claim) -> list[str]:
    """The reasons of what waits for a person."""
    return [entry.reason for entry in clerk.entries(claim) if entry.state in ("dead", "uncertain")]


def replay(clerk: InboxCaller, claim: Claim) -> bool:
    return clerk.run(clerk.ledger.replay(claim.digest.hex(), "fixed", "anna"))  # type: ignore[attr-defined,no-any-return]


def discard(clerk: InboxCaller, claim: Claim) -> bool:
    return clerk.run(clerk.ledger.discard(claim.digest.hex(), "not needed", "anna"))  # type: ignore[attr-defined,no-any-return]


def history(clerk: InboxCaller, claim: Claim) -> list[str]:
    entries = clerk.run(clerk.ledger.history(claim.digest.hex()))  # type: ignore[attr-defined]
    return [entry.state for entry in entries]


def replayed_events(scene: Scene) -> list[bytes]:
    """What the letterbox's inbox brings, and finishes."""
    inbox = scene.both.replays
    assert isinstance(inbox, Inbox)
    taken = scene.worker.run(inbox.take({"on_event": 100}, 1000))
    assert all(scene.worker.run(inbox.finish([Finished(one) for one in taken])))
    return [one.event for one in taken]


# ---------------------------------------------------------------------------------------------------- giving up


def test_a_dead_letter_is_in_the_store_and_its_event_is_not_in_the_ledger(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    assert give_up(scene.worker, scene.worker.grant(claim), event=b"[1]")
    assert scene.other.claim(claim) == Settled(Reject("no"))
    (kept,) = scene.worker.run(scene.dead_letter_store.entries(EntryQuery("dead")))
    assert (kept.event, kept.reason, kept.state) == (b"[1]", "no", "dead")
    (there,) = scene.worker.run(scene.ledger.entries(EntryQuery("dead")))
    assert there.event is None


@everywhere
@pytest.mark.parametrize("where", [*SETTLING, SETTLED])
def test_an_event_that_is_given_up_twice_is_one_dead_letter(scene: Scene, where: str) -> None:
    claim = scene.harness.claim("a")
    granted = scene.worker.grant(claim)
    broken = scene.interrupt(where)
    with pytest.raises(Crash):
        give_up(scene.worker, granted, "first")
    assert broken.landed == 1
    scene.lapse()
    verdict = scene.other.claim(claim)
    if where == SETTLED:
        assert verdict == Settled(Reject("first"))
    else:
        assert isinstance(verdict, Granted)
        assert verdict.takeover
        assert give_up(scene.other, verdict, "second")
    assert listed(scene.other, claim) == ["first" if where == SETTLED else "second"]
    assert scene.other.claim(claim) == Settled(Reject(listed(scene.other, claim)[0]))


@pytest.mark.parametrize("where", SETTLING)
@pytest.mark.parametrize(
    ("scene", "how"),
    [("redis", "settle"), ("redis", "after a retry"), ("sqlite", "transaction"), ("dynamodb", "transaction")],
    indirect=["scene"],
)
def test_an_event_that_is_done_after_all_is_not_listed(scene: Scene, where: str, how: str) -> None:
    claim = scene.harness.claim("a")
    granted = scene.worker.grant(claim)
    broken = scene.interrupt(where)
    with pytest.raises(Crash):
        give_up(scene.worker, granted)
    assert broken.landed == 1
    was_kept = where in SETTLING[2:]
    assert len(listed(scene.other, claim)) == was_kept
    scene.lapse()
    again = scene.other.grant(claim)
    if how == "after a retry":
        assert scene.other.settle(again, Retry(0))
        again = scene.other.grant(claim)
    if how == "transaction":
        scene.other.run(_in_transaction(scene.other, again))
    else:
        assert scene.other.settle(again, Done(b"1"))
    assert listed(scene.other, claim) == []
    assert scene.worker.claim(claim) == Settled(Done(b"1"))
    assert history(scene.other, claim) == ["done", *["discarded"] * was_kept]


async def _in_transaction(clerk: InboxCaller, granted: Granted) -> None:
    async with clerk.ledger.transaction(granted.lease) as transaction:  # type: ignore[attr-defined]
        assert await transaction.settle(Settlement(granted.lease, Done(b"1")))


def test_an_unavailable_store_does_not_change_a_done_event(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    claim = scene.harness.claim("a")
    granted = scene.worker.grant(claim)
    scene.interrupt("after keep in letterbox")
    with pytest.raises(Crash):
        give_up(scene.worker, granted)
    scene.lapse()
    broken = scene.interrupt("before discard in letterbox", out_of_reach)
    assert scene.worker.settle(scene.worker.grant(claim), Done(b"1"))
    assert broken.landed == 2, "the crash, and this one"
    assert "dead_letter_stays_listed step=discard" in caplog.text
    assert listed(scene.other, claim) == ["no"], "too long, and never too short"
    assert [replay(scene.other, claim), discard(scene.other, claim)] == [False, True]


def test_nothing_is_given_up_while_the_store_is_unavailable(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    granted = scene.worker.grant(claim)
    broken = scene.interrupt("before keep in letterbox", out_of_reach)
    with pytest.raises(LedgerUnavailable, match="out of reach"):
        give_up(scene.worker, granted)
    assert broken.landed == 1
    assert isinstance(scene.other.claim(claim), Busy), "it is not settled"
    assert listed(scene.other, claim) == []
    broken.interrupt("")
    assert give_up(scene.worker, granted) is True
    assert listed(scene.other, claim) == ["no"]


@pytest.mark.parametrize("where", ["after keep in letterbox", "before settle in ledger", "after settle in ledger"])
def test_a_lost_reply_followed_by_a_retry_is_one_dead_letter(scene: Scene, where: str) -> None:
    claim = scene.harness.claim("a")
    granted = scene.worker.grant(claim)
    broken = scene.interrupt(where, out_of_reach)
    with pytest.raises(LedgerUnavailable):
        give_up(scene.worker, granted)
    broken.interrupt("")
    assert broken.landed == 1
    assert [give_up(scene.worker, granted), give_up(scene.worker, granted)] == [True, True]
    assert listed(scene.other, claim) == ["no"]


def test_settlements_without_a_dead_letter_do_not_wait_for_the_store(scene: Scene) -> None:
    done, dead, later = scene.harness.claims(3)
    leases = [scene.worker.grant(claim) for claim in (done, dead, later)]
    batch = [
        Settlement(leases[0].lease, Done(b"1")),
        Settlement(leases[1].lease, Uncertain("?"), DeadLetter(b"{}", 1)),
        Settlement(leases[2].lease, Retry(60)),
    ]
    broken = scene.interrupt("before keep in letterbox", out_of_reach)
    with pytest.raises(LedgerUnavailable):
        scene.worker.settle_all(batch)
    assert broken.landed == 1
    assert scene.other.claim(done) == Settled(Done(b"1"))
    assert isinstance(scene.other.claim(dead), Busy)
    broken.interrupt("")
    assert scene.worker.settle_all(batch) == [True, True, True]
    assert scene.other.claim(dead) == Settled(Uncertain("?"))


@pytest.mark.parametrize("first", ["dead", "done"])
def test_of_two_outcomes_of_one_lease_in_a_batch_the_first_counts(scene: Scene, first: str) -> None:
    claim = scene.harness.claim("a")
    lease = scene.worker.grant(claim).lease
    batch = [Settlement(lease, Reject("no"), DeadLetter(b"{}", 1)), Settlement(lease, Done(b"1"))]
    if first == "done":
        batch.reverse()
    assert scene.worker.settle_all(batch) == [True, False]
    assert listed(scene.other, claim) == (["no"] if first == "dead" else [])


# ----------------------------------------------------------------------------------------------------- old tokens


@pytest.mark.parametrize("outcome", [Done(b"1"), Reject("by the other")])
def test_a_stale_owner_keeps_nothing(scene: Scene, outcome: Done | Reject) -> None:
    claim = scene.harness.claim("a")
    stale = scene.worker.grant(claim)
    scene.lapse()
    current = scene.other.grant(claim)
    assert give_up(scene.worker, stale, "stale") is False
    assert scene.other.settle(current, outcome, b"{}") is True
    assert give_up(scene.worker, stale, "stale") is False
    assert listed(scene.other, claim) == ([outcome.reason] if isinstance(outcome, Reject) else [])


@pytest.mark.parametrize("outcome", [Done(b"1"), Reject("by the other")])
def test_a_lease_that_is_lost_while_its_dead_letter_is_kept_leaves_none(scene: Scene, outcome: Done | Reject) -> None:
    claim = scene.harness.claim("a")
    slow = scene.worker.grant(claim)

    async def another_is_faster() -> None:
        scene.lapse()
        (verdict,) = await other.claim([claim])
        assert isinstance(verdict, Granted)
        assert await other.settle([Settlement(verdict.lease, outcome, DeadLetter(b"{}", 2))]) == [True]

    other = scene.harness.open()
    broken = scene.interrupt("after keep in letterbox", another_is_faster)
    assert give_up(scene.worker, slow, "slow") is False
    assert broken.landed == 1
    assert listed(scene.other, claim) == ([outcome.reason] if isinstance(outcome, Reject) else [])
    scene.worker.run(other.close())


# ------------------------------------------------------------------------------------------------------ decisions


def test_a_replay_reopens_the_key_and_passes_the_event_to_the_inbox(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    give_up(scene.worker, scene.worker.grant(claim), event=b"[1]")
    assert [replay(scene.other, claim), replay(scene.other, claim)] == [True, False]
    assert history(scene.other, claim) == ["accepted", "replayed"]
    assert replayed_events(scene) == [b"[1]"]
    granted = scene.worker.grant(claim)
    assert (granted.attempt, granted.takeover) == (1, False)
    assert scene.worker.settle(granted, Done(b"1"))
    assert listed(scene.other, claim) == []
    assert history(scene.other, claim) == ["done", "replayed"]


@everywhere
@pytest.mark.parametrize(
    ("where", "is_decided"),
    [
        ("before replay in ledger", False),
        ("after replay in ledger", False),
        ("before replay in letterbox", False),
        ("after replay in letterbox", True),
    ],
)
def test_a_replay_that_crashes_is_listed_until_it_can_be_repeated(scene: Scene, where: str, is_decided: bool) -> None:
    claim = scene.harness.claim("a")
    give_up(scene.worker, scene.worker.grant(claim), event=b"[1]")
    broken = scene.interrupt(where)
    with pytest.raises(Crash):
        replay(scene.worker, claim)
    broken.interrupt("")
    assert broken.landed == 1
    assert listed(scene.other, claim) == [] if is_decided else ["no"]
    assert replay(scene.other, claim) is not is_decided
    assert replayed_events(scene) == [b"[1]"], "once"
    assert isinstance(scene.other.claim(claim), Granted)


def test_a_replay_that_crashed_can_be_discarded_once_its_event_is_done(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    give_up(scene.worker, scene.worker.grant(claim))
    broken = scene.interrupt("after replay in ledger")
    with pytest.raises(Crash):
        replay(scene.worker, claim)
    broken.interrupt("")
    scene.other.do(claim, b"1")
    assert [replay(scene.other, claim), discard(scene.other, claim)] == [False, True]
    assert scene.other.claim(claim) == Settled(Done(b"1"))
    assert replayed_events(scene) == []


@pytest.mark.parametrize("where", ["after discard in ledger", "before discard in letterbox"])
def test_a_discard_that_crashes_is_listed_until_it_can_be_repeated(scene: Scene, where: str) -> None:
    claim = scene.harness.claim("a")
    give_up(scene.worker, scene.worker.grant(claim))
    broken = scene.interrupt(where)
    with pytest.raises(Crash):
        discard(scene.worker, claim)
    broken.interrupt("")
    assert listed(scene.other, claim) == ["no"]
    assert replay(scene.other, claim) is False, "the ledger has heard that it is not wanted"
    assert [discard(scene.other, claim), discard(scene.other, claim)] == [True, False]
    assert scene.other.claim(claim) == Settled(Reject("no"))


def test_a_dead_letter_outlives_its_key_and_can_be_replayed(scene: Scene) -> None:
    """The ledger forgets by its retention, or by losing its data: the letter is then all there is."""
    claim = scene.harness.claim("a")
    give_up(scene.worker, scene.worker.grant(claim), event=b"[1]")
    scene.harness.advance(10 * scene.harness.retention_ms)
    for _ in range(3):
        scene.worker.purge()
    assert listed(scene.other, claim) == ["no"]
    assert replay(scene.other, claim) is True
    assert replayed_events(scene) == [b"[1]"]


# ---------------------------------------------------------------------------------------------------- looking


@everywhere
def test_counts_and_listings_cover_both_stores(scene: Scene) -> None:
    for text, outcome in (("a", Done(b"1")), ("b", Reject("no")), ("c", Uncertain("?")), ("d", Retry(60))):
        scene.worker.settle(scene.worker.grant(scene.harness.claim(text)), outcome, b"{}")
        scene.harness.advance(1)
    scene.worker.grant(scene.harness.claim("e"))
    replay(scene.worker, scene.harness.claim("b"))
    counts = scene.worker.run(scene.both.counts())
    assert counts == {"accepted": 1, "leased": 1, "waiting": 1, "done": 1, "dead": 0, "uncertain": 1}
    entries = scene.worker.run(scene.both.entries(EntryQuery()))
    assert {(entry.text, entry.state) for entry in entries} == {
        *(("a", "done"), ("b", "accepted"), ("c", "uncertain"), ("d", "waiting"), ("e", "leased"))
    }
    assert [entry.at_ms for entry in entries] == sorted((entry.at_ms for entry in entries), reverse=True)
    assert len(scene.worker.run(scene.both.entries(EntryQuery(None, 2)))) == 2


def test_a_dead_letter_store_that_is_a_ledger_in_use_is_an_error(scene: Scene) -> None:
    facts = rendered(scene.worker.run(scene.both.diagnose()))
    assert {"0", "SQLite"} <= set(facts["dead_letters"].split())
    assert facts["dead letters, writable"] == "yes"
    assert "store" in facts, "the ledger's own facts are there too"
    give_up(scene.worker, scene.worker.grant(scene.harness.claim("a")))
    assert "1" in rendered(scene.worker.run(scene.both.diagnose()))["dead_letters"].split()
    scene.worker.run(scene.dead_letter_store.claim([scene.harness.claim("of others")]))
    assert "error: SQLite" in rendered(scene.worker.run(scene.both.diagnose()))["dead_letters"]
