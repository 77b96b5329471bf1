"""The contract of a publisher, which forwards events to a broker, as tests.

A publisher binds it in a few lines, and nothing of it can be switched off:

    class TestMyPublisher(PublisherLaws):
        @pytest.fixture
        def harness(self) -> PublisherHarness:
            return PublisherHarness(
                open=lambda timeout: MyPublisher("…", timeout=timeout),
                source=lambda: MySource("…", forwarded=True),
                app=…,
                silent=…,
                unfit=[ForwardedEvent(b"x" * 10_000_000)],
            )

`silent` is a black hole before the broker (`FaultProxy` with `BLACK_HOLE`, whose `seen.swallowed` tells that it was
noticed), or a broker that is stopped by SIGSTOP, or the mock cluster's own ways to delay an answer. A broker that keeps
order within groups binds `OrderedPublisherLaws` too.
"""

from __future__ import annotations

from semel.testing.laws.publishers import Got, PublisherHarness, PublishLaws, PublishOrderLaws

__all__ = ["Got", "OrderedPublisherLaws", "PublisherHarness", "PublisherLaws"]


class PublisherLaws(PublishLaws):
    """All laws that every publisher keeps."""


class OrderedPublisherLaws(PublishOrderLaws):
    """For a FIFO queue, or partitions."""
