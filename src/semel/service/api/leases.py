"""A lease as a client carries it: one opaque text.

It holds everything that a `Lease` is rebuilt from, except the tenant, which is the credential's. So it is neither
secret nor signed: whoever forges one reaches keys of their own tenant only, which they may claim anyway, and of those
only such as they know the current token of.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from binascii import Error as NotBase64
from binascii import a2b_base64
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from semel.service.api.shapes import (
    ATTEMPTS_MAX,
    LEASE_MAX_S,
    LEASE_MIN_S,
    POSITION_MAX,
    ClaimItem,
    Name,
    Parts,
)
from semel.values.claim import Claim, Granted, Lease, Order
from semel.values.errors import MalformedEvent, NoKey
from semel.values.event import instant_us
from semel.values.key import DIGEST_BYTES, Namespace, content_digest
from semel.values.keys import checked
from semel.values.outcome import RETRY_MAX_S
from semel.values.strict_json import canonical

TOKEN_MAX = 2**63 - 1  # stores count in 64 bits


class Ticket(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the text says. The claim is made from it when it is asked and again when it is settled: it cannot differ."""

    version: Literal[1]
    handler: Name
    key: Parts
    lease_ms: Annotated[int, Meta(ge=int(LEASE_MIN_S * 1000), le=int(LEASE_MAX_S * 1000))]
    retention_ms: Annotated[int, Meta(ge=1000, le=int(RETRY_MAX_S * 1000))]
    fingerprint: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)] | None
    subject: Parts | None
    position: Annotated[int, Meta(ge=-POSITION_MAX, le=POSITION_MAX)]
    park: bool
    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | None
    # Of the grant; 0 before it. No lease has token 0: it stands for nobody, so nobody may come with it.
    token: Annotated[int, Meta(ge=1, le=TOKEN_MAX)] = 0
    attempt: Annotated[int, Meta(ge=1, le=TOKEN_MAX)] = 0

    def claim(self, tenant: str) -> Claim:
        """As an in-process handler of this name would make it: workers of all languages share keys."""
        namespace = Namespace(tenant, self.handler)
        parts = _parts("key", self.key)
        return Claim(
            digest=namespace.digest(parts),
            handler=_parts("handler", [self.handler])[0],
            text="|".join(filter(None, parts)),
            lease_ms=self.lease_ms,
            retention_ms=self.retention_ms,
            tenant=tenant,
            fingerprint=self.fingerprint,
            order=self._order(namespace),
            doubt_first=self.park,
        )

    def lease(self, tenant: str) -> Lease:
        return Lease(self.claim(tenant), self.token)

    def granted(self, granted: Granted) -> str:
        """The text of a lease that was given to this claim."""
        return _text(msgspec.structs.replace(self, token=granted.lease.token, attempt=granted.attempt))

    @property
    def expires_in(self) -> float:
        return self.lease_ms / 1000

    def _order(self, namespace: Namespace) -> Order | None:
        if self.subject is None:
            return None
        position = instant_us(self.position)
        assert position is not None
        return Order(namespace.digest(("subject", *_parts("order.subject", self.subject))), position)


def ticket_for(item: ClaimItem) -> Ticket:
    """What a claim asks for."""
    return Ticket(
        version=1,
        handler=item.handler,
        key=_listed(item.key),
        lease_ms=round(item.lease * 1000),
        retention_ms=round(item.retention * 1000),
        fingerprint=None if item.payload is None else content_digest(canonical(item.payload)),
        subject=None if item.order is None else _listed(item.order.subject),
        position=0 if item.order is None else int(item.order.position),
        park=item.park,
        max_attempts=None if item.max_attempts is None else int(item.max_attempts),
    )


def read_ticket(text: str) -> Ticket:
    """The ticket of a text that came from outside, or MalformedEvent. One ticket has one spelling."""
    try:
        packed = a2b_base64(text.translate(_TO_PLAIN) + "=" * (-len(text) % 4), strict_mode=True)
        ticket = _unpack(packed)
        if _text(ticket) == text:
            return ticket
    except (NotBase64, ValueError, msgspec.MsgspecError, RecursionError):
        pass  # whatever is wrong with it, there is one thing to do about it
    raise MalformedEvent("lease: this is no lease that was granted; hand it back exactly as it came")


_TO_PLAIN = str.maketrans("-_", "+/")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Ticket).decode


def _text(ticket: Ticket) -> str:
    return urlsafe_b64encode(_pack(ticket)).rstrip(b"=").decode()


def _listed(key: str | list[str]) -> list[str]:
    return [key] if isinstance(key, str) else key


def _parts(what: str, parts: list[str]) -> tuple[str, ...]:
    try:
        return checked(tuple(parts))
    except NoKey as error:
        raise NoKey(f"{what}: {error}") from None
