"""Every step at which a relay can die, for every outcome and every kind of provider, and what has to come of it.

    take → what is due (look-up | policy | replay) → crossing → send → record

What is predicted is exact: the state, the evidence in its order, and how often the customer got it. After the last
death the provider tells the truth, and one relay carries everything to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from semel.core.relay import RelayBoundary
from semel.testing.simulator import LIES
from semel.values.notification import Policy

Kind: TypeAlias = Literal["twilio", "telnyx", "vonage"]
"""It has a list to look at; it honours keys; neither."""

TRUTH, REFUSED, LIMITED, TAKEN, LOST = "", "400", "429", "accept then drop", "drop"
OUTCOMES = {TRUTH: "accepted", REFUSED: "refused", LIMITED: "limited", TAKEN: "unknown", LOST: "unknown"}
Evidence: TypeAlias = tuple[str, ...]


class Case(Struct, frozen=True):
    kind: Kind
    lie: str  # that the first request hears
    deaths: tuple[tuple[str, int], ...]  # each of another relay: the step, and which time it comes to it
    state: str
    evidence: Evidence
    got: int = 1
    policy: Policy = "hold"
    possible: int = 0
    second: Evidence | None = None  # of another one in the same batch
    waits: bool = False  # that one, for the slot of its rate: it has not crossed when the relay dies

    def __str__(self) -> str:
        deaths = ", then ".join(f"{step} {hit}" for step, hit in self.deaths)
        return f"{self.kind}, {self.lie or 'the truth'}, {self.policy}: dies at {deaths}"


def every_case() -> list[Case]:
    return [*first_tries(), *replays(), *look_ups(), *policies(), *recoveries(), *pairs()]


def first_tries() -> Iterator[Case]:
    for kind in ("twilio", "telnyx", "vonage"):
        for lie in OUTCOMES:
            for step in RelayBoundary:
                yield _first_try(kind, lie, step)


def _first_try(kind: Kind, lie: str, step: RelayBoundary) -> Case:
    deaths = ((step.value, 1),)
    match step:
        case RelayBoundary.AFTER_TAKE | RelayBoundary.BEFORE_CROSS:
            return Case(kind, lie, deaths, "accepted", ("accepted",))
        case RelayBoundary.AFTER_CROSS:
            return _in_doubt(kind, lie, deaths, arrived=False)
        case RelayBoundary.AFTER_SEND:
            return _in_doubt(kind, lie, deaths, arrived=_arrives(lie))
    match OUTCOMES[lie]:
        case "accepted":
            return Case(kind, lie, deaths, "accepted", ("accepted",))
        case "refused":
            return Case(kind, lie, deaths, "failed", ("refused",), got=0)
        case "limited":
            return Case(kind, lie, deaths, "accepted", ("limited", "accepted"))
    return _in_doubt(kind, lie, deaths, arrived=_arrives(lie))


def _in_doubt(kind: Kind, lie: str, deaths: tuple[tuple[str, int], ...], *, arrived: bool) -> Case:
    """One doubt, and how each kind of provider gets out of it."""
    match kind:
        case "twilio":
            found = ("unknown", "accepted") if arrived else ("unknown", "absent", "accepted")
            return Case(kind, lie, deaths, "accepted", found)
        case "telnyx":
            return Case(kind, lie, deaths, "accepted", ("unknown", "accepted"))
        case "vonage":
            return Case(kind, lie, deaths, "uncertain", ("unknown",), got=int(arrived))


def _arrives(lie: str) -> bool:
    return lie == TRUTH or LIES[lie].delivers


def replays() -> Iterator[Case]:
    """The second time that it comes to a step it is there with the same key again."""
    for lie in (TAKEN, LOST):
        for step in RelayBoundary:
            again = step in (
                RelayBoundary.AFTER_CROSS,
                RelayBoundary.AFTER_SEND,
            )  # a second doubt, and a third time the same key
            evidence = ("unknown", "unknown", "accepted") if again else ("unknown", "accepted")
            yield Case("telnyx", lie, ((step.value, 2),), "accepted", evidence)


def look_ups() -> Iterator[Case]:
    """Whatever a look-up was about to say is asked again; a second doubt it is not."""
    for lie, said in ((TAKEN, "accepted"), (LOST, "absent")):
        evidence = ("unknown", "accepted") if said == "accepted" else ("unknown", "absent", "accepted")
        steps = ("before look-up", "after look-up", f"before recording {said}", f"after recording {said}")
        for step in steps:
            yield Case("twilio", lie, ((step, 1),), "accepted", evidence)


def policies() -> Iterator[Case]:
    """A policy decides once, however often it is begun."""
    for lie in (TAKEN, LOST):
        arrived = int(_arrives(lie))
        for step in ("before recording policy", "after recording policy"):
            deaths = ((step, 1),)
            known = ("unknown", "policy")
            yield Case("vonage", lie, deaths, "accepted", known, arrived, "presume_sent")
            yield Case("vonage", lie, deaths, "failed", known, arrived, "give_up")
            yield Case("vonage", lie, deaths, "accepted", (*known, "accepted"), arrived + 1, "resend", 1)


def recoveries() -> Iterator[Case]:
    """A relay dies, and so does the one that finds what it left."""
    for kind in ("twilio", "telnyx", "vonage"):
        for first in (RelayBoundary.AFTER_CROSS, RelayBoundary.AFTER_SEND):
            for second in (RelayBoundary.AFTER_TAKE.value, "before recording unknown", "after recording unknown"):
                once = _first_try(kind, TRUTH, first)
                yield Case(kind, TRUTH, (*once.deaths, (second, 1)), once.state, once.evidence, once.got)
    for second in (RelayBoundary.AFTER_TAKE.value, "before recording released", "after recording released"):
        deaths = ((RelayBoundary.BEFORE_CROSS.value, 1), (second, 1))
        yield Case("twilio", TRUTH, deaths, "accepted", ("accepted",))


def pairs() -> Iterator[Case]:
    """Two in one batch: what one has done says nothing of the other, and what crosses together is in doubt together."""
    alone, doubt = ("accepted",), ("unknown", "absent", "accepted")
    for step, evidence in ((RelayBoundary.AFTER_CROSS, doubt), (RelayBoundary.AFTER_SEND, ("unknown", "accepted"))):
        yield Case("twilio", TRUTH, ((step.value, 1),), "accepted", evidence, second=alone, waits=True)
    for step, hit in ((RelayBoundary.AFTER_TAKE, 1), (RelayBoundary.BEFORE_CROSS, 1), (RelayBoundary.BEFORE_CROSS, 2)):
        yield Case("twilio", TRUTH, ((step.value, hit),), "accepted", alone, second=alone)
    for hit in (1, 2):
        yield Case("twilio", TRUTH, ((RelayBoundary.AFTER_CROSS.value, hit),), "accepted", doubt, second=doubt)
