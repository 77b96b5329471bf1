"""Amazon SQS, standard and FIFO queues, by aiobotocore (`semel[aws]`). Drivers are imported when a source is used."""

from semel.adapters.sources.sqs.publishing import SqsPublisher
from semel.adapters.sources.sqs.source import SqsDelivery, SqsSource

__all__ = ["SqsDelivery", "SqsPublisher", "SqsSource"]
