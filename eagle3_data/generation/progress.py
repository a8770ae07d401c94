"""What a run tells while it works: one small dataclass, from which bars and JSON lines are made elsewhere.

Goes in: outcomes of rows. Comes out: `Progress`, some times a second.
"""

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from eagle3_data.generation.journal.entry import Entry
from eagle3_data.outcome import Outcome

_WINDOW_SECONDS: Final = 60.0


@dataclass(slots=True)
class SourceProgress:
    """Rows of one source: `total` of this shard, `done` and `truncated` with those of earlier runs."""

    total: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    truncated: int = 0
    in_flight: int = 0
    rendered: int = 0

    @property
    def left(self) -> int:
        """Rows without an outcome."""
        return max(0, self.total - self.done - self.failed - self.skipped)


@dataclass(slots=True)
class Progress:
    """A look at a run. `tokens` are completion tokens of this run; `seconds_left` is -1 while unknown."""

    sources: dict[str, SourceProgress] = field(default_factory=dict)
    seconds: float = 0.0
    tokens: int = 0
    tokens_per_second: float = 0.0
    seconds_left: float = -1.0
    in_flight: int = 0
    concurrency: int = 0
    requests: int = 0
    retries: int = 0
    cached_share: float = 0.0  # of prompt tokens that the servers' prefix caches held
    paused: str = ""  # why rows do not move, "" when they do
    wrong: dict[str, int] = field(default_factory=dict)  # answers that were no data, by kind
    trimmed: int = 0  # answers that ran over their end token and were cut there
    draining: bool = False
    finished: bool = False
    since: float = 0.0  # Unix time at which this run began
    servers: list[dict[str, Any]] = field(default_factory=list)  # url, up, in_flight

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return asdict(self)

    def answer_notes(self) -> list[str]:
        """Return what was wrong with answers, a line for each kind of fault."""
        notes = []
        if self.wrong:
            kinds = ", ".join(
                f"{count:,} {kind}" for kind, count in sorted(self.wrong.items(), key=lambda one: -one[1])
            )
            notes.append(f"{sum(self.wrong.values()):,} answers broke a rule and were not kept ({kinds})")
        if self.trimmed:
            notes.append(
                f"{self.trimmed:,} answers ran over their end token at the cap and were trimmed there (finish_reason "
                "stop): the server accepts several tokens at a step"
            )
        return notes


class Rate:
    """Tokens a second over the last minute: replies come in lumps, so short windows jump."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def at(self, tokens: int) -> float:
        """Take in the total so far and return the rate."""
        now = time.monotonic()
        self._marks.append((now, tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_SECONDS:
            self._marks.popleft()
        then, before = self._marks[0]
        return (tokens - before) / max(now - then, 1e-6)


def count(progress: SourceProgress, outcome: Outcome, by: int = 1) -> None:
    """Count rows that ended with `outcome`."""
    if outcome.answered:
        progress.done += by
        progress.truncated += by * outcome.cut
    elif outcome.failed:
        progress.failed += by
    elif outcome.skipped:
        progress.skipped += by


def recount(progress: SourceProgress, before: Outcome, entry: Entry) -> None:
    """Count a row anew whose outcome changed."""
    count(progress, before, -1)
    count(progress, entry.outcome)
