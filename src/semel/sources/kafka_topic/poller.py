"""The thread that owns the Kafka consumer: it polls, commits and follows rebalances.

librdkafka's calls block, and it reports everything during a poll. The thread polls all the time, also while no message
can be received, so that the group never considers this consumer dead. If there is no capacity for long, partitions are
paused. A short lack of capacity is waited out instead, because a pause discards prefetched messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from semel.sources.kafka_topic.in_flight import KafkaInFlight, KafkaMessage, PartitionLane
from semel.sources.kafka_topic.options import DriverOptions, KafkaOptions
from semel.sources.lifecycle import Observer
from semel.values.errors import ConfigError, SemelError
from semel.values.log import IncidentLog, log

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


class KafkaStep(StrEnum):
    """Steps between which a consumer can die, in the order of the flow. The engine runs after AFTER_RECEIVE."""

    AFTER_RECEIVE = "after_receive"
    WAITING = "waiting"  # a message waits in memory for its retry
    BEFORE_COMMIT = "before_commit_of_offsets"
    AFTER_COMMIT = "after_commit_of_offsets"
    BEFORE_DEAD_LETTER = "before_letter"
    AFTER_DEAD_LETTER = "after_letter"  # the dead letter is durable, and its message is not settled


@dataclass
class KafkaCounts:
    """Counters of one source. They only grow."""

    received: int = 0
    settled: int = 0
    retried: int = 0
    dead_letters: int = 0
    commits: int = 0  # successful requests
    assigned: int = 0  # partitions
    revoked: int = 0
    lost: int = 0
    paused: int = 0
    failures: int = 0  # of requests, connections and dead letters


REFUSALS = {  # name of a permanent error: advice for the operator
    "_AUTHENTICATION": "the broker refused the credentials: check security.protocol and the sasl.* or ssl.* options",
    "SASL_AUTHENTICATION_FAILED": "the broker refused the credentials: check the sasl.* options",
    "_SSL": "the TLS connection failed: check the ssl.* options and security.protocol",
    "TOPIC_AUTHORIZATION_FAILED": "this user needs Read on the topic, and Write on the dead-letter topic",
    "GROUP_AUTHORIZATION_FAILED": "this user needs Read on the consumer group",
    "CLUSTER_AUTHORIZATION_FAILED": "this user needs IdempotentWrite on the cluster",
    "_FENCED": "another consumer has the same group.instance.id: give each process its own",
    "FENCED_INSTANCE_ID": "another consumer has the same group.instance.id: give each process its own",
}


class DebugLogger:
    """Logger for librdkafka: its lines appear at debug level only."""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        logging.getLogger("semel.librdkafka").debug(text, *arguments)


def kafka_incident(where: str) -> IncidentLog:
    """Incident log of one connection to a cluster."""
    return IncidentLog("kafka_failed", "kafka_recovered", level=logging.WARNING, source=where)


def driver() -> Any:
    """Import the driver. Raises ConfigError if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigError("Kafka needs confluent-kafka: install semel[kafka]") from error
    return confluent_kafka


POLL_S = 0.05  # the longest time that a commit or the end waits for a poll
FEW_S = 0.05  # after this time a small capacity is enough for a call
FULL_S = 1.0  # without capacity, then partitions are paused; a fraction of any sensible max.poll.interval.ms
BATCH = 1_000  # messages of one call
COMMIT_EVERY_S = 0.25  # four requests a second, at any traffic
COMMIT_LOST_S = 30.0  # a commit without a response is repeated after this time
LAST_COMMIT_S = 5.0  # at the end, for a running rebalance
METADATA_S = 1.0  # for one metadata request at the start


