"""A deliberate repetition passes its guard unasked, and whoever comes next finds that the customer was told."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest
from tests.outbox.troubled import Scene, note, play

from semel.core.resend import resend
from semel.values.delivery_state import Answer, Refused, Unknown
from semel.values.notification import Guard
from semel.values.outbox import DeliveryReport

DAY = Guard(window_s=86_400.0)


async def refuse() -> Answer:
    return Refused("no such number", final=True)


def test_what_was_refused_and_is_sent_again_suppresses_the_next(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        first, second = note("first", guard=DAY), note("second", guard=DAY)
        scene.phone.sends = [refuse]
        await scene.outbox.add([first])
        async with scene.running(scene.relay()):
            await scene.until(first, "failed")
            again = await resend(scene.outbox, first.id, "the number is back", "anna")
            assert again.status == "added"
            await scene.wait(lambda: len(scene.phone.got) == 2)
            await scene.outbox.add([second])
            shown = await scene.until(second, "accepted", "suppressed")
        assert (shown.state, shown.suppressed_by) == ("suppressed", again.id)
        assert scene.phone.got == ["first", "first"]

    play(tmp_path, tell)


def test_its_own_guard_does_not_keep_it_back_nor_that_of_another(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        first, second = note("first", guard=DAY), note("second", guard=DAY)
        async with scene.running(scene.relay()):
            await scene.outbox.add([first])
            await scene.until(first, "accepted")
            await scene.outbox.add([second])
            await scene.until(second, "suppressed")
            for one in (first, second):
                assert (await resend(scene.outbox, one.id, "it is wanted", "anna")).status == "added"
            await scene.wait(lambda: sorted(scene.phone.got) == ["first", "first", "second"])

    play(tmp_path, tell)


def test_a_repetition_that_is_refused_leaves_the_guard_to_what_was_sent_before(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        first, second = note("first", guard=DAY), note("second", guard=DAY)
        async with scene.running(scene.relay()):
            await scene.outbox.add([first])
            await scene.until(first, "accepted")
            scene.phone.sends = [refuse]
            await resend(scene.outbox, first.id, "it is wanted", "anna")
            await scene.until(note("first", generation=2), "failed")
            await scene.outbox.add([second])
            told = await scene.until(second, "accepted", "suppressed")
        assert (told.state, told.suppressed_by) == ("suppressed", first.id.hex()), "this customer was told today"
        assert scene.phone.got == ["first", "first"]

    play(tmp_path, tell)


def test_the_guard_of_a_recipient_in_an_older_spelling_is_free_after_a_refusal(tmp_path: Path) -> None:
    """Both were added by a version that kept recipients as they were given. The refusal comes by callback."""

    async def unanswered() -> Answer:
        return Unknown("no answer")

    async def tell(scene: Scene) -> None:
        first = note("first", recipient="+491701234567", guard=DAY)
        second = note("second", recipient="+491701234567", guard=DAY, priority=9)
        await scene.outbox.add([first, second])
        with closing(apsw.Connection(str(tmp_path / "semel.db"))) as file:
            file.execute("update semel_notification set recipient = '+49 170 1234567'")
        scene.phone.sends = [unanswered]
        async with scene.running(scene.relay()):
            while (await scene.shown(first)).state != "uncertain":  # noqa: ASYNC110 - it announces nothing
                await asyncio.sleep(0.02)
            assert await scene.outbox.apply_reports([DeliveryReport("refused", first.id, "phone")]) == ["failed"]
            assert (await scene.until(second, "accepted", "suppressed")).state == "accepted"

    play(tmp_path, tell)


@pytest.mark.parametrize(
    ("left_s", "status"), [(None, "added"), (3_600.0, "added"), (0.0, "refused"), (-0.001, "refused")]
)
def test_what_has_a_last_time_is_repeated_before_it_and_not_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float | None, status: str
) -> None:
    async def tell(scene: Scene) -> None:
        last = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        first = note("first", not_after=None if left_s is None else last)
        bystander = note("bystander", not_after=last)
        scene.phone.sends = [refuse, refuse]
        await scene.outbox.add([first, bystander])
        async with scene.running(scene.relay()):
            await scene.until(first, "failed")
            await scene.until(bystander, "failed")
        before = await scene.shown(bystander)
        if left_s is not None:
            monkeypatch.setattr(time, "time", lambda: last.timestamp() - left_s)
        assert (await resend(scene.outbox, first.id, "it is wanted", "anna")).status == status
        again = await scene.outbox.show(note("first", generation=2, not_after=first.not_after).id)
        assert (again is not None) is (status == "added")
        assert await scene.shown(bystander) == before

    play(tmp_path, tell)
