"""Where keys live: names, and the hash tags that bring what is decided together into one slot of a Cluster.

There are sixteen tags, spread evenly over the slots, and they are part of the data format. A key's tag comes from its
digest ("spread"), or from its tenant and handler ("together": every key of a handler in one slot, which aliases and
order need in a Cluster). On one node the names are the same, and nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from semel.values.claim import Claim
from semel.values.errors import ConfigError

# The slot of the tag at i is near i x 1024 + 512: three masters or sixteen get equal shares.
TAGS = ("18", "5x", "dj", "3r", "d2", "pv", "uh", "iy", "ly", "h9", "uv", "q6", "9s", "5f", "dt", "ha")
SLOTS = (511, 1535, 2562, 3603, 4607, 5640, 6658, 7692, 8697, 9721, 10749, 11773, 12793, 13824, 14845, 15876)
BUCKETS = len(TAGS)

RECORD, SUBJECT, LETTERS = b"k", b"s", b"l"
SPREAD, TOGETHER = b"spread", b"together"


class Places:
    """Names of keys under one prefix."""

    def __init__(self, prefix: str, together: Iterable[str], in_cluster: bool) -> None:
        self.prefix = prefix
        self.in_cluster = in_cluster
        self._all_together = "*" in together
        self._together = frozenset(together)
        heads = [f"{prefix}{{{tag}}}".encode() for tag in TAGS]
        self.heads = heads
        self.kind_at = len(heads[0])
        self.counters = [head + b"clock" for head in heads]
        self.counter = f"{prefix}:clock".encode()  # one node has one counter
        self.dead = [head + b"dead" for head in heads]
        self.uncertain = [head + b"uncertain" for head in heads]
        self.placement = heads[0] + b"placement"
        self.spread_records = [heads[first % BUCKETS] + RECORD for first in range(256)]  # by a digest's first byte
        self._buckets: dict[tuple[str, str], int] = {}

    def is_together(self, handler: str) -> bool:
        return self._all_together or handler in self._together

    def placement_of(self, handler: str) -> bytes:
        return TOGETHER if self.is_together(handler) else SPREAD

    @property
    def spreads_all(self) -> bool:
        """Most deployments: a key's place is told by its digest alone."""
        return not self._together

    def bucket(self, claim: Claim) -> int:
        """Of the claim's own key; in a Cluster also of all that is decided with it."""
        if self.is_together(claim.handler):
            return self._bucket_of(claim.tenant, claim.handler)
        if self.in_cluster and (claim.aliases or claim.order is not None):
            raise ConfigError(
                f"handler {claim.handler!r} has several keys (keys.tiers) or an order, and in Redis Cluster they must "
                f"be in one slot: add together={claim.handler} to the ledger's URL (or together=*)"
            )
        return claim.digest[0] % BUCKETS

    def head(self, claim: Claim, digest: bytes) -> bytes:
        """What the names of a key that belongs to this claim begin with."""
        if self.is_together(claim.handler):
            return self.heads[self._bucket_of(claim.tenant, claim.handler)]
        return self.heads[digest[0] % BUCKETS]

    def record(self, claim: Claim, digest: bytes) -> bytes:
        return self.head(claim, digest) + RECORD + digest

    def beside(self, handler: str, bucket: int, digests: Iterable[bytes]) -> list[bytes]:
        """The records of a letter's aliases."""
        here = self.in_cluster or self.is_together(handler)
        return [self.heads[bucket if here else digest[0] % BUCKETS] + RECORD + digest for digest in digests]

    def everywhere(self, kind: bytes, digest: bytes) -> list[bytes]:
        """The names that a digest may have, one for each tag: whoever knows a digest need not know its handler."""
        return [head + kind + digest for head in self.heads]

    def pattern(self, kind: bytes) -> bytes:
        """For SCAN, which may find more: names are checked by `bucket_of_name`."""
        escaped = "".join(f"\\{letter}" if letter in "*?[]^\\-" else letter for letter in self.prefix)
        return escaped.encode() + b"{??}" + kind + b"*"

    def bucket_of_name(self, name: bytes) -> int | None:
        """Which tag a name has that SCAN found; None: it is none of ours."""
        head = name[: self.kind_at]
        return self.heads.index(head) if head in self.heads else None

    def _bucket_of(self, tenant: str, handler: str) -> int:
        bucket = self._buckets.get((tenant, handler))
        if bucket is None:
            told = f"{len(tenant)}:{tenant}{handler}".encode(errors="surrogatepass")
            bucket = blake2b(told, digest_size=2).digest()[0] % BUCKETS
            self._buckets[tenant, handler] = bucket
        return bucket
