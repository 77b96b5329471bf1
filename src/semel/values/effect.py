"""Computes the guarantee of a handler from its declared effect and its ledger."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, get_args

from msgspec import Struct

Effect: TypeAlias = Literal["transaction", "keyed", "fenced", "retry", "park"]
EFFECTS: tuple[str, ...] = get_args(Effect)

KEYED_WINDOW_S = 15 * 60  # the shortest key window that a provider documents; declare your downstream's own
KEYED_SHARE = 0.8  # past this share of the window a key is not sent again: the window may end before it arrives


class Promise(Struct, frozen=True):
    """One row of the table of effects."""

    promise: str
    on_crash: str


PROMISES: dict[str, Promise] = {
    "transaction": Promise(
        "exactly once: the handler's writes and the settle commit together", "rolled back, runs again"
    ),
    "keyed": Promise(
        "effectively once: the downstream honours ctx.key for {window}",
        "same key again; past 0.8 of the window it parks as uncertain",
    ),
    "fenced": Promise("exactly once at a resource that checks ctx.token", "runs again with a higher token"),
    "retry": Promise("at least once", "runs again"),
    "park": Promise("at most once; what is in doubt is listed as uncertain", "parks; a probe or a person decides"),
}


class Guarantee(Struct, frozen=True):
    """The guarantee of one handler."""

    handler: str
    patterns: tuple[str, ...]
    effect: str
    promise: str
    on_crash: str
    ledger: str
    caveat: str = ""
    repeats: str = ""  # which repeats of an event are not recognised
    stall: str = ""  # the effect of a run that resumes after its lease has ended

    def __str__(self) -> str:
        caveat = f" ({self.caveat})" if self.caveat else ""
        repeats = f"; repeats: {self.repeats}" if self.repeats else ""
        stall = f"; stall: {self.stall}" if self.stall else ""
        promised = f"{self.handler}: {self.promise} [{self.effect} on {self.ledger}{caveat}]"
        return f"{promised}; crash: {self.on_crash}{repeats}{stall}"


def guarantee(
    handler: str, patterns: tuple[str, ...], effect: str, window_s: float, ledger: str, caveat: str
) -> Guarantee:
    row = PROMISES[effect]
    return Guarantee(
        handler=handler,
        patterns=patterns,
        effect=effect,
        promise=row.promise.format(window=_span(window_s)),
        on_crash=row.on_crash,
        ledger=ledger,
        caveat=caveat,
    )


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


# The consequence of each fault for each effect, computed from the writes that the store may lose.
#
# A store that loses nothing keeps every promise. A store that may lose its newest acknowledged writes keeps some
# promises and breaks others.

Word: TypeAlias = Literal[
    "safe",  # the effect happens once
    "safe in the window",  # the same, as long as the downstream honours the key
    "runs again",  # at least once, as declared
    "listed",  # at most once, as declared; an event in doubt is listed as uncertain
    "may lose",
    "may double",
    "not applicable",
]
KEPT: tuple[Word, ...] = ("safe", "safe in the window", "runs again", "listed")  # the effect's promise holds

FAULTS = ("worker killed", "store killed", "power loss", "failover")


class Cell(Struct, frozen=True):
    """One effect under one fault."""

    word: Word
    why: str

    @property
    def kept(self) -> bool:
        return self.word in KEPT


class StoreLosses(Protocol):
    """The acknowledged writes that a store may lose, such as `ports.DataLoss`."""

    @property
    def store_killed(self) -> str: ...
    @property
    def power_loss(self) -> str: ...
    @property
    def failover(self) -> str | None: ...
    @property
    def tokens_go_back(self) -> bool: ...


class StorePromises(Protocol):
    """The promises of a store, such as `ports.Traits`."""

    @property
    def durable(self) -> bool: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def loses(self) -> StoreLosses: ...


WORKER_GONE: dict[str, Cell] = {
    "transaction": Cell("safe", "its writes are rolled back, and the redelivery runs again"),
    "keyed": Cell("safe", "the redelivery runs again with the same key, which the downstream recognises"),
    "fenced": Cell("safe", "the redelivery runs again with a higher token, and late writes are refused"),
    "retry": Cell("runs again", "the redelivery runs again"),
    "park": Cell("listed", "it may have acted, so it is not run again but listed as uncertain"),
}
NOTHING_FORGOTTEN: dict[str, Cell] = {
    "transaction": Cell(
        "safe", "the writes and the settle are committed together or not at all; without them it runs again"
    ),
    "keyed": Cell("safe", "a run whose settle did not arrive is repeated with the same key"),
    "fenced": Cell("safe", "a run whose settle did not arrive is repeated with a higher token"),
    "retry": Cell("runs again", "a run whose settle did not arrive is repeated"),
    "park": Cell("listed", "a run whose settle did not arrive in its lease is listed as uncertain"),
}
FORGOTTEN: dict[str, Cell] = {
    "transaction": Cell(
        "may lose", "the effect is lost with its settle, after the event was acknowledged at its source"
    ),
    "keyed": Cell("safe in the window", "a redelivery runs again with the same key; after its window it would double"),
    "fenced": Cell("safe", "a redelivery runs again with a higher token"),
    "retry": Cell("runs again", "a redelivery of a finished event runs again"),
    "park": Cell("may double", "the record of its run is lost, so a redelivery runs again"),
}
# A process stalls for longer than its lease, another one takes over, and the first one resumes in its handler.
PARK_PROBED = "park with a probe"
STALLED: dict[str, Cell] = {
    "transaction": Cell("safe", "its commit is refused, and its writes are rolled back"),
    "keyed": Cell("safe in the window", "it calls the downstream again with the same key"),
    "fenced": Cell("safe", "its token is lower, and the resource refuses it"),
    "retry": Cell("runs again", "it acts in addition to the run that took over"),
    "park": Cell("listed", "it acts once, though its event is listed as uncertain"),
    PARK_PROBED: Cell("may double", "it acts after the probe has answered Retry() and another run has acted"),
}
STALLED_CHECKED: dict[str, Cell] = {
    "transaction": Cell("safe", "it stops, and its writes are rolled back"),
    "keyed": Cell("safe", "it stops before the call"),
    "fenced": Cell("safe", "it stops before the call"),
    "retry": Cell("runs again", "it stops; only a crash after the effect repeats it"),
    "park": Cell("listed", "it stops, and its event is listed as uncertain"),
    PARK_PROBED: Cell("listed", "it stops, and the probe's Retry() lets one run act"),
}
CHECK_FIRST = "call ctx.check() on the line before the effect"
ON_WAKING = {  # of sync handlers; an async one is cancelled at its next await
    "keyed": "calls the downstream again with the same key",
    "retry": "acts a second time",
    "park": "acts though its event is listed as uncertain",
    PARK_PROBED: "acts a second time after the probe answered Retry()",
}


def stall(effect: str, is_async: bool, has_probe: bool) -> str:
    """The effect of a run that resumes after its lease has ended, and how to prevent it. Empty: no effect."""
    row = PARK_PROBED if effect == "park" and has_probe else effect
    if row not in ON_WAKING or (is_async and row != PARK_PROBED):
        return ""
    kind = "an async" if is_async else "a sync"
    return f"{kind} run that stalls past its lease {ON_WAKING[row]} when it wakes up; {CHECK_FIRST}"


TOKEN_TWICE = Cell("may double", "a token may be issued twice, so the resource cannot recognise a late write")
NO_TRANSACTIONS = Cell("not applicable", "the store has no transactions; an app that declares them does not start")
NO_FAILOVER = Cell("not applicable", "no server replaces it; events wait at their source until it is back")


def cell(effect: str, store: StorePromises, fault: str) -> Cell:
    """The consequence of a fault for an effect on this store."""
    if effect not in EFFECTS or fault not in FAULTS:
        raise ValueError(f"{effect!r} under {fault!r}: expected one of {EFFECTS} under one of {FAULTS}")
    if effect == "transaction" and not store.transactional:
        return NO_TRANSACTIONS
    forgotten = forgets(store, fault)
    if forgotten is None:
        return NO_FAILOVER
    if forgotten:
        return TOKEN_TWICE if effect == "fenced" and store.loses.tokens_go_back else FORGOTTEN[effect]
    return (WORKER_GONE if fault == "worker killed" else NOTHING_FORGOTTEN)[effect]


def forgets(store: StorePromises, fault: str) -> str | None:
    """The writes that the store may lose by a fault, as text; empty for none, None if the fault cannot happen."""
    match fault:
        case "worker killed":  # a store in the memory of its worker is lost with it
            return "" if store.durable else store.loses.store_killed or "everything"
        case "store killed":
            return store.loses.store_killed
        case "power loss":
            return store.loses.power_loss
        case _:
            return store.loses.failover
