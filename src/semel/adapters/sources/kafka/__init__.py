"""Apache Kafka by confluent-kafka (`semel[kafka]`), which is imported when a source is used."""

from semel.adapters.sources.kafka.publishing import KafkaPublisher
from semel.adapters.sources.kafka.source import KafkaDelivery, KafkaSource

__all__ = ["KafkaDelivery", "KafkaPublisher", "KafkaSource"]
