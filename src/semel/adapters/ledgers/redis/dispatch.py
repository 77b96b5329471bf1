"""Sends scripts to the servers that have their keys, and again when those have moved: until an answer or the deadline.

Every script may be sent twice. A claim finds its own grant by its nonce, a settle its own outcome by its token, so a
lost answer is simply asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import TimeoutError as RedisTimeout

from semel.adapters.ledgers.redis.address import Address
from semel.adapters.ledgers.redis.node import Node
from semel.adapters.ledgers.redis.resp import command
from semel.adapters.ledgers.redis.topology import Topology
from semel.values.errors import ConfigError, LedgerUnavailable

PAUSE_S, PAUSE_MAX_S = 0.01, 0.25  # between tries; a slot's move or a failover takes from milliseconds to seconds
ASKING = command("ASKING")
PASSING = (ClusterDownError, BusyLoadingError, MasterDownError, ReadOnlyError)


class Call:
    """One script and its answer. It is packed when it is sent: the server works on the one before meanwhile."""

    __slots__ = ("_pack", "_packed", "ask_at", "bucket", "reply")

    def __init__(self, bucket: int, pack: Callable[[], bytes]) -> None:
        self.bucket = bucket
        self.reply: Any = None
        self.ask_at: tuple[str, int] | None = None  # the slot is moving: its new node has this key already
        self._pack = pack
        self._packed: bytes | None = None

    @property
    def packed(self) -> bytes:
        if self._packed is None:
            self._packed = self._pack()
        return self._packed


class Dispatch:
    def __init__(self, address: Address, topology: Topology, observe: Callable[[str], None] | None = None) -> None:
        """`observe` is told why something is asked again: "again: TryAgainError"."""
        self._address = address
        self._topology = topology
        self._observe = observe
        self._wait = _wait_command(address)

    async def run(self, calls: Sequence[Call], *, confirmed: bool = False) -> bool:
        """Have all calls answered. `confirmed`: in strict mode, wait for the replicas; False: too few have it."""
        trouble = "it does not answer"
        confirmation = self._wait if confirmed else b""
        enough = True
        pending: Sequence[Call] = calls
        pause_s = PAUSE_S
        try:
            async with asyncio.timeout(self._address.timeout_s):
                while True:
                    enough, trouble = await self._try(pending, confirmation, enough, trouble)
                    pending = [call for call in pending if call.reply is None]
                    if not pending:
                        return enough
                    if all(call.ask_at is None for call in pending):
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        except TimeoutError:
            await self._topology.look_again()  # whoever hangs may have been replaced
            raise LedgerUnavailable(
                f"{self._address.shown}: no answer within {self._address.timeout_s:g} s ({trouble})"
            ) from None

    async def _try(self, pending: Sequence[Call], confirmation: bytes, enough: bool, trouble: str) -> tuple[bool, str]:
        groups: dict[Node, list[Call]] = {}
        try:
            for call in pending:
                node = self._topology.at(*call.ask_at) if call.ask_at else await self._topology.node(call.bucket)
                groups.setdefault(node, []).append(call)
        except (LedgerUnavailable, RedisError, OSError) as error:
            return enough, self._passing(error)
        if len(groups) == 1:
            ((node, group),) = groups.items()
            results: list[tuple[bool, str] | BaseException] = [await self._exchange(node, group, confirmation)]
        else:
            running = [self._exchange(node, group, confirmation) for node, group in groups.items()]
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            enough = enough and result[0]
            trouble = result[1] or trouble
        return enough, trouble

    async def _exchange(self, node: Node, calls: Sequence[Call], confirmation: bytes) -> tuple[bool, str]:
        """Replies go into their calls; what has to be tried again stays without one. Returns whether replicas have it,
        and what went wrong."""
        count = len(calls) + sum(call.ask_at is not None for call in calls)
        try:
            replies = await node.exchange(_packed(calls, confirmation), count + bool(confirmation))
        except asyncio.CancelledError:
            await node.drop_idle()  # the others would hang as well
            raise
        except (RedisError, OSError, asyncio.IncompleteReadError) as error:
            await node.drop_idle()
            await self._topology.look_again()
            for call in calls:
                call.ask_at = None
            return True, self._passing(error)
        confirmed = replies.pop() if confirmation else None
        trouble = ""
        refused: LedgerUnavailable | None = None
        at = 0
        for call in calls:
            at += 1 if call.ask_at else 0  # the answer to ASKING
            call.ask_at = None
            try:
                trouble = await self._take(node, call, replies[at]) or trouble
            except LedgerUnavailable as error:
                refused = error  # once it is known what the others were answered
            except (RedisError, OSError) as error:
                trouble = self._passing(error)
            at += 1
        if refused is not None:
            raise refused
        answered = any(call.reply is not None for call in calls)
        return confirmed is None or not answered or self._is_confirmed(confirmed), trouble

    async def _take(self, node: Node, call: Call, reply: Any) -> str:
        if not isinstance(reply, ResponseError):
            call.reply = reply
            return ""
        if isinstance(reply, MovedError):  # to the client library it is a kind of AskError
            self._topology.moved(call.bucket, reply.host or node.host, reply.port)
        elif isinstance(reply, AskError):
            call.ask_at = (reply.host or node.host, reply.port)
        elif isinstance(reply, NoScriptError):
            await node.load_scripts()
        elif isinstance(reply, PASSING):
            await self._topology.look_again()
        elif not isinstance(reply, TryAgainError):  # half of its keys are at the slot's next node: soon all will be
            raise self._final(reply)
        return self._passing(reply)

    def _is_confirmed(self, reply: Any) -> bool:
        if isinstance(reply, ResponseError):
            if "appendonly" in str(reply):
                raise ConfigError(f"{self._address.shown}: fsync=yes: {reply}; set appendonly yes")
            return False  # it is no master any more: what it has just answered may be lost
        counts = reply if isinstance(reply, list) else [1, reply]
        return bool(counts[0] >= 1 and counts[1] >= self._address.strict)

    def _passing(self, error: BaseException) -> str:
        """What may be over by the next try; it is said when the time is over."""
        if isinstance(error, AuthenticationError | NoPermissionError):
            raise self._final(error)
        if self._observe is not None:
            self._observe(f"again: {type(error).__name__}")
        return f"{type(error).__name__}: {error}" if not isinstance(error, LedgerUnavailable) else str(error)

    def _final(self, error: BaseException) -> LedgerUnavailable:
        return LedgerUnavailable(meaning_of(self._address, error))


def meaning_of(address: Address, error: BaseException) -> str:
    """What happened, where, and what to do."""
    shown = address.shown
    match error:
        case LedgerUnavailable() | ConfigError():
            return str(error)
        case AuthenticationError():
            return f"{shown} refuses the user or password of the ledger's URL"
        case NoPermissionError():
            return f"{shown}: the ledger's user may not do this: {error}; allow ~prefix{{* and +@all"
        case OutOfMemoryError():
            return f"{shown} is out of memory (maxmemory): give it more, or shorten the retention"
        case NotConnected() | RedisTimeout() | OSError():
            said = str(error) or "no answer in time"
            return f"{shown} cannot be reached: {said}: see that it runs there, and whether it wants rediss:// (TLS)"
    if str(error).startswith("MISCONF"):
        return f"{shown} cannot save to its disk and refuses writes: {error}"
    if str(error).startswith("NOAUTH") or "Authentication required" in str(error):
        return f"{shown} wants a user and a password: write them into the ledger's URL"
    return f"{shown}: {error}"


def _packed(calls: Sequence[Call], confirmation: bytes) -> Iterator[bytes]:
    last = calls[-1]
    for call in calls:
        packed = ASKING + call.packed if call.ask_at else call.packed
        yield packed + confirmation if call is last else packed


def _wait_command(address: Address) -> bytes:
    """Half of the deadline is for the replicas, the other half for the rest."""
    wait_ms = max(1, round(address.timeout_s * 500))
    if address.fsync:
        return command("WAITAOF", 1, address.strict, wait_ms)
    return command("WAIT", address.strict, wait_ms) if address.strict else b""
