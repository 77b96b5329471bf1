"""SQS for tests: the emulator `ministack` on a free port of loopback, by real HTTP, or a service that is given.

    server = SqsServer(folder)               # or SqsServer.given()
    server.start()
    source = SqsSource(url_of_a_queue, endpoint=server.endpoint, region=server.region)

What the emulator does otherwise than the service: there is no limit of 12 hours on an extended visibility, nothing is
throttled, nobody is refused for a missing permission, no message is delivered twice unless its visibility ends, an
expired receipt is good until the message is received again, and a long poll whose client has gone still takes messages.
Tests bring the first four about by hooks of the client.

A given service (SEMEL_TEST_SQS_URL, `sqs://?region=…&endpoint=…`) must let its user create queues. It is not started
or stopped here, and credentials for it come by the usual AWS chain.
"""

from __future__ import annotations

from tests.support.servers.emulator import Emulator


class SqsServer(Emulator):
    """It also speaks SNS and EventBridge."""

    kind = "SQS"
    services = "sqs,sns,events"

    @property
    def endpoint(self) -> str:
        """Empty: the service itself."""
        return super().endpoint or ""
