"""The diagrams of docs/states.md hold exactly the transitions that the code makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, Harness, InboxCaller, arrival
from semel.values import delivery_state as states
from semel.values.claim import DeadLetter, Granted, Settlement
from semel.values.delivery_state import (
    ATTEMPTS_MAX,
    CLAIMS_MAX,
    STATES,
    Accepted,
    Contract,
    DeliveryState,
    Key,
    Refused,
    Reported,
    Resolution,
    Unknown,
)
from semel.values.notification import Policy
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain

PAGE = (Path(__file__).parent.parent / "docs" / "states.md").read_text("utf-8")
Edges = set[tuple[str, str]]


def drawn(title: str) -> Edges:
    """The arrows of the Mermaid diagram below a heading. `[*]` is drawn as in Mermaid: the beginning and the end."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(title)]
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    return set(re.findall(r"^ +(\[\*\]|\w+) --> (\[\*\]|\w+):", diagram, re.MULTILINE))


# ------------------------------------------------------------------------------------------------------------- a key

ENDINGS: dict[str, Ending] = {
    "done": Done(b"{}"),
    "retry": Retry(1),
    "reject": Reject("no"),
    "uncertain": Uncertain("unknown"),
    "release": Release(),
}
ACTIONS = ("accept", "claim", *ENDINGS, "claim later", "purge", "replay", "discard")
RANKED = ("done", "dead", "uncertain", "discarded", "leased", "waiting", "accepted")  # an inbox item may be left over


def states_of_key(clerk: InboxCaller, harness: Harness, actions: tuple[str, ...], name: str) -> list[str]:
    """The state of one key after each action."""
    claim, lease = harness.claim(name), None
    states = ["[*]"]
    for action in actions:
        if action == "accept":
            clerk.accept(arrival(harness, claim))
        elif action.startswith("claim"):
            harness.advance(harness.lease_ms + 1 if action == "claim later" else 0)
            (verdict,) = clerk.claim_all([claim])
            lease = verdict.lease if isinstance(verdict, Granted) else lease
        elif action == "purge":
            harness.advance(100 * harness.retention_ms)
            clerk.run(clerk.store.purge(1000))
        elif action == "replay":
            clerk.replay(claim)
        elif action == "discard":
            clerk.discard(claim)
        elif lease is not None:
            kept = DeadLetter(b"{}", 1) if action in ("reject", "uncertain") else None
            clerk.settle_all([Settlement(lease, ENDINGS[action], kept)])
        history = clerk.history(claim)
        newest = max((entry.generation for entry in history), default=0)
        present = {entry.state for entry in history if entry.generation == newest}
        states.append(next((state for state in RANKED if state in present), "[*]"))
    return states


def test_the_diagram_of_a_key_has_the_transitions_of_the_ledger(tmp_path: Path) -> None:
    clock = FakeClock()
    harness = Harness(lambda: SqliteLedger(str(tmp_path / "semel.db"), "normal", clock), clock)
    made: Edges = set()
    reached: dict[str, tuple[str, ...]] = {"[*]": ()}
    to_try: list[tuple[str, ...]] = [()]
    with InboxCaller(harness.open) as clerk:
        while to_try:
            before = to_try.pop()
            for action in ACTIONS:
                actions = (*before, action)
                states = states_of_key(clerk, harness, actions, " ".join(actions))
                if states[-2] != states[-1]:
                    made.add((states[-2], states[-1]))
                if states[-1] not in reached:
                    reached[states[-1]] = actions
                    to_try.append(actions)
    assert made == drawn("A key")


# ---------------------------------------------------------------------------------------------------- a notification

NOW_MS = 1_750_000_000_000
CONTRACTS = (
    Contract(name="plain", channels=("sms",)),
    Contract(name="keyed", channels=("sms",), key=Key("Idempotency-Key")),
    Contract(name="lookup", channels=("sms",), looks_up=True),
)
ANSWERS = (
    Accepted(),
    Unknown("timeout"),
    Refused("busy"),
    Refused("never", final=True),
    Refused("slow down", limited=True),
    Refused("wrong key", configuration=True),
)


def none() -> float:
    return 0.0


def next_states(state: DeliveryState, contract: Contract) -> Iterator[DeliveryState]:
    """All that can happen to a notification in this state."""
    made: list[Callable[[], DeliveryState | None]] = []
    if state.state == "pending":
        made += [lambda: states.ready(state, contract, NOW_MS, none)]
        made += [lambda: states.crossed(state, NOW_MS), lambda: replace(state, state="suppressed")]
    if state.state in ("pending", "sending"):
        made += [lambda: states.lapsed(state, contract, NOW_MS, none)]
    if state.state == "sending":
        for answer in ANSWERS:
            yield states.answered(state, answer, contract, NOW_MS, none)
    if state.state == "uncertain":
        made += [lambda: states.replayed(state), lambda: states.found(state, "SM1")]
        made += [lambda: states.absent(state, NOW_MS), lambda: states.overdue(state, NOW_MS)]
        made += [lambda: states.unclear(state, "HTTP 503", contract, NOW_MS, none)]
    yield from filter(None, (make() for make in made))
    for resolution, free in product(get_args(Resolution), (True, False)):
        if decided := states.decided(state, resolution, "by hand", free, NOW_MS):
            yield decided
    for report in get_args(Reported):
        yield replace(state, state=states.reported(state.state, report))


def starts() -> Iterator[DeliveryState]:
    times = (None, NOW_MS - 1, NOW_MS + 10**9)
    counts = ((0, 0), (ATTEMPTS_MAX - 1, CLAIMS_MAX - 1))
    for policy, late, (attempts, claims), others in product(get_args(Policy), times, counts, ((), ("other",))):
        yield DeliveryState(
            provider="plain", policy=policy, not_after_ms=late, attempts=attempts, claims=claims, others=others
        )


def kind_of(state: DeliveryState, contract: Contract) -> tuple[object, ...]:
    """All that decides about the next transition: one example of each kind is enough."""
    last_attempt, last_claim = state.attempts >= ATTEMPTS_MAX - 1, state.claims >= CLAIMS_MAX - 1
    doubts = (state.exit, state.doubt_ms > 0, state.crossed_ms > 0, state.possible_duplicates)
    chosen = (state.policy, state.not_after_ms, state.others, contract.name)
    return (state.state, last_attempt, last_claim, *doubts, *chosen)


def test_the_diagram_of_a_notification_has_the_transitions_of_the_code() -> None:
    made: Edges = {("[*]", "pending")}
    seen: set[tuple[object, ...]] = set()
    to_try = list(product(starts(), CONTRACTS))
    while to_try:
        state, contract = to_try.pop()
        for after in next_states(state, contract):
            if after.state != state.state:
                made.add((state.state, after.state))
            kind = kind_of(after, contract)
            if kind not in seen:
                seen.add(kind)
                to_try.append((after, contract))
    assert {state for edge in made for state in edge} == {"[*]", *STATES}
    drawn_too = drawn("A notification")
    assert drawn_too <= made
    by_report = {(before, after) for before, after in made if after in ("accepted", "delivered", "undelivered")}
    assert made - by_report == drawn_too - by_report  # the page leaves out what a delivery report may do in any state
