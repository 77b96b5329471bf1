"""What may be promised for a handler: computed from the effect it declares and the ledger it runs on."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from msgspec import Struct

Effect: TypeAlias = Literal["transaction", "keyed", "fenced", "retry", "park"]
EFFECTS: tuple[str, ...] = get_args(Effect)

KEYED_WINDOW_S = 15 * 60  # the shortest key window that a provider documents; declare your downstream's own
KEYED_SHARE = 0.8  # past this share of the window a key is not tried again: the downstream may forget it meanwhile


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
    """What one handler may rely on."""

    handler: str
    patterns: tuple[str, ...]
    effect: str
    promise: str
    on_crash: str
    ledger: str
    caveat: str = ""
    repeats: str = ""  # which repeats of an event are not recognised
    stall: str = ""  # what a run can do that wakes up after its lease has ended

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
