"""A connection that is garbage-collected in a thread leaves no coroutine behind that nobody awaits."""

from __future__ import annotations

import asyncio
import threading
import warnings

import pytest

from semel.sources.rabbitmq_queue.session import ExplicitConnection, TolerantConnection


@pytest.mark.parametrize("kind", [ExplicitConnection, TolerantConnection])
def test_a_connection_that_never_connected_is_collected_in_a_thread(kind: type[ExplicitConnection]) -> None:
    async def story() -> None:
        held = [kind("amqp://127.0.0.1:1/")]  # type: ignore[arg-type] # the driver takes a text too
        thread = threading.Thread(target=held.clear)
        thread.start()
        await asyncio.to_thread(thread.join)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(story())
    assert [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)] == []