class Poller:
    """One consumer of the group, in its own thread. `call_on_loop` runs a function on the event loop."""

    def __init__(
        self,
        options: KafkaOptions,
        driver_options: DriverOptions,
        *,
        in_flight: KafkaInFlight,
        counts: KafkaCounts,
        observe: Observer,
        call_on_loop: Callable[..., None],
        ended: Callable[[], None],
    ) -> None:
        self._options = options
        self._driver_options = driver_options
        self._in_flight = in_flight
        self._most = options.max_in_flight
        self._counts = counts
        self._observe = observe
        self._call_on_loop = call_on_loop
        self._ended = ended
        self._where = f"Kafka, group {options.group}"
        self._incident = kafka_incident(self._where)
        self._kafka: Any = None
        self._consumer: Consumer
        self._lanes: dict[tuple[str, int], PartitionLane] = {}
        self._worth_a_call = max(1, self._most // 2)  # capacity for which a call is made at once
        self._busy = False  # the last call returned messages
        self._full = False
        self._capacity_at = time.monotonic()  # when there was capacity last
        self._commit_at = 0.0
        self._committing_until = 0.0  # a commit is running until then
        self._fatal: SemelError | None = None
        self._opened = False
        self.stop_receiving = False
        self.ending = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="semel-kafka", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine cannot start another thread now
            self.failure = self._crash_error(error)
            self._ended()

    def _run(self) -> None:
        try:
            self._kafka = driver()
            settings = self._driver_options.consumer(self._options.group)
            callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
            try:
                self._consumer = self._kafka.Consumer(settings | callbacks, logger=DebugLogger())
            except (self._kafka.KafkaException, TypeError, ValueError) as error:
                raise ConfigError(f"Kafka: {self._driver_options.redact(error)}") from None
            try:
                self._check_topics()
                self._poll_until_end()
            finally:
                self._leave_group()
        except Exception as error:
            self.failure = error if isinstance(error, SemelError) else self._crash_error(error)
        finally:
            self._drop_lanes(list(self._lanes.values()))
            self._call_on_loop(self._ended)

    # ------------------------------------------------------------------------------------------------- opening

    def _check_topics(self) -> None:
        """Check that every topic exists, then subscribe. A missing dead-letter topic is better found now than with the
        first poison message.

        Waits while the cluster is unreachable. Raises ConfigError for a problem that needs a change by an operator.
        """
        for topic in (*self._options.topics, self._options.dead_letters):
            while not self.ending:
                try:
                    topic_error = self._consumer.list_topics(topic, timeout=METADATA_S).topics[topic].error
                except self._kafka.KafkaException as error:
                    self._consumer.poll(0)  # librdkafka reports connection errors during a poll
                    self._report("out of reach", error.args[0].str())
                else:
                    self._check_topic(topic, topic_error)
                    break
                if self._fatal is not None:
                    raise self._fatal
        if self.ending:
            return
        self._opened = True
        self._incident.resolve()
        self._consumer.subscribe(
            list(self._options.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _check_topic(self, topic: str, error: KafkaError | None) -> None:
        if error is None:
            return
        if error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            raise ConfigError(f"Kafka: topic {topic!r} does not exist: create it, or correct its name")
        if error.name() in REFUSALS:
            raise self._fatal_error(error)

    # ------------------------------------------------------------------------------------------------- working

    def _poll_until_end(self) -> None:
        while not self.ending:
            if self._fatal is not None:
                raise self._fatal
            self._commit_when_due()
            capacity = self._capacity()
            self._pause_and_resume()
            if capacity <= 0 and not self._full:
                self._in_flight.wait_for_capacity(self._most, self._worth_a_call, FEW_S)
            elif batch := self._fetch(capacity):
                self._add_batch(batch)

    def _capacity(self) -> int:
        """Number of messages to receive now. A small capacity is used only if it does not grow soon."""
        now = time.monotonic()
        capacity = self._in_flight.capacity(self._most)
        waited_s = now - self._capacity_at
        if self._full or self.stop_receiving:
            self._full = self.stop_receiving or capacity <= self._most // 2
            enough = not self._full
        else:
            enough = capacity >= self._worth_a_call or (capacity > 0 and waited_s >= FEW_S)
            self._full = capacity <= 0 and waited_s >= FULL_S
        if enough:
            self._capacity_at = now
        return capacity if enough else 0

    def _fetch(self, capacity: int) -> list[Message]:
        """Receive messages. Under load one call returns a batch without waiting.

        Every call delays the event loop for a moment, because it needs the interpreter lock to return.
        """
        if self._busy:
            batch = self._consumer.consume(min(max(1, capacity), BATCH), 0)
        else:
            first = self._consumer.poll(POLL_S)
            batch = [] if first is None else [first]
        self._busy = bool(batch)
        return batch

    def _add_batch(self, batch: Sequence[Message]) -> None:
        arrived: list[KafkaMessage] = []
        for record in batch:
            if (error := record.error()) is not None:
                self._on_error(error)
                continue
            topic, partition, offset = record.topic(), record.partition(), record.offset()
            lane = self._lanes.get((topic, partition))  # type: ignore[arg-type]  # what is no error has them
            if lane is None:
                continue  # its partition was revoked during this batch: another consumer receives it
            if offset <= lane.last:  # type: ignore[operator]
                # The end of the log was lost, or an operator reset the offset. Earlier positions are invalid now, and a
                # message that waits before this offset must not be skipped. A new consumer begins at the last commit.
                raise SemelError(f"{lane}: offsets went back from {lane.last} to {offset}: the consumer restarts")
            arrived.append(lane.add(offset, record))  # type: ignore[arg-type]
        if not arrived:
            return
        self._in_flight.received_total += len(arrived)
        self._counts.received += len(arrived)
        self._incident.resolve()
        self._observe(KafkaStep.AFTER_RECEIVE)
        self._call_on_loop(self._in_flight.put, arrived)

    # ------------------------------------------------------------------------------------------------ partitions

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.resume(partitions)  # in librdkafka a pause outlasts an earlier assignment
        for partition in partitions:
            lane = PartitionLane(partition.topic, partition.partition)
            self._lanes[lane.topic, lane.partition] = lane
        self._counts.assigned += len(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit the positions: the next consumer begins at the lowest unsettled message."""
        lanes = self._remove_lanes(partitions)
        self._commit_and_wait([lane for lane in lanes if lane.position > lane.committed])
        self._counts.revoked += len(lanes)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit nothing: the partitions may belong to another consumer already."""
        lanes = self._remove_lanes(partitions)
        log.warning("kafka_partitions_lost", source=self._where, partitions=", ".join(map(str, lanes)))
        self._counts.lost += len(lanes)
        consumer.incremental_unassign(partitions)

    def _remove_lanes(self, partitions: list[TopicPartition]) -> list[PartitionLane]:
        lanes = [
            lane for partition in partitions if (lane := self._lanes.pop((partition.topic, partition.partition), None))
        ]
        self._drop_lanes(lanes)
        return lanes

    def _drop_lanes(self, lanes: list[PartitionLane]) -> None:
        for lane in lanes:
            lane.gone = True
        if lanes:
            self._call_on_loop(self._in_flight.drop, lanes)

    def _pause_and_resume(self) -> None:
        """Pause partitions that are read too far ahead, and resume the others."""
        pause: list[PartitionLane] = []
        resume: list[PartitionLane] = []
        behind_max = self._options.behind_max
        for lane in self._lanes.values():
            span = len(lane.outstanding)
            wanted = self._full or span >= (behind_max // 2 if lane.paused else behind_max)
            if wanted is not lane.paused:
                (pause if wanted else resume).append(lane)
        for lanes, change in ((pause, self._consumer.pause), (resume, self._consumer.resume)):
            if lanes:
                change([self._topic_partition(lane) for lane in lanes])
                for lane in lanes:
                    lane.paused = lanes is pause
        self._counts.paused += len(pause)

    # ------------------------------------------------------------------------------------------------- commits

    def _commit_when_due(self) -> None:
        now = time.monotonic()
        if now < self._commit_at or now < self._committing_until:
            return
        due = [lane for lane in self._lanes.values() if lane.position > lane.commit_requested]
        if not due:
            return
        self._observe(KafkaStep.BEFORE_COMMIT)
        for lane in due:
            lane.commit_requested = lane.position
        self._commit_at = now + COMMIT_EVERY_S
        self._committing_until = now + COMMIT_LOST_S
        try:
            self._consumer.commit(
                offsets=[self._topic_partition(lane, lane.commit_requested) for lane in due], asynchronous=True
            )
        except self._kafka.KafkaException as error:
            self._record_commit_failure(due, error.args[0].str())

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
            self._record_commit_failure(failed, error or "refused")
        elif error is None:
            self._counts.commits += 1
            self._incident.resolve()
        self._observe(KafkaStep.AFTER_COMMIT)

    def _record_commit_failure(self, lanes: list[PartitionLane], reason: object) -> None:
        """Repeat the commit with the next round. A crash before it only causes redeliveries."""
        self._committing_until = 0.0
        self._counts.failures += 1
        for lane in lanes:
            lane.commit_requested = lane.committed
        self._report("offsets could not be committed", reason)

    def _commit_and_wait(self, lanes: list[PartitionLane]) -> bool:
        """Commit and wait for the response. A refusal loses nothing: settled messages are redelivered as duplicates."""
        if not lanes:
            return True
        self._observe(KafkaStep.BEFORE_COMMIT)
        places = [self._topic_partition(lane, lane.position) for lane in lanes]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except self._kafka.KafkaException as error:
            self._record_commit_failure(lanes, error.args[0].str())
            return False
        for lane, place in zip(lanes, places, strict=True):
            lane.committed = lane.commit_requested = place.offset
        self._counts.commits += 1
        self._observe(KafkaStep.AFTER_COMMIT)
        return True

    def _topic_partition(self, lane: PartitionLane, *offset: int) -> TopicPartition:
        place: TopicPartition = self._kafka.TopicPartition(lane.topic, lane.partition, *offset)
        return place

    # -------------------------------------------------------------------------------------------------- ending

    def _leave_group(self) -> None:
        """Commit the positions and leave the group. Returns when the broker has confirmed, or cannot be reached.

        During a rebalance the group accepts no commit: then the commit is repeated.
        """
        self.stop_receiving = True
        ends = time.monotonic() + LAST_COMMIT_S
        while due := [lane for lane in self._lanes.values() if lane.position > lane.committed]:
            if self._commit_and_wait(due) or time.monotonic() > ends:
                break
            self._capacity()
            self._pause_and_resume()  # receives nothing, and the rebalance continues
            self._consumer.poll(POLL_S)
        self._consumer.close()  # revokes the remaining partitions

    def _on_error(self, error: KafkaError) -> None:
        self._counts.failures += 1
        if error.fatal() or (error.name() in REFUSALS and not self._opened):
            self._fatal = self._fatal_error(error)
            return
        advice = REFUSALS.get(error.name())
        self._report(advice or "librdkafka retries", f"{error.name()}: {error.str()}")

    def _report(self, step: str, error: object) -> None:
        self._incident.report(self._driver_options.redact(error), step=step)

    def _fatal_error(self, error: KafkaError) -> SemelError:
        """Return a ConfigError if only an operator can fix it, else a SemelError: a new consumer may succeed."""
        advice = REFUSALS.get(error.name())
        text = self._driver_options.redact(error.str())
        if advice is not None:
            return ConfigError(f"{self._where}: {advice} ({text})")
        return SemelError(f"{self._where}: this consumer cannot continue: {error.name()}: {text}")

    def _crash_error(self, error: Exception) -> SemelError:
        log.write(logging.ERROR, "kafka_consumer_crashed", exc=error, source=self._where)
        return SemelError(f"{self._where}: {type(error).__name__}: {self._driver_options.redact(error)}")
