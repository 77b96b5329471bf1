"""The list of Twilio has no notification id: a message is found only if no other message can match."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.outbox.providers.kits import HERE, text

from semel.providers.twilio import TIGHT_S, WIDE_S, Twilio, TwilioOptions
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.twilio import ACCOUNT, SECRET
from semel.values.delivery_state import Accepted, DeliveryState, Unknown
from semel.values.outbox import Absent, Dispatch, Found, LookedUp, Unclear
from semel.values.secret import Secret


def twilio(url: str, secret: str = SECRET) -> Twilio:
    options = TwilioOptions(url=url, account=ACCOUNT, token=Secret(secret), sender="+490", allow=HERE)
    return Twilio(options, Twilio.CONTRACT)


def dispatch(name: str, crossed_s: float, body: str = "the same text", key: str = "") -> Dispatch:
    said = text(name, body=body, key=key or name)
    ms = int(1000 * crossed_s)
    return Dispatch(said.id, 1, said, said.content, DeliveryState(state="uncertain", crossed_ms=ms, doubt_ms=ms), ms)


def looked_up(
    simulator: SimulatorProcess, asked: Dispatch, *sent: Dispatch, lie: str = "", by_another: bool = True
) -> LookedUp:
    """What a look-up says after these were sent, by another process or by this one."""
    simulator.tell_the_truth()

    async def story() -> LookedUp:
        sender, asker = twilio(simulator.url("twilio")), twilio(simulator.url("twilio"))
        try:
            for one in sent:
                if lie:
                    simulator.lie(lie, "twilio")
                answer = await (sender if by_another else asker).send(one, asker.prepare(one))
                assert isinstance(answer, Unknown if lie else Accepted)
            return await asker.look_up(asked)
        finally:
            await sender.close()
            await asker.close()

    return asyncio.run(story())


def test_a_message_that_arrived_is_found_and_one_that_did_not_is_absent(simulator: SimulatorProcess) -> None:
    name = uuid4().hex
    mine = dispatch(name, time.time())
    assert looked_up(simulator, mine, mine, lie="drop") == Absent()
    found = looked_up(simulator, mine, mine, lie="accept then drop")
    assert found == Found(simulator.phone()[-1].reference)


def test_another_text_and_another_number_are_other_messages(simulator: SimulatorProcess) -> None:
    name, now = uuid4().hex, time.time()
    others = dispatch(name, now, "another text"), dispatch(f"{name}-2", now)
    assert looked_up(simulator, dispatch(name, now), *others) == Absent()


def test_the_same_text_before_or_long_after_the_crossing_is_another_message(simulator: SimulatorProcess) -> None:
    name, now = uuid4().hex, time.time()
    sent = dispatch(name, now)
    assert looked_up(simulator, dispatch(name, now + WIDE_S + 60), sent) == Absent()
    assert looked_up(simulator, dispatch(name, now - WIDE_S - 300)) == Absent()


def test_the_same_text_at_a_similar_time_makes_the_look_up_unclear(simulator: SimulatorProcess) -> None:
    """It may be ours if a clock is off, and another's if it is not: neither found nor absent can be said."""
    name, now = uuid4().hex, time.time()
    sent = dispatch(name, now)
    assert isinstance(looked_up(simulator, dispatch(name, now + TIGHT_S + 60), sent), Unclear)
    assert isinstance(looked_up(simulator, dispatch(name, now - 120)), Unclear)


@pytest.mark.parametrize(
    "shown", ["Sent from your Twilio trial account - It's «the» same text", "It’s the same text", "********"]
)
def test_a_listed_text_that_may_have_been_changed_makes_the_look_up_unclear(
    simulator: SimulatorProcess, shown: str
) -> None:
    """Twilio writes other quotation marks, a trial account something before it, and some accounts show no texts."""
    name, now = uuid4().hex, time.time()
    mine, listed = dispatch(name, now, "It's “the” same text"), dispatch(name, now, shown, key=f"{name}-shown")
    assert isinstance(looked_up(simulator, mine, listed), Unclear)


def test_a_recipient_in_another_notation_is_not_looked_up(simulator: SimulatorProcess) -> None:
    mine = dispatch(uuid4().hex, time.time())
    nationally = replace(mine, notification=replace(mine.notification, recipient="0170 1234567"))
    assert isinstance(looked_up(simulator, nationally), Unclear)


def test_two_messages_with_the_same_text_make_the_look_up_unclear(simulator: SimulatorProcess) -> None:
    name, now = uuid4().hex, time.time()
    sent = [dispatch(name, now, key=f"{name}-{n}") for n in range(2)]
    assert isinstance(looked_up(simulator, sent[0], *sent), Unclear)


def test_a_message_of_another_notification_is_ignored(simulator: SimulatorProcess) -> None:
    """This process was told whose it is."""
    name, now = uuid4().hex, time.time()
    other = dispatch(name, now, key=f"{name}-other")
    assert looked_up(simulator, dispatch(name, now), other, by_another=False) == Absent()


def test_one_message_is_found_for_one_notification(simulator: SimulatorProcess) -> None:
    simulator.tell_the_truth()
    name, now = uuid4().hex, time.time()
    twins = [dispatch(name, now, key=f"{name}-{n}") for n in range(2)]

    async def story() -> list[LookedUp]:
        provider = twilio(simulator.url("twilio"))
        try:
            simulator.lie("accept then drop", "twilio")
            await provider.send(twins[0], provider.prepare(twins[0]))
            return [await provider.look_up(one) for one in (*twins, twins[0])]
        finally:
            await provider.close()

    first, second, again = asyncio.run(story())
    assert isinstance(first, Found)
    assert again == first
    assert second == Absent(), "the other one is accounted for"


def test_a_long_list_is_read_to_its_end(simulator: SimulatorProcess) -> None:
    """A page has 200."""
    name, now = uuid4().hex, time.time()
    mine = dispatch(name, now, "the oldest one")
    many = [dispatch(name, now, f"later {n}", key=f"{name}-{n}") for n in range(201)]
    assert isinstance(looked_up(simulator, mine, mine, *many), Found)


def test_an_unreadable_message_list_makes_the_look_up_unclear(simulator: SimulatorProcess) -> None:
    mine = dispatch(uuid4().hex, time.time())

    async def story(provider: Twilio) -> LookedUp:
        try:
            return await provider.look_up(mine)
        finally:
            await provider.close()

    assert isinstance(asyncio.run(story(twilio(simulator.url("twilio"), "wrong"))), Unclear)
    assert isinstance(asyncio.run(story(twilio("http://127.0.0.1:1"))), Unclear)
    assert isinstance(asyncio.run(story(twilio(simulator.url("sendgrid")))), Unclear)
    assert replace(mine, token=2).id == mine.id
