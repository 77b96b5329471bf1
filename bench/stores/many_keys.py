"""A PostgreSQL ledger with millions of settled keys, which SQL copies from a row that the ledger settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.stores.bare_sql import Connection, connect
from bench.stores.on_semel import claim_and_settle
from bench.stores.supply import Supply
from msgspec.structs import replace

from semel.ports import Ledger
from semel.values.claim import Settled
from semel.values.errors import ConfigError
from semel.wiring import open_ledger

PIECE = 250_000  # keys in one transaction: sorted, so that the index is filled page by page
SAMPLE = 100  # keys that the ledger is asked about afterwards

OWN = {  # what every key has for itself; all other columns are as the ledger wrote them
    "digest": "uuid_send(gen_random_uuid())",
    "fingerprint": "decode(md5(random()::text), 'hex')",  # the same words as above would be called once for both
    "key_text": "repeat(gen_random_uuid()::text, 4)",
    "token": "nextval('semel.token')",
}
COLUMNS = "select column_name from information_schema.columns where table_schema = 'semel' and table_name = 'key'"


def fill(url: str, number: int, supply: Supply, advance: Callable[[int], None]) -> float:
    """Settle as many keys, and ask the ledger whether it knows them. Returns the seconds it took."""
    begun = time.perf_counter()
    asyncio.run(_fill(url, number, supply, advance))
    return time.perf_counter() - begun


async def _fill(url: str, number: int, supply: Supply, advance: Callable[[int], None]) -> None:
    ledger, connection = open_ledger(url), await connect(url)
    try:
        await claim_and_settle(ledger, [supply.claims(1)])
        columns = [row[0] for row in await connection.fetch(COLUMNS)]
        if missing := OWN.keys() - set(columns):
            raise ConfigError(
                f"the ledger's table semel.key has no column {', '.join(missing)}: fill it in another way"
            )
        await connection.execute("set synchronous_commit = off")  # the checkpoint below makes it durable
        await connection.execute("create temporary table settled as select * from semel.key limit 1")
        for size in [PIECE] * (number // PIECE) + [number % PIECE] * (number % PIECE > 0):
            await connection.execute(_piece(columns), size)
            advance(size)
        await connection.execute("vacuum (analyze) semel.key")
        await connection.execute("checkpoint")
        await _ask(ledger, connection, supply)
    finally:
        await connection.close()
        await ledger.close()


def _piece(columns: list[str]) -> str:
    values = ", ".join(f'{OWN.get(name, f"settled.{name}")} as "{name}"' for name in columns)
    names = ", ".join(f'"{name}"' for name in columns)
    return (
        f"insert into semel.key ({names}) select {names} from"
        f" (select {values} from settled, generate_series(1, $1::int) order by digest) piece"
    )


async def _ask(ledger: Ledger, connection: Connection, supply: Supply) -> None:
    """Check that the ledger accepts the copied rows as settled keys."""
    rows = await connection.fetch(
        "select digest, fingerprint from semel.key order by digest limit $1", SAMPLE
    )  # keys are random
    new = supply.claims(len(rows))
    claims = [
        replace(claim, digest=digest, fingerprint=fingerprint)
        for claim, (digest, fingerprint) in zip(new, rows, strict=True)
    ]
    verdicts = await ledger.claim(claims)
    if not all(isinstance(verdict, Settled) for verdict in verdicts):
        raise AssertionError(f"the ledger does not know the keys it was filled with: {verdicts[0]}")
