"""The process that dies while an event and its message are recorded. Arguments: ledger file, effect, step, marker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from semel import Context, Event, Semel
from semel.testing.crash import crash_at

BODY = {"id": "1", "type": "a", "data": {}}
SAID: dict[str, Any] = {"kind": "shipping", "recipient": "+491", "channel": "sms", "body": "On its way"}


async def work(path: str, effect: Any, step: str = "", marker: str = "") -> str:
    observe = crash_at(step, 2 if step.endswith("_commit") else 1, marker=Path(marker)) if step else None
    async with Semel(f"sqlite:///{path}", lease=0.5, observe=observe) as app:

        @app.on("a", effect=effect, name="handle")
        async def handle(event: Event, ctx: Context) -> None:
            ctx.notify(**SAID)

        while True:
            outcome = await app.process(BODY)
            if outcome.status != "busy":
                return outcome.status
            await asyncio.sleep(outcome.after or 0.1)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
