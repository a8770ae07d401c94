"""What a plan says of prompts: their exact lengths beside the guess from characters, and the budgets they leave.

Goes in: token counts of rendered prompts, the characters they came from, a cap and the engine's limits. Comes out: a
`PromptReport`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from eagle3_data.errors import DataError
from eagle3_data.lengths.reading import Sums
from eagle3_data.lengths.statistics.distribution import Ints, LengthCounts, checked_lengths
from eagle3_data.lengths.statistics.intervals import CONFIDENCE, rounded, share_interval
from eagle3_data.lengths.summary import distribution, ratio_interval
from eagle3_data.lengths.views import wording

if TYPE_CHECKING:  # only a type: to measure lengths no client of an engine is needed
    from eagle3_data.generation.budget import ContextLimits

CHARACTERS_PER_TOKEN: Final = 3.5  # the guess that first figures of such data sets were made with


@dataclass(frozen=True)
class PromptReport:
    """Prompt lengths of one source; `values` holds everything, as JSON values.

    values:
        source, prompts (how many there are), measured (how many of them were rendered), complete (all of them)
        lengths: the dictionary of a distribution, as in `lengths.json`
        guess: tokens by characters / 3.5 and their error against the tokenizer
        budgets: rows that get the whole cap, rows the context shortens, rows that do not fit and will be skipped
    """

    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return self.values

    def sentences(self) -> list[str]:
        """Return the report in plain words."""
        return _sentences(self.values)


def prompt_report(
    source: str,
    tokens: ArrayLike,
    characters: ArrayLike,
    *,
    prompts: int | None = None,
    cap: int | None = None,
    limits: "ContextLimits | None" = None,
    confidence: float = CONFIDENCE,
) -> PromptReport:
    """Report the prompt lengths of a source.

    Args:
        source: its name.
        tokens: integers (n,), lengths of rendered prompts, generation prompt included.
        characters: integers (n,), characters of the same prompts' messages and tools, before rendering.
        prompts: how many prompts the source has; more than n means that these are a random sample, and shares and
            quantiles then speak of all with their intervals. Default n.
        cap: max_new_tokens of the source, None while it is not known.
        limits: of the engine, None while there is none.

    Raises:
        DataError: the arrays differ in length, or a length is impossible.
    """
    measured, letters = checked_lengths(tokens), checked_lengths(characters)
    if len(measured) != len(letters):
        raise DataError(f"{source}: {len(measured)} token counts and {len(letters)} character counts")
    total = len(measured) if prompts is None else prompts
    if total < len(measured):
        raise DataError(f"{source}: {len(measured)} prompts were measured, but there are only {total}")
    complete = total == len(measured)
    values: dict[str, Any] = {
        "source": source,
        "prompts": total,
        "measured": len(measured),
        "complete": complete,
        "lengths": distribution([(1.0, LengthCounts.from_arrays(measured))], confidence)[1],
        "guess": _guess(measured, letters, confidence),
        "budgets": _budgets(measured, total, cap, limits, confidence),
    }
    return PromptReport(values)


def _guess(tokens: Ints, characters: Ints, confidence: float) -> dict[str, Any]:
    if not len(tokens) or not tokens.sum():
        return {
            "characters_per_token": CHARACTERS_PER_TOKEN,
            "mean": None,
            "bias": None,
            "row_error": None,
            "actual": None,
        }
    guessed = characters / CHARACTERS_PER_TOKEN
    sums = Sums()
    sums.add(characters, tokens)
    error = np.abs(guessed / np.maximum(tokens, 1) - 1)
    return {
        "characters_per_token": CHARACTERS_PER_TOKEN,
        "mean": rounded(float(guessed.mean())),
        "bias": rounded(float(guessed.sum() / tokens.sum() - 1)),
        "row_error": {"median": rounded(float(np.median(error))), "p95": rounded(float(np.quantile(error, 0.95)))},
        "actual": ratio_interval([(1.0, sums)], confidence).to_dict(),
    }


def _budgets(
    tokens: Ints, prompts: int, cap: int | None, limits: "ContextLimits | None", confidence: float
) -> dict[str, Any] | None:
    if limits is None or cap is None or not len(tokens):
        return None
    complete = prompts == len(tokens)
    distinct, rows = np.unique(tokens, return_counts=True)
    budgets = np.array([limits.budget(int(length), cap) for length in distinct])

    def part(mask: Any) -> dict[str, Any]:
        hits = int(rows[mask].sum())
        share = share_interval(hits, len(tokens), confidence).to_dict()
        if complete:
            share |= {"low": share["value"], "high": share["value"]}
        return {"rows": hits, "share": share, "estimated_rows": round(hits / len(tokens) * prompts)}

    return {
        "cap": cap,
        "context": limits.room,
        "longest_prompt": limits.longest_prompt,
        "whole_cap": part(budgets == cap),
        "shortened": part((budgets < cap) & (budgets > 0)),
        "too_long": part(budgets == 0),
        "smallest_budget": int(budgets[budgets > 0].min()) if (budgets > 0).any() else None,
    }


def _sentences(values: Mapping[str, Any]) -> list[str]:
    source, lengths, guess, budgets = (values[key] for key in ("source", "lengths", "guess", "budgets"))
    if not values["measured"]:
        return [f"{source} has no prompts."]
    basis = (
        f"all {wording.tokens(values['prompts'])} prompts"
        if values["complete"]
        else f"a sample of {wording.tokens(values['measured'])} of {wording.tokens(values['prompts'])} prompts"
    )
    quantiles = lengths["quantiles"]
    words = [
        f"{source}, {basis}: mean {wording.tokens_with_interval(lengths['mean'])} tokens, median "
        f"{wording.tokens_with_interval(quantiles['p50'])}, p99 {wording.tokens_with_interval(quantiles['p99'])}, "
        f"longest {wording.tokens(lengths['max'])}."
    ]
    if guess["mean"] is not None:
        direction = "too many" if guess["bias"] > 0 else "too few"
        bias, off = (f"{abs(error) * 100:.0f} %" for error in (guess["bias"], guess["row_error"]["median"]))
        mean, actual = wording.tokens(guess["mean"]), f"{guess['actual']['value']:.2f}"
        words.append(
            f"Characters / {CHARACTERS_PER_TOKEN} would say {mean} tokens, {bias} {direction} in the mean and off by "
            f"{off} for the median prompt; this source has {actual} characters a token."
        )
    if budgets:
        about = "" if values["complete"] else "about "
        too_long, shortened = (wording.tokens(budgets[key]["estimated_rows"]) for key in ("too_long", "shortened"))
        least = budgets["smallest_budget"]
        words.append(
            f"Of {wording.tokens(values['prompts'])}, {about}{too_long} do not fit a context of "
            f"{wording.tokens(budgets['context'])} and will be skipped, and {about}{shortened} get less than the cap "
            f"of {wording.tokens(budgets['cap'])}" + (f" (least {wording.tokens(least)})." if least else ".")
        )
    return words


def count_characters(messages: Sequence[Mapping[str, Any]], tools: str = "[]") -> int:
    """Return the characters of a prompt's texts: contents, reasoning, calls and, where there are any, tool schemas."""
    total = len(tools) if tools != "[]" else 0
    for message in messages:
        total += len(message.get("content") or "") + len(message.get("reasoning_content") or "")
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            total += len(function.get("name") or "") + len(function.get("arguments") or "")
    return total
