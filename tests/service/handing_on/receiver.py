"""A process that only receives: one door that hands on to SQS. Says its port, and serves until it is told to end."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from semel import Semel
from semel.adapters.sources.sqs import SqsPublisher
from semel.service.doors import Door
from semel.service.mounted import Mounted


async def main(queue: str, endpoint: str, region: str) -> None:
    publisher = SqsPublisher(queue, endpoint=endpoint, region=region, timeout=3.0)
    mounted = Mounted(Semel("memory://"), Door("/events", publisher=publisher))
    server = uvicorn.Server(uvicorn.Config(mounted, port=0, log_level="warning", lifespan="on"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
