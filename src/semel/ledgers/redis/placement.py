"""Names of Redis keys, with the hash tags that place related keys in one slot of a Cluster.

There are sixteen tags, spread evenly over the slots. They are part of the data format. A key's tag is derived from its
digest ("spread"), or from its tenant and handler ("together": every key of a handler is in one slot, which aliases and
order require in a Cluster). On a single server the names are the same, but the tags have no effect.
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

RECORD, SUBJECT, DEAD_LETTERS = b"k", b"s", b"l"
SPREAD, TOGETHER = b"spread", b"together"


class KeyNames:
    """The names of all keys under one prefix."""

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

    def placement_for(self, handler: str) -> bytes:
        return TOGETHER if self.is_together(handler) else SPREAD

    @property
    def spreads_all(self) -> bool:
        """True in most deployments: a key's tag depends on its digest alone."""
        return not self._together

    def bucket(self, claim: Claim) -> int:
        """The tag of the claim's key. In a Cluster, aliases and subject have the same tag."""
        if self.is_together(claim.handler):
            return self._bucket_of(claim.tenant, claim.handler)
        if self.in_cluster and (claim.aliases or claim.order is not None):
            raise ConfigError(
                f"handler {claim.handler!r} has several keys (keys.tiers) or an order, and in Redis Cluster they must "
                f"be in one slot: add together={claim.handler} to the ledger's URL (or together=*)"
            )
        return claim.digest[0] % BUCKETS

    def head(self, claim: Claim, digest: bytes) -> bytes:
        """Prefix and tag of the names of a digest that belongs to this claim."""
        if self.is_together(claim.handler):
            return self.heads[self._bucket_of(claim.tenant, claim.handler)]
        return self.heads[digest[0] % BUCKETS]

    def record(self, claim: Claim, digest: bytes) -> bytes:
        return self.head(claim, digest) + RECORD + digest

    def alias_records(self, handler: str, bucket: int, digests: Iterable[bytes]) -> list[bytes]:
        """Names of the records of a dead letter's aliases."""
        same_tag = self.in_cluster or self.is_together(handler)
        return [self.heads[bucket if same_tag else digest[0] % BUCKETS] + RECORD + digest for digest in digests]

    def candidate_names(self, kind: bytes, digest: bytes) -> list[bytes]:
        """The names that a digest may have, one per tag, for lookups without the handler."""
        return [head + kind + digest for head in self.heads]

    def pattern(self, kind: bytes) -> bytes:
        """Pattern for SCAN. It may match other names, which `bucket_of_name` rejects."""
        escaped = "".join(f"\\{char}" if char in "*?[]^\\-" else char for char in self.prefix)
        return escaped.encode() + b"{??}" + kind + b"*"

    def bucket_of_name(self, name: bytes) -> int | None:
        """The tag of a name that SCAN found, or None if it is not a name of this ledger."""
        head = name[: self.kind_at]
        return self.heads.index(head) if head in self.heads else None

    def _bucket_of(self, tenant: str, handler: str) -> int:
        bucket = self._buckets.get((tenant, handler))
        if bucket is None:
            identity = f"{len(tenant)}:{tenant}{handler}".encode(errors="surrogatepass")
            bucket = blake2b(identity, digest_size=2).digest()[0] % BUCKETS
            self._buckets[tenant, handler] = bucket
        return bucket
