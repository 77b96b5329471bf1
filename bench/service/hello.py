"""The reference server of `python -m bench.service`: the same HTTP server around a minimal webhook.

It reads the body and answers 200. It verifies, parses and stores nothing. `python -m bench.service.hello` prints its
address on its first line, as `semel run` does.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from semel.service.ingest import Receive, Scope, Send
from semel.service.server import listen, serve
from semel.settings.schema import ServerSettings

# As long as the response of the service to a processed event.
BODY = b'{"status":"processed","id":"%b","key":"%b"}' % (b"0" * 150, b"0" * 32)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


class Hello:
    """Raw ASGI."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": BODY})

    def begin_to_drain(self) -> None:
        """Nothing is kept here."""

    async def _live(self, receive: Receive, send: Send) -> None:
        for said in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{said}.complete"})


def main() -> None:
    listening = listen("127.0.0.1", 0)
    print(f"Hello on http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    serve(cast(Any, Hello()), ServerSettings(), listening)


if __name__ == "__main__":
    main()
