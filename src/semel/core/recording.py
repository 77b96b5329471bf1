"""What a dispatch comes to: its request, and what is written of it when a provider has answered or was looked at."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from semel.ports import Provider
from semel.values import sending
from semel.values.errors import ConfigError
from semel.values.log import log
from semel.values.outbox import Absent, Dispatch, Found, LookedUp, Record, Unclear
from semel.values.sending import Accepted, Answer, Contract, Refused, Standing, Unknown

MENDED_S = 300.0  # a bug is mended by a new version, and not by asking again


def request_of(dispatch: Dispatch, provider: Provider) -> bytes | Refused:
    """The bytes that leave: those of the first crossing, where there was one. Without them nothing does."""
    if dispatch.request is not None:
        return dispatch.request
    try:
        return provider.prepare(dispatch)
    except ConfigError as error:
        return Refused(str(error), final=True)
    except Exception as error:
        log.exception("provider_adapter_crashed", provider=provider.contract.name, step="prepare")
        return Refused(f"{type(error).__name__} in the adapter: it cannot be written", after_s=MENDED_S)


def answered(
    dispatch: Dispatch,
    standing: Standing,
    answer: Answer,
    contract: Contract,
    now_ms: int,
    random: Callable[[], float],
) -> Record:
    answer = _legible(answer)
    after = sending.answered(standing, answer, contract, now_ms, random)
    match answer:
        case Accepted():
            return Record(dispatch, after, "accepted", answer.evidence, answer.reference)
        case Refused():
            return Record(dispatch, after, "limited" if answer.limited else "refused", answer.reason)
        case Unknown():
            return Record(dispatch, after, "unknown", answer.reason)


def looked_up(
    dispatch: Dispatch, said: LookedUp, contract: Contract, now_ms: int, random: Callable[[], float]
) -> Record:
    standing = replace(dispatch.standing, claims=0)  # whoever looked has not vanished
    match said:
        case Found(reference=reference):
            reference = _storable(reference)
            why = f"its look-up found {reference}, which is another's message"
            otherwise = sending.unclear(standing, why, contract, now_ms, random)
            return Record(dispatch, sending.found(standing, reference), "accepted", "look-up", reference, otherwise)
        case Absent():
            return Record(dispatch, sending.absent(standing, now_ms), "absent", "look-up")
        case Unclear(reason=reason):
            reason = _storable(reason)
            after = sending.unclear(standing, reason, contract, now_ms, random)
            return Record(dispatch, after, "unclear", reason)


def _legible(answer: Answer) -> Answer:
    """Its words are somebody else's: that they cannot be written must not make the answer unknown."""
    if isinstance(answer, Accepted):
        return replace(answer, reference=_storable(answer.reference), evidence=_storable(answer.evidence))
    return replace(answer, reason=_storable(answer.reason))


def _storable(text: str) -> str:
    """Half a pair of surrogates is no text anywhere but in Python."""
    return text if text.isascii() else text.encode(errors="replace").decode()
