"""A process that only receives: one door that hands on to SQS. Says its port, and serves until it is told to end."""

from __future__ import annotations

import socket
import sys

import uvicorn

from semel import Semel
from semel.adapters.sources.sqs import SqsPublisher
from semel.service.doors import Door
from semel.service.mounted import Mounted


def main(queue: str, endpoint: str, region: str) -> None:
    publisher = SqsPublisher(queue, endpoint=endpoint, region=region, timeout=3.0)
    mounted = Mounted(Semel("memory://"), Door("/events", publisher=publisher))
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(mounted, log_level="warning", lifespan="on")).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:4])
