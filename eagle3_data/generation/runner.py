"""The pipeline's own runner: all sources in one sliding window over the coroutine that `Dataset.map` uses too.

Goes in: prompts of every source and a Generator. Comes out: a journal in which every row has an outcome, and counts.
A bounded number of tasks, whatever the number of rows; the servers are kept full, longest rows first; prompts are
rendered by a thread ahead of need. Ctrl-C (or SIGTERM) lets requests in flight finish, a second one stops at once.
"""

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop
from datasets import Dataset

from eagle3_data.errors import EngineError
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.dialogues import ScriptedPrompt
from eagle3_data.generation.forecast import Forecast
from eagle3_data.generation.generator import Generator
from eagle3_data.generation.journal.entry import Entry, Ids
from eagle3_data.generation.progress import Progress, Rate, recount
from eagle3_data.generation.prompts.queue import Queues
from eagle3_data.generation.prompts.waiting import PendingSource, pending_sources
from eagle3_data.outcome import Outcome, of_code

logger = logging.getLogger(__name__)

_OPEN_ROWS: Final = 4096
_FORECAST_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.5
_STAND_INS: Final = 4  # rows that may be asked for one place while others wait out a refusal


@dataclass(slots=True)
class GenerationResult:
    """How a run ended: `progress` counts all rows of this shard, earlier runs' included."""

    progress: Progress
    interrupted: bool

    @property
    def failed(self) -> int:
        """Rows that failed and are tried again by the next run."""
        return sum(source.failed for source in self.progress.sources.values())


