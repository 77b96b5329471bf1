"""One emulator of SQS for all tests of a worker, by real HTTP; each test has queues of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from tests.shared import shared_emulator
from tests.sources.places import Queue
from tests.support.servers.sqs import SqsServer


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> SqsServer:
    return shared_emulator(request, SqsServer)


@pytest.fixture(scope="session")
def aws(server: SqsServer) -> Iterator[Any]:
    """A client of its own, which does not wait for any event loop."""
    client: Any = botocore.session.get_session().create_client(
        "sqs",
        region_name=server.region,
        endpoint_url=server.endpoint or None,
        config=Config(max_pool_connections=16),
    )
    yield client
    client.close()


@pytest.fixture
def new_queue(server: SqsServer, aws: Any) -> Callable[..., Queue]:
    return lambda **options: Queue(server, aws, **options)


@pytest.fixture
def queue(new_queue: Callable[..., Queue]) -> Queue:
    return new_queue()


@pytest.fixture
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll under way is cut at once. The emulator goes on with it, so nothing may be sent to the queue afterwards."""
    monkeypatch.setattr("semel.sources.sqs_queue.source.POLL_GRACE_S", 0.05)
