"""The books of the providers, the rows of the outbox and the diaries of the relays, side by side.

How doubts are counted. A crossing is a pair of id and token. It is *recorded* when the outbox has, under that token,
what came of it; else it is *open*: its relay was killed between crossing and record, or outlived its lease, or a
callback came first. The outbox records `RELAY_VANISHED` under the token of whoever found it. The
provider's book has every request, with the lie that was told to it. For each notification, then:

    heard    unknown outcomes that were recorded under the crossing's own token
    vanished unknown outcomes of relays that did not come back
    lied     requests with a lie that leaves this contract in doubt
    slow     honest answers that came after the timeout (the machine was too busy): the diaries tell

    heard ≤ lied + slow                no doubt without a cause
    vanished ≤ open                    nor without a relay that left
    lied ≤ heard + open                no cause without a doubt: a lie was heard, or nobody was there to hear it
    open, certainly, and no callback   → vanished

Where no crossing is open the first and third are an equation: as many doubts as lies. Where one is, and no callback
came, so are the second and the last: as many more as there are open crossings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.proof.outbox import diary
from tests.proof.outbox.diary import Line
from tests.proof.outbox.parts import BY_NAME, TIMEOUT_S, Part, contracts, is_ambiguous
from tests.proof.outbox.stores import ATTEMPTS, NOTIFICATIONS, Store

from semel.testing.simulator import ReceivedMessage, SendRequest, SentCallback, SimulatorProcess
from semel.values.delivery_state import CLAIMS_MAX, RANK, RELAY_VANISHED, RELAYS_VANISHED
from semel.values.notification import Notification

RECORDED = ("accepted", "refused", "limited", "unknown")  # of a crossing, under its own token


class Row(Struct, frozen=True):
    """A line of evidence in the outbox."""

    token: int
    outcome: str
    evidence: str
    provider: str
    number: int

    @property
    def is_vanished(self) -> bool:
        return self.outcome == "unknown" and self.evidence == RELAY_VANISHED

    @property
    def is_crossing(self) -> bool:
        said = self.token > 0 and self.outcome in RECORDED and self.evidence != "look-up"
        return said and not self.is_vanished and RELAYS_VANISHED not in self.evidence


class Life(Struct, frozen=True, dict=True):
    """All that is known of one notification, from all sides."""

    said: Notification
    part: Part
    state: str
    reason: str
    possible: int
    rows: tuple[Row, ...]
    lines: tuple[Line, ...]
    asked: tuple[SendRequest, ...]
    got: tuple[ReceivedMessage, ...]
    lied: int
    killed: frozenset[str]  # relays, by their diaries

    @property
    def is_sent(self) -> bool:
        return self.state in RANK

    @property
    def is_poison(self) -> bool:
        return RELAYS_VANISHED in self.reason

    @property
    def heard(self) -> int:
        return sum(row.outcome == "unknown" and row.is_crossing for row in self.rows)

    @property
    def vanished(self) -> int:
        return sum(row.is_vanished for row in self.rows)

    @property
    def last_crossing(self) -> str:
        return next((row.outcome for row in reversed(self.rows) if row.is_crossing), "")

    @property
    def was_uncertain(self) -> bool:
        return any(row.outcome == "unknown" for row in self.rows)

    @property
    def was_witnessed(self) -> bool:
        return any(row.token == 0 and row.outcome for row in self.rows)

    @property
    def slow(self) -> int:
        stalled = sum(one.lie.endswith("stall") for one in self.asked)
        long = sum(line.deed == "hear" and line.word == "Unknown" and line.number >= TIMEOUT_S for line in self.lines)
        return max(0, long - stalled)

    def tokens(self, deed: str, word: str = "") -> set[int]:
        return {line.token for line in self.lines if line.deed == deed and word in ("", line.word)}

    @cached_property
    def recorded(self) -> set[int]:
        return {row.token for row in self.rows if row.is_crossing}

    @cached_property
    def open(self) -> set[int]:
        """Crossings that nobody has recorded; also those whose answer a relay did not live to read."""
        unanswered = self.tokens("ask") - self.tokens("gate")
        taken_back = self.tokens("record", "released") & self.tokens("held", "True")  # before anything left
        return (self.tokens("gate", "Crossed") | unanswered) - self.recorded - taken_back

    @cached_property
    def certainly_open(self) -> set[int]:
        """Those of which the relay was told that they were crossed."""
        return self.open & self.tokens("gate", "Crossed")

    @cached_property
    def killed_open(self) -> set[int]:
        """Those of them whose relay was killed before it could say what came of it."""
        crossed = self.certainly_open - self.tokens("held")
        return {line.token for line in self.lines if line.token in crossed and line.who in self.killed}


class Account(Struct, frozen=True):
    """What a storm came to."""

    lives: tuple[Life, ...]  # in the order in which they were added
    called: tuple[SentCallback, ...]
    busiest: Mapping[str, int]  # requests at once, of one process, by provider
    killed: tuple[str, ...]
    planned: Mapping[str, int]  # lies, by "provider: lie"
    told: Mapping[str, int]
    left: int  # dispatches that a relay would still do something with
    seconds: float

    def of(self, *names: str) -> list[Life]:
        return [life for life in self.lives if life.part.name in names]


def taken(
    notifications: Sequence[Notification],
    store: Store,
    simulator: SimulatorProcess,
    home: Path,
    *,
    killed: Sequence[str],
    planned: Mapping[str, int],
    left: int,
    seconds: float,
) -> Account:
    """All books, read at the end."""
    states = {bytes(id): tuple(rest) for id, *rest in store.rows(NOTIFICATIONS)}
    rows = _grouped((bytes(id), Row(*rest)) for id, *rest in store.rows(ATTEMPTS))
    lines = list(diary.read(home))
    by_id = _grouped((bytes.fromhex(line.id), line) for line in lines if line.deed != "busy")
    names = {said.recipient: said.key for said in notifications if said.guard is None}
    got = _grouped((one.text.strip(), one) for one in simulator.phone())
    asked = _grouped((one.text or names[one.to], one) for one in simulator.book())
    known = contracts()

    def life(said: Notification) -> Life:
        state, reason, _, possible = states[said.id]
        lied = [one for one in asked[said.key] if is_ambiguous(one.lie, _part_of(one), known[_part_of(one).name])]
        return Life(
            said,
            BY_NAME[said.key.partition("-")[0]],
            state,
            reason,
            possible,
            tuple(sorted(rows[said.id], key=lambda row: row.token)),
            tuple(by_id[said.id]),
            tuple(asked[said.key]),
            tuple(got[said.key]),
            len(lied),
            frozenset(killed),
        )

    busiest: Counter[str] = Counter()
    for line in lines:
        if line.deed == "busy":
            busiest[line.word] = max(busiest[line.word], int(line.number))
    return Account(
        tuple(life(said) for said in notifications),
        tuple(simulator.called()),
        busiest,
        tuple(killed),
        planned,
        simulator.told()["told"],
        left,
        seconds,
    )


def _part_of(asked: SendRequest) -> Part:
    return next(part for part in BY_NAME.values() if part.dialect == asked.provider)


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> defaultdict[Any, list[Any]]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for key, one in pairs:
        groups[key].append(one)
    return groups


def was_poison(life: Life) -> bool:
    """Whether as many relays as it takes were really killed with it in hand."""
    return len([line for line in life.lines if line.deed == "take" and line.who in life.killed]) >= CLAIMS_MAX