@dataclass
class GenerationRun:
    """One run over some sources.

    Args:
        prompts: for each source its prompts in draw order, as a Parquet file or a Dataset.
        step: whom to ask; its journal keeps the outcomes.
        on_progress: called twice a second and at the end, on the event loop's thread.
        only_truncated: leave rows alone that have no answer yet; with a Generator that extends.
    """

    prompts: Mapping[str, Path | Dataset]
    step: Generator
    on_progress: Callable[[Progress], None] = lambda progress: None
    only_truncated: bool = False
    _sources: list[PendingSource] = field(default_factory=list)
    _stop_rendering: threading.Event = field(default_factory=threading.Event)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None
    _main: "asyncio.Task[Any] | None" = None
    _draining: bool = False
    _stopped: bool = False
    _error: BaseException | None = None
    _give_up: bool = False
    _tokens: int = 0
    _written: dict["asyncio.Task[Any] | None", int] = field(default_factory=dict)  # by the units in flight
    _in_flight: int = 0
    _wanted: int = 0

    # --- for whoever drives it ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Start no more requests; end when those in flight have their answers. May be called from any thread."""
        self._draining = True
        self._stop_rendering.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._notify)

    def stop(self) -> None:
        """End at once; requests in flight are given up (and asked again by the next run)."""
        self.drain()
        self._stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)

    def interrupt(self) -> None:
        """Drain at the first call, stop at the second: what Ctrl-C should do."""
        if self._draining:
            self.stop()
        else:
            self.drain()

    def run(self, *, handle_signals: bool = True) -> GenerationResult:
        """Work until every row has an outcome, or until interrupted. See `work` for the errors."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self.work(handle_signals=handle_signals))

    # --- the work -----------------------------------------------------------------------------------------------

    async def work(self, *, handle_signals: bool = False) -> GenerationResult:
        """Work until every row has an outcome, or until interrupted.

        Raises:
            EngineError: no server, servers that differ or changed weights, or most rows fail.
            DiskFull, MachineError: the journal or the rendered prompts cannot be written.
            DataError, IdentityError: prompts or servers are not those of this journal.
        """
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._changed = asyncio.Event()
        self._rate, self._forecast = Rate(), Forecast()
        self._forecast_at, self._forecast_seconds = -_FORECAST_SECONDS, -1.0
        self._began, self._since = time.monotonic(), time.time()
        with self._signals(handle_signals):
            try:
                self._sources = pending_sources(self.prompts, self.step, self.only_truncated)
                for source in self._sources:
                    self._forecast.add(source.name, *source.queue.units)
                await self._work()
            except asyncio.CancelledError:
                if not self._stopped:
                    raise
            finally:
                self._stop_rendering.set()
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for source in self._sources:
                    source.rendered.close()
                try:
                    await asyncio.to_thread(self.step.journal.flush)
                finally:
                    await self.step.connections.close()
        if self._error is not None:
            raise self._error
        interrupted = self._draining and any(source.progress.left for source in self._sources)
        progress = self._report(finished=True)
        return GenerationResult(progress, interrupted)

    @contextlib.contextmanager
    def _signals(self, wanted: bool) -> Iterator[None]:
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                # the loop puts Python's own handler back, whatever there was
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def _work(self) -> None:
        renderer = threading.Thread(target=self._render, name="render", daemon=True)
        renderer.start()
        ticker = asyncio.create_task(self._tick())
        queues = Queues([source.queue for source in self._sources])
        by_queue = {id(source.queue): source for source in self._sources}
        try:
            while self._error is None and not self._draining:
                self._open(starving=False)
                for _ in range(await self._room()):
                    task = asyncio.create_task(self._worker(queues, by_queue))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
                if queues.exhausted and not self._tasks:
                    break
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _TICK_SECONDS)
            if self._tasks and not self._give_up:
                await self._drain()
        finally:
            self._stop_rendering.set()
            ticker.cancel()
            await asyncio.to_thread(renderer.join)

    async def _drain(self) -> None:
        """Wait for the answers that servers are writing, and for nothing else.

        Rows that wait for a server's return, or for the time that it named in Retry-After, would take an hour.
        """
        connection = self.step.connections.current
        if connection is None:
            return
        servers = connection.servers
        servers.drain()
        if self._error is not None and servers.working:
            logger.warning(
                "%s: waiting for the %d answers that are being written; Ctrl-C gives them up",
                self._error,
                len(servers.working),
            )
        while self._tasks and not self._give_up:
            for task in self._tasks - servers.working:
                task.cancel()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _TICK_SECONDS)

    async def _worker(self, queues: Queues, by_queue: dict[int, PendingSource]) -> None:
        """Take unit after unit, while there are any and no fewer workers are wanted."""
        while not self._draining and self._error is None and len(self._tasks) <= self._wanted:
            unit = queues.take()
            if unit is None:
                self._open(starving=True)
                unit = queues.take()
            if unit is None:
                return
            await self._unit(by_queue[id(unit[0])], unit[1], unit[2])
            if self.step.journal.backlog_full:
                await asyncio.to_thread(self.step.journal.flush)

    async def _room(self) -> int:
        """Return how many more workers may start: what the servers take, and one for every row that only waits."""
        if not any(not source.queue.exhausted for source in self._sources):
            return 0
        connection = await self.step.connections.get()
        capacity = connection.servers.capacity
        self._wanted = capacity + min(connection.client.sleeping, _STAND_INS * capacity)
        return self._wanted - len(self._tasks)

    def _open(self, starving: bool) -> None:
        for source in self._sources:
            fresh = source.seen_ready - source.opened
            if fresh and (starving or fresh >= _OPEN_ROWS or source.seen_ready >= source.table.rows):
                source.opened = source.seen_ready
                source.queue.open_to(source.opened)

    def _render(self) -> None:
        """Runs in a thread: source by source in turn, so that all of them have rows early."""
        try:
            for source in self._sources:

                def on_ready(rows: int, source: PendingSource = source) -> None:
                    source.seen_ready = rows
                    source.progress.rendered = rows
                    if self._loop is not None:
                        self._loop.call_soon_threadsafe(self._notify)

                source.rendered.advance(on_ready, self._stop_rendering)
        except BaseException as error:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._fail, error)

    async def _unit(self, source: PendingSource, rows: list[int], expected: list[float]) -> None:
        """Answer the prompts of one dialogue in order, on one server as long as it lives."""
        home: Server | None = None
        source.progress.in_flight += 1
        self._in_flight += 1
        unit = asyncio.current_task()
        self._written[unit] = 0
        self._forecast.start(source.name, unit, sum(expected))
        try:
            for row, guess in zip(rows, expected, strict=True):
                if self._draining:
                    break
                for sample in range(source.samples):
                    if self._draining:
                        break
                    home = await self._one(source, row, sample, guess / source.samples, home)
        finally:
            source.progress.in_flight -= 1
            self._in_flight -= 1
            self._forecast.end(source.name, unit, self._written.pop(unit) or None)

    async def _one(
        self, source: PendingSource, row: int, sample: int, guess: float, home: Server | None
    ) -> Server | None:
        """Answer one sample of one prompt, which may be a whole dialogue; return the server that was asked last."""
        sample_id, ids, script = source.rendered.row(row)
        head = self.step.journal.head(sample_id, sample)
        before, had = (of_code(head.outcome), head.tokens) if head else (Outcome.NONE, 0)
        if len(ids) == 0 and row in source.rendered.faults:
            entry = self.step.answers.fault(sample_id, source.rendered.faults[row], sample)
        elif script is None:
            entry, asked = await self.step.answers.outcome(sample_id, source.name, ids, home, head, sample=sample)
            home = asked or home
        else:
            return await self._dialogue(source, sample_id, ids, script, sample, guess, home)
        self._count(source, before, had, guess, entry)
        return home

    async def _dialogue(
        self,
        source: PendingSource,
        sample_id: str,
        ids: Ids,
        script: ScriptedPrompt,
        sample: int,
        guess: float,
        home: Server | None,
    ) -> Server | None:
        heads = (self.step.journal.head(name, sample) for name in (sample_id, *script.later_turns))
        had = sum(head.tokens for head in heads if head is not None and of_code(head.outcome).answered)
        turns, ended, home = await self.step.answers.converse(
            script, sample_id, source.name, ids, sample=sample, home=home, stopping=lambda: self._draining
        )
        answers = [turn.entry for turn in turns if turn.entry.outcome.answered]
        tokens = sum(len(entry.output_ids) for entry in answers)
        self._add_tokens(tokens - had)
        if turns and (ended or not turns[-1].entry.outcome.answered or len(answers) > len(script.later_turns)):
            recount(source.progress, Outcome.NONE, turns[-1].entry)
        if answers:
            source.queue.learned.note(guess, tokens)
        return home

    def _count(self, source: PendingSource, before: Outcome, had: int, guess: float, entry: Entry) -> None:
        recount(source.progress, before if before.answered else Outcome.NONE, entry)
        if entry.outcome.answered:
            self._add_tokens(len(entry.output_ids) - had)
            source.queue.learned.note(guess, len(entry.output_ids))

    def _add_tokens(self, tokens: int) -> None:
        self._tokens += tokens
        self._written[asyncio.current_task()] += tokens

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._notify()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        # Where the servers are at fault, what they are still writing is worth an hour of theirs.
        self._give_up = self._give_up or not isinstance(error, EngineError)
        self.drain()

    def _notify(self) -> None:
        self._changed.set()

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._main is not None:
            self._main.cancel()

    # --- telling ------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._report()
            await asyncio.sleep(_TICK_SECONDS)

    def _seconds_left(self) -> float:
        """Return the forecast, worked out anew every few seconds and counted down between."""
        now = time.monotonic()
        if self._forecast_seconds < 0 or now - self._forecast_at >= _FORECAST_SECONDS:
            self._forecast_at, self._forecast_seconds = now, self._forecast.seconds_left(self._wanted)
        return max(0.0, self._forecast_seconds - (now - self._forecast_at)) if self._forecast_seconds >= 0 else -1.0

    def _report(self, finished: bool = False) -> Progress:
        rate = self._rate.at(self._tokens)
        progress = Progress(
            sources={source.name: source.progress for source in self._sources},
            seconds=time.monotonic() - self._began,
            tokens=self._tokens,
            tokens_per_second=rate,
            seconds_left=0.0 if finished else self._seconds_left(),
            in_flight=self._in_flight,
            draining=self._draining,
            finished=finished,
            since=self._since,
        )
        self.step.connections.describe(progress)
        self.on_progress(progress)
        return progress


def run_generation(
    prompts: Mapping[str, Path | Dataset],
    step: Generator,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    *,
    only_truncated: bool = False,
    handle_signals: bool = True,
) -> GenerationResult:
    """Give every prompt an outcome. See `GenerationRun`."""
    return GenerationRun(prompts, step, on_progress, only_truncated).run(handle_signals=handle_signals)
