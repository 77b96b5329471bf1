"""Sends scripts to the servers that have their keys, with retries until a reply or the deadline.

Every script may be sent twice: a claim finds its own grant by its nonce, and a settle its own outcome by its token. A
script whose reply was lost is therefore sent again, also to another server after its slot has moved.
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

from semel.ledgers.redis.codec import command
from semel.ledgers.redis.topology import Node, Topology
from semel.ledgers.redis.url import RedisAddress
from semel.values.errors import ConfigError, LedgerUnavailable

PAUSE_S, PAUSE_MAX_S = 0.01, 0.25  # between retries; a slot migration or a failover takes milliseconds to seconds
ASKING = command("ASKING")
TRANSIENT = (ClusterDownError, BusyLoadingError, MasterDownError, ReadOnlyError)


class ScriptCall:
    """One script call and its reply. It is packed when it is sent, while the server runs the previous one."""

    __slots__ = ("_pack", "_packed", "ask_at", "bucket", "reply")

    def __init__(self, bucket: int, pack: Callable[[], bytes]) -> None:
        self.bucket = bucket
        self.reply: Any = None
        self.ask_at: tuple[str, int] | None = None  # the slot is migrating, and its new node already has this key
        self._pack = pack
        self._packed: bytes | None = None

    @property
    def packed(self) -> bytes:
        if self._packed is None:
            self._packed = self._pack()
        return self._packed


class ScriptDispatcher:
    def __init__(self, address: RedisAddress, topology: Topology, observe: Callable[[str], None] | None = None) -> None:
        """`observe` gets the reason of each retry: "again: TryAgainError"."""
        self._address = address
        self._topology = topology
        self._observe = observe
        self._wait = _wait_command(address)

    async def run(self, calls: Sequence[ScriptCall], *, confirmed: bool = False) -> bool:
        """Run all calls. With `confirmed`, strict mode waits for the replicas; False means that too few have the write.
        Raises LedgerUnavailable at the deadline."""
        failure = "no reply"
        confirmation = self._wait if confirmed else b""
        enough = True
        pending: Sequence[ScriptCall] = calls
        pause_s = PAUSE_S
        try:
            async with asyncio.timeout(self._address.timeout_s):
                while True:
                    enough, failure = await self._attempt(pending, confirmation, enough, failure)
                    pending = [call for call in pending if call.reply is None]
                    if not pending:
                        return enough
                    if all(call.ask_at is None for call in pending):
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        except TimeoutError:
            await self._topology.rediscover()  # a server that hangs may have been replaced
            raise LedgerUnavailable(
                f"{self._address.shown}: no reply within {self._address.timeout_s:g} s ({failure})"
            ) from None

    async def _attempt(
        self, pending: Sequence[ScriptCall], confirmation: bytes, enough: bool, failure: str
    ) -> tuple[bool, str]:
        groups: dict[Node, list[ScriptCall]] = {}
        try:
            for call in pending:
                node = self._topology.at(*call.ask_at) if call.ask_at else await self._topology.node(call.bucket)
                groups.setdefault(node, []).append(call)
        except (LedgerUnavailable, RedisError, OSError) as error:
            return enough, self._transient(error)
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
            failure = result[1] or failure
        return enough, failure

    async def _exchange(self, node: Node, calls: Sequence[ScriptCall], confirmation: bytes) -> tuple[bool, str]:
        """Send calls to one node and store their replies; calls without a reply must be retried. Returns whether
        enough replicas have the writes, and the last failure."""
        count = len(calls) + sum(call.ask_at is not None for call in calls)
        try:
            replies = await node.exchange(_packed(calls, confirmation), count + bool(confirmation))
        except asyncio.CancelledError:
            await node.drop_idle()  # the other connections would hang too
            raise
        except (RedisError, OSError, asyncio.IncompleteReadError) as error:
            await node.drop_idle()
            await self._topology.rediscover()
            for call in calls:
                call.ask_at = None
            return True, self._transient(error)
        confirmed = replies.pop() if confirmation else None
        failure = ""
        refused: LedgerUnavailable | None = None
        at = 0
        for call in calls:
            at += 1 if call.ask_at else 0  # the reply to ASKING
            call.ask_at = None
            try:
                failure = await self._take(node, call, replies[at]) or failure
            except LedgerUnavailable as error:
                refused = error  # raised after the replies of the other calls are stored
            except (RedisError, OSError) as error:
                failure = self._transient(error)
            at += 1
        if refused is not None:
            raise refused
        answered = any(call.reply is not None for call in calls)
        return confirmed is None or not answered or self._is_confirmed(confirmed), failure

    async def _take(self, node: Node, call: ScriptCall, reply: Any) -> str:
        if not isinstance(reply, ResponseError):
            call.reply = reply
            return ""
        if isinstance(reply, MovedError):  # in the client library a subclass of AskError
            self._topology.moved(call.bucket, reply.host or node.host, reply.port)
        elif isinstance(reply, AskError):
            call.ask_at = (reply.host or node.host, reply.port)
        elif isinstance(reply, NoScriptError):
            await node.load_scripts()
        elif isinstance(reply, TRANSIENT):
            await self._topology.rediscover()
        elif not isinstance(
            reply, TryAgainError
        ):  # TRYAGAIN: the keys are split between two nodes until the slot has moved
            raise self._final(reply)
        return self._transient(reply)

    def _is_confirmed(self, reply: Any) -> bool:
        if isinstance(reply, ResponseError):
            if "appendonly" in str(reply):
                raise ConfigError(f"{self._address.shown}: fsync=yes: {reply}; set appendonly yes")
            return False  # the server is no longer a master: its last writes may be lost
        counts = reply if isinstance(reply, list) else [1, reply]
        return bool(counts[0] >= 1 and counts[1] >= self._address.strict)

    def _transient(self, error: BaseException) -> str:
        """Describe an error that the next retry may not have; it is reported at the deadline. Raises for errors that no
        retry fixes."""
        if isinstance(error, AuthenticationError | NoPermissionError):
            raise self._final(error)
        if self._observe is not None:
            self._observe(f"again: {type(error).__name__}")
        return f"{type(error).__name__}: {error}" if not isinstance(error, LedgerUnavailable) else str(error)

    def _final(self, error: BaseException) -> LedgerUnavailable:
        return LedgerUnavailable(describe_error(self._address, error))


def describe_error(address: RedisAddress, error: BaseException) -> str:
    """Describe an error for operators: what happened, where, and what to do."""
    shown = address.shown
    match error:
        case LedgerUnavailable() | ConfigError():
            return str(error)
        case AuthenticationError():
            return f"{shown} refuses the user or password: check the ledger's URL"
        case NoPermissionError():
            return f"{shown}: the ledger's user has no permission: {error}; allow ~prefix{{* and +@all"
        case OutOfMemoryError():
            return f"{shown} is out of memory (maxmemory): raise the limit, or shorten the retention"
        case NotConnected() | RedisTimeout() | OSError():
            reason = str(error) or "no reply in time"
            return f"{shown} cannot be reached: {reason}: check that it runs, and whether it needs rediss:// (TLS)"
    if str(error).startswith("MISCONF"):
        return f"{shown} cannot save to its disk and refuses writes: {error}"
    if str(error).startswith("NOAUTH") or "Authentication required" in str(error):
        return f"{shown} requires a user and a password: add them to the ledger's URL"
    return f"{shown}: {error}"


def _packed(calls: Sequence[ScriptCall], confirmation: bytes) -> Iterator[bytes]:
    last = calls[-1]
    for call in calls:
        packed = ASKING + call.packed if call.ask_at else call.packed
        yield packed + confirmation if call is last else packed


def _wait_command(address: RedisAddress) -> bytes:
    """WAIT or WAITAOF, with half of the deadline for the replicas and the other half for everything else."""
    wait_ms = max(1, round(address.timeout_s * 500))
    if address.fsync:
        return command("WAITAOF", 1, address.strict, wait_ms)
    return command("WAIT", address.strict, wait_ms) if address.strict else b""
