"""The process that dies beside the commit of a caller's own transaction. Arguments: road, URL, when, marker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.outbox.adding.places import notification
from tests.outbox.adding.roads import POSTGRES, SQLITE

from semel.testing.crash import crash_at


async def work(road: str, url: str, when: str, marker: str) -> None:
    reached = crash_at(when, marker=Path(marker))
    async with {**POSTGRES, **SQLITE}[road](url) as customer:
        await customer.write("insert into orders values ('4711')")
        await customer.add(notification(provider="one"))
        reached("before_commit")
        await customer.end(commit=True)
        reached("after_commit")


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
