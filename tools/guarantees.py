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

The result of a fault depends on the effect that your handler declares, and on the writes that the ledger may lose.
This page is generated from declarations in the code (`python tools/guarantees.py`), and a test keeps the two equal.
Every cell with a kept promise names the tests that prove it.

| result | meaning |
|---|---|
| safe | the effect happens once (`fenced`: the write of the last run is final, and late writes are refused) |
| safe in the window | the same, within the time for which the downstream stores the key |
| runs again | the effect happens once or more often, as `retry` declares |
| listed | the effect happens once or not at all, as `park` declares; events in doubt are listed as uncertain |
| **may lose** | an acknowledged event may have no effect |
| **may double** | the effect may happen twice |
| – | the fault cannot happen, or the store does not support the effect |

| fault | meaning |
|---|---|
| worker killed | a process ends while it runs a handler: `kill -9`, out of memory, a lost machine |
| store killed | the server of the ledger ends in the same way, and is restarted on its data |
| power loss | the machine of the store loses power, and with it all data that was not yet written to disk |
| failover | another server replaces the store |

In every case the source must redeliver unacknowledged events. A source that does not loses them before Semel can act.
Inbox items and dead letters are as durable as the effect of a `transaction`, because they are rows of the same store.
With `dead_letters`, dead letters are rows of the store that it names.

## Which promises hold
"""
WHY = "## Why\n"
REPEATS = """## Which events are recognised when their producer sends them again

A producer that received no reply sends the event again. EventBridge gives this retry a new `id`. `keys.event`
recognises the retry by the content of the event. If the content has no field that is known to be unique, the `id` of
EventBridge is part of the identity. The handler then runs for the retry too, because two runs are better than a lost
event. Redeliveries by the transport keep their id, so they are always recognised. For events whose retries are not
recognised, choose a business key (`keys.fields`) or an effect that may happen twice. A Genesys `detail` without its
envelope has no identity if it has no time, no `timestamp` and no CorrelationId. It becomes a dead letter, unless you
choose another key.

| events | identity | a producer's retry is recognised |
|---|---|---|"""
STALLS = """## A process that stalls

A process that stalls for longer than its lease (a paused machine, SIGSTOP, a long garbage collection) does not notice
that another process takes over. Semel checks the lease before a handler starts, and before the first byte of a forward
or of a message to a provider. It cancels an async handler at its next await. Inside your handler, call `ctx.check()` on
the line before the effect: it compares the lease with a clock that counts during the stall, and raises `LeaseLost`. Do
not catch it; the run counts as lost, not as failed. A stall between that line and the effect is not detected, so put
nothing between them.

After a takeover, Semel calls a probe that returned `Retry()` a second time, 10 s (at most one lease) later. A call that
the former holder started right after its last check has ended by then. If there is not enough time, as in a Lambda
function with a short limit, the event is delivered again; in its last attempt it becomes `uncertain`.

The results for a run that resumes inside its handler, on the line before the effect:
"""
TOKENS_BY_TIME = (
    "In all other stores tokens follow the clock, so they keep growing after lost writes. The clocks of a store's "
    "machines must agree to within the duration of a restart or a failover."
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
    """The reasons, which are the same for every store."""
    yield "| effect | worker killed | the store fails and loses nothing | the store loses its newest writes |"
    yield "|---|---|---|---|"
    for effect in EFFECTS:
        reasons = [f"**{row[effect].word}**: {row[effect].why}" for row in (WORKER_GONE, NOTHING_FORGOTTEN, FORGOTTEN)]
        yield f"| `{effect}` | {' | '.join(reasons)} |"
    yield ""
    yield f"- If tokens may go back, `fenced` **{TOKEN_TWICE.word}**: {TOKEN_TWICE.why}."
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
    """The result, with the numbers of its tests."""
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
    """The writes that the store may lose, per fault."""
    loses = store.loses
    lost_after = {"a kill": loses.store_killed, "a power loss": loses.power_loss, "a failover": loses.failover or ""}
    faults_of: dict[str, list[str]] = {}
    for fault, lost in lost_after.items():
        faults_of.setdefault(lost, []).append(fault)
    sentences = [f"After {' or '.join(faults)} it may have lost {lost}." for lost, faults in faults_of.items() if lost]
    if not sentences:
        return "It loses no acknowledged write."
    return " ".join([*sentences, *(["Tokens may then go back."] if loses.tokens_go_back else [])])


if __name__ == "__main__":
    print(page(every_store()).rstrip("\n"))
