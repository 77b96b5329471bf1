"""Runs until Ctrl-C or SIGTERM; with --with-stdin until its standard input is closed, for a parent process."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys

from semel.testing.simulator.dialect import every_dialect
from semel.testing.simulator.server import CONTROL, Simulator
from semel.testing.simulator.state import SimulatorState

ABOUT = f"""Simulated message providers on 127.0.0.1 that answer wrongly on request. POST {CONTROL}lie plans a lie, GET
{CONTROL}phone lists the messages that customers got: see docs/outbox.md. POST {CONTROL}callbacks makes it call back,
signed as the providers sign: see docs/callbacks.md."""


async def main(port: int, with_stdin: bool) -> None:
    dialects = every_dialect()
    simulator = Simulator(dialects, SimulatorState(), random.Random(1))
    http, mail = await simulator.serve(port), await simulator.serve_mail()
    http_port, mail_port = (server.sockets[0].getsockname()[1] for server in (http, mail))
    if with_stdin:
        print(http_port, mail_port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    else:
        print(f"Simulated providers at http://127.0.0.1:{http_port}/NAME: {', '.join(dialects)}")
        print(f"Mail (SMTP) at 127.0.0.1:{mail_port}")
        print(f"Delivered messages: http://127.0.0.1:{http_port}{CONTROL}phone. Ctrl-C ends it.", flush=True)
        await asyncio.Event().wait()
    for server in (http, mail):
        server.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m semel.testing.simulator", description=ABOUT)
    options.add_argument("port", nargs="?", type=int, default=0, help="0: any free port")
    options.add_argument(
        "--with-stdin", action="store_true", help="end with standard input, and print only the two ports"
    )
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end at once: the reading thread would block Ctrl-C until Ctrl-D
    arguments = options.parse_args()
    asyncio.run(main(arguments.port, arguments.with_stdin))
