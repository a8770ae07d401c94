"""Rows by tokens: how many prompts, in draw order, give as many output tokens as a source asks for.

Goes in: a source with `tokens`, and the lengths of the answers in the run's journal, or in its pilot's. Comes out: how
many prompts to draw now, and whether that number is final. The final one is the smallest number of prompts, in draw
order, whose answers reach the target: it depends on the answers alone, so a run that was killed ends like one that was
not, and a larger target contains a smaller. Prompts that were asked beyond it stay in the journal.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.prompts.standing import standing, turn_ids
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.lengths.views import wording
from eagle3_data.manifest import Manifest, SourceExtent
from eagle3_data.outcome import flags
from eagle3_data.recipe import SourceSpec
from eagle3_data.run_folder import RunFolder

Ints = npt.NDArray[np.int64]

_SCAN: Final = 50_000
# The first prompts, where nothing is known of the lengths: enough for a rough mean.
_FIRST_ROWS: Final = 32
_ERRORS: Final = 2.0  # standard errors to either side of an estimate
# Prompts that may be asked for in vain: another round would cost the time of its longest answer.
_SPARE_ROWS: Final = 32
_SPARE_SHARE: Final = 0.01
# With more failed rows than this, others in their place would only fail too.
_FAILED_SHARE: Final = 0.05


@dataclass(frozen=True)
class Lengths:
    """Output tokens of prompts in draw order, all answers to each summed up; `where` names what was measured."""

    tokens: Ints
    answered: int  # prompts with at least one answer
    missing: int
    failed: int
    where: str

    @property
    def mean(self) -> float:
        """Output tokens of a prompt."""
        return float(self.tokens.mean())

    def rows_for(self, tokens: int) -> int | None:
        """Return the smallest number of these prompts that gives so many tokens; None where all give fewer."""
        sums = np.cumsum(self.tokens)
        return int(np.searchsorted(sums, tokens)) + 1 if len(sums) and sums[-1] >= tokens else None

    def estimate(self, tokens: float, *, fresh: bool) -> tuple[float, float]:
        """Return how many more prompts give so many tokens, and the standard error of that.

        Args:
            tokens: what is still wanted.
            fresh: whether these prompts come on top of the measured ones, so that only their own scatter counts twice.
        """
        rows = tokens / max(self.mean, 1e-9)
        scatter = float(self.tokens.std()) / max(self.mean, 1e-9) if len(self.tokens) > 1 else 1.0
        own = rows if fresh else max(0.0, rows - len(self.tokens))
        return rows, scatter * math.sqrt(rows * rows / len(self.tokens) + own)


@dataclass(frozen=True)
class TokenPlan:
    """What a source with `tokens` will take: numbers of prompts, None where nothing was measured yet."""

    source: str
    tokens: int
    rows: int | None
    low: int | None
    high: int | None
    at_least: int | None  # by the cap: with fewer the target cannot be met
    mean: float | None
    measured: int
    where: str
    drawn: int
    short: bool  # there are no more prompts

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return dict(self.__dict__)

    def sentence(self) -> str:
        """Return the plan in plain words."""
        words = f"{self.source}: {self.tokens:,} output tokens take "
        if self.rows is None or self.low is None or self.high is None:
            least = f"at least {self.at_least:,} prompts" if self.at_least else "a number of prompts that is not known"
            words += (
                f"{least}; no answer was measured yet, so a pilot (or the first {self.drawn:,} answers) tells more"
            )
        else:
            words += (
                f"about {self.rows:,} prompts ({self.low:,} – {self.high:,}), at a mean of {self.mean:,.0f} tokens in "
                f"{wording.count(self.measured, 'prompt')} of {self.where}"
            )
        if self.short:
            words += f"; there are only {self.drawn:,}"
        return f"{words}. They are drawn in rounds until the target is met."


@dataclass(frozen=True)
class Draw:
    """How many prompts to draw now, and whether no more will be."""

    rows: int
    final: bool


def rows_to_draw(
    folder: RunFolder, spec: SourceSpec, manifest: Manifest, *, same: bool, journal: Journal | None = None
) -> Draw:
    """Return how many prompts a source with `tokens` needs now.

    Args:
        folder: the run.
        spec: the source's entry.
        manifest: of the run, as it stands.
        same: whether the prompts in the folder are of the same source entry, but for their number.
        journal: an open journal of the run; None to read it.
    """
    assert spec.tokens is not None
    before, report = manifest.extent_of(spec.name), manifest.report_of(spec.name)
    if not same or not folder.prompts_path(spec.name).is_file():
        return Draw(_first(folder, spec, manifest), final=False)
    drawn = before.token_rows or report.drawn
    if before.token_rows and before.tokens == spec.tokens and before.tokens_final:
        return Draw(drawn, final=True)
    lengths = measured(folder, spec, journal=journal)
    if lengths is None or not lengths.answered:
        return Draw(_first(folder, spec, manifest), final=False)
    if lengths.missing:
        return Draw(drawn, final=False)
    if (rows := lengths.rows_for(spec.tokens)) is not None:
        return Draw(rows, final=True)
    if report.short:
        return Draw(drawn, final=True)
    if lengths.failed > _FAILED_SHARE * len(lengths.tokens) or not lengths.tokens.any():
        return Draw(drawn, final=False)
    return Draw(len(lengths.tokens) + _more(lengths, spec, manifest), final=False)


def plan_of(folder: RunFolder, spec: SourceSpec, manifest: Manifest) -> TokenPlan:
    """Return what a source with `tokens` will take, by the run's own lengths, or else by the pilot's."""
    assert spec.tokens is not None
    report = manifest.report_of(spec.name)
    lengths = _known(folder, spec, manifest)
    least = _at_least(spec, manifest, spec.tokens)
    if lengths is None:
        return TokenPlan(
            spec.name, spec.tokens, None, None, None, least, None, 0, "", drawn=report.drawn, short=report.short
        )
    own = lengths.where == "this run"
    exact = lengths.rows_for(spec.tokens) if own and not lengths.missing else None
    rows, error = (float(exact), 0.0) if exact else lengths.estimate(spec.tokens, fresh=not own)
    low = max(rows - _ERRORS * error, least or 1, 1)
    return TokenPlan(
        spec.name,
        spec.tokens,
        max(math.ceil(rows), math.ceil(low)),
        math.ceil(low),
        math.ceil(rows + _ERRORS * error),
        least,
        lengths.mean,
        len(lengths.tokens),
        lengths.where,
        drawn=report.drawn,
        short=report.short,
    )


def reached_notes(manifest: Manifest) -> Iterator[str]:
    """Yield a line for every source with `tokens`: the target, and what its records hold."""
    for name, extent in manifest.extent.sources.items():
        if extent.tokens is None or name not in manifest.generation:
            continue
        reached, drawn = manifest.counts_of(name).completion_tokens, manifest.report_of(name).drawn
        line = f"{name}: {reached:,} output tokens (target {extent.tokens:,}), from {wording.count(drawn, 'prompt')}"
        if reached >= extent.tokens:
            yield line
        elif manifest.report_of(name).short:
            yield f"{line}; the source has no more: lower tokens, or add samples"
        elif extent.tokens_final:
            yield line
        else:
            yield f"{line}; go on with: eagle3-data prepare, then generate"


def measured(
    folder: RunFolder, spec: SourceSpec, *, journal: Journal | None = None, cap: int | None = None, where: str = ""
) -> Lengths | None:
    """Return the lengths of a source's answers in a run folder; None where it has no prompts or no journal."""
    path = folder.prompts_path(spec.name)
    if not path.is_file() or not (journal or folder.journal_path.is_dir()):
        return None
    with contextlib.ExitStack() as stack:
        opened = journal or stack.enter_context(Journal(folder.journal_path, readonly=True))
        return _read(path, opened, spec.samples, cap, where or "this run")


