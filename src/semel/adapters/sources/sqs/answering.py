"""Our answers to the queue, ten in a request: deleted, given back, or put among the dead letters and then deleted.

An answer that does not arrive is no loss: the message is seen again when its visibility ends, and the ledger knows what
came of it. So each is tried until then, and never longer. Requests may be repeated after a lost reply; all but the
sending of a letter are idempotent, and a letter that is there twice is better than none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from semel.adapters.sources.sqs.client import EXPIRED, Client, Failed, plain
from semel.adapters.sources.sqs.grouping import ENTRIES_MAX, Grouped
from semel.adapters.sources.sqs.holding import Hand, Held
from semel.adapters.sources.sqs.letters import LETTER_MAX_BYTES, Letter
from semel.adapters.sources.sqs.steps import Observer, Step
from semel.values.log import log

E = TypeVar("E")

HOUR_S = 3600
VISIBILITY_MAX_S = 12 * HOUR_S  # from the receipt, however often it is extended
LANES = 8  # requests of one kind at a time
LETTER_TRIES = 5  # then the message goes back, and comes again
LETTER_LATER_S = 30.0


@dataclass
class Counts:
    """What has happened so far. Each number only grows."""

    received: int = 0
    deleted: int = 0
    returned: int = 0
    letters: int = 0
    left: int = 0  # rejected, and left to the queue's own redrive policy
    extended: int = 0
    lost: int = 0  # not extended in time, or for 12 hours: others get them
    expired: int = 0  # answers that came too late: the message comes again
    failures: int = 0  # requests, or entries of one, that were refused or lost


class Answers:
    """Tells the queue what becomes of what we hold. Nothing here waits for the network, except `drained`."""

    def __init__(
        self,
        client: Client,
        hand: Hand,
        queue: str,
        dead_letters: str,
        *,
        visibility_s: int,
        clock: Callable[[], float],
        random: Callable[[], float],
        observe: Observer,
        counts: Counts,
        letter_max: int,
    ) -> None:
        self.counts = counts
        self._letter_max = letter_max
        self._client = client
        self._hand = hand
        self._queue = queue
        self._dead_letters = dead_letters
        self._visibility_s = visibility_s
        self._clock = clock
        self._observe = observe
        self._deletes: Grouped[Held] = Grouped(self._delete, LANES, random)
        self._returns: Grouped[tuple[Held, int]] = Grouped(self._return, LANES, random)
        self._letters: Grouped[Letter] = Grouped(
            self._send, LANES, random, lambda letter: letter.size, LETTER_MAX_BYTES
        )
        self._quiet = asyncio.Event()  # no extension is under way
        self._quiet.set()

    # ---------------------------------------------------------------------------------------------- what we answer

    def delete(self, held: Held) -> None:
        """It is settled. What waits behind it in its group is ready."""
        held.given_up = True
        self._deletes.add(held)
        self._hand.goes_on(held)

    def give_back(self, held: Held, after_s: float) -> None:
        """The queue shows it again after this time, 12 hours after its receipt at the latest. What waits behind it in
        its group goes back too: a group is stopped by the first that does not succeed."""
        held.given_up = True
        self._returns.add((held, self._shown_after(held, after_s)))
        self.give_all_back(self._hand.stops(held))

    def give_all_back(self, unused: Sequence[Held]) -> None:
        """At once, in order. Nobody has begun with them."""
        for held in unused:
            held.given_up = True
            self._returns.add((held, 0))

    def bury(self, held: Held, reason: str) -> None:
        """Make it a dead letter, then delete it. Its group waits for that."""
        if self._dead_letters:
            to_fifo = self._dead_letters.endswith(".fifo")
            self._letters.add(Letter(held, reason, self._queue, to_fifo, self._letter_max))
            return
        log.warning("message_left_to_redrive", source=self._queue, message_id=held.id)
        self.counts.left += 1
        rest = self._hand.stops(held)
        self._hand.forget(held)
        self.give_all_back(rest)

    async def drained(self) -> None:
        for _ in range(2):  # letters become deletions
            for outgoing in (self._letters, self._deletes, self._returns):
                await outgoing.drained()

    def cancel(self) -> None:
        for outgoing in (self._letters, self._deletes, self._returns):
            outgoing.cancel()

    # --------------------------------------------------------------------------------------------------- extending

    async def extend(self) -> None:
        """The visibility of everything in hand of which a third has passed: as the ledger's leases are renewed."""
        now = self._clock()
        due = [held for held in self._hand.kept if held.visible_at - now <= self._visibility_s * 2 / 3]
        for held in due:
            if self._remaining(held) < 1:
                self._let_go(held, "it was received 12 hours ago, and cannot be kept longer")
        due = [held for held in due if not held.given_up]
        chunks = [due[at : at + ENTRIES_MAX] for at in range(0, len(due), ENTRIES_MAX)]
        self._quiet.clear()
        try:
            await asyncio.gather(*[self._extend(chunk) for chunk in chunks])
        finally:
            self._quiet.set()

    async def _extend(self, some: list[Held]) -> None:
        asked_at = self._clock()
        wanted = [self._shown_after(held, self._visibility_s) for held in some]
        failed = await self._change(list(zip(some, wanted, strict=True)))
        for held, seconds in zip(some, wanted, strict=True):
            failure = failed.get(held)
            if failure is None:
                held.visible_at = asked_at + seconds
                self.counts.extended += 1
            elif failure.code in EXPIRED:
                self._let_go(held, str(failure))

    def _let_go(self, held: Held, why: str) -> None:
        self.counts.lost += 1
        log.warning("message_redelivered", source=self._queue, message_id=held.id, reason=why)
        self.give_all_back(self._hand.lost(held))

    # ---------------------------------------------------------------------------------------------------- sending

    async def _delete(self, some: list[Held]) -> list[Held]:
        self._observe(Step.BEFORE_DELETE)
        entries = [{"Id": str(at), "ReceiptHandle": held.receipt} for at, held in enumerate(some)]
        failed = await self._ask("delete_message_batch", self._queue, entries, some)
        self._observe(Step.AFTER_DELETE)
        again = []
        for held in some:
            failure = failed.get(held)
            if failure is None:
                self.counts.deleted += 1
            elif self._is_worth_another_try(held, failure):
                again.append(held)
                continue
            self._hand.forget(held)
        return again

    async def _return(self, some: list[tuple[Held, int]]) -> list[tuple[Held, int]]:
        await self._quiet.wait()  # an extension that is under way must not arrive after this
        self._observe(Step.BEFORE_RETURN)
        failed = await self._change(some)
        self._observe(Step.AFTER_RETURN)
        again = []
        for held, seconds in some:
            failure = failed.get(held)
            if failure is None:
                self.counts.returned += 1
            elif self._is_worth_another_try(held, failure):
                again.append((held, seconds))
                continue
            self._hand.forget(held)
        return again

    async def _send(self, letters: list[Letter]) -> list[Letter]:
        self._observe(Step.BEFORE_LETTER)
        entries = [{"Id": str(at), **letter.entry} for at, letter in enumerate(letters)]
        failed = await self._ask("send_message_batch", self._dead_letters, entries, letters)
        self._observe(Step.AFTER_LETTER)
        again = []
        for letter in letters:
            letter.tries += 1
            if letter not in failed:
                self.counts.letters += 1
                log.warning("message_dead_lettered", source=self._queue, message_id=letter.held.id)
                self.delete(letter.held)
            elif letter.tries < LETTER_TRIES:
                again.append(letter)
            else:
                fields = {"message_id": letter.held.id, "dead_letters": self._dead_letters}
                log.error("message_dead_letter_failed", source=self._queue, **fields, error=str(failed[letter]))
                self.give_back(letter.held, LETTER_LATER_S)
        return again

    async def _change(self, some: Sequence[tuple[Held, int]]) -> dict[Held, Failed]:
        entries = [
            {"Id": str(at), "ReceiptHandle": held.receipt, "VisibilityTimeout": seconds}
            for at, (held, seconds) in enumerate(some)
        ]
        asked = [held for held, _ in some]
        return await self._ask("change_message_visibility_batch", self._queue, entries, asked)

    async def _ask(self, operation: str, queue: str, entries: list[dict[str, Any]], some: list[E]) -> dict[E, Failed]:
        """What failed, and how, by entry. A request that fails as a whole fails for each of them."""
        try:
            answer = await self._client.ask(operation, QueueUrl=queue, Entries=entries)
        except Failed as failure:
            self.counts.failures += 1
            log.warning("queue_call_failed", source=queue, call=operation, messages=len(some), error=str(failure))
            return dict.fromkeys(some, failure)
        failed = {some[int(entry["Id"])]: _failure(entry) for entry in answer.get("Failed", ())}
        done = {int(entry["Id"]) for entry in answer.get("Successful", ())}
        for at, one in enumerate(some):
            if at not in done and one not in failed:
                failed[one] = Failed("no answer", f"{operation} said nothing of this entry", False)
        self.counts.failures += len(failed)
        return failed

    def _is_worth_another_try(self, held: Held, failure: Failed) -> bool:
        """Not when its receipt has expired, by the queue's word or by our clock: then it comes again."""
        if failure.code not in EXPIRED and self._clock() < held.visible_at:
            return True
        self.counts.expired += 1
        log.info("message_answered_late", source=self._queue, message_id=held.id, error=str(failure))
        return False

    def _shown_after(self, held: Held, after_s: float) -> int:
        """Whole seconds, not sooner than asked for: before it is due it would only be Busy."""
        return max(0, min(math.ceil(after_s), self._remaining(held)))

    def _remaining(self, held: Held) -> int:
        return math.floor(held.received_at + VISIBILITY_MAX_S - self._clock())


def _failure(entry: Mapping[str, Any]) -> Failed:
    return Failed(plain(entry.get("Code")), str(entry.get("Message", ""))[:300], bool(entry.get("SenderFault")))
