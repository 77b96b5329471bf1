"""Runs until its standard input is closed: when whoever started it dies, it ends too. On a terminal, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys

from semel.testing.simulator.dialects import every_dialect
from semel.testing.simulator.server import CONTROL, Simulator
from semel.testing.simulator.state import State

ABOUT = f"""Providers of messages on 127.0.0.1, which can be told to lie. Prints its port, and that of its mail server.
POST {CONTROL}lie plans a lie, GET {CONTROL}phone tells what customers have got: docs/outbox.md tries both. POST
{CONTROL}callbacks has it call back, signed as the providers sign: docs/callbacks.md tries that."""


async def main(port: int) -> None:
    simulator = Simulator(every_dialect(), State(), random.Random(1))
    servers = [await simulator.serve(port), await simulator.serve_mail()]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        server.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m semel.testing.simulator", description=ABOUT)
    options.add_argument("port", nargs="?", type=int, default=0, help="0: any that is free")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once: the thread that reads would hold Ctrl-C up until Ctrl-D
    asyncio.run(main(options.parse_args().port))
