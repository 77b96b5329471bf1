"""The contract of a publisher, which forwards events to a broker, as tests.

A publisher binds the suite in a few lines. No law can be switched off:

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

`silent` makes the broker unresponsive: a `FaultProxy` with `BLACK_HOLE` (its `seen.swallowed` proves that the fault
landed), a broker stopped by SIGSTOP, or a mock cluster that delays its answers. A broker that keeps order within groups
also needs `OrderedPublisherLaws`.
"""

from __future__ import annotations

from semel.testing.laws.publishers import Got, PublisherHarness, PublishLaws, PublishOrderLaws

__all__ = ["Got", "OrderedPublisherLaws", "PublisherHarness", "PublisherLaws"]


class PublisherLaws(PublishLaws):
    """All laws that every publisher keeps."""


class OrderedPublisherLaws(PublishOrderLaws):
    """Laws for a publisher to a FIFO queue or to partitions."""
