"""The advice in plain words, made from its numbers.

Goes in: the dictionary of an `Advice`, or of a whole report. Comes out: a line and a command for the terminal, and
sentences for card and page.
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final

from eagle3_data.lengths.advice import dominated_by_rows
from eagle3_data.lengths.statistics.intervals import rows_for_cap
from eagle3_data.lengths.views import wording

Values = Mapping[str, Any]
_DEFF_TO_MENTION: Final = 1.2
_TYPICAL: Final = {
    "task": "set by the task",
    "cap": "cut by the cap",
    "context": "cut by the context length",
    "cannot_tell": "not known well enough",
}


def command(source: str, advice: Values, recipe: str, *, alone: bool, pilot: bool = False) -> str:
    """Return the command that does what the advice says, "" where there is nothing to run.

    Args:
        source: its name.
        advice: the dictionary of an `Advice`.
        recipe: how the user names the recipe.
        alone: whether it is the recipe's only source, so that it need not be named.
        pilot: whether the rows are a pilot's.
    """
    named = [] if alone else ["--source", source]
    if pilot and advice["action"] in ("extend", "raise", "go_on"):
        words = ["eagle3-data", "pilot", recipe, *(["--high-cap", advice["aim"]] if advice["aim"] else [])]
    elif advice["action"] in ("extend", "raise"):
        words = ["eagle3-data", "extend", recipe, *named, "--max-new-tokens", advice["aim"]]
    elif advice["action"] == "more_rows":
        words = ["eagle3-data", "pilot", recipe, "--rows", _rows_wanted(advice)]
    elif advice["action"] == "go_on":
        words = ["eagle3-data", "generate", recipe]
    else:
        return ""
    return shlex.join(map(str, words))


def _rows_wanted(advice: Values) -> int:
    return rows_for_cap(advice["target"], advice["confidence"], allowed=1)


def advice_line(advice: Values) -> str:
    """Return the two verdicts as one short line: typical length, then tail and rows that never end."""
    if not advice["rows"] and not advice["endless"]["looping"]:
        return "no answers yet"
    parts = [_typical_short(advice), _tail_short(advice)]
    if advice["endless"]["share"]["low"]:
        parts.append(f"{wording.share(advice['endless']['share']['value'])} never end")
    return "; ".join(part for part in parts if part)


def _typical_short(advice: Values) -> str:
    median, by = advice["median"]["value"], advice["typical"]
    reason = {"task": "by task", "cap": "cut by cap", "context": "cut by context", "cannot_tell": "uncertain"}[by]
    return f"median {wording.tokens(median)} ({reason})" if median is not None else f"median {reason}"


def _tail_short(advice: Values) -> str:
    target = wording.percent(advice["target"])
    if advice["cap"] is None:
        return "cap unknown"
    over = _over_cap(advice)
    if advice["verdict"] == "enough":
        return f"cap enough ({over}, target {target})"
    if advice["verdict"] == "likely":
        return f"cap likely enough ({over}, target {target})"
    if advice["verdict"] == "too_small":
        return f"{over} over the cap, target {target}"
    if advice["action"] == "more_rows":
        rows = wording.count(advice["effective_rows"], "row")
        return f"{rows} can prove {wording.share(advice['proves'])} at best, target {target}"
    return f"cap open ({over} over it, target {target})"


def _over_cap(advice: Values) -> str:
    above = advice["above_cap"]
    if above["value"] is None or advice["endless"]["plateau"]:
        return "up to " + wording.share(above["high"])
    return wording.share(above["value"])


def advice_sentences(source: str, advice: Values) -> list[str]:
    """Return the advice for one source, a sentence or two for each question, the verdicts first."""
    if not advice["rows"]:
        return [*_endless(source, advice)] or [f"{source} has no answers yet, so nothing can be said of its lengths."]
    words = [_typical(source, advice), _tail_verdict(advice), _do(advice)]
    words += _endless(source, advice) + _forecast(advice) + _cost(advice) + _context(advice)
    if advice["effective_rows"] * _DEFF_TO_MENTION < advice["rows"]:
        words.append(
            f"Rows of one dialogue are alike: {wording.count(advice['rows'], 'row')} are worth "
            f"{wording.tokens(advice['effective_rows'])} independent ones, and the limits allow for that."
        )
    if advice["unfinished"]:
        words.append(
            f"{wording.count(advice['unfinished'], 'prompt')} without an answer (waiting, timed out or failed) may be "
            "of any length, and the limits allow for all of it."
        )
    return [sentence for sentence in words if sentence]


def _typical(source: str, advice: Values) -> str:
    median, cap = advice["median"], advice["cap"]
    half = f"half of the answers end within {wording.tokens_with_interval(median)} tokens"
    if median["value"] is None:
        half = (
            f"more than half of the answers are longer than {wording.tokens(median['low'] - 1)} tokens"
            if median["low"]
            else "where the median lies is unknown"
        )
    reason = {
        "task": f", which the cap of {wording.tokens(cap)} does not touch" if cap is not None else "",
        "cap": ", and a cap cut many of them there",
        "context": ", and a full context cut many of them there",
        "cannot_tell": ", too few rows to bound it",
    }[advice["typical"]]
    return f"{source}: typical length {_TYPICAL[advice['typical']]}: {half}{reason}."


def _tail_verdict(advice: Values) -> str:
    cap, above, target = advice["cap"], advice["above_cap"], wording.percent(advice["target"])
    if cap is None:
        return "Tail: the records do not say what the cap was, so it cannot be judged."
    share = (
        wording.share_with_interval(above) if above["value"] is not None else f"at most {wording.share(above['high'])}"
    )
    verdict = {
        "enough": "met",
        "likely": "met by the estimate, though its upper limit is above it",
        "too_small": "missed",
        "cannot_tell": "open",
    }[advice["verdict"]]
    below = advice["cut_below_cap"]
    lower = ""
    if below["low"] and below["low"] > advice["target"]:
        lower = f" {wording.share(below['value'])} of the rows were cut by a lower cap and not extended."
    if advice["endless"]["plateau"]:
        share = f"up to {wording.share(above['high'])}"  # some of those that are stuck may count as long here
    of = "of the answers that end " if advice["endless"]["share"]["low"] else ""
    return f"Tail: {share} {of}are longer than the cap of {wording.tokens(cap)}, target {target}: {verdict}.{lower}"


def _do(advice: Values) -> str:
    target, sure = wording.percent(advice["target"]), wording.percent(advice["confidence"])
    choice, action = advice["advised"], advice["action"]
    run = f": {advice['command']}" if advice.get("command") else ""
    if action == "none" and choice["cap"] is not None:
        return f"{_shown(choice, target, sure)}."
    if action == "keep":
        if choice["cap"] is not None and choice["cap"] < advice["cap"]:
            return (
                f"Keep the cap ({wording.tokens(choice['cap'])} would do with {sure} confidence; the smallest is "
                f"estimated at {wording.tokens_with_interval(choice['smallest'])})."
            )
        if advice["verdict"] == "likely":
            return (
                f"Keep the cap, unless the target must be proven: then extend to {wording.tokens(advice['next_try'])}."
                if advice["next_try"]
                else "Keep the cap."
            )
        return "Keep the cap."
    if choice["cap"] is not None:
        return f"Raise the cap: {_shown(choice, target, sure)}{run}."
    if action == "extend":
        return (
            f"How high the cap must be is hidden by the rows that were cut. Extend them to "
            f"{wording.tokens(advice['aim'])} and look again{run}."
        )
    if action == "more_rows":
        return (
            f"{wording.count(advice['effective_rows'], 'row')}, none of them longer, can prove a share of "
            f"{wording.share(advice['proves'])} at best; {target} takes {wording.tokens(choice['rows_needed'])} rows, "
            f"{wording.tokens(_rows_wanted(advice))} if one may be longer{run}."
        )
    if action == "go_on":
        return f"The prompts without an answer decide: go on with the run, and look again{run}."
    if action == "context":
        if advice["context"]:
            length = wording.tokens(advice["context"]["length"])
            room = wording.tokens(advice["context"]["largest_cap_for_most_prompts"])
            return (
                f"No cap can show more: a context of {length} leaves no more than {room} tokens for 95 % of the "
                "prompts. Accept this share, or serve the target with a longer context."
            )
        return "No cap can show more, the context is full. Accept this share, or serve a longer context."
    return ""


def _shown(choice: Values, target: str, sure: str) -> str:
    return (
        f"{wording.tokens(choice['cap'])} cuts at most {target} with {sure} confidence (the smallest cap that does is "
        f"estimated at {wording.tokens_with_interval(choice['smallest'])})"
    )


def _endless(source: str, advice: Values) -> list[str]:
    found = advice["endless"]
    if not found["share"]["low"]:
        return []
    evidence = []
    if found["looping"]:
        evidence.append(f"{wording.count(found['looping'], 'row')} repeat themselves until they are cut")
    if found["plateau"]:
        evidence.append(
            f"of {wording.tokens(found['followed'])} rows still going at {wording.tokens(found['start'])} tokens "
            f"{wording.tokens(found['ended'])} ended by {wording.tokens(found['until'])}, where the heaviest tail "
            f"would end more (p = {found['p_value']:.2g})"
        )
    drop = " Leave the loops out of training (drop: [loop])." if found["looping"] else ""
    name = "" if advice["rows"] else f"{source}: "
    return [
        f"{name}{wording.share_with_interval(found['share'])} of the rows never end ({'; '.join(evidence)}). No cap "
        f"helps these, and they count for no cap above; look at the sampling (temperature, repetition_penalty).{drop}"
    ]


def _forecast(advice: Values) -> list[str]:
    tail = advice["tail"]
    if tail is None or advice["action"] not in ("extend", "context"):
        return []
    if tail["p_value"] < 0.05:
        return [
            f"No tail model fits what lies beyond (goodness of fit p = {tail['p_value']:.2g}): there is no forecast."
        ]
    cap = tail["cap"]
    guess = (
        f"A tail model puts the cap for the target near {wording.tokens(cap['value'])} "
        f"({wording.tokens(cap['low'])}–{wording.tokens(cap['high'])}; lognormal "
        f"{wording.tokens(tail['cap_lognormal'])})"
    )
    if tail["trusted"]:
        return [f"{guess}: a forecast, for planning and not for deciding."]
    return [f"{guess}, but beyond {wording.tokens(tail['trusted_until'])} tokens the data support no model."]


def _cost(advice: Values) -> list[str]:
    cost = advice["cost"]
    present, advised, extend = cost["present"], cost["advised"], cost["extend"]
    if advice["action"] not in ("extend", "raise"):
        return []
    words = []
    if extend:
        words.append(
            f"Extending {wording.count(extend['rows'], 'cut row')} costs {_tokens(extend)} and "
            f"{wording.tokens(extend['prefill_tokens'])} tokens of prefill."
        )
    if advised and present:
        words.append(
            f"A fresh run of {wording.count(cost['rows'], 'row')} costs {_tokens(advised)} at "
            f"{wording.tokens(advised['cap'])}, {_tokens(present)} at {wording.tokens(present['cap'])}."
        )
    return words


def _tokens(cost: Values) -> str:
    time = f" ({wording.hours(cost['hours'])} at the measured throughput)" if cost["hours"] is not None else ""
    about = "at most" if cost["at_most"] else "about"
    return f"{about} {wording.tokens(cost['completion_tokens'])} new tokens{time}"


def cost_short(advice: Values) -> str:
    """Return what the command costs, in brackets' length: rows and tokens."""
    extend = advice["cost"]["extend"]
    if advice["action"] not in ("extend", "raise") or not extend:
        return ""
    about = "≤" if extend["at_most"] else "~"
    time = f", {wording.hours(extend['hours'])}" if extend["hours"] is not None else ""
    return f"{wording.count(extend['rows'], 'row')}, {about}{wording.short(extend['completion_tokens'])} tokens{time}"


