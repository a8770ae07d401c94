"""The advice in plain words, made from its numbers.

Goes in: the dictionary of an `Advice`, or of a whole report. Comes out: sentences.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from eagle3_data.lengths.advice import CapChoice, dominated_by_rows
from eagle3_data.lengths.statistics.intervals import rows_for_cap
from eagle3_data.lengths.views import wording

Values = Mapping[str, Any]
SHORT: Final = 1000  # a median below so many tokens is called short


def advice_sentences(source: str, advice: Values) -> list[str]:
    """Return the advice for one source, a sentence or two for each question, the judgement first."""
    if not advice["rows"]:
        return [f"{source} has no answers yet, so nothing can be said of its lengths."]
    words = [_judgement(source, advice), _cap(advice)]
    words += _tail(advice) + _cost(advice) + _context(advice)
    if advice["unfinished"]:
        words.append(
            f"{wording.count(advice['unfinished'], 'prompt')} without an answer (waiting, timed out or failed) may be "
            "of any length, and the limits allow for all of it."
        )
    return [sentence for sentence in words if sentence]


def _judgement(source: str, advice: Values) -> str:
    cap, above, median = advice["cap"], advice["above_cap"], advice["median"]
    if cap is None:
        return f"{source}: the records do not say what the cap was, so it cannot be judged."
    share = (
        wording.share_with_interval(above) if above["value"] is not None else f"at most {wording.share(above['high'])}"
    )
    longer = f"{share} are longer than the cap of {wording.tokens(cap)}"
    if median["value"] is None:
        where = f"most answers are longer than {wording.tokens(median['low'] - 1)} tokens" if median["low"] else ""
        body = f"{where or 'where the median lies is unknown'}; {longer}"
    else:
        body = f"half of the answers end within {wording.tokens_with_interval(median)} tokens, and {longer}"
    if advice["cause"] == "task":
        short = median["value"] is not None and median["value"] < SHORT
        why = "is short because the task is short" if short else "is as long as the task makes it"
        return f"{source} {why}: {body}."
    if advice["cause"] == "context":
        return f"{source} is cut by the context length, not by the cap: {body}."
    below = advice["cut_below_cap"]
    if advice["cause"] == "cap" and below["low"] and below["low"] > advice["target"]:
        share = wording.share(below["value"])
        return f"{source} is cut by caps: {body}, and {share} of the rows were cut by a lower cap and not extended."
    if advice["cause"] == "cap":
        return f"{source} is cut by the cap: {body}."
    return f"{source}: the data cannot tell whether the cap shapes the lengths; {body}."


def _cap(advice: Values) -> str:
    target, sure = wording.percent(advice["target"]), wording.percent(advice["confidence"])
    choice = advice["advised"]
    smallest = choice["smallest"]
    if choice["cap"] is not None:
        found = f"{wording.tokens(choice['cap'])} cuts at most {target} with {sure} confidence"
        estimate = f"the smallest that does is estimated at {wording.tokens_with_interval(smallest)}"
        if advice["verdict"] == "enough":
            lower = f"; {found} too" if choice["cap"] < advice["cap"] else ""
            return f"The cap is enough for a target of {target}{lower} ({estimate})."
        if advice["verdict"] == "too_small":
            return f"Raise the cap: {found} ({estimate})."
        return f"Whether the present cap meets the target of {target} is open; {found} ({estimate})."
    needed = wording.tokens(choice["rows_needed"])
    if choice["reason"] == "unanswered":
        return (
            f"Whether the cap is enough for a target of {target} is open until the prompts without an answer have "
            "one: go on with the run, and look again."
        )
    if choice["reason"] == "too_few_rows":
        return (
            f"{wording.count(advice['rows'], 'row')} cannot show that any cap cuts at most {target}: a pilot of at "
            f"least {needed} rows can ({wording.tokens(_better_rows(advice))} for a cap that is not far too high)."
        )
    verdict = "is too small" if advice["verdict"] == "too_small" else "may be too small"
    if advice["next_try"] is None and advice["context"]:
        length = wording.tokens(advice["context"]["length"])
        room = wording.tokens(advice["context"]["largest_cap_for_most_prompts"])
        return (
            f"The cap {verdict} for a target of {target}, but a context of {length} leaves no more than {room} tokens "
            "for 95 % of the prompts: serve the target with a longer context to learn what it needs."
        )
    if advice["cause"] == "context":
        return f"No cap can meet a target of {target}: serve the target with a longer context to learn what it needs."
    tried = f"to {wording.tokens(advice['next_try'])}" if advice["next_try"] else "further"
    return (
        f"The cap {verdict} for a target of {target}, and how high it must be is hidden, since too many rows were "
        f"cut. Extend the cut rows {tried} and look again, or pilot at least {needed} rows of this source under a "
        "high cap."
    )


def choice_sentence(source: str, choice: CapChoice) -> str:
    """Return what a pilot's sample says of a source's cap."""
    target, sure = wording.percent(choice.target), wording.percent(choice.confidence)
    if choice.cap is not None:
        return (
            f"{source}: a cap of {wording.tokens(choice.cap)} cuts at most {target} with {sure} confidence; the "
            f"smallest that does is estimated at {wording.tokens_with_interval(choice.smallest.to_dict())}, from "
            f"{wording.tokens(choice.rows)} rows."
        )
    if choice.reason == "unanswered":
        return f"{source}: too many prompts of the pilot have no answer; run the pilot again to go on with it."
    if choice.reason == "too_few_rows":
        return (
            f"{source}: {wording.count(choice.rows, 'row')} cannot show that any cap cuts at most {target}; pilot at "
            f"least {wording.tokens(choice.rows_needed)}."
        )
    return (
        f"{source}: more than {target} of the pilot's rows may be longer than its own cap; pilot under a higher one."
    )


def _better_rows(advice: Values) -> int:
    return rows_for_cap(advice["target"], advice["confidence"], allowed=5)


def _tail(advice: Values) -> list[str]:
    tail = advice["tail"]
    if tail is None:
        return []
    cap = tail["cap"]
    if tail["p_value"] < 0.05:
        return [
            f"No tail model fits what lies beyond (generalised Pareto, goodness of fit p = {tail['p_value']:.2f}), so "
            "there is no forecast."
        ]
    guess = (
        f"A tail model (generalised Pareto, goodness of fit p = {tail['p_value']:.2f}) puts that cap near "
        f"{wording.tokens(cap['value'])} ({wording.tokens(cap['low'])}–{wording.tokens(cap['high'])}), a lognormal "
        f"tail near {wording.tokens(tail['cap_lognormal'])}"
    )
    if tail["trusted"]:
        return [f"{guess}; that is a forecast from rows that were cut, for planning a pilot and not for deciding."]
    return [f"{guess}; beyond {wording.tokens(tail['trusted_until'])} tokens the data do not support either."]


def _cost(advice: Values) -> list[str]:
    cost = advice["cost"]
    present, advised, extend = cost["present"], cost["advised"], cost["extend"]
    words = []
    if advised and present and advice["verdict"] != "enough":
        words.append(
            f"A fresh run of {wording.count(cost['rows'], 'row')} costs {_tokens(advised)} at "
            f"{wording.tokens(advised['cap'])}, against {_tokens(present)} at {wording.tokens(present['cap'])}."
        )
    if extend and advice["verdict"] != "enough":
        most = "" if extend["at_most"] else f"at most {wording.tokens(extend['completion_tokens_at_most'])}, "
        words.append(
            f"Extending the {wording.count(extend['rows'], 'cut row')} to {wording.tokens(extend['cap'])} costs "
            f"{_tokens(extend)} instead ({most}beside {wording.tokens(extend['prefill_tokens'])} tokens of prefill)."
        )
    return words


def _tokens(cost: Values) -> str:
    time = f" ({wording.hours(cost['hours'])} at the measured throughput)" if cost["hours"] is not None else ""
    about = "at most" if cost["at_most"] else "about"
    return f"{about} {wording.tokens(cost['completion_tokens'])} completion tokens{time}"


def _context(advice: Values) -> list[str]:
    context, words = advice["context"], []
    if context:
        for key in ("advised", "present"):
            fit = context[key]
            if fit and fit["prompts"]["rows"] < advice["rows"]:
                words.append(
                    f"A context of {wording.tokens(context['length'])} leaves {wording.tokens(fit['cap'])} tokens for "
                    f"{wording.share(fit['prompts']['share']['value'])} of the prompts; the longest prompt "
                    f"({wording.tokens(context['longest_prompt'])}) leaves "
                    f"{wording.tokens(context['largest_cap_for_all_prompts'])}."
                )
                break
    full = advice["cut_by_context"]
    if full["value"]:
        words.append(f"{wording.share(full['value'])} of the rows were cut by a full context; no cap helps these.")
    return words


def report_sentences(values: Values, clustered: Sequence[str] = ()) -> list[str]:
    """Return what concerns the whole: rows that are missing, sources that fill the mixture by rows only.

    Args:
        values: of the report.
        clustered: sources of which one dialogue gives several rows.
    """
    words = []
    missing = values["whole"]["unfinished"]
    unanswered = missing["waiting"] + missing["timed_out"] + missing["failed"]
    if unanswered:
        kinds = {"waiting": "not answered yet", "timed_out": "timed out", "failed": "failed"}
        parts = [f"{wording.tokens(missing[key])} {kind}" for key, kind in kinds.items() if missing[key]]
        late = missing["waiting"] + missing["timed_out"]
        bias = "Short answers finish first, so the recorded lengths are biased short. " if late else ""
        words.append(
            f"This run is not complete: {wording.tokens(unanswered)} of "
            f"{wording.count(unanswered + values['whole']['rows'], 'prompt')} have no answer ({', '.join(parts)}). "
            f"{bias}These rows count as censored: they may be of any length."
        )
    for name in dominated_by_rows(values["sources"]):
        section = values["sources"][name]
        words.append(
            f"{name} is {wording.share(section['row_share'])} of the rows but {wording.share(section['token_share'])} "
            "of the tokens: a mixture by rows is not a mixture by tokens, and its short answers dominate the former."
        )
    if clustered:
        words.append(
            f"{', '.join(clustered)}: several rows come from one dialogue and are alike, while intervals take rows as "
            "independent, so the true uncertainty is larger."
        )
    return words
