"""The proofs stand on this source: a message is there until it is acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from semel.ports import Delivery, Source
from semel.testing.crash import crash_at, stop_at
from semel.testing.folder_source import FolderSource


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


@pytest.fixture
def folder(tmp_path: Path) -> FolderSource:
    folder = FolderSource(tmp_path / "new" / "folder", tenant="t", patience_s=5)
    folder.put("2", b'{"id": 2}')
    folder.put("1", {"id": 1})
    folder.put("3", b'{"id": 3}')
    return folder


def test_messages_come_in_the_order_of_their_names_and_stay_until_acknowledged(folder: FolderSource) -> None:
    async def read() -> None:
        source: Source = folder
        first = await source.receive(2)
        assert bodies(first) == [b'{"id": 1}', b'{"id": 2}']
        assert {delivery.tenant for delivery in first} == {"t"}
        assert folder.left() == ["1", "2", "3"]
        rest = await source.receive(100)
        assert bodies(rest) == [b'{"id": 3}'], "what is in hand is not handed out again"
        for delivery in (*first, *rest):
            await delivery.ack()
        assert folder.left() == []
        assert await source.receive(100) == []

    asyncio.run(read())


def test_a_reader_that_vanished_leaves_everything_to_the_next(folder: FolderSource) -> None:
    async def read() -> None:
        assert len(await folder.receive(100)) == 3
        again = await FolderSource(folder.path).receive(100)
        assert len(again) == 3
        await again[0].ack()
        assert FolderSource(folder.path).left() == ["2", "3"]

    asyncio.run(read())


def test_what_is_returned_for_later_is_hidden_until_its_time(folder: FolderSource) -> None:
    async def read() -> None:
        one, two, three = await folder.receive(100)
        await two.ack()
        began = time.monotonic()
        await one.retry(0.1)
        await three.retry(0.0)
        assert bodies(await folder.receive(100)) == [three.body]
        await three.ack()
        assert bodies(await folder.receive(100)) == [one.body]
        assert 0.1 <= time.monotonic() - began < 4

    asyncio.run(read())


def test_waiting_for_what_is_hidden_has_an_end(tmp_path: Path) -> None:
    async def read() -> None:
        folder = FolderSource(tmp_path, patience_s=0.05)
        folder.put("1", b"{}")
        (one,) = await folder.receive(1)
        await one.retry(3_600)
        assert await folder.receive(1) == []
        assert folder.left() == ["1"], "it has ended, and nothing is lost"

    asyncio.run(read())


def test_a_source_whose_last_message_another_reader_took_ends_at_once(folder: FolderSource) -> None:
    async def read() -> None:
        for delivery in await folder.receive(100):
            await delivery.retry(3_600)
        for delivery in await FolderSource(folder.path).receive(100):
            await delivery.ack()
        began = time.monotonic()
        assert await folder.receive(100) == []
        assert time.monotonic() - began < 4

    asyncio.run(read())


def test_a_rejected_message_is_kept_aside_with_its_reason(folder: FolderSource) -> None:
    async def read() -> None:
        one, two, _ = await folder.receive(100)
        await one.reject("no event: ¿qué?")
        assert folder.left() == ["2", "3"]
        assert folder.rejected() == {"1": "no event: ¿qué?"}
        assert (folder.path / "rejected" / "1.json").read_bytes() == one.body
        (folder.path / "2.json").unlink()
        await two.reject("taken by another reader meanwhile")

    asyncio.run(read())


def test_an_unfinished_file_is_no_message(folder: FolderSource) -> None:
    (folder.path / ".4.json.123").write_bytes(b'{"id"')
    (folder.path / "notes.txt").write_bytes(b"")
    assert folder.left() == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", ".."])
def test_a_name_that_is_no_file_name_is_refused(folder: FolderSource, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        folder.put(name, b"{}")


@pytest.mark.parametrize("settings", [{"at_most": 0}, {"patience_s": -1}])
def test_impossible_settings_are_refused(tmp_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        FolderSource(tmp_path, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [crash_at, stop_at])
def test_a_fault_that_could_never_land_is_refused(tmp_path: Path, fault: type) -> None:
    with pytest.raises(ValueError, match=r"\b1\b"):
        fault("before_claim", 0, marker=tmp_path / "landed")


@pytest.mark.parametrize("fault", [crash_at, stop_at])
def test_other_boundaries_and_other_hits_pass_a_fault_by(tmp_path: Path, fault: type) -> None:
    observe = fault("before_claim", 2, marker=tmp_path / "landed")
    observe("after_claim")
    observe("before_claim")
    assert not (tmp_path / "landed").exists()
