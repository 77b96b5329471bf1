"""The ends of leases: one round trip for a batch, and a second one for what was not found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.adapters.ledgers.postgres.rows import (
    DEAD,
    DONE,
    LEASED,
    RELEASE,
    RETRY,
    SETTLED,
    UNCERTAIN,
    WAITING,
    digests_of,
    dump,
    keeps_of,
    shown,
    unless_all_none,
)
from semel.adapters.ledgers.postgres.statements import statements
from semel.values import reading
from semel.values.claim import Lease, Settlement
from semel.values.outcome import Ending, Reject, Retry, Uncertain
from semel.values.tried import cut

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection


async def settle(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> list[bool]:
    """Of several settlements of one lease the first counts; the others are compared with it."""
    answers = [False] * len(settlements)
    waiting = list(range(len(settlements)))
    while waiting:
        first: dict[tuple[bytes, int], int] = {}
        later: list[int] = []
        for at in waiting:
            lease = settlements[at].lease
            if first.setdefault((lease.claim.digest, lease.token), at) != at:
                later.append(at)
        places = [first[pair] for pair in sorted(first)]  # in the order of the keys, as everybody locks them
        for at, answer in zip(
            places, await _settle(connection, [settlements[at] for at in places], now, schema), strict=True
        ):
            answers[at] = answer
        waiting = later
    return answers


async def _settle(
    connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str
) -> list[bool]:
    endings = [dump(settlement.outcome) for settlement in settlements]
    written = _simple if _are_simple(settlements, endings) else _any
    found = await written(connection, settlements, endings, now, schema)
    if len(found) == len(settlements):
        return [True] * len(settlements)
    answers = [False] * len(settlements)
    for i in found:
        answers[i - 1] = True
    missing = [at for at, answer in enumerate(answers) if not answer and endings[at][0] != RELEASE]
    for at in await _settled_before(connection, settlements, endings, missing, schema):
        answers[at] = True
    return answers


def _are_simple(settlements: Sequence[Settlement], endings: Sequence[tuple[int, bytes | None]]) -> bool:
    return all(
        code in (DONE, RETRY) and not s.lease.claim.aliases and s.lease.claim.order is None
        for s, (code, _) in zip(settlements, endings, strict=True)
    )


async def _simple(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    now: int | None,
    schema: str,
) -> list[int]:
    found: list[int] | None = await connection.fetchval(
        statements(schema)["settle"],
        [s.lease.claim.digest for s in settlements],
        [s.lease.token for s in settlements],
        unless_all_none([result for _, result in endings]),
        unless_all_none([_delay_ms(s.outcome) for s in settlements]),
        now,
    )
    return found or []


async def _any(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    now: int | None,
    schema: str,
) -> list[int]:
    rows: list[tuple[Any, ...]] = []
    for i, (settlement, (code, result)) in enumerate(zip(settlements, endings, strict=True), 1):
        lease, delay_ms = settlement.lease, _delay_ms(settlement.outcome)
        own, *others = digests_of(lease.claim)
        same = (len(others) + 1, code, result, delay_ms, _why(settlement.outcome))
        rows.append((i, own, lease.token, True, *same, *_about(settlement, code, others)))
        rows += [(i, digest, lease.token, False, *same, *_NOTHING) for digest in others]
    columns = [unless_all_none(list(column)) for column in zip(*rows, strict=True)]
    found: list[int] | None = await connection.fetchval(statements(schema)["settle_any"], *columns, now)
    return found or []


def _why(outcome: Ending) -> bytes | None:
    """What is kept of an attempt that failed."""
    return cut(outcome.reason) if isinstance(outcome, Retry | Reject | Uncertain) else None


_NOTHING = (None,) * 7  # of a settlement, beside a key that is not its own


def _about(settlement: Settlement, code: int, others: Sequence[bytes]) -> tuple[Any, ...]:
    """Subject, position, retention, aliases; and of what becomes a letter its reason, event and reading."""
    claim, letter = settlement.lease.claim, settlement.letter
    place = (claim.order.subject, claim.order.position) if claim.order is not None else (None, None)
    if code not in (DEAD, UNCERTAIN):
        return (*place, claim.retention_ms, None, None, None, None)
    about = (*place, max(keeps_of(claim).values()), b"".join(others) or None)
    reason = shown(settlement.outcome.reason) if isinstance(settlement.outcome, Reject | Uncertain) else ""
    return (*about, reason, letter and letter.event, (letter and reading.dump(letter.reading)) or None)


async def _settled_before(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    missing: Sequence[int],
    schema: str,
) -> list[int]:
    """A lost reply was followed by a retry: the token has settled before, with this outcome."""
    if not missing:
        return []
    leases = [settlements[at].lease for at in missing]
    rows = await connection.fetch(
        statements(schema)["settled_before"],
        [lease.claim.digest for lease in leases],
        [lease.token for lease in leases],
    )
    return [at for i, *found in rows if _is_what_was_said(found, endings[at := missing[i - 1]])]


async def hold(connection: Connection, lease: Lease, schema: str) -> bool:
    """Lock all rows of a lease until the transaction ends. False: it was lost, or settled before."""
    digests = sorted(digests_of(lease.claim))
    if len(digests) == 1:
        found = await connection.fetch(statements(schema)["lock_one_key"], digests[0])
    else:
        found = await connection.fetch(statements(schema)["lock_keys"], digests)
    return [(token, state) for _, token, state, *_ in found] == [(lease.token, LEASED)] * len(digests)


async def hold_after(said: str, connection: Connection, lease: Lease, schema: str) -> bool:
    """As `hold`, with something to be said before it, in one round trip. How many rows there are is in the answer."""
    digests = sorted(digests_of(lease.claim))
    listed = ", ".join([f"decode('{digest.hex()}', 'hex')" for digest in digests])  # whatever the handler set
    token, state = int(lease.token), LEASED
    found = await connection.execute(
        f'{said}; select from "{schema}".key where k in ({listed}) and token = {token} and state = {state} '
        "order by k for update"
    )
    return found == f"SELECT {len(digests)}"


async def settle_held(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> bool:
    """Settle leases whose rows are locked. False: not all of them were as they had been."""
    ordered = sorted(settlements, key=lambda settlement: settlement.lease.claim.digest)
    endings = [dump(settlement.outcome) for settlement in ordered]
    written = _simple if _are_simple(ordered, endings) else _any
    return len(await written(connection, ordered, endings, now, schema)) == len(settlements)


async def settled_at_last(connection: Connection, settlement: Settlement, schema: str) -> bool:
    """Whether a settlement was committed, though nobody heard so."""
    lease = settlement.lease
    row = await connection.fetchrow(statements(schema)["settled_at_last"], lease.claim.digest, lease.token)
    return row is not None and _is_what_was_said(list(row), dump(settlement.outcome))


def _is_what_was_said(found: list[Any], ending: tuple[int, bytes | None]) -> bool:
    state, outcome, result = found
    code, said = ending
    if code <= UNCERTAIN:
        return bool(state == SETTLED and outcome == code and result == said)
    return bool(code == RETRY and state == WAITING)


def _delay_ms(outcome: Ending) -> int | None:
    return round((outcome.after or 0) * 1000) if type(outcome) is Retry else None
