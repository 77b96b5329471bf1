"""Runs until its standard input is closed: when whoever started it dies, it ends too."""

from __future__ import annotations

import asyncio
import random
import sys

from semel.testing.simulator.dialects import every_dialect
from semel.testing.simulator.server import Simulator
from semel.testing.simulator.state import State


async def main(port: int) -> None:
    simulator = Simulator(every_dialect(), State(), random.Random(1))
    servers = [await simulator.serve(port), await simulator.serve_mail()]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
