"""RabbitMQ, by aio-pika (`semel[rabbitmq]`). The driver is imported when a source or a publisher is used."""

from semel.adapters.sources.rabbitmq.publisher import RabbitPublisher
from semel.adapters.sources.rabbitmq.source import RabbitDelivery, RabbitSource

__all__ = ["RabbitDelivery", "RabbitPublisher", "RabbitSource"]
