"""The contract of a publisher: what every broker that events are handed on to keeps to, as tests.

A publisher binds it in a few lines, and nothing of it can be switched off:

    class TestMyPublisher(PublisherLaws):
        @pytest.fixture
        def harness(self) -> PublisherHarness:
            return PublisherHarness(
                open=lambda timeout: MyPublisher("…", timeout=timeout),
                source=lambda: MySource("…", handed_on=True),
                app=…,
                silent=…,
                unfit=[Parcel(b"x" * 10_000_000)],
            )

`silent` is a black hole before the broker (`FaultProxy` with `BLACK_HOLE`, whose `seen.swallowed` tells that it was
noticed), or a broker that is stopped by SIGSTOP, or the mock cluster's own ways to delay an answer. A broker that keeps
order within groups binds `OrderedPublisherLaws` too.
"""

from __future__ import annotations

from semel.testing.laws.publishers import Got, OrderLaws, PublisherHarness, PublishLaws

__all__ = ["Got", "OrderedPublisherLaws", "PublisherHarness", "PublisherLaws"]


class PublisherLaws(PublishLaws):
    """All laws that every publisher keeps."""


class OrderedPublisherLaws(OrderLaws):
    """For a FIFO queue, or partitions."""
