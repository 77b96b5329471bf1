"""AWS Lambda: the records of every trigger through the flow, and the answer that each of them understands.

Nothing here needs boto: Lambda hands over parsed JSON and takes parsed JSON back.
"""

from semel.aws_lambda.answering import RecordsFailed
from semel.aws_lambda.handling import LambdaHandler

__all__ = ["LambdaHandler", "RecordsFailed"]
