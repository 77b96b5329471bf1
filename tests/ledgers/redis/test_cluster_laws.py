"""The contract of a ledger, bound to a Valkey Cluster of six nodes: handlers together in a slot, and keys spread."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.facts import rendered
from tests.ledgers.redis.stores import harness_on, with_options

from semel.ledgers.redis import RedisLedger
from semel.ports import Ledger
from semel.testing.bystanders import Bystanders, watch
from semel.testing.harness import Caller, Harness
from semel.testing.ledger_laws import LedgerLaws
from semel.values.claim import Granted
from semel.values.errors import ConfigError
from semel.values.outcome import Done, Release

SEVERAL_KEYS = ("aliases=", "subject=", "_at(")  # what a law's text has when its claims need one slot


class TestTogether(LedgerLaws):
    @pytest.fixture
    def harness(self, cluster_url: str) -> Harness:
        return harness_on(cluster_url, together="*")


@pytest.mark.long
class TestSpread(LedgerLaws):
    """All laws whose claims have one key. What the others get is the business of `test_what_needs_one_slot…`."""

    @pytest.fixture
    def harness(self, cluster_url: str) -> Harness:
        return harness_on(cluster_url)

    def watch_bystanders(
        self, harness: Harness, open_ledger: Callable[[], Ledger], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        return watch(Bystanders(harness, single_keys=True), partial(Caller, open_ledger))

    def test_tokens_of_a_key_grow_and_none_is_given_twice(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        tokens: dict[str, list[int]] = {}
        for turn in range(6):
            for at in range(20):
                caller = (ledger, other)[(at + turn) % 2]
                granted = caller.grant(harness.claim(f"key {at}"))
                tokens.setdefault(f"key {at}", []).append(granted.lease.token)
                assert caller.settle(granted, Release())
        assert all(some == sorted(set(some)) for some in tokens.values())
        assert len({token for some in tokens.values() for token in some}) == 120, "and no token is given twice"

    def test_a_handler_that_needs_one_slot_is_refused_with_a_remedy(self, harness: Harness, ledger: Caller) -> None:
        for claim in (harness.claim("a", aliases=["x"]), harness.claim("a", subject="s", position=1)):
            with pytest.raises(ConfigError, match="together=on_event"):
                ledger.claim(claim)
        assert isinstance(ledger.claim(harness.claim("a")), Granted)

    def test_doctor_reports_keys_with_another_placement(self, harness: Harness, cluster_url: str) -> None:
        url = with_options(cluster_url, prefix=f"d{harness.namespace}", timeout="30")
        with Caller(lambda: RedisLedger.from_url(url)) as before:
            before.grant(harness.claim("a"))
            assert "placement" not in _diagnosed(before)
        with Caller(lambda: RedisLedger.from_url(f"{url}&together=*")) as after:
            assert "together=on_event" in _diagnosed(after)["placement"]

    def test_most_laws_are_bound(self) -> None:
        assert sum(callable(getattr(self, name)) for name in dir(self) if name.startswith("test_")) > 70

    def test_a_batch_is_spread_over_the_masters(self, harness: Harness, ledger: Caller) -> None:
        granted = [verdict for verdict in ledger.claim_all(harness.claims(200)) if isinstance(verdict, Granted)]
        assert len({one.lease.token % 16 for one in granted}) == 16, "a token tells its tag"
        assert all(ledger.settle(one, Done(b"1")) for one in granted[:20])


def _diagnosed(caller: Caller) -> dict[str, str]:
    return rendered(caller.run(caller.ledger.diagnose()))  # type: ignore[attr-defined]


for _name, _law in inspect.getmembers(LedgerLaws, inspect.isfunction):
    if any(word in inspect.getsource(_law) for word in SEVERAL_KEYS) and _name.startswith("test_"):
        setattr(TestSpread, _name, None)
