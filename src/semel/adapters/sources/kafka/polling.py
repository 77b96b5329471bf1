"""The thread that owns the consumer: librdkafka's calls block, and everything it has to say it says during a poll.

It polls all the time, also while nothing may come in, so that the group never takes us for dead: then partitions are
paused. Short fullness is waited out instead, because a pause throws away what was fetched in advance.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from semel.adapters.sources.kafka.counting import Counts
from semel.adapters.sources.kafka.holding import Hand
from semel.adapters.sources.kafka.lanes import Held, Lane
from semel.adapters.sources.kafka.options import Options
from semel.adapters.sources.kafka.steps import Observer, Step
from semel.adapters.sources.kafka.telling import REFUSALS, Complaints, Quiet, driver
from semel.values.errors import ConfigError, SemelError
from semel.values.log import log

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

POLL_S = 0.05  # the longest that a commit or the end has to wait for a poll
FEW_S = 0.05  # after which a few places are enough
FULL_S = 1.0  # of fullness, then partitions are paused; a fraction of any sensible max.poll.interval.ms
BATCH = 1_000  # messages of one call
COMMIT_EVERY_S = 0.25  # four requests a second, whatever the traffic
COMMIT_LOST_S = 30.0  # a commit that nothing is heard of is asked for again
LAST_COMMIT_S = 5.0  # at the end, for a rebalance to be over
METADATA_S = 1.0  # for one question at the start


class Poller:
    """One consumer of the group. `tell` calls a function on the event loop."""

    def __init__(
        self,
        options: Options,
        topics: Sequence[str],
        group: str,
        dead_letters: str,
        *,
        hand: Hand,
        max_in_flight: int,
        max_behind: int,
        counts: Counts,
        observe: Observer,
        tell: Callable[..., None],
        ended: Callable[[], None],
    ) -> None:
        self._options = options
        self._topics = list(topics)
        self._group = group
        self._dead_letters = dead_letters
        self._hand = hand
        self._most = max_in_flight
        self._behind_most = max_behind
        self._counts = counts
        self._observe = observe
        self._tell = tell
        self._ended = ended
        self._complaints = Complaints(f"Kafka, group {group}", options)
        self._kafka: Any = None
        self._consumer: Consumer
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._enough = max(1, max_in_flight // 2)  # places that are worth a call at once
        self._busy = False  # there was something to be had in the last call
        self._full = False
        self._room_at = time.monotonic()  # when there was room last
        self._commit_at = 0.0
        self._committing_until = 0.0  # when a commit is under way
        self._fatal: SemelError | None = None
        self._opened = False
        self.quiet = False  # nothing more shall come in
        self.ending = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="semel-kafka", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine has no more of them now
            self.failure = self._failed(error)
            self._ended()

    def _run(self) -> None:
        try:
            self._kafka = driver()
            self._consumer = self._made()
            try:
                self._look_around()
                self._work()
            finally:
                self._let_go()
        except Exception as error:
            self.failure = error if isinstance(error, SemelError) else self._failed(error)
        finally:
            self._drop(list(self._lanes.values()))
            self._tell(self._ended)

    # ------------------------------------------------------------------------------------------------- opening

    def _made(self) -> Consumer:
        settings = self._options.consumer(self._group) | {"error_cb": self._error, "on_commit": self._on_commit}
        try:
            consumer: Consumer = self._kafka.Consumer(settings, logger=Quiet())
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka: {self._options.plain(error)}") from None
        return consumer

    def _look_around(self) -> None:
        """Better now than with the first poison message. Waits while the cluster is out of reach; raises ConfigError
        for what only a person can change."""
        for topic in (*self._topics, self._dead_letters):
            while not self.ending:
                try:
                    told = self._consumer.list_topics(topic, timeout=METADATA_S).topics[topic].error
                except self._kafka.KafkaException as error:
                    self._consumer.poll(0)  # errors of the connection are told in polls
                    self._complaints.add("out of reach", error.args[0].str())
                    told = None
                else:
                    self._judge(topic, told)
                    break
                if self._fatal is not None:
                    raise self._fatal
        if self.ending:
            return
        self._opened = True
        self._complaints.over()
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _judge(self, topic: str, told: KafkaError | None) -> None:
        if told is None:
            return
        if told.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            raise ConfigError(f"Kafka: there is no topic {topic!r} here: create it, or correct its name")
        if told.name() in REFUSALS:
            raise self._complaints.hopeless(told)

    # ------------------------------------------------------------------------------------------------- working

    def _work(self) -> None:
        while not self.ending:
            if self._fatal is not None:
                raise self._fatal
            self._commit_now_and_then()
            room = self._room()
            self._steer()
            if room <= 0 and not self._full:
                self._hand.wait_for_room(self._most, self._enough, FEW_S)
            elif batch := self._next(room):
                self._arrived(batch)

    def _room(self) -> int:
        """How many may come in now. A few places are worth a call only when there are not more of them soon."""
        now = time.monotonic()
        room = self._hand.room(self._most)
        waited_s = now - self._room_at
        if self._full or self.quiet:
            self._full = self.quiet or room <= self._most // 2
            enough = not self._full
        else:
            enough = room >= self._enough or (room > 0 and waited_s >= FEW_S)
            self._full = room <= 0 and waited_s >= FULL_S
        if enough:
            self._room_at = now
        return room if enough else 0

    def _next(self, room: int) -> list[Message]:
        """Under load one call brings a batch, and nothing waits. Every call costs the event loop a moment: it needs the
        interpreter to return."""
        if self._busy:
            batch = self._consumer.consume(min(max(1, room), BATCH), 0)
        else:
            first = self._consumer.poll(POLL_S)
            batch = [] if first is None else [first]
        self._busy = bool(batch)
        return batch

    def _arrived(self, batch: Sequence[Message]) -> None:
        arrived: list[Held] = []
        for message in batch:
            if (error := message.error()) is not None:
                self._error(error)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            lane = self._lanes.get((topic, partition))  # type: ignore[arg-type]  # what is no error has them
            if lane is None:
                continue  # it was taken from us in this very batch, and comes to somebody else
            if offset <= lane.last:  # type: ignore[operator]
                # The end of the log was lost, or somebody sought. Positions of before mean nothing now, and what waits
                # before this offset must not be buried: another consumer begins where the last commit says.
                raise SemelError(f"{lane}: offsets went back from {lane.last} to {offset}: it is read anew")
            arrived.append(lane.add(offset, message))  # type: ignore[arg-type]
        if not arrived:
            return
        self._hand.came += len(arrived)
        self._counts.received += len(arrived)
        self._complaints.over()
        self._observe(Step.AFTER_RECEIVE)
        self._tell(self._hand.put, arrived)

    # ------------------------------------------------------------------------------------------------ partitions

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.resume(partitions)  # librdkafka remembers a pause, also when they were somebody else's meanwhile
        for partition in partitions:
            lane = Lane(partition.topic, partition.partition)
            self._lanes[lane.topic, lane.partition] = lane
        self._counts.assigned += len(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The next owner begins where we say now: at the lowest that we have not settled."""
        lanes = self._taken_away(partitions)
        self._commit_before_leaving([lane for lane in lanes if lane.position > lane.committed])
        self._counts.revoked += len(lanes)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else may have them already: nothing is committed."""
        lanes = self._taken_away(partitions)
        log.warning("kafka_partitions_lost", source=self._complaints.where, partitions=", ".join(map(str, lanes)))
        self._counts.lost += len(lanes)
        consumer.incremental_unassign(partitions)

    def _taken_away(self, partitions: list[TopicPartition]) -> list[Lane]:
        lanes = [
            lane for partition in partitions if (lane := self._lanes.pop((partition.topic, partition.partition), None))
        ]
        self._drop(lanes)
        return lanes

    def _drop(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.gone = True
        if lanes:
            self._tell(self._hand.drop, lanes)

    def _steer(self) -> None:
        """Pause what is too far ahead, resume what is not."""
        pause: list[Lane] = []
        resume: list[Lane] = []
        for lane in self._lanes.values():
            span = len(lane.outstanding)
            wanted = self._full or span >= (self._behind_most // 2 if lane.paused else self._behind_most)
            if wanted is not lane.paused:
                (pause if wanted else resume).append(lane)
        for lanes, change in ((pause, "pause"), (resume, "resume")):
            if lanes:
                getattr(self._consumer, change)([self._place(lane) for lane in lanes])
                for lane in lanes:
                    lane.paused = lanes is pause
        self._counts.paused += len(pause)

    # ------------------------------------------------------------------------------------------------- commits

    def _commit_now_and_then(self) -> None:
        now = time.monotonic()
        if now < self._commit_at or now < self._committing_until:
            return
        due = [lane for lane in self._lanes.values() if lane.position > lane.asked]
        if not due:
            return
        self._observe(Step.BEFORE_COMMIT)
        for lane in due:
            lane.asked = lane.position
        self._commit_at = now + COMMIT_EVERY_S
        self._committing_until = now + COMMIT_LOST_S
        try:
            self._consumer.commit(offsets=[self._place(lane, lane.asked) for lane in due], asynchronous=True)
        except self._kafka.KafkaException as error:
            self._not_committed(due, error.args[0].str())

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._committing_until = 0.0
        failed = []
        for partition in partitions:
            lane = self._lanes.get((partition.topic, partition.partition))
            if lane is None:
                continue
            if error is None and partition.error is None:
                lane.committed = max(lane.committed, partition.offset)
            else:
                failed.append(lane)
        if failed:
            self._not_committed(failed, error or "refused")
        elif error is None:
            self._counts.commits += 1
            self._complaints.over()
        self._observe(Step.AFTER_COMMIT)

    def _not_committed(self, lanes: list[Lane], why: object) -> None:
        """Asked for again with the next round; until then it is only a redelivery that is at stake."""
        self._committing_until = 0.0
        self._counts.failures += 1
        for lane in lanes:
            lane.asked = lane.committed
        self._complaints.add("offsets could not be committed", why)

    def _commit_before_leaving(self, lanes: list[Lane]) -> bool:
        """Waits for the answer. A refusal is no loss: what was settled comes again, as duplicates."""
        if not lanes:
            return True
        self._observe(Step.BEFORE_COMMIT)
        places = [self._place(lane, lane.position) for lane in lanes]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except self._kafka.KafkaException as error:
            self._not_committed(lanes, error.args[0].str())
            return False
        for lane, place in zip(lanes, places, strict=True):
            lane.committed = lane.asked = place.offset
        self._counts.commits += 1
        self._observe(Step.AFTER_COMMIT)
        return True

    def _place(self, lane: Lane, *offset: int) -> TopicPartition:
        place: TopicPartition = self._kafka.TopicPartition(lane.topic, lane.partition, *offset)
        return place

    # -------------------------------------------------------------------------------------------------- ending

    def _let_go(self) -> None:
        """Commits what is settled, leaves the group, and returns when the broker knows, or cannot be told. While the
        group is about to share its partitions anew it takes no commit: then it is asked again."""
        self.quiet = True
        ends = time.monotonic() + LAST_COMMIT_S
        while due := [lane for lane in self._lanes.values() if lane.position > lane.committed]:
            if self._commit_before_leaving(due) or time.monotonic() > ends:
                break
            self._room()
            self._steer()  # nothing comes in, and the group's affairs go on
            self._consumer.poll(POLL_S)
        self._consumer.close()  # the rest is revoked meanwhile

    def _error(self, error: KafkaError) -> None:
        self._counts.failures += 1
        if error.fatal() or (error.name() in REFUSALS and not self._opened):
            self._fatal = self._complaints.hopeless(error)
            return
        advice = REFUSALS.get(error.name())
        self._complaints.add(advice or "librdkafka goes on trying", f"{error.name()}: {error.str()}")

    def _failed(self, error: Exception) -> SemelError:
        log.write(logging.ERROR, "kafka_consumer_crashed", exc=error, source=self._complaints.where)
        return SemelError(f"{self._complaints.where}: {type(error).__name__}: {self._options.plain(error)}")
