"""What the bindings of all stores share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.faults import worker_process
from tests.faults.worker_process import Plan, app_of, calls_outside

import semel
from semel.testing.fault_laws import FaultHarness, Happened, Killable
from semel.testing.proxy import FaultProxy

HASTY_LEASE_S = 0.6
EVERY_EFFECT = ("transaction", "keyed", "fenced", "retry", "park")


def harness_of(
    home: Path,
    proxy: FaultProxy,
    ledger: str,
    *,
    hasty: str = "",
    server: Killable | None = None,
    effects: tuple[str, ...] = EVERY_EFFECT,
    calls_table: str = "call",
    in_store: Callable[[], list[Happened]] = list,
) -> FaultHarness:
    """`ledger` leads to the store by way of the proxy, and `hasty` does so with shorter timeouts; `in_store` reads by
    another way what transactions wrote into `calls_table`."""
    plan = Plan(str(home), ledger, effects, calls_table=calls_table)
    impatient = msgspec.structs.replace(plan, ledger=hasty or ledger, lease_s=HASTY_LEASE_S)

    def command(source: str) -> list[str]:
        mine = msgspec.structs.replace(plan, source=source)
        return [worker_process.__file__, msgspec.json.encode(mine).decode()]

    found_at = [
        str(Path(semel.__file__).parent.parent),
        str(Path(__file__).parents[2]),
        os.environ.get("PYTHONPATH", ""),
    ]
    return FaultHarness(
        home=home,
        proxy=proxy,
        app=lambda: app_of(plan),
        hasty=lambda: app_of(impatient),
        worker=command,
        happened=lambda: calls_outside(home) + in_store(),
        effects=effects,
        server=server,
        environment=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))},
    )
