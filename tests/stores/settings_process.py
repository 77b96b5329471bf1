"""A process that handles the inbox with settings of its own.

    python -m tests.stores.settings_process LEDGER KEY TOPIC FILE

It ends with its standard input. Each run of its handler is a line in FILE: the event and the key.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from semel import Context, Event, Semel, keys

KEYS = {"event": keys.event, "content": keys.content, "business": keys.fields("type")}


def app_with(ledger: str, key: str, topic: str, runs: Path) -> Semel:
    app = Semel(ledger)

    @app.on(topic, name="crm", key=KEYS[key])
    async def crm(event: Event, ctx: Context) -> None:
        with runs.open("a") as file:
            file.write(f"{event.id} {ctx.key}\n")

    return app


async def main(ledger: str, key: str, topic: str, runs: str) -> None:
    async with app_with(ledger, key, topic, Path(runs)) as app, app.handling():
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
