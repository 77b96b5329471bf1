"""A relay acts only while what it knows still holds: its lease, the time of its message, the window of a key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.outbox.troubled import CONTRACT, SOON_S, Phone, Scene, note, play

from semel.values.delivery_state import Accepted, Answer, Contract, Key, Unknown
from semel.values.errors import LedgerUnavailable
from semel.values.outbox import Found, Lane, LookedUp


async def unknown() -> Answer:
    return Unknown("no answer")


def test_what_is_being_taken_when_it_is_told_to_stop_is_given_back(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        taken, told = asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            taken.set()
            await told.wait()

        await scene.outbox.add([note()])
        scene.way.after["take"] = [slowly]
        relay = scene.relay()
        running = asyncio.create_task(relay.run())
        await taken.wait()
        stopping = asyncio.create_task(relay.stop(10.0))
        await asyncio.sleep(0)
        assert not stopping.done(), "it has something in its hands"
        told.set()
        await asyncio.gather(stopping, running)
        assert scene.phone.got == []
        (dispatch,) = await scene.outbox.take({"@sms": Lane(1, "phone")}, 1_000)
        assert not dispatch.vanished, "nobody has vanished with it"

    play(tmp_path, tell)


def test_what_waits_for_room_is_given_back_while_its_lease_lasts(tmp_path: Path) -> None:
    """Three lanes lead to this provider, which has room for one and does not answer."""

    async def tell(scene: Scene) -> None:
        ends = asyncio.Event()

        async def stall() -> Answer:
            await ends.wait()
            return Accepted("r")

        waiting = [note(channel, channel=channel) for channel in ("sms", "voice", "message")]
        await scene.outbox.add(waiting)
        scene.phone.sends = [stall]
        async with scene.running(scene.relay(margin_s=1.0)):
            await scene.wait(lambda: bool(scene.phone.got))
            other = Phone(CONTRACT)
            others = [one for one in waiting if one.key not in scene.phone.got]
            async with scene.running(scene.relay(other)):
                for one in others:
                    assert (await scene.until(one, "accepted")).attempts[0].number == 1
            assert len(scene.phone.got) == 1, "it was still waiting for its answer"
            assert sorted(other.got) == sorted(one.key for one in others)
            ends.set()

    slow = Contract(name="phone", channels=CONTRACT.channels, concurrency=1, timeout_s=2 * SOON_S)
    play(tmp_path, tell, slow)


@pytest.mark.parametrize("step", ["take", "cross"])
def test_a_request_is_not_begun_that_would_outlast_its_lease(tmp_path: Path, step: str) -> None:
    """Another relay would have it by then, look it up in vain, and send it; and then this one would arrive."""

    async def tell(scene: Scene) -> None:
        async def slowly() -> None:
            scene.moved.by_s += 16.0  # of a lease of 30 s, for a request of up to 15 s

        await scene.outbox.add([note()])
        scene.way.after[step] = [slowly]
        async with scene.running(scene.relay()):
            shown = await scene.until(note(), "accepted")
        assert scene.way.landed == [step]
        assert [one.outcome for one in shown.attempts] == ["released", "accepted"]
        assert "lease" in shown.attempts[0].evidence
        assert scene.phone.got == ["n"]

    play(tmp_path, tell)


@pytest.mark.parametrize("step", ["take", "cross"])
def test_a_key_is_not_sent_again_when_its_window_is_over_at_last(tmp_path: Path, step: str) -> None:
    async def tell(scene: Scene) -> None:
        async def slowly() -> None:
            scene.moved.by_s += 10.0

        async def unknown_and_then_slow() -> Answer:
            scene.way.after[step] = [slowly]
            return Unknown("no answer")

        await scene.outbox.add([note()])
        scene.phone.sends = [unknown_and_then_slow]
        async with scene.running(scene.relay()):
            await scene.wait(lambda: bool(scene.way.landed))
            shown = await scene.until(note(), "uncertain", "accepted")
        assert scene.phone.got == ["n"], "0.8 of 11 s are over"
        assert (shown.state, shown.due_ms) == ("uncertain", 0)

    keyed = Contract(name="phone", channels=("sms",), key=Key("Idempotency-Key", window_s=11.0))
    play(tmp_path, tell, keyed)


def test_what_is_too_late_when_it_has_crossed_is_not_sent(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        async def slowly() -> None:
            scene.moved.by_s += 10.0

        late = note(not_after=datetime.now(UTC) + timedelta(seconds=9))
        await scene.outbox.add([late])
        scene.way.after["cross"] = [slowly]
        async with scene.running(scene.relay()):
            await scene.until(late, "expired", "accepted")
        assert scene.way.landed == ["cross"], "inconclusive: it was too late before"
        assert (scene.phone.got, (await scene.shown(late)).state) == ([], "expired")

    play(tmp_path, tell)


LOOKS = Contract(name="phone", channels=("sms",), looks_up=True, settle_s=0.0, timeout_s=2.0)


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_look_up_that_breaks_is_unclear_and_is_made_again(tmp_path: Path, how: str) -> None:
    async def tell(scene: Scene) -> None:
        async def broken() -> LookedUp:
            if how == "hangs":
                await asyncio.Event().wait()
            raise RuntimeError("a bug")

        async def found() -> LookedUp:
            return Found("r-1")

        await scene.outbox.add([note()])
        scene.phone.sends, scene.phone.looks = [unknown], [broken, found]
        async with scene.running(scene.relay(margin_s=1.0)):
            shown = await scene.until(note(), "accepted")
        assert [one.outcome for one in shown.attempts] == ["unknown", "unclear", "accepted"]
        assert scene.phone.got == ["n"]

    play(tmp_path, tell, LOOKS)


def test_that_it_was_accepted_outlives_an_outage_of_the_outbox(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        async def out_of_reach() -> None:
            raise LedgerUnavailable("the store is out of reach")

        await scene.outbox.add([note()])
        scene.way.before["record"] = [out_of_reach] * 30
        async with scene.running(scene.relay()):
            shown = await scene.until(note(), "accepted")
        assert len(scene.way.landed) == 30
        assert [(one.outcome, one.reference) for one in shown.attempts] == [("accepted", "r-1")]

    play(tmp_path, tell)


def test_that_it_was_accepted_outlives_an_outage_that_is_longer_than_its_lease(tmp_path: Path) -> None:
    """Another relay has found it in doubt meanwhile, and the way to the outbox breaks once more."""

    async def tell(scene: Scene) -> None:
        async def another_has_it() -> None:
            scene.moved.by_s += 60.0
            async with scene.running(scene.relay(Phone())):
                await scene.until(note(), "uncertain")
            raise LedgerUnavailable("the store was out of reach")

        async def out_of_reach() -> None:
            raise LedgerUnavailable("the store is out of reach")

        await scene.outbox.add([note()])
        scene.way.before = {"record": [another_has_it], "apply_reports": [out_of_reach] * 3}
        async with scene.running(scene.relay()):
            shown = await scene.until(note(), "accepted")
        assert scene.way.landed == ["record", "apply_reports", "apply_reports", "apply_reports"]
        assert [one.outcome for one in shown.attempts if one.outcome] == ["unknown", "accepted"]
        assert scene.phone.got == ["n"]

    play(tmp_path, tell)


def test_words_that_cannot_be_written_do_not_make_an_answer_unknown(tmp_path: Path) -> None:
    """Nor those that travel with it."""

    async def tell(scene: Scene) -> None:
        async def illegible() -> Answer:
            return Accepted("r-\ud800", "half a \ud800 pair")

        many = [note(f"n-{number}") for number in range(4)]
        scene.phone.sends = [illegible]
        await scene.outbox.add(many)
        async with scene.running(scene.relay()):
            shown = [await scene.until(one, "accepted") for one in many]
        assert sorted(attempt.evidence for one in shown for attempt in one.attempts) == ["", "", "", "half a ? pair"]

    play(tmp_path, tell)


@pytest.mark.parametrize("step", ["cross", "record"])
def test_what_is_refused_as_a_batch_is_written_one_by_one(tmp_path: Path, step: str) -> None:
    async def tell(scene: Scene) -> None:
        async def no() -> None:
            raise OverflowError("one of them cannot be written")

        many = [note(f"n-{number}") for number in range(4)]
        scene.way.before[step] = [no]
        await scene.outbox.add(many)
        async with scene.running(scene.relay()):
            for one in many:
                await scene.until(one, "accepted")
        assert (scene.way.landed, len(scene.phone.got)) == ([step], 4)

    play(tmp_path, tell)


def test_a_message_that_a_bug_keeps_from_being_written_waits_until_it_is_mended(tmp_path: Path) -> None:
    """Nobody has vanished with it, and nothing has left."""

    async def tell(scene: Scene) -> None:
        scene.phone.bugs = 1
        await scene.outbox.add([note()])
        async with scene.running(scene.relay()):
            await scene.wait(lambda: scene.phone.bugs == 0)
            async with asyncio.timeout(SOON_S):
                while "KeyError" not in (waiting := await scene.shown(note())).reason:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert waiting.state == "pending"
            await scene.move(600.0)
            shown = await scene.until(note(), "accepted")
        assert [one.outcome for one in shown.attempts] == ["refused", "accepted"]
        assert scene.phone.got == ["n"]

    play(tmp_path, tell)
