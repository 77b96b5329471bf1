"""The contract of publishers, bound to RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.sources.places import make_app
from tests.sources.rabbitmq.places import Place

from semel.sources.rabbitmq_queue import RabbitPublisher
from semel.testing.proxy import BLACK_HOLE, FaultProxy
from semel.testing.publisher_laws import OrderedPublisherLaws, PublisherHarness, PublisherLaws
from semel.values.forwarded import ForwardedEvent


class TestRabbitPublisher(PublisherLaws, OrderedPublisherLaws):
    @pytest.fixture
    def harness(self, place: Place, tmp_path: Path) -> Iterator[PublisherHarness]:
        parts = urlsplit(place.broker.url)
        with FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:

            @contextmanager
            def silent() -> Iterator[Callable[[], bool]]:
                before = proxy.seen.swallowed
                with proxy.fault(BLACK_HOLE):
                    yield lambda: proxy.seen.swallowed > before
                proxy.reset()

            yield PublisherHarness(
                open=lambda timeout: RabbitPublisher(proxy.url(place.broker.url), place.queue, timeout=timeout),
                source=lambda: place.source(forwarded=True),
                app=make_app(tmp_path),
                silent=silent,
                unfit=[ForwardedEvent(b"x" * 17_000_000)],
            )
