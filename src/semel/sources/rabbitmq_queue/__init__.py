"""RabbitMQ, by aio-pika (`semel[rabbitmq]`). The driver is imported when a source or a publisher is used."""

from semel.sources.rabbitmq_queue.publisher import RabbitPublisher
from semel.sources.rabbitmq_queue.source import RabbitSource

__all__ = ["RabbitPublisher", "RabbitSource"]
