"""Twilio's libraries try a URL with its port and without it, since what is signed has not always been the same."""

from __future__ import annotations

import asyncio
import base64
import hmac

import pytest

from semel.verifiers import verifier


@pytest.mark.parametrize(
    ("told", "signed", "taken"),
    [
        ("https://a.example.com:8443/cb", "https://a.example.com:8443/cb", True),
        ("https://a.example.com:8443/cb", "https://a.example.com/cb", True),
        ("https://a.example.com/cb", "https://a.example.com:443/cb", True),
        ("https://a.example.com:443/cb", "https://a.example.com/cb", True),
        ("https://a.example.com/cb", "https://a.example.com:8443/cb", False),
        ("https://a.example.com:8443/cb", "https://b.example.com/cb", False),
        ("https://[2001:db8::1]:8443/cb", "https://[2001:db8::1]/cb", True),
    ],
)
def test_a_port_may_be_left_out_of_what_is_signed(told: str, signed: str, taken: bool) -> None:
    ours = verifier("twilio", secrets=["token"], url=told)
    signature = base64.b64encode(hmac.digest(b"token", f"{signed}?id=1MessageSidSM1".encode(), "sha1"))
    headers = {b"x-twilio-signature": signature, b":query": b"id=1"}
    assert asyncio.run(ours.verify(headers, b"MessageSid=SM1")) is taken
