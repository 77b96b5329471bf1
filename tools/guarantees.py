"""Writes docs/guarantees.md: the result of each fault for each effect, on each store, and the test that shows it.

python tools/guarantees.py > docs/guarantees.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semel.ports import Traits
from semel.testing.proofs import STALL_PROOFS, Proof, proofs_of
from semel.values.effect import (
    EFFECTS,
    FAULTS,
    FORGOTTEN,
    NO_FAILOVER,
    NO_TRANSACTIONS,
    NOTHING_FORGOTTEN,
    PARK_PROBED,
    STALLED,
    STALLED_CHECKED,
    TOKEN_TWICE,
    WORKER_GONE,
    Cell,
    cell,
)
from semel.wiring import IDENTITIES, every_store

BEGINNING = """# Guarantees

What a fault does to the effect of your handler depends on the effect that it declares, and on what the ledger may
forget. This page is generated from what the code says of itself (`python tools/guarantees.py`), a test holds it to
the code, and every cell that is good news names the tests that show it.

| it says | it means |
|---|---|
| safe | the effect happens once (`fenced`: what the last run wrote stands, whatever comes late) |
| safe in the window | the same, as long as the downstream remembers the key |
| runs again | the effect happens once or more often, as `retry` declares |
| listed | the effect happens once or not at all, as `park` declares; what is in doubt is listed as uncertain |
| **may lose** | an event that was acknowledged may have no effect in the end |
| **may double** | the effect may happen twice |
| – | it cannot happen, or the store does not have it |

| when | it means |
|---|---|
| worker killed | a process that runs handlers ends in the middle of one: `kill -9`, out of memory, a lost machine |
| store killed | the server of the ledger ends likewise, and is started again on its data |
| power loss | the machine of the store loses its power, and its disks what had not been written to them |
| failover | another server takes the place of the store |

In every case a source delivers again what was not acknowledged; one that does not loses events before Semel can act.
An event in the inbox and a dead letter are kept as well as the effect of a `transaction`: they are rows of the same
store (dead letters of the one that `dead_letters` names, if it does).

## Which promises hold
"""
WHY = "## Why\n"
REPEATS = """## Which events are recognised when their producer sends them again

A producer that got no reply sends the event again. EventBridge gives this retry a new `id`. `keys.event` recognises
the retry by what the event itself says. If an event says nothing that is known to be unique, the `id` of EventBridge is
part of its identity, and the handler runs for the retry too: two runs are better than a lost event. Redeliveries by the
transport keep their id, so they are always recognised. For events whose retries are not recognised choose a business
key (`keys.fields`), or an effect that may happen twice. A Genesys `detail` without its envelope that has no time, no
`timestamp` and no CorrelationId has no identity: it becomes a dead letter, unless another key is chosen.

| events | known by | a producer's retry is recognised |
|---|---|---|"""
STALLS = """## A process that stalls

A process that stands still for longer than its lease (a paused machine, SIGSTOP, a long garbage collection) does not
notice that another process takes over. Semel checks the lease before a handler begins, and before the first byte of a
forward or of a message to a provider. It cancels an async handler at its next await. Inside your handler, call
`ctx.check()` on the line before the effect: it compares the lease with a clock that counts during the stall, and raises
`LeaseLost`. Let that pass; the run counts as lost, not as failed. A stall between that line and the effect is not
noticed, so put nothing between them. After a takeover a probe's `Retry()` is asked for a second time, 10 s (at most one
lease) later: a call that a holder began right after its last check has ended by then. A deliverer without so much time,
such as a Lambda function with a short limit, brings the event again; in its last attempt the event is `uncertain`.

