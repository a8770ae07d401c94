"""Is a source's cap enough, what would be, and what would that cost: as numbers.

Goes in: a source's curve, prompts, cap and target. Comes out: an `Advice` of plain values, which `views/advice.py`
puts into words. A cap is advised only where the data show it: with the promised confidence, at most the target share
of fresh answers will be cut.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy.special import betaincinv

from eagle3_data.lengths.statistics.censoring import (
    Curve,
    SourceCurve,
    first_limit_at_most,
    lower_limit,
    quantile,
    restricted_mean,
    share_above,
    upper_limit,
)
from eagle3_data.lengths.statistics.distribution import LengthCounts
from eagle3_data.lengths.statistics.endless import Endless
from eagle3_data.lengths.statistics.intervals import CONFIDENCE, Interval, rounded, rows_for_cap, share_interval
from eagle3_data.lengths.statistics.tail import TailModel

# SGLang clamps an answer without saying so when prompt + budget reach the context length, so two tokens stay free.
CONTEXT_MARGIN: Final = 2
CAP_MULTIPLE: Final = 64
# Cut rows at or below the median move it by at most this share of the rows: less than its own error in 2,000 rows.
_UNTOUCHED: Final = 0.02
_ROUNDING: Final = 1e-12


@dataclass(frozen=True)
class CapChoice:
    """The cap that a sample supports.

    Attributes:
        cap: tokens; with `confidence` at most `target` of fresh answers are longer. None where the sample cannot say.
        smallest: the smallest cap that meets the target, with its two-sided interval.
        target, confidence: what was asked for.
        rows: rows of the sample.
        rows_needed: fewest rows with which a cap can be advised at all.
        reason: "measured", "too_few_rows" (none can be with so few), "beyond_caps" (too many were cut) or "unanswered"
            (the rows would do, were the missing ones among them answered).
    """

    cap: int | None
    smallest: Interval
    target: float
    confidence: float
    rows: int
    rows_needed: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as JSON values."""
        return {**asdict(self), "smallest": self.smallest.to_dict()}


