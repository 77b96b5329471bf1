"""Laws of a TransactionalLedger: the handler's writes and the settle commit together or not at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from semel.ports import TransactionalLedger
from semel.testing.harness import Caller, TransactionHarness
from semel.testing.laws.binding import Binding
from semel.values.claim import Busy, Claim, Granted, Settled, Settlement
from semel.values.errors import TransactionOver
from semel.values.outcome import Done, Ending, Reject, Retry, Uncertain

NOT_WAITED_FOR_S = 20.0  # shorter than the lease of a law


class TransactionLaws(Binding):
    """Bound in addition to LedgerLaws, with a TransactionHarness."""

    @pytest.fixture
    def harness(self) -> TransactionHarness:
        raise NotImplementedError("bind the laws to a ledger: override the fixture `harness`")

    def test_writes_and_settle_commit_together(self, harness: TransactionHarness, ledger: Caller) -> None:
        claim = harness.claim("a")
        assert ledger.run(_handle(harness, ledger, ledger.grant(claim), Done(b"1"), ["one", "two"])) is True
        assert harness.written() == ["one", "two"]
        assert ledger.is_done(claim, b"1")

    @pytest.mark.parametrize(
        "ending", [Reject("no"), Uncertain("?"), Retry(60)], ids=lambda ending: type(ending).__name__.lower()
    )
    def test_every_ending_can_be_settled_in_a_transaction(
        self, harness: TransactionHarness, ledger: Caller, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        assert ledger.run(_handle(harness, ledger, ledger.grant(claim), ending, ["one"])) is True
        assert harness.written() == ["one"]
        verdict = ledger.claim(claim)
        if isinstance(ending, Retry):
            assert isinstance(verdict, Busy)
        else:
            assert isinstance(verdict, Settled)
            assert verdict.outcome == ending

    def test_nothing_is_seen_before_the_block_has_ended(self, harness: TransactionHarness, ledger: Caller) -> None:
        granted = ledger.grant(harness.claim("a"))

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "one")
                assert harness.written() == []
                assert await transaction.settle(Settlement(granted.lease, Done())) is True
                assert harness.written() == []
            assert harness.written() == ["one"]

        ledger.run(handle())

    def test_an_exception_rolls_back_the_writes(self, harness: TransactionHarness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "one")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ledger.run(handle())
        _nothing_happened(harness, ledger, claim, granted)

    def test_an_exception_rolls_back_the_settle_too(self, harness: TransactionHarness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "one")
                assert await transaction.settle(Settlement(granted.lease, Done())) is True
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ledger.run(handle())
        _nothing_happened(harness, ledger, claim, granted)

    def test_a_cancelled_handler_leaves_nothing(self, harness: TransactionHarness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)

        async def handle(began: asyncio.Event) -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "one")
                began.set()
                await asyncio.sleep(3600)

        async def cancel() -> None:
            began = asyncio.Event()
            task = asyncio.create_task(handle(began))
            await began.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()

        ledger.run(cancel())
        _nothing_happened(harness, ledger, claim, granted)

    def test_without_a_settle_nothing_is_kept(self, harness: TransactionHarness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "one")

        ledger.run(handle())
        _nothing_happened(harness, ledger, claim, granted)

    def test_a_lost_lease_rolls_back_the_writes(
        self, harness: TransactionHarness, ledger: Caller, other: Caller
    ) -> None:
        claim = harness.claim("a")
        lost = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        current = other.grant(claim)
        assert ledger.run(_handle(harness, ledger, lost, Done(b"late"), ["late"])) is False
        _nothing_happened(harness, other, claim, current)
        other.settle(current, Done(b"1"))
        assert other.is_done(claim, b"1")

    def test_a_lapsed_lease_commits_before_another_claim(self, harness: TransactionHarness, ledger: Caller) -> None:
        granted = ledger.grant(harness.claim("a"))
        harness.advance(harness.lease_ms)
        assert ledger.run(_handle(harness, ledger, granted, Done(), ["one"])) is True
        assert harness.written() == ["one"]

    def test_the_handle_refuses_once_the_block_has_ended(self, harness: TransactionHarness, ledger: Caller) -> None:
        granted, later = ledger.grant(harness.claim("a")), ledger.grant(harness.claim("b"))

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                assert await transaction.settle(Settlement(granted.lease, Done())) is True
            with pytest.raises(Exception, match=r".+"):
                await harness.write(transaction.handle, "after the end")
            async with _of(ledger).transaction(later.lease) as second:
                with pytest.raises(Exception, match=r".+"):
                    await harness.write(transaction.handle, "into another's transaction")
                await harness.write(second.handle, "its own")
                assert await second.settle(Settlement(later.lease, Done())) is True

        ledger.run(handle())
        assert harness.written() == ["its own"]

    def test_an_abandoned_transaction_keeps_nothing_and_blocks_no_other(
        self, harness: TransactionHarness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        granted, later = ledger.grant(claim), ledger.grant(harness.claim("b"))

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "undone")
                transaction.abandon()
                with pytest.raises(TransactionOver):
                    await harness.write(transaction.handle, "after the end")
                async with asyncio.timeout(NOT_WAITED_FOR_S), _of(ledger).transaction(later.lease) as second:
                    await harness.write(second.handle, "its own")
                    assert await second.settle(Settlement(later.lease, Done())) is True
                with pytest.raises(TransactionOver):
                    await transaction.settle(Settlement(granted.lease, Done()))

        ledger.run(handle())
        assert harness.written() == ["its own"]
        assert isinstance(ledger.claim(claim), Busy), "its lease is unchanged"

    def test_a_settled_transaction_cannot_be_abandoned(self, harness: TransactionHarness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)

        async def handle() -> None:
            async with _of(ledger).transaction(granted.lease) as transaction:
                await harness.write(transaction.handle, "one")
                assert await transaction.settle(Settlement(granted.lease, Done(b"1"))) is True
                transaction.abandon()
                await asyncio.sleep(0.05)  # a rollback by mistake would happen now

        ledger.run(handle())
        assert harness.written() == ["one"]
        assert ledger.is_done(claim, b"1")

    def test_another_lease_cannot_be_settled_in_it(self, harness: TransactionHarness, ledger: Caller) -> None:
        mine, foreign = ledger.grant(harness.claim("a")), ledger.grant(harness.claim("b"))

        async def handle() -> None:
            async with _of(ledger).transaction(mine.lease) as transaction:
                await harness.write(transaction.handle, "one")
                assert not await transaction.settle(Settlement(foreign.lease, Done()))

        with suppress(Exception):  # False or an error: it must not commit
            ledger.run(handle())
        _nothing_happened(harness, ledger, harness.claim("a"), mine)
        assert isinstance(ledger.claim(harness.claim("b")), Busy)

    # -------------------------------------------------------------------------------------------------- meddling

    @pytest.mark.parametrize("careless", [False, True], ids=["errors stop the handler", "errors are swallowed"])
    @pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
    def test_a_handler_that_meddles_with_its_transaction_does_not_break_it(
        self, harness: TransactionHarness, ledger: Caller, beside: bool, careless: bool
    ) -> None:
        """The settle and the writes are committed together or not at all, whatever the handler does."""
        assert harness.meddle
        for name in harness.meddle:
            claim = harness.claim(name)
            granted = ledger.grant(claim)
            neighbours = [ledger.grant(harness.claim(f"{name} beside {at}")) for at in range(6)] if beside else []
            kept, answers = ledger.run(self._meddle(harness, ledger, name, granted, neighbours, careless))
            written = set(harness.written())
            settled = ledger.claim(claim) == Settled(Done(name.encode()))
            assert kept == settled, f"{name}: the answer of the settle matches the ledger"
            assert (f"{name} before" in written) == settled, f"{name}: writes without settle, or settle without writes"
            assert (f"{name} after" not in written) or settled, f"{name}: writes without settle"
            for one, answer in zip(neighbours, answers, strict=True):
                done = ledger.claim(one.lease.claim) == Settled(Done())
                assert done == (answer is True), f"{name}: the answer to a neighbour matches the ledger"
            for at, one in enumerate(neighbours[:4]):
                assert (one.lease.claim.text in written) == (answers[at] is True), f"{name}: a neighbour's writes"

    async def _meddle(
        self,
        harness: TransactionHarness,
        ledger: Caller,
        name: str,
        granted: Granted,
        neighbours: list[Granted],
        careless: bool,
    ) -> tuple[bool, list[object]]:
        def runs(some: list[Granted]) -> list[asyncio.Task[bool]]:
            handlers = [_handle(harness, ledger, one, Done(), [one.lease.claim.text]) for one in some]
            return [asyncio.create_task(handler) for handler in handlers]

        before = runs(neighbours[:2])
        settles = [
            asyncio.ensure_future(ledger.ledger.settle([Settlement(one.lease, Done())])) for one in neighbours[4:]
        ]
        kept = False
        after: list[asyncio.Task[bool]] = []
        await asyncio.sleep(0)
        with suppress(Exception):
            async with _of(ledger).transaction(granted.lease) as transaction:
                after = runs(neighbours[2:4])
                await harness.write(transaction.handle, f"{name} before")
                try:
                    await harness.meddle[name](transaction.handle)
                    await harness.write(transaction.handle, f"{name} after")
                except Exception:
                    if not careless:
                        raise
                if careless:
                    with suppress(Exception):
                        await harness.write(transaction.handle, f"{name} after")
                settlement = Settlement(granted.lease, Done(name.encode()))
                settled = await transaction.settle(settlement)
            kept = settled
        answers = await asyncio.gather(*before, *after, *settles, return_exceptions=True)
        return kept, [answer[0] if isinstance(answer, list) else answer for answer in answers]

    # ----------------------------------------------------------------------------------------------- concurrency

    def test_a_failing_transaction_takes_no_others_along(self, harness: TransactionHarness, ledger: Caller) -> None:
        claims = harness.claims(12)
        granted = [ledger.grant(claim) for claim in claims]

        async def one(at: int) -> bool:
            async with _of(ledger).transaction(granted[at].lease) as transaction:
                await harness.write(transaction.handle, f"{at:02}")
                await asyncio.sleep(0)
                if at % 4 == 1:
                    raise ZeroDivisionError
                if at % 4 == 2:
                    return False
                return await transaction.settle(Settlement(granted[at].lease, Done(b"%d" % at)))

        async def all_at_once() -> list[bool | BaseException]:
            return await asyncio.gather(*[one(at) for at in range(12)], return_exceptions=True)

        answers = ledger.run(all_at_once())
        good = [at for at in range(12) if at % 4 in (0, 3)]
        assert [at for at in range(12) if answers[at] is True] == good
        assert all(isinstance(answers[at], ZeroDivisionError) for at in range(1, 12, 4))
        assert sorted(harness.written()) == [f"{at:02}" for at in good]
        for at, claim in enumerate(claims):
            assert isinstance(ledger.claim(claim), Settled if at in good else Busy)

    def test_claims_and_settles_beside_a_transaction_are_answered(
        self, harness: TransactionHarness, ledger: Caller
    ) -> None:
        granted, beside = ledger.grant(harness.claim("a")), ledger.grant(harness.claim("beside"))

        async def together() -> None:
            writing = asyncio.create_task(_handle(harness, ledger, granted, Done(b"1"), ["one", "two"]))
            asked = [asyncio.create_task(_claim(ledger, harness.claim(f"new {at}"))) for at in range(20)]
            settle = asyncio.ensure_future(ledger.ledger.settle([Settlement(beside.lease, Done(b"2"))]))
            assert await writing is True
            assert all([isinstance(await verdict, Granted) for verdict in asked])
            assert await settle == [True]

        ledger.run(together())
        assert harness.written() == ["one", "two"]
        assert ledger.is_done(harness.claim("a"), b"1")
        assert ledger.is_done(harness.claim("beside"), b"2")

    def test_a_claim_of_the_same_key_beside_its_transaction_gets_a_verdict(
        self, harness: TransactionHarness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)

        async def together() -> list[object]:
            writing = asyncio.create_task(_handle(harness, ledger, granted, Done(b"1"), ["one"]))
            verdicts = [await _claim(ledger, claim) for _ in range(3)]
            assert await writing is True
            return [*verdicts, await _claim(ledger, claim)]

        *beside, after = ledger.run(together())
        assert after == Settled(Done(b"1"))
        assert all(isinstance(verdict, Busy) or verdict == after for verdict in beside)

    @pytest.mark.parametrize("results", [(b"1", b"2"), (b"1", b"1")], ids=["other", "same"])
    def test_of_two_transactions_under_one_lease_one_commits(
        self, harness: TransactionHarness, ledger: Caller, results: tuple[bytes, bytes]
    ) -> None:
        granted = ledger.grant(harness.claim("a"))

        async def together() -> list[bool | BaseException]:
            both = [_handle(harness, ledger, granted, Done(result), [f"{at}"]) for at, result in enumerate(results)]
            return await asyncio.gather(*both, return_exceptions=True)

        answers = ledger.run(together())
        assert answers.count(True) == 1
        assert harness.written() == [str(answers.index(True))]
        late = ledger.run(_handle(harness, ledger, granted, Done(b"1"), ["late"]))
        assert late is False, "its writes would be a second effect"
        assert len(harness.written()) == 1


def _of(ledger: Caller) -> TransactionalLedger:
    assert isinstance(ledger.ledger, TransactionalLedger)
    return ledger.ledger


async def _claim(ledger: Caller, claim: Claim) -> object:
    (verdict,) = await ledger.ledger.claim([claim])
    return verdict


async def _handle(
    harness: TransactionHarness, ledger: Caller, granted: Granted, ending: Ending, texts: list[str]
) -> bool:
    """Run a handler: its writes, then the settle. Returns True if the settle was committed."""
    async with _of(ledger).transaction(granted.lease) as transaction:
        for text in texts:
            await harness.write(transaction.handle, text)
            await asyncio.sleep(0)
        return await transaction.settle(Settlement(granted.lease, ending))


def _nothing_happened(harness: TransactionHarness, ledger: Caller, claim: Claim, granted: Granted) -> None:
    assert harness.written() == []
    assert isinstance(ledger.claim(claim), Busy)
    assert ledger.renew(granted.lease) == [True]