A run that wakes up inside its handler, on the line before the effect:
"""
TOKENS_BY_TIME = (
    "Elsewhere tokens follow the time, so that they outlive what is forgotten: the clocks of a store's machines have "
    "to agree, to within the time that a restart or a failover takes."
)


def page(stores: Sequence[Traits]) -> str:
    """The whole document."""
    sections = (line for store in stores for line in _section(store))
    return "\n".join(
        [BEGINNING, *_overview(stores), WHY, *_reasons(), REPEATS, *_repeats(), STALLS, *_stalls(), *sections]
    )


def _repeats() -> Iterable[str]:
    for row in IDENTITIES:
        yield f"| {row.events} | {row.identity} | {'yes' if row.recognised else '**no**'} |"
    yield ""


def _stalls() -> Iterable[str]:
    yield "| effect | without `ctx.check()` | with `ctx.check()` |"
    yield "|---|---|---|"
    for effect, found in STALLED.items():
        cells = [f"{_emphasised(one)}: {one.why}" for one in (found, STALLED_CHECKED[effect])]
        name = "`park` with a probe" if effect == PARK_PROBED else f"`{effect}`"
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    for number, proof in enumerate(STALL_PROOFS, 1):
        yield f"{number}. `{proof.test}`" + (f": {proof.shows}" if proof.shows else "")
    yield ""


def _emphasised(found: Cell) -> str:
    return found.word if found.kept else f"**{found.word}**"


def _overview(stores: Sequence[Traits]) -> Iterable[str]:
    """For each store and fault, the effects whose promise does not hold."""
    yield f"| store | {' | '.join(FAULTS)} |"
    yield "|---|---|---|---|---|"
    for store in stores:
        yield f"| {store.name} | {' | '.join(_broken(store, fault) for fault in FAULTS)} |"
    yield ""


def _broken(store: Traits, fault: str) -> str:
    cells = {effect: cell(effect, store, fault) for effect in EFFECTS}
    there = {effect: found for effect, found in cells.items() if found.word != "not applicable"}
    if not there:
        return "–"
    broken = [f"`{effect}`" for effect, found in there.items() if not found.kept]
    return f"**not {', '.join(broken)}**" if broken else "all hold"


def _reasons() -> Iterable[str]:
    """The same for every store, so it is told once."""
    yield "| effect | the worker falls | the store falls and forgets nothing | the store forgets its newest answers |"
    yield "|---|---|---|---|"
    for effect in EFFECTS:
        reasons = [f"**{row[effect].word}**: {row[effect].why}" for row in (WORKER_GONE, NOTHING_FORGOTTEN, FORGOTTEN)]
        yield f"| `{effect}` | {' | '.join(reasons)} |"
    yield ""
    yield f"- Where tokens may go back, `fenced` **{TOKEN_TWICE.word}**: {TOKEN_TWICE.why}."
    yield f"- {TOKENS_BY_TIME}"
    yield f"- No transaction (–): {NO_TRANSACTIONS.why}."
    yield f"- No failover (–): {NO_FAILOVER.why}."
    yield ""


def _section(store: Traits) -> Iterable[str]:
    named: list[Proof] = []
    yield f"## {store.name}"
    yield ""
    yield _forgets(store)
    yield ""
    yield f"| effect | {' | '.join(FAULTS)} |"
    yield "|---|---|---|---|---|"
    for effect in EFFECTS:
        yield f"| `{effect}` | {' | '.join(_shown(store, effect, fault, named) for fault in FAULTS)} |"
    yield ""
    for number, proof in enumerate(named, 1):
        yield f"{number}. `{proof.test}`" + (f": {proof.shows}" if proof.shows else "")
    yield ""


def _shown(store: Traits, effect: str, fault: str, named: list[Proof]) -> str:
    """The word, with the numbers of its tests."""
    found = cell(effect, store, fault)
    if found.word == "not applicable":
        return "–"
    numbers: list[str] = []
    for proof in proofs_of(store, effect, fault):
        if proof not in named:
            named.append(proof)
        numbers.append(str(named.index(proof) + 1))
    word = _emphasised(found)
    return f"{word} ({', '.join(numbers)})" if numbers else word


def _forgets(store: Traits) -> str:
    """What the store says of itself."""
    loses = store.loses
    told = {"a kill": loses.store_killed, "a power loss": loses.power_loss, "a failover": loses.failover or ""}
    whens: dict[str, list[str]] = {}
    for when, what in told.items():
        whens.setdefault(what, []).append(when)
    sentences = [f"After {' or '.join(when)} it may have forgotten {what}." for what, when in whens.items() if what]
    if not sentences:
        return "It forgets nothing that it has answered."
    return " ".join([*sentences, *(["Tokens may go back with that."] if loses.tokens_go_back else [])])


if __name__ == "__main__":
    print(page(every_store()).rstrip("\n"))