def choose_cap(
    lengths: LengthCounts | Curve,
    truncation_target: float = 0.01,
    *,
    confidence: float = CONFIDENCE,
    multiple: int = CAP_MULTIPLE,
) -> CapChoice:
    """Choose the cap for a truncation target from a sample of lengths, some of them cut.

    The advised cap is the one-sided upper confidence limit of the (1 - target)-quantile: of the samples one could have
    drawn, at least `confidence` lead to a cap that cuts at most the target share of fresh answers.

    Args:
        lengths: completion lengths of a random sample, or their curve.
        truncation_target: largest share of answers to be cut, in (0, 1).
        confidence: one-sided.
        multiple: the cap is rounded up to a multiple of this many tokens.
    """
    needed = rows_for_cap(truncation_target, confidence)
    curve: Curve = SourceCurve(lengths) if isinstance(lengths, LengthCounts) else lengths
    nothing = Interval(None, None, None)
    if not curve.rows:
        return CapChoice(None, nothing, truncation_target, confidence, 0, needed, "too_few_rows")
    found = first_limit_at_most(curve, truncation_target + _ROUNDING, 1 - confidence, upper=True)
    smallest = quantile(curve, 1 - truncation_target, confidence)
    if found is not None:
        cap = max(multiple, -(-found // multiple) * multiple)
        return CapChoice(cap, smallest, truncation_target, confidence, curve.rows, needed, "measured")
    reason = _why_none(curve, truncation_target, needed)
    return CapChoice(None, smallest, truncation_target, confidence, curve.rows, needed, reason)


def _why_none(curve: Curve, target: float, needed: int) -> str:
    until, waiting = curve.known_until(), curve.waiting
    cut = until is not None and float(curve.survival(np.array([until]))[0]) > target
    if waiting and not cut and curve.rows + waiting >= needed:
        return "unanswered"
    return "too_few_rows" if curve.rows < needed and not cut else "beyond_caps"


@dataclass(frozen=True)
class Advice:
    """What to do about one source's cap. Shares are of the rows that may end, lengths in tokens, times in hours.

    Two verdicts: what sets the *typical* length, and whether the *tail* beyond the cap meets the target.

    Attributes:
        cap: the present cap; None where nothing says what it is.
        typical: what sets the median: "task" (answers end on their own), "cap", "context" or "cannot_tell".
        verdict: of the tail, for `target` with `confidence` (one-sided): "enough", "likely" (the estimate meets the
            target, and its limit does not), "too_small" or "cannot_tell".
        above_cap: share of answers longer than the cap, with its interval.
        action: what to do: "keep", "extend" (to `aim`), "raise" (a fresh run, to `aim`), "more_rows", "go_on" (with a
            run that is not finished), "context" (serve a longer one) or "none".
        aim: the cap that the action names.
        rows: that may end; `effective_rows` of them where rows depend on each other.
        proves: the smallest share above a cap that so many rows can show with `confidence`, if none is longer.
        median, p99: estimates with intervals.
        advised: the cap that the data show to meet the target; see `CapChoice`.
        next_try: where too many rows were cut to advise one, the cap to try: at least twice the present one.
        tail: what the tail model says of the cap for the target, where the data themselves cannot.
        context: how the present and the advised cap fit the target's context with this source's prompts.
        cost: tokens and hours of a fresh run at either cap, and of `extend` instead.
        endless: rows that never end; see `Endless`.
        cut_by_context: share of all rows cut because the context was full (loops apart).
        cut_below_cap: share of rows cut by a lower cap than the present one, so that `extend` has work left.
        unfinished: rows without an answer yet.
    """

    source: str
    cap: int | None
    target: float
    confidence: float
    typical: str
    verdict: str
    above_cap: Interval
    action: str
    aim: int | None
    rows: int
    effective_rows: int
    proves: float | None
    median: Interval
    p99: Interval
    advised: CapChoice
    next_try: int | None
    tail: dict[str, Any] | None
    context: dict[str, Any] | None
    cost: dict[str, Any]
    endless: Endless
    cut_by_context: Interval
    cut_below_cap: Interval
    unfinished: int

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as JSON values."""
        plain = asdict(self)
        for key in ("above_cap", "median", "p99", "cut_by_context", "cut_below_cap", "endless"):
            plain[key] = getattr(self, key).to_dict()
        plain["proves"] = rounded(self.proves)
        plain["advised"]["smallest"] = self.advised.smallest.to_dict()
        del plain["advised"]["target"], plain["advised"]["confidence"], plain["advised"]["rows"]
        return plain


def advise(
    source: str,
    completion: LengthCounts,
    curve: SourceCurve,
    prompt: LengthCounts,
    endless: Endless,
    *,
    cap: int | None,
    target: float,
    tail: TailModel | None = None,
    cut_by_context: int = 0,
    context_length: int | None = None,
    tokens_per_second: float | None = None,
    confidence: float = CONFIDENCE,
) -> Advice:
    """Judge a source's cap and work out a better one and its cost.

    Args:
        source: its name.
        completion, curve: its completion lengths, rows that never end set apart, and the curve of the others.
        prompt: its prompt lengths.
        endless: its rows that never end.
        cap: the present max_new_tokens.
        target: largest share of answers to be cut.
        tail: a model of what lies beyond the caps.
        cut_by_context: rows with finish_reason length_context that do not loop.
        context_length: of the target on its engine, tokens.
        tokens_per_second: completion tokens a second that the run reached, all sources together.
        confidence: one-sided for verdict and cap.
    """
    advised = choose_cap(curve, target, confidence=confidence)
    above = share_above(curve, cap, confidence) if cap is not None and curve.rows else Interval(None, None, None)
    by_context = share_interval(cut_by_context, completion.rows, confidence)
    full = (by_context.low or 0.0) > target  # then no cap helps, and none is to be tried
    tried = None if advised.cap or full else _next_try(advised, curve, prompt, tail, cap, context_length)
    below = int(completion.cut[completion.values < (cap or 0)].sum())
    verdict = _verdict(curve, cap, target, confidence, above)
    effective = curve.rows / (float(curve.design.effects[-1]) if curve.design.dialogues else 1.0)
    open_rows = bool(curve.waiting) and verdict == "cannot_tell"
    action, aim = _action(advised, verdict, cap, tried, full, open_rows, cut=int(completion.cut.sum()))
    extended = endless.plateau if action == "extend" else 0
    return Advice(
        source=source,
        cap=cap,
        target=target,
        confidence=confidence,
        typical=_typical(curve),
        verdict=verdict,
        above_cap=above,
        action=action,
        aim=aim,
        rows=curve.rows,
        effective_rows=round(effective),
        proves=1 - (1 - confidence) ** (1 / effective) if curve.rows else None,
        median=quantile(curve, 0.5, confidence),
        p99=quantile(curve, 0.99, confidence),
        advised=advised,
        next_try=tried,
        tail=_tail_advice(tail, target) if advised.cap is None and tail else None,
        context=_context(prompt, cap, aim, context_length),
        cost=_cost(completion, curve, prompt, tail, cap, aim or advised.cap, extended, tokens_per_second),
        endless=endless,
        cut_by_context=by_context,
        cut_below_cap=share_interval(below, curve.rows, confidence),
        unfinished=completion.waiting,
    )


def _verdict(curve: Curve, cap: int | None, target: float, confidence: float, above: Interval) -> str:
    if cap is None or not curve.rows:
        return "cannot_tell"
    at = np.array([cap])
    low = float(lower_limit(curve, at, 1 - confidence)[0])
    high = float(upper_limit(curve, at, 1 - confidence)[0])
    if high <= target + _ROUNDING:
        return "enough"
    if low > target:
        return "too_small"
    enough_rows = curve.rows >= rows_for_cap(target, confidence)
    met = above.value is not None and above.value <= target
    return "likely" if enough_rows and not curve.waiting and met else "cannot_tell"


def _typical(curve: SourceCurve) -> str:
    """Say what sets the median: a cap does only where rows were cut at or below it."""
    if not curve.rows:
        return "cannot_tell"
    found, counts = quantile(curve, 0.5), curve.counts
    by_context = int(counts.loose.sum()) > int(counts.cut.sum())
    if found.value is None:
        return "context" if by_context else "cap"
    if found.high is None:
        return "cannot_tell"
    short = counts.values <= found.high
    cut = int((counts.cut + counts.loose)[short].sum())
    if cut <= _UNTOUCHED * counts.rows:
        return "task"
    return "context" if by_context else "cap"


def _action(
    advised: CapChoice, verdict: str, cap: int | None, tried: int | None, full: bool, open_rows: bool, *, cut: int
) -> tuple[str, int | None]:
    """Return what to do and the cap that it names."""
    if advised.reason == "unanswered" or (advised.cap is None and open_rows):
        return "go_on", None
    if cap is None:
        return "none", None
    if verdict in ("enough", "likely"):
        return "keep", None
    if advised.cap is not None:
        return ("extend" if cut else "raise"), max(advised.cap, cap)
    if advised.reason == "too_few_rows":
        return "more_rows", None
    if full or tried is None:
        return "context", None
    return "extend", tried


def _next_try(
    choice: CapChoice,
    curve: SourceCurve,
    prompt: LengthCounts,
    tail: TailModel | None,
    cap: int | None,
    context_length: int | None,
) -> int | None:
    """Return the cap to try where the data show none: at least twice the largest, further where a tail model is sure.

    Advising needs so few longer rows that their upper limit meets the target, fewer than the target share itself; the
    model is asked for that share, and for the upper limit of its answer as far as it is trusted.
    """
    if choice.reason != "beyond_caps":
        return None
    until = curve.known_until()
    largest = int(curve.counts.values[curve.counts.cut > 0][-1]) if curve.counts.cut.any() else 0
    if until is None:  # some row ended as the last of all: rows cut by a lower cap go on to the present one first
        wanted = cap if cap is not None and cap >= 2 * largest else 2 * largest
    elif until <= 0:
        return None
    else:
        wanted = 2 * max(until, min(cap or 0, until))
        share = _share_to_aim_at(curve.rows, choice.target, choice.confidence)
        if tail is not None and tail.fits and share > 0:
            value, _, high = tail.cap(share)
            if value <= tail.trusted_until:
                wanted = max(wanted, min(high, tail.trusted_until))
    wanted = max(CAP_MULTIPLE, -(-wanted // CAP_MULTIPLE) * CAP_MULTIPLE)
    room = _room(prompt, context_length)
    if room is not None:
        wanted = min(wanted, room // CAP_MULTIPLE * CAP_MULTIPLE)
    return wanted if wanted > largest else None


def _share_to_aim_at(rows: int, target: float, confidence: float) -> float:
    """Return the largest share of longer rows whose upper limit still meets the target (Clopper and Pearson)."""
    low, high = -1, int(target * rows) + 1
    while high - low > 1:
        middle = (low + high) // 2
        meets = float(betaincinv(middle + 1, rows - middle, confidence)) <= target
        low, high = (middle, high) if meets else (low, middle)
    return max(low, 0.5) / rows if low >= 0 else 0.0


def _room(prompt: LengthCounts, context_length: int | None) -> int | None:
    """Return the largest budget that the context leaves for 95 % of the prompts."""
    if context_length is None or not prompt.rows:
        return None
    longest = quantile(SourceCurve(prompt), 0.95).value
    return max(0, context_length - CONTEXT_MARGIN - int(longest or 0))


def _tail_advice(tail: TailModel, target: float) -> dict[str, Any]:
    value, low, high = tail.cap(target)
    return {
        "cap": {"value": value, "low": low, "high": high},
        "cap_lognormal": tail.cap_lognormal(target),
        "trusted_until": tail.trusted_until,
        "trusted": bool(tail.fits and value <= tail.trusted_until),
        "p_value": rounded(tail.p_value, 6),
    }


def _context(prompt: LengthCounts, cap: int | None, aim: int | None, length: int | None) -> dict[str, Any] | None:
    if length is None or not prompt.rows:
        return None

    def fits(budget: int | None) -> dict[str, Any] | None:
        if budget is None:
            return None
        room = int(prompt.recorded[prompt.values + budget <= length - CONTEXT_MARGIN].sum())
        return {"cap": budget, "prompts": {"rows": room, "share": share_interval(room, prompt.rows).to_dict()}}

    longest = prompt.extreme(-1)
    return {
        "length": length,
        "longest_prompt": longest,
        "largest_cap_for_all_prompts": max(0, length - CONTEXT_MARGIN - longest),
        "largest_cap_for_most_prompts": _room(prompt, length),
        "present": fits(cap),
        "advised": fits(aim),
    }


def _cost(
    completion: LengthCounts,
    curve: SourceCurve,
    prompt: LengthCounts,
    tail: TailModel | None,
    cap: int | None,
    aim: int | None,
    plateau: int,
    tokens_per_second: float | None,
) -> dict[str, Any]:
    """Return what a run at the present cap costs, at the advised one, and what `extend` costs instead.

    A tail model that does not fit gives no expectation; rows beyond the caps then count to the budget ("at_most").
    `plateau` rows of those that never end are not known one by one, so `extend` goes on with them too.
    """
    rows, stuck = completion.rows + completion.waiting, int(completion.stuck.sum())
    tail = tail if tail is not None and tail.fits else None
    endless = stuck / completion.rows if completion.rows else 0.0

    def hours(tokens: float | None) -> float | int | None:
        return rounded(tokens / tokens_per_second / 3600, 6) if tokens is not None and tokens_per_second else None

    def bounded(budget: int) -> bool:
        """Whether rows beyond the caps could only be counted as going on to the budget."""
        until = curve.known_until()
        return tail is None and until is not None and budget > until

    def fresh(budget: int | None) -> dict[str, Any] | None:
        if budget is None or not curve.rows:
            return None
        tokens = round(rows * ((1 - endless) * expected_tokens(curve, tail, budget) + endless * budget))
        return {"cap": budget, "completion_tokens": tokens, "hours": hours(tokens), "at_most": bounded(budget)}

    cost: dict[str, Any] = {"rows": rows, "present": fresh(cap), "advised": fresh(aim), "extend": None}
    longer = completion.values < (aim or 0)
    cut = np.where(longer, completion.cut, 0)
    if aim is not None and cut.sum():
        survival = np.maximum(curve.survival(completion.values), 1e-12)
        already = np.array(
            [expected_tokens(curve, tail, int(v)) if n else 0.0 for v, n in zip(completion.values, cut, strict=True)]
        )
        more = (expected_tokens(curve, tail, aim) - already) / survival
        expected = float((cut * np.clip(more, 0, aim - completion.values)).sum())
        at_end = int(completion.values[completion.cut > 0][-1])
        stuck_tokens = plateau * (aim - at_end)
        cost["extend"] = {
            "cap": aim,
            "rows": int(cut.sum()) + plateau,
            "completion_tokens": round(expected) + stuck_tokens,
            "completion_tokens_at_most": int((cut * (aim - completion.values)).sum()) + stuck_tokens,
            "prefill_tokens": round(
                float((cut * (completion.values + prompt.mean)).sum()) + plateau * (at_end + prompt.mean)
            ),
            "hours": hours(expected + stuck_tokens),
            "at_most": bounded(aim),
        }
    return cost


def expected_tokens(curve: SourceCurve, tail: TailModel | None, cap: int) -> float:
    """Return E[min(length, cap)] in tokens, by the curve as far as it is known and by the tail model beyond it.

    Without a tail model rows that reached the known end count as going on to `cap`: an upper bound.
    """
    until = curve.known_until()
    if until is None or cap <= until or tail is None:
        return restricted_mean(curve, cap)
    edges = np.unique(np.geomspace(until, cap, 400).round())
    survival = tail.survival(edges)
    scale = float(curve.survival(np.array([until]))[0]) / max(float(survival[0]), 1e-300)
    beyond = float((np.diff(edges) * (survival[:-1] + survival[1:]) / 2).sum()) * scale
    return restricted_mean(curve, until) + beyond


def dominated_by_rows(sections: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sources whose short answers fill the mixture by rows, though not by tokens.

    A source is named when it has more than its even share of the rows and less than half as large a share of tokens.
    """
    even = 1 / max(len(sections), 1)
    return [
        name
        for name, section in sections.items()
        if len(sections) > 1
        and section["token_share"] is not None
        and section["row_share"] >= even * 0.999
        and section["token_share"] < section["row_share"] / 2
    ]
