"""The SQS side of `semel.aws`: its time limits, its error codes, and the region in a queue's URL."""

from __future__ import annotations

import re

from semel import aws
from semel.aws import AwsClient, Connect

CONNECT_S = 3.0
ASK_S = 5.0  # for one request that does not wait for messages: the service answers within 100 ms
POLL_MORE_S = 5.0  # beyond the requested wait of a long poll

_REGION = re.compile(r"https://(?:sqs|queue)\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com|api\.aws)")
_OLD_HOST = re.compile(r"https://(?P<region>[a-z0-9-]+)\.queue\.amazonaws\.com")

EXPIRED = ("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight")
"""Error codes of a receipt that is no longer valid: it has expired, or the message was received again."""
MISSING = ("QueueDoesNotExist", "NonExistentQueue")


def sqs_client(connect: Connect) -> AwsClient:
    """Return a client that sends each request once. Its callers retry, because they know how long that makes sense."""
    return AwsClient(connect, "SQS", ASK_S)


def client_factory(queue: str, region: str, endpoint: str, connections: int, wait_s: int) -> Connect:
    """Return a function that creates a client for this queue."""
    return aws.client_factory(
        "sqs",
        region or region_of(queue),
        endpoint or None,
        user="SQS",
        connect_s=CONNECT_S,
        read_s=wait_s + POLL_MORE_S,
        connections=connections,
    )


def region_of(queue: str) -> str | None:
    """Region in a queue's URL. None: the usual AWS chain decides."""
    match = _REGION.match(queue) or _OLD_HOST.match(queue)
    return match["region"] if match else None
