"""Credentials as providers check them. A refusal repeats what was sent, as careless providers do: whoever keeps it as
evidence has to take the secret out."""

from __future__ import annotations

import base64

from semel.testing.simulator.http import Request


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def given(request: Request, header: str = "authorization") -> str:
    return request.headers.get(header, "")


def careless(said: str) -> str:
    return f"these credentials are not known: {said}"