def _context(advice: Values) -> list[str]:
    context, words = advice["context"], []
    full = advice["cut_by_context"]
    if full["value"]:
        words.append(
            f"{wording.share(full['value'])} of the rows were cut by a full context; no cap helps these. How much a "
            "context leaves depends on the prompt, so they widen the limits by all that they may hide."
        )
    fit = context and (context["advised"] or context["present"])
    if context and fit and fit["prompts"]["share"]["value"] < 1:
        words.append(
            f"A context of {wording.tokens(context['length'])} leaves {wording.tokens(fit['cap'])} tokens for "
            f"{wording.share(fit['prompts']['share']['value'])} of the prompts; the longest prompt "
            f"({wording.tokens(context['longest_prompt'])}) leaves "
            f"{wording.tokens(context['largest_cap_for_all_prompts'])}."
        )
    return words


def report_sentences(values: Values) -> list[str]:
    """Return what concerns the whole: missing rows, dependence, sources that fill the mixture by rows only."""
    words = []
    missing = values["whole"]["unfinished"]
    unanswered = missing["waiting"] + missing["timed_out"] + missing["failed"]
    if unanswered:
        kinds = {"waiting": "not answered yet", "timed_out": "timed out", "failed": "failed"}
        parts = [f"{wording.tokens(missing[key])} {kind}" for key, kind in kinds.items() if missing[key]]
        words.append(
            f"This run is not complete: {wording.tokens(unanswered)} of "
            f"{wording.count(unanswered + values['whole']['rows'], 'prompt')} have no answer ({', '.join(parts)}). "
            f"{_order_bias(values)}They count as censored: they may be of any length."
        )
    for name in dominated_by_rows(values["sources"]):
        section = values["sources"][name]
        words.append(
            f"{name} is {wording.share(section['row_share'])} of the rows but {wording.share(section['token_share'])} "
            "of the tokens: a mixture by rows is not a mixture by tokens."
        )
    for name, section in values["sources"].items():
        found = section["dependence"]
        if found and found["deff"] >= _DEFF_TO_MENTION:
            icc, deff = found["icc_log_length"], f"{found['deff']:.1f}"
            words.append(
                f"{name}: {wording.count(found['rows'], 'row')} of {wording.count(found['dialogues'], 'dialogue')} "
                f"are worth {wording.tokens(found['effective_rows'])} independent ones (design effect {deff}"
                + (f", correlation of the log length within a dialogue {icc:.2f})." if icc is not None else ").")
            )
    return words


def _order_bias(values: Values) -> str:
    """Say which way finished rows are biased: rows expected to be long start first, and short answers end first."""
    waiting = {
        name: section["unfinished"]["expected_known"]
        for name, section in values["sources"].items()
        if section["unfinished"]["waiting"] + section["unfinished"]["timed_out"]
    }
    if not waiting:
        return ""
    long = [name for name, known in waiting.items() if known]
    short = [name for name, known in waiting.items() if not known]
    words = []
    if long:
        words.append(f"{', '.join(long)}: rows expected to be long start first, so what is there is biased long.")
    if short:
        words.append(f"{', '.join(short)}: short answers finish first, so what is there is biased short.")
    return " ".join(words) + " "
