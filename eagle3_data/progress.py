"""Progress of a generation run on stderr: bars for people, JSON lines for machines.

Goes in: the `Progress` events of the generation room. Comes out: one bar a source (rows done, failed, truncated, in
flight, tokens/s, time left), or one JSON object a line; and, beside those lines, log messages as JSON too.
"""

import contextlib
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from eagle3_data.errors import UsageError
from eagle3_data.generation.progress import Progress
from eagle3_data.run_folder import open_new

Listener = Callable[[Progress], None]
_LINE_SECONDS = 5.0
_KEPT_SECONDS = 2.0


@contextlib.contextmanager
def shown(mode: str) -> Iterator[Listener]:
    """Show progress while the block runs.

    Args:
        mode: `bar`; `json` (a line every five seconds and at the end); `none`; or `auto`: bars on a terminal, else a
            plain line every half minute, and at once when the run pauses, goes on or drains.

    Raises:
        UsageError: another mode.
    """
    if mode == "none":
        yield lambda progress: None
    elif mode == "json":
        yield _every(_LINE_SECONDS, lambda progress: json.dumps(progress.to_dict()))
    elif mode == "bar" or (mode == "auto" and sys.stderr.isatty()):
        with _Shown() as bars:
            yield bars.show
    elif mode == "auto":
        yield _every(6 * _LINE_SECONDS, _summary, _standing)
    else:
        raise UsageError(f"progress: {mode!r} is not auto, bar, json or none")


def kept(path: Path, listener: Listener) -> Listener:
    """Return a listener that also leaves every look at `path` for other processes, at most every two seconds.

    It is a hint for people: where it cannot be written, the run goes on without it.
    """
    last = -_KEPT_SECONDS

    def show(progress: Progress) -> None:
        nonlocal last
        if progress.finished or time.monotonic() - last >= _KEPT_SECONDS:
            last = time.monotonic()
            values = {**progress.to_dict(), "pid": os.getpid(), "host": socket.gethostname(), "written": time.time()}
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                beside, file = open_new(path)
                with file:
                    file.write(json.dumps(values).encode())
                beside.replace(path)
        listener(progress)

    return show


def log_line(level: str, message: str) -> str:
    """Return a log message as the JSON line that stands between the lines of `--progress json`."""
    return json.dumps({"event": "log", "level": level, "message": message}, ensure_ascii=False)


@contextlib.contextmanager
def json_log() -> Iterator[None]:
    """Write log messages and warnings to stderr as JSON lines while the block runs, libraries' included."""
    handler, root = _JsonLog(), logging.getLogger()
    # these print by themselves, whatever the root does
    loud = [library for library in map(logging.getLogger, ("datasets", "huggingface_hub")) if library.handlers]
    before = [(library, library.handlers[:], library.propagate) for library in loud]
    root.addHandler(handler)
    logging.captureWarnings(True)
    for library in loud:
        library.handlers[:], library.propagate = [], True
    try:
        yield
    finally:
        for library, handlers, propagate in before:
            library.handlers[:], library.propagate = handlers, propagate
        logging.captureWarnings(False)
        root.removeHandler(handler)


class _JsonLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(log_line(record.levelname.lower(), self.format(record)), file=sys.stderr, flush=True)


def _every(
    seconds: float, line: Callable[[Progress], str], state: Callable[[Progress], object] = lambda progress: None
) -> Listener:
    """Return a listener that prints a line every so many seconds, and at once when `state` changes."""
    last, before = -seconds, state(Progress())

    def show(progress: Progress) -> None:
        nonlocal last, before
        now = state(progress)
        if progress.finished or now != before or time.monotonic() - last >= seconds:
            last, before = time.monotonic(), now
            print(line(progress), file=sys.stderr, flush=True)

    return show


def _standing(progress: Progress) -> tuple[str, bool]:
    return progress.paused, progress.draining


def _hindrance(progress: Progress) -> str:
    """Return why rows do not go on as they should; "" when they do, or when all is over."""
    if progress.draining and not progress.finished:
        answers = "1 answer" if progress.in_flight == 1 else f"{progress.in_flight:,} answers"
        return f"stopping: waiting for {answers} in flight; Ctrl-C now gives them up"
    return progress.paused


def _summary(progress: Progress) -> str:
    sources = progress.sources.values()
    done, total = sum(source.total - source.left for source in sources), sum(source.total for source in sources)
    parts = [f"{done:,} of {total:,} rows", *_outcomes(progress), f"{progress.tokens_per_second:,.0f} tokens/s"]
    if progress.seconds_left >= 0 and not progress.finished:
        parts.append(f"{_clock(progress.seconds_left)} left")
    if hindrance := _hindrance(progress):
        parts.append(hindrance)
    return ", ".join(parts)


def _outcomes(progress: Progress) -> list[str]:
    counts = {"failed": 0, "truncated": 0, "skipped": 0}
    for source in progress.sources.values():
        for name in counts:
            counts[name] += getattr(source, name)
    return [f"{count:,} {name}" for name, count in counts.items() if count]


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class _Shown:
    """One bar a source and a line for the whole, on stderr."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            transient=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._whole: TaskID | None = None

    def __enter__(self) -> "_Shown":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: Progress) -> None:
        for name, source in progress.sources.items():
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=source.total, text="")
            text = f"{source.failed} failed, {source.truncated} truncated, {source.in_flight} in flight"
            self._bars.update(self._tasks[name], completed=source.total - source.left, total=source.total, text=text)
        if self._whole is None:
            self._whole = self._bars.add_task("all", total=1, text="")
        total = sum(source.total for source in progress.sources.values())
        left = sum(source.left for source in progress.sources.values())
        text = _hindrance(progress)
        if not text:
            rest = f", {_clock(progress.seconds_left)} left" if progress.seconds_left >= 0 else ""
            text = f"{progress.tokens_per_second:,.0f} tokens/s{rest}"
        self._bars.update(self._whole, completed=total - left, total=total, text=text)
