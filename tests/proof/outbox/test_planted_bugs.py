"""A proof that cannot fail proves nothing: each bug that is planted in the relays has to be seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.proof.outbox import bugs, storm
from tests.proof.outbox.checks import check
from tests.proof.outbox.parts import BY_NAME, Part
from tests.proof.outbox.stores import Store

LIES = {  # what tempts a relay to send again; or to send something else first
    bugs.DISORDER: ("drop", "429"),
}


def parts(bug: str, names: Sequence[str]) -> list[Part]:
    lies = LIES.get(bug, ("accept then drop", "500 after sending"))
    return [replace(BY_NAME[name], lies=lies, calls="never") for name in names]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("on", ["sqlite"])
@pytest.mark.parametrize(
    ("bug", "names", "shows"),
    [
        (bugs.CALLED_REFUSED, ["twilio", "smtp"], "arrived twice"),
        (bugs.OTHER_KEYS, ["telnyx"], "arrived twice"),
        (bugs.FALLS_BACK, ["brevo", "resend"], "arrived twice"),
        (bugs.LOOKS_AWAY, ["twilio"], "arrived twice"),
        (bugs.ALONE, ["telnyx"], "over its rate"),
        (bugs.DISORDER, ["twilio"], "out of order"),
        (bugs.NO_GUARD, ["telnyx"], "a guard let two through"),
    ],
)
def test_the_proof_sees_what_a_planted_bug_does(
    store: Store, tmp_path: Path, bug: str, names: list[str], shows: str
) -> None:
    came = storm.run(store, tmp_path, sends=150, within_s=0.5, kills_max=0, parts=parts(bug, names), bug=bug)
    with pytest.raises(AssertionError, match=shows):
        check(came)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("on", ["sqlite"])
@pytest.mark.parametrize(
    ("bug", "names", "shows"),
    [
        (bugs.NO_CROSSING, ["twilio", "smtp"], "arrived twice|that nobody doubted"),
        (bugs.OLD_KEYS, ["brevo", "resend"], "arrived twice"),
    ],
)
def test_the_proof_sees_what_a_planted_bug_does_when_relays_die(
    store: Store, tmp_path: Path, bug: str, names: list[str], shows: str
) -> None:
    came = storm.run(
        store,
        tmp_path,
        sends=150,
        within_s=2,
        kill_every_s=0.4,
        kills_max=8,
        timeout_s=2.0,
        parts=parts(bug, names),
        bug=bug,
    )
    if not any(life.killed_open for life in came.lives):
        pytest.fail("inconclusive: no kill came between a crossing and its record")
    with pytest.raises(AssertionError, match=shows):
        check(came)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("on", ["sqlite"])
def test_without_a_bug_it_sees_nothing_but_that_little_was_tried(store: Store, tmp_path: Path) -> None:
    came = storm.run(store, tmp_path, sends=150, within_s=0.5, kills_max=0, parts=parts("", ["twilio", "telnyx"]))
    with pytest.raises(AssertionError, match=r"^inconclusive: too few kills"):
        check(came)
