"""What librdkafka says, made bearable: an outage does not fill the disk, and advice stands where a person can act."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from semel.adapters.sources.kafka.options import Options
from semel.values.errors import ConfigError, SemelError
from semel.values.log import log

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

REFUSALS = {  # of the broker, by the name of the error: what a person has to do
    "_AUTHENTICATION": "it refuses our credentials: check security.protocol and the sasl.* or ssl.* options",
    "SASL_AUTHENTICATION_FAILED": "it refuses our credentials: check the sasl.* options",
    "_SSL": "no TLS connection can be made: check the ssl.* options and security.protocol",
    "TOPIC_AUTHORIZATION_FAILED": "this user needs Read on the topic, and Write on the dead-letter topic",
    "GROUP_AUTHORIZATION_FAILED": "this user needs Read on the consumer group",
    "CLUSTER_AUTHORIZATION_FAILED": "this user needs IdempotentWrite on the cluster",
    "_FENCED": "another consumer has the same group.instance.id: give each process its own",
    "FENCED_INSTANCE_ID": "another consumer has the same group.instance.id: give each process its own",
}


class Quiet:
    """librdkafka's own log lines: for those who look for them."""

    def log(self, level: int, text: str, *given: Any) -> None:
        logging.getLogger("semel.librdkafka").debug(text, *given)


class Complaints:
    """About one cluster. The first, the second, the fourth, … in a row is told."""

    def __init__(self, where: str, options: Options) -> None:
        self.where = where
        self.count = 0  # ever
        self._options = options
        self._row = 0

    def add(self, what: str, error: object) -> None:
        self.count += 1
        self._row += 1
        if self._row & (self._row - 1) == 0:
            log.warning(
                "kafka_failed", source=self.where, step=what, failures=self._row, error=self._options.plain(error)
            )

    def over(self) -> None:
        """Something has succeeded."""
        if self._row:
            log.info("kafka_recovered", source=self.where, failures=self._row)
            self._row = 0

    def hopeless(self, error: KafkaError) -> SemelError:
        """A ConfigError for what no other try will change; else another consumer may do better."""
        advice = REFUSALS.get(error.name())
        said = self._options.plain(error.str())
        if advice is not None:
            return ConfigError(f"{self.where}: {advice} ({said})")
        return SemelError(f"{self.where}: this consumer cannot go on: {error.name()}: {said}")


def driver() -> Any:
    """Raises ConfigError: it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigError("Kafka needs confluent-kafka: install semel[kafka]") from error
    return confluent_kafka