def _read(path: Path, journal: Journal, samples: int, cap: int | None, where: str) -> Lengths:
    parts: list[Ints] = []
    answered = missing = failed = 0
    for batch in PromptTable(path).batches(["sample_id", "later_turns"], size=_SCAN):
        names, starts = turn_ids(batch)
        sums, some = np.zeros(batch.num_rows, np.int64), np.zeros(batch.num_rows, np.bool_)
        open_, lost = some.copy(), some.copy()
        for sample in range(samples):
            stands = standing(names, starts, journal, sample)
            done = stands.counted()
            tokens = journal.index.column("tokens", stands.positions[done]).astype(np.int64)
            rows = np.searchsorted(starts, done, "right") - 1
            np.add.at(sums, rows, tokens if cap is None else np.minimum(tokens, cap))
            some |= stands.answered > 0
            open_ |= stands.missing
            lost |= ~stands.whole & flags(stands.next_code, "failed")
        parts.append(sums)
        answered, missing, failed = answered + int(some.sum()), missing + int(open_.sum()), failed + int(lost.sum())
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return Lengths(tokens, answered, missing, failed, where)


def _known(folder: RunFolder, spec: SourceSpec, manifest: Manifest) -> Lengths | None:
    """Return the run's own lengths where its prompts are answered, else those of its pilot under the run's cap."""
    own = measured(folder, spec)
    if own is not None and own.answered and not own.missing:
        return own
    cap = manifest.cap_for(spec.name, spec.max_new_tokens)
    tried = measured(RunFolder(folder.path / "pilot"), spec, cap=cap, where="the pilot")
    return tried if tried is not None and tried.answered and tried.tokens.any() else None


def _first(folder: RunFolder, spec: SourceSpec, manifest: Manifest) -> int:
    """Return how many prompts to begin with: by the pilot, else as many as the cap makes sure are needed."""
    assert spec.tokens is not None
    least = _at_least(spec, manifest, spec.tokens) or 1
    pilot = _known(folder, spec, manifest)
    if pilot is None:
        return max(least, _FIRST_ROWS)
    rows, error = pilot.estimate(spec.tokens, fresh=True)
    return max(least, _asked(rows, error, rows))


def _more(lengths: Lengths, spec: SourceSpec, manifest: Manifest) -> int:
    assert spec.tokens is not None
    left = spec.tokens - int(lengths.tokens.sum())
    rows, error = lengths.estimate(left, fresh=True)
    return max(_at_least(spec, manifest, left) or 1, _asked(rows, error, len(lengths.tokens) + rows))


def _asked(rows: float, error: float, whole: float) -> int:
    """Return how many prompts to ask for: the upper limit of an estimate where few can be in vain, else the lower."""
    if _ERRORS * error <= max(_SPARE_ROWS, _SPARE_SHARE * whole):
        return math.ceil(rows + _ERRORS * error)
    return math.ceil(max(rows - _ERRORS * error, rows / 2))


def _at_least(spec: SourceSpec, manifest: Manifest, tokens: int) -> int | None:
    """Return how many prompts it takes when every answer is as long as the cap; None where that is not known."""
    extent: SourceExtent = manifest.extent_of(spec.name)
    caps = [manifest.cap_for(spec.name, spec.max_new_tokens), extent.sent_cap, extent.extended_to]
    known = [cap for cap in caps if cap]
    turns = spec.max_turns if spec.turns == "rollout" else 1
    if not known or turns is None:
        return None  # nothing bounds the turns of a dialogue
    return math.ceil(tokens / (max(known) * turns * spec.samples))
