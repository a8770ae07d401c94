"""Progress of a generation run on stderr: bars for people, JSON lines for machines.

Goes in: the `Progress` events of the generation room. Comes out: one bar a source (rows done, failed, truncated, in
flight, tokens/s, time left), or one JSON object a line.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from eagle3_data.errors import UsageError
from eagle3_data.generation.progress import Progress

Listener = Callable[[Progress], None]
_LINE_SECONDS = 5.0


@contextlib.contextmanager
def shown(mode: str) -> Iterator[Listener]:
    """Show progress while the block runs.

    Args:
        mode: `bar`; `json` (a line every five seconds and at the end); `none`; or `auto`: bars on a terminal, else a
            plain line every half minute.

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
        yield _every(6 * _LINE_SECONDS, _summary)
    else:
        raise UsageError(f"progress: {mode!r} is not auto, bar, json or none")


def _every(seconds: float, line: Callable[[Progress], str]) -> Listener:
    last = -seconds

    def show(progress: Progress) -> None:
        nonlocal last
        if progress.finished or time.monotonic() - last >= seconds:
            last = time.monotonic()
            print(line(progress), file=sys.stderr, flush=True)

    return show


def _summary(progress: Progress) -> str:
    sources = progress.sources.values()
    done, total = sum(source.total - source.left for source in sources), sum(source.total for source in sources)
    parts = [f"{done:,} of {total:,} rows", *_outcomes(progress), f"{progress.tokens_per_second:,.0f} tokens/s"]
    if progress.seconds_left >= 0 and not progress.finished:
        parts.append(f"{_clock(progress.seconds_left)} left")
    if progress.paused:
        parts.append(progress.paused)
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
        if progress.paused:
            text = progress.paused
        elif progress.draining and not progress.finished:
            text = f"finishing {progress.in_flight} rows in flight; Ctrl-C again to stop at once"
        else:
            rest = f", {_clock(progress.seconds_left)} left" if progress.seconds_left >= 0 else ""
            text = f"{progress.tokens_per_second:,.0f} tokens/s{rest}"
        self._bars.update(self._whole, completed=total - left, total=total, text=text)
