"""Apache Kafka by confluent-kafka (`semel[kafka]`), which is imported when a source is used."""

from semel.sources.kafka_topic.publisher import KafkaPublisher
from semel.sources.kafka_topic.source import KafkaSource

__all__ = ["KafkaPublisher", "KafkaSource"]
