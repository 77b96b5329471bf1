"""Purge: walks all names, a bounded step at a time, and goes on where it stopped."""

from __future__ import annotations

from functools import partial

from semel.adapters.ledgers.redis.catalog import Reader
from semel.adapters.ledgers.redis.codec import Times
from semel.adapters.ledgers.redis.dispatch import Call, Dispatch
from semel.adapters.ledgers.redis.placement import Places
from semel.adapters.ledgers.redis.resp import script_call
from semel.adapters.ledgers.redis.scripts import SCRIPTS
from semel.adapters.ledgers.redis.topology import Topology

LOOKED_AT = 10  # names for each key that may be forgotten, and at least this many:
LEAST = 10_000
PAGE = 200


class Sweep:
    def __init__(
        self, reader: Reader, topology: Topology, dispatch: Dispatch, places: Places, *, thorough: bool
    ) -> None:
        """`thorough`: the server's own expiry does not help, so that all names are walked."""
        self._thorough = thorough
        self._reader = reader
        self._topology = topology
        self._dispatch = dispatch
        self._places = places
        self._node = 0  # which master, and how far it has been walked
        self._cursor = b"0"

    async def purge(self, limit: int, times: Times) -> int:
        gone = looked = 0
        masters = await self._topology.all_masters()
        self._node = self._node if self._node < len(masters) else 0
        while gone < limit and (self._thorough or looked < max(LOOKED_AT * limit, LEAST)):
            cursor, names = await self._reader.names(masters[self._node], self._cursor, b"[ksl]", PAGE)
            looked += PAGE
            gone += await self._forget(names, limit - gone, times)
            if gone >= limit:
                break  # more of this page may be over: the next purge begins with it
            self._cursor = cursor
            if cursor == b"0":
                self._node += 1
                if self._node >= len(masters):
                    self._node = 0
                    break
        return gone

    async def _forget(self, names: list[bytes], limit: int, times: Times) -> int:
        """A key at a time where only few may still go: a script takes all that are over."""
        gone = 0
        by_bucket: dict[int, list[bytes]] = {}
        for name in names:
            bucket = self._places.bucket_of_name(name)
            if bucket is not None:
                by_bucket.setdefault(bucket if self._places.in_cluster else 0, []).append(name)
        for bucket, some in by_bucket.items():
            while some and gone < limit:
                page, some = some[: limit - gone], some[limit - gone :]
                kind_at = b"%d" % (self._places.kind_at + 1)
                call = Call(bucket, partial(script_call, SCRIPTS["purge"].sha, page, (times.now, kind_at), ()))
                await self._dispatch.run([call])
                gone += call.reply
        return gone
