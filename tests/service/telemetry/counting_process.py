"""A process that counts into a shared directory until it is killed, or ends after its standard input has.

python counting_process.py DIRECTORY HANDLER COUNT IN_FLIGHT BREAKER
"""

from __future__ import annotations

import sys

from semel.service.metrics import Metrics


def main() -> None:
    directory, handler, count, in_flight, breaker = sys.argv[1:]
    metrics = Metrics(directory)
    for _ in range(int(count)):
        metrics.handler(handler).outcomes["done"].up()
        metrics.handler(handler).seconds.saw(0.25)
    for _ in range(int(in_flight)):
        metrics.in_flight.up()
    metrics.destination("crm").set_state(breaker)  # type: ignore[arg-type]  # from the command line
    print("counted", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
