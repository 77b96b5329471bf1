"""AWS Lambda: processes the records of every trigger and returns the response that each trigger expects.

It needs no boto: Lambda passes parsed JSON and takes parsed JSON back.
"""

from semel.aws_lambda.handler import LambdaHandler, RecordsFailed

__all__ = ["LambdaHandler", "RecordsFailed"]
