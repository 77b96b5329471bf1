"""Connections to a broker, and what their failures mean.

We reconnect ourselves, and not by the driver's robust connection: that one restores a consumer behind our back, at a
fixed interval, while delivery tags mean nothing on another channel. Here every connection is a thing of its own, and
what was delivered on it dies with it.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from semel.adapters.sources.rabbitmq.address import dialled, shown
from semel.adapters.sources.rabbitmq.careful import CarefulConnection

CONNECT_S = 15.0
ASK_S = 15.0  # for a declaration or the like; a broker that is busy electing takes some seconds
CLOSE_S = 5.0

LOST = (*CONNECTION_EXCEPTIONS, TimeoutError)
"""Everything by which the driver says that a connection or a channel is not usable (any more)."""


def told_of(failure: Failed) -> str:
    """For `semel doctor`. What may be over in a moment is no reason not to start."""
    return f"error: {failure}" if failure.definite else f"error: out of reach: {failure}"


class Failed(Exception):
    """A request that did not succeed. `definite`: only a person can change that. `missing`: there is no such queue."""

    def __init__(self, text: str, *, definite: bool = False, missing: bool = False) -> None:
        super().__init__(text)
        self.definite = definite
        self.missing = missing


async def connect(url: str, name: str, *, careful: bool = False) -> aio_pika.Connection:
    """Raises Failed."""
    kind = CarefulConnection if careful else aio_pika.Connection
    try:
        return await aio_pika.connect(dialled(url, name), timeout=CONNECT_S, connection_class=kind)
    except LOST as error:
        raise failure_of(error, shown(url)) from None
    except ValueError as error:  # of an option, or of a certificate
        raise Failed(f"{shown(url)}: {error}", definite=True) from None


async def open_channel(connection: aio_pika.Connection, *, confirms: bool) -> AbstractChannel:
    """Raises what LOST holds."""
    channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
    async with asyncio.timeout(ASK_S):
        await channel.initialize()
    return channel


async def hang_up(connection: Any) -> None:
    """Whatever state it is in."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close()
    except (*LOST, asyncio.CancelledError):
        only_if_lost()


def only_if_lost() -> None:
    """The driver cancels what waits on a channel that it closes. Where somebody cancelled us, that goes on."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def failure_of(error: BaseException, where: str) -> Failed:
    """What it means, in words that hold no secret."""
    match error:
        case ProbableAuthenticationError() | AuthenticationError():
            return Failed(f"{where}: the broker refuses this user or password", definite=True)
        case InvalidFrameError() if "Connection.Close" in str(error):  # the driver does not read what it says
            text = "the broker hung up: most often there is no such vhost, or it is not for this user"
            return Failed(f"{where}: {text}", definite=True)
        case ChannelNotFoundEntity():
            return Failed(f"{where}: {_words(error)}", definite=True, missing=True)
        case ChannelPreconditionFailed():
            return Failed(f"{where}: {_words(error)}", definite=True)
        case ChannelClosed() if "ACCESS_REFUSED" in str(error):
            return Failed(f"{where}: {_words(error)}", definite=True)
        case TimeoutError():
            return Failed(f"{where}: no answer in time")
        case Failed():
            return error
    if not isinstance(error, LOST):  # a bug, or a cancellation for which the driver knows no reason
        return Failed(f"{where}: {type(error).__name__} of the driver")
    causes = [error, error.__cause__]
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return Failed(f"{where}: its certificate cannot be verified: {_words(error)}", definite=True)
    if any(isinstance(cause, FileNotFoundError | PermissionError) for cause in causes):
        return Failed(f"{where}: {_words(error)}", definite=True)  # of a file for TLS
    return Failed(f"{where}: {_words(error)}")


def _words(error: BaseException) -> str:
    said = " ".join(str(part) for part in error.args if part not in (None, "")) or type(error).__name__
    return said[:300]
