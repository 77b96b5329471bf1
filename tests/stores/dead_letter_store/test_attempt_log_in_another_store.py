"""Letters kept elsewhere tell what came of every attempt, also of those that only the ledger has seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.stores.dead_letter_store.broken import Crash, Scene

from semel.ports import Entry, EntryQuery
from semel.testing.harness import InboxCaller
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.inbox import Finished
from semel.values.outcome import Done, Reject, Retry


@pytest.fixture(params=["sqlite", "redis", "dynamodb"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    url = ""
    if request.param == "redis":
        url = str(request.getfixturevalue("redis_url"))
    elif request.param == "dynamodb":
        url = request.getfixturevalue("dynamodb").url(f"semel-{uuid4().hex}")
    scene = Scene(tmp_path, request.param, url)
    yield scene
    scene.close()


def give_up(clerk: InboxCaller, granted: Granted, reason: str = "gave up") -> bool:
    (held,) = clerk.settle_all([Settlement(granted.lease, Reject(reason), DeadLetter(b"{}", granted.attempt))])
    return held


def retry(clerk: InboxCaller, claim: Claim, reason: str) -> None:
    assert clerk.settle(clerk.grant(claim), Retry(0, reason))


def told(entry: Entry) -> list[tuple[int, str]]:
    return [(one.attempt, one.reason) for one in entry.attempt_log]


def history(clerk: InboxCaller, claim: Claim) -> list[Entry]:
    found: list[Entry] = clerk.run(clerk.ledger.history(claim.digest.hex()))  # type: ignore[attr-defined]
    return found


def replay(clerk: InboxCaller, claim: Claim, force: bool = True) -> bool:
    asked: Any = clerk.ledger
    return bool(clerk.run(asked.replay(claim.digest.hex(), "once more", "anna", force=force)))


def test_a_dead_letter_has_the_attempts_that_only_the_ledger_recorded(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    retry(scene.worker, claim, "first")
    scene.harness.advance(2)
    retry(scene.other, claim, "second")
    scene.other.grant(claim)
    scene.lapse()
    assert give_up(scene.worker, scene.worker.grant(claim))
    (kept,) = scene.other.run(scene.dead_letter_store.entries(EntryQuery("dead")))
    assert told(kept) == [(1, "first"), (2, "second"), (4, "gave up")]
    assert kept.attempt_log[0].at_ms < kept.attempt_log[1].at_ms < kept.attempt_log[2].at_ms
    assert [told(entry) for entry in history(scene.other, claim)] == [told(kept)]


@pytest.mark.parametrize("where", ["after keep in letterbox", "before settle in ledger"])
def test_an_attempt_of_a_vanished_holder_is_missing_from_the_log(scene: Scene, where: str) -> None:
    claim = scene.harness.claim("a")
    retry(scene.worker, claim, "first")
    granted = scene.worker.grant(claim)
    broken = scene.interrupt(where)
    with pytest.raises(Crash):
        give_up(scene.worker, granted, "vanished")
    assert broken.landed == 1
    scene.lapse()
    assert give_up(scene.other, scene.other.grant(claim))
    (kept,) = scene.other.run(scene.dead_letter_store.entries(EntryQuery("dead")))
    assert told(kept) == [(1, "first"), (3, "gave up")]


def test_the_ledger_is_read_only_after_a_failed_attempt(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is done nor what is given up at once costs a round trip more."""
    asked: list[str] = []
    own = type(scene.ledger).history

    async def counted(self: Any, key: str) -> list[Entry]:
        asked.append(key)
        found: list[Entry] = await own(self, key)
        return found

    monkeypatch.setattr(type(scene.ledger), "history", counted)
    done, dead, late = (scene.harness.claim(text) for text in ("done", "dead", "late"))
    scene.worker.do(done)
    assert give_up(scene.worker, scene.worker.grant(dead))
    retry(scene.worker, late, "first")
    assert asked == []
    assert give_up(scene.worker, scene.worker.grant(late))
    assert asked == [late.digest.hex()]


def test_what_is_done_is_replayed_by_force_in_the_ledger(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    scene.worker.do(claim, b"1")
    assert replay(scene.worker, claim, force=False) is False
    assert scene.other.claim(claim) == Settled(Done(b"1"))
    assert [replay(scene.worker, claim), replay(scene.other, claim)] == [True, False]
    assert give_up(scene.other, scene.other.grant(claim))
    dead, before = history(scene.other, claim)
    assert (dead.state, before.state, before.result) == ("dead", "replayed", b"1")
    assert "once more" in before.decision


def test_the_event_of_a_done_key_is_replayed_by_force(scene: Scene) -> None:
    claim = scene.harness.claim("a")
    assert give_up(scene.worker, scene.worker.grant(claim))
    scene.harness.advance(scene.harness.retention_ms)
    scene.other.do(claim, b"1")
    assert replay(scene.worker, claim, force=False) is False
    assert replay(scene.worker, claim) is True
    inbox: Any = scene.both.replays
    (taken,) = scene.worker.run(inbox.take({claim.handler: 100}, 1000))
    assert taken.event == b"{}"
    granted = scene.worker.grant(claim)
    assert isinstance(scene.other.claim(claim), Busy)
    assert scene.worker.settle(granted, Done(b"2"))
    assert scene.worker.run(inbox.finish([Finished(taken)])) == [True]
    assert scene.other.claim(claim) == Settled(Done(b"2"))
