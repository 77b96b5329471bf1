"""A file as a source for the laws, and the process that is killed over it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tests import forking
from tests.sources.consumer_process import NEVER, happened, in_transaction
from tests.sources.places import make_app

from semel import Context, Event, Retry, Semel
from semel.cli.process_input import START, Splitter, Stream, look_at
from semel.cli.process_source import FileSource, Rejects, Step, load, path_for
from semel.core.crash_points import Boundary
from semel.ports import Source
from semel.testing.crash import crash_at
from semel.testing.source_laws import AGAIN, LANDED, LEASE_S, SAID, TOPIC, SourceDeadLetter, SourceHarness

forking.preload("tests.sources.files.harness")
STEPS = (*Step, Boundary.BEFORE_CLAIM, Boundary.AFTER_CLAIM, Boundary.HANDLER_END, Boundary.AFTER_SETTLE)
EMPTY_S = 0.02


class Place:
    """One file, its progress and its rejects."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / "events.jsonl"
        self.rejects = home / "rejects.jsonl"
        self.file.touch()
        self._sending = threading.Lock()
        self._kept: dict[FileSource, Rejects] = {}

    def send(self, bodies: Sequence[bytes], group: str = "") -> None:
        with self._sending, self.file.open("ab", buffering=0) as file:
            file.write(b"".join(body + b"\n" for body in bodies))

    def open(self, observe: Callable[[str], None] | None = None) -> FileSource:
        progress = path_for(str(self.file))
        done = load(progress)
        rejects = Rejects(self.rejects)
        source = FileSource(
            Stream(look_at(str(self.file))),
            place=done.place if done is not None else None,
            progress=progress,
            rejects=rejects,
            save_every_s=0.0,
            observe=observe,
        )
        self._kept[source] = rejects
        return source

    async def close(self, source: Source) -> None:
        assert isinstance(source, FileSource)
        await source.close()
        self._kept.pop(source).close()

    def left(self) -> int:
        done = load(path_for(str(self.file)))
        place = done.place if done is not None else START
        with self.file.open("rb") as file:
            file.seek(place.at)
            splitter = Splitter(file.read, place)
            count = 0
            while splitter.next() is not None:
                count += 1
            return count + (splitter.cut_off is not None)

    def dead_letters(self) -> list[SourceDeadLetter]:
        if not self.rejects.exists():
            return []
        lines = [json.loads(line) for line in self.rejects.read_bytes().splitlines()]
        return [SourceDeadLetter(line["body"].encode(), line["reason"]) for line in lines]

    def harness(self) -> SourceHarness:
        return SourceHarness(
            send=self.send,
            open=self.open,
            app=make_app(self.home),
            left=self.left,
            dead_letters=self.dead_letters,
            consumer=self.consumer,
            steps=STEPS,
            happened=lambda: happened(self.home / "ledger.db"),
            hold_s=0,
            ends=True,
            close=self.close,
        )

    def consumer(self, step: str, folder: Path) -> forking.Forked:
        process = forking.START.Process(target=_work, args=(self.home, step, folder), daemon=True)
        process.start()
        return forking.Forked(process)


def _work(home: Path, step: str, folder: Path) -> None:
    out = os.open(folder / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_worked_off(home, crash_at(step, marker=folder / LANDED) if step else None))


async def _worked_off(home: Path, observe: Callable[[str], None] | None) -> None:
    async with Semel(f"sqlite:///{home}/ledger.db", lease=LEASE_S / 2, observe=observe) as app:

        @app.on(TOPIC, effect="transaction", max_attempts=NEVER)
        async def handle(event: Event, ctx: Context) -> None:
            await in_transaction(event, ctx)
            if event.body.get(AGAIN) and ctx.attempt == 1:
                raise Retry(after=0)

        source = Place(home).open(observe)
        while True:
            await app.worker(source).run()
            await asyncio.sleep(EMPTY_S)
