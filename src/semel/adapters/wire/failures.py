"""Why there is no answer, in words for people. Nothing of the URL but its host is in them: a path may hold a token."""

from __future__ import annotations

import socket
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from semel.adapters.wire.resolving import Refused


class OutOfStep(aiohttp.ClientConnectionError):
    """There are bytes on these connections that answer no request of ours. Nothing was sent on them."""


def why_not(error: BaseException) -> str:
    """One sentence for whatever the client or a socket raised."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return why_not(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return why_not(error.os_error)
        case OutOfStep():
            return "it speaks before it is asked"
        case Refused():
            return str(error)
        case ssl.SSLCertVerificationError():
            return f"its TLS certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"the TLS handshake failed: {error.reason or type(error).__name__}"
        case socket.gaierror():
            return f"its name does not resolve: {error.strerror}"
        case aiohttp.ServerDisconnectedError() | ConnectionResetError() | BrokenPipeError():
            return "it closed the connection without an answer"
        case aiohttp.ClientPayloadError() | HttpProcessingError():
            return "its answer is not HTTP that can be read"
        case OSError():
            return f"no connection: {error.strerror or error}"
        case _:
            return type(error).__name__
