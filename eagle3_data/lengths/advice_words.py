"""The advice in plain words, made from its numbers.

Goes in: the dictionary of an `Advice`, or of a whole report. Comes out: sentences.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_data.lengths import wording
from eagle3_data.lengths.advice import CapChoice, dominated_by_rows
from eagle3_data.lengths.intervals import rows_for_cap

Values = Mapping[str, Any]


def advice_sentences(source: str, advice: Values) -> list[str]:
    """Return the advice for one source, a sentence or two for each question, the judgement first."""
    if not advice["rows"]:
        return [f"{source} has no answers yet, so nothing can be said of its lengths."]
    words = [_judgement(source, advice), _cap(advice)]
    words += _tail(advice) + _cost(advice) + _context(advice)
    if advice["unfinished"]:
        words.append(
            f"{wording.tokens(advice['unfinished'])} prompts have no answer yet (waiting, timed out or failed); "
            "short answers finish first, so what is recorded is biased short; the limits allow for all they may be."
        )
    return [sentence for sentence in words if sentence]


def _judgement(source: str, advice: Values) -> str:
    cap, above, median = advice["cap"], advice["above_cap"], advice["median"]
    if cap is None:
        return f"{source}: the records do not say what the cap was, so it cannot be judged."
    longer = f"{wording.share_with_interval(above)} are longer than the cap of {wording.tokens(cap)}"
    if median["value"] is None:
        where = f"most answers are longer than {wording.tokens(median['low'] - 1)} tokens" if median["low"] else ""
        body = f"{where or 'where the median lies is unknown'}; {longer}"
    else:
        body = f"half of the answers end within {wording.tokens_with_interval(median)} tokens, and {longer}"
    if advice["cause"] == "task":
        return f"{source} is short because the task is short: {body}."
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
    if choice["reason"] == "too_few_rows":
        return (
            f"{wording.tokens(advice['rows'])} rows cannot show that any cap cuts at most {target}: a pilot of at "
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
    tried = f"to {wording.tokens(advice['next_try'])}" if advice["next_try"] else "further"
    return (
        f"The cap {verdict} for a target of {target}, and how high it must be lies beyond what was let through. "
        f"Extend the cut rows {tried} and look again, or pilot at least {needed} rows of this source under a high cap."
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
    if choice.reason == "too_few_rows":
        return (
            f"{source}: {wording.tokens(choice.rows)} rows cannot show that any cap cuts at most {target}; pilot at "
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
    guess = (
        f"A tail model (generalised Pareto, goodness of fit p = {tail['p_value']:.2f}) puts that cap near "
        f"{wording.tokens(cap['value'])} ({wording.tokens(cap['low'])}–{wording.tokens(cap['high'])}), a lognormal "
        f"tail near {wording.tokens(tail['cap_lognormal'])}"
    )
    if tail["p_value"] < 0.05:
        return [f"{guess}; the model fits badly, so do not rely on it."]
    if tail["trusted"]:
        return [f"{guess}; that is a forecast from rows that were cut, for planning a pilot and not for deciding."]
    return [f"{guess}; beyond {wording.tokens(tail['trusted_until'])} tokens the data do not support either."]


def _cost(advice: Values) -> list[str]:
    cost = advice["cost"]
    present, advised, extend = cost["present"], cost["advised"], cost["extend"]
    words = []
    if advised and present and advice["verdict"] != "enough":
        words.append(
            f"A fresh run of {wording.tokens(cost['rows'])} rows costs {_tokens(advised)} at "
            f"{wording.tokens(advised['cap'])}, against {_tokens(present)} at {wording.tokens(present['cap'])}."
        )
    if extend and advice["verdict"] != "enough":
        most = "" if extend["at_most"] else f"at most {wording.tokens(extend['completion_tokens_at_most'])}, "
        words.append(
            f"Extending the {wording.tokens(extend['rows'])} cut rows to {wording.tokens(extend['cap'])} costs "
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
        words.append(
            f"This run is not complete: {wording.tokens(unanswered)} of "
            f"{wording.tokens(unanswered + values['whole']['rows'])} prompts have no answer yet. Short answers finish "
            "first, so the recorded lengths are biased short; these rows count as censored."
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
