"""Every provider that calls back moves its messages, in whatever order and however often it calls."""

from __future__ import annotations

import pytest
from tests.outbox.callbacks.hearing_process import NAMES, kind_of
from tests.outbox.callbacks.stage import Stage, message

from semel.providers.callbacks import CALLBACKS


def test_every_kind_that_calls_back_is_on_stage() -> None:
    assert {kind_of(name) for name in NAMES} == set(CALLBACKS)


@pytest.mark.parametrize("name", NAMES)
def test_delivered_stays_delivered_when_the_word_before_it_comes_late(stage: Stage, name: str) -> None:
    one = message(name, "out of order")
    stage.simulator.callbacks(kind_of(name), "out of order", f"{stage.notary.url}/{name}")
    stage.add(one)
    assert stage.called(one, 2) == [200, 200]
    assert stage.until(one, lambda shown: shown.state == "delivered").provider == name
    assert stage.words(one) == ["accepted", "delivered"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_twice_is_evidence_once(stage: Stage, name: str) -> None:
    one = message(name, "twice")
    url = f"{stage.notary.url}/{name}"
    stage.simulator.callbacks(kind_of(name), "twice", url, ending="undelivered")
    stage.add(one)
    assert stage.called(one, 4) == [200, 200, 200, 200]
    stage.until(one, lambda shown: shown.state == "undelivered")
    assert stage.words(one) == ["accepted", "undelivered"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "http-reference"])
def test_a_callback_says_what_became_of_a_message_whose_answer_was_lost(stage: Stage, name: str) -> None:
    one = message(name, "lost answer")
    stage.simulator.lie("accept then drop", kind_of(name))
    stage.simulator.callbacks(kind_of(name), "late", f"{stage.notary.url}/{name}", late_s=0.3)
    stage.add(one)
    stage.until(one, lambda shown: shown.state == "delivered")
    assert stage.called(one, 2) == [200, 200]
    assert stage.words(one) == ["accepted", "delivered"]
    assert len(stage.simulator.phone(one.recipient)) == 1
    assert stage.simulator.told()["told"][f"{kind_of(name)}: accept then drop"] >= 1, "inconclusive: nobody lied"
