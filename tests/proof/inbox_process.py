"""A process that fills its inbox and is killed while all of it is in flight.

Arguments: the ledger's file, the number of events of each handler, and a file with one line for each run that began.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from semel import Context, Event, Semel
from semel.app import IncomingMessage, to_bytes
from semel.core.inbox_flow import Acceptor, InboxWorker
from semel.ports import Inbox

LEASE_S = 2.0  # long against a commit on a busy machine, short against a test
Handle = Callable[[Event, Context], Awaitable[None]]


def app_on(file: Path, slow: Handle, quick: Handle) -> Semel:
    app = Semel(f"sqlite:///{file}", lease=LEASE_S, concurrency=32)
    app.on("slow", name="slow", timeout=None)(slow)
    app.on("quick", name="quick", timeout=None)(quick)
    return app


async def accept(app: Semel, type: str, *ids: str) -> None:
    assert isinstance(app.ledger, Inbox)
    acceptor = Acceptor(app.ledger, app.planner, lambda: None)
    for id in ids:
        accepted = await acceptor.accept(IncomingMessage(to_bytes({"id": id, "type": type, "data": {}})))
        assert accepted.status == "accepted"


def pump_of(app: Semel) -> InboxWorker:
    assert isinstance(app.ledger, Inbox)
    return InboxWorker(app.ledger, app.new_engine(app.ledger).process, app.handlers, 32)


async def work(file: Path, count: int, begun: Path) -> None:
    async def until_killed(event: Event, ctx: Context) -> None:
        with begun.open("a") as lines:
            lines.write(f"{event.id}\n")
        await asyncio.sleep(600)

    async with app_on(file, until_killed, until_killed) as app:
        for type in ("slow", "quick"):
            await accept(app, type, *[f"{type}-{number}" for number in range(count)])
        await pump_of(app).run()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
