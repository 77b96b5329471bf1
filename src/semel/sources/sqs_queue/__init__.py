"""Amazon SQS, standard and FIFO queues, by aiobotocore (`semel[aws]`). Drivers are imported when a source is used."""

from semel.sources.sqs_queue.publisher import SqsPublisher
from semel.sources.sqs_queue.source import SqsSource

__all__ = ["SqsPublisher", "SqsSource"]
