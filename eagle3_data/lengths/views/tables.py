"""The tables of a length report as rows of text, for terminal, card and page alike.

Goes in: `LengthReport.to_dict()`. Comes out: `Table`s.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from eagle3_data.lengths.views import wording
from eagle3_data.outcome import FINISH_REASONS

MEASURE_TITLES: Final = {
    "prompt": "Prompt tokens",
    "completion": "Completion tokens",
    "reasoning": "Reasoning tokens",
    "answer": "Answer tokens",
}
FITS: Final = (2048, 4096, 8192, 16384)  # training lengths whose share of whole rows is always said
Section = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of text: a header row of `columns` behind `corner`, and rows whose first cell is their name."""

    name: str
    title: str
    corner: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def sections(values: Mapping[str, Any]) -> dict[str, Section]:
    """Return the sources and, where there are several, the whole."""
    named = dict(values["sources"])
    return named if len(named) == 1 else {**named, "whole": values["whole"]}


def report_tables(values: Mapping[str, Any]) -> list[Table]:
    """Return every table of a report, but for measures that are empty or equal to another."""
    return [overview(values), *(distribution(values, measure) for measure in measures(values)), cutoffs(values)]


def measures(values: Mapping[str, Any]) -> list[str]:
    """Return the measures that say something: no reasoning means that the answer is the completion."""
    whole = values["whole"]
    thinks = bool(whole["tokens"]["reasoning"])
    return [
        name
        for name in MEASURE_TITLES
        if (thinks or name in ("prompt", "completion")) and (name != "prompt" or whole["lengths"]["prompt"]["count"])
    ]


def at_least(lengths: Mapping[str, Any], key: str) -> str:
    """Write mean, sd or max of recorded lengths, a lower bound where rows were cut."""
    bound = lengths["cut"] or lengths["lower_bounds_only"]
    value = lengths[key]["value"] if key == "mean" else lengths[key]
    return f"≥{wording.tokens(value)}" if bound and value is not None else wording.tokens(value)


def _table(
    values: Mapping[str, Any], name: str, title: str, rows: Mapping[str, Callable[[Section], str]], note: str = ""
) -> Table:
    shown = sections(values)
    body = [[label, *(cell(section) for section in shown.values())] for label, cell in rows.items()]
    return Table(name, title, "", list(shown), body, note)


def overview(values: Mapping[str, Any]) -> Table:
    """Return rows, tokens, truncation and finish reasons, a column for each source."""

    def hits(*path: str) -> Callable[[Section], str]:
        def cell(section: Section) -> str:
            found: Any = section
            for key in path:
                found = found[key]
            return wording.share_with_interval(found["share"])

        return cell

    rows: dict[str, Callable[[Section], str]] = {
        "records": lambda s: wording.tokens(s["rows"]),
        "share of rows": lambda s: wording.share(s["row_share"]),
        "share of tokens": lambda s: wording.share(s["token_share"]),
        "prompt tokens": lambda s: wording.tokens(s["tokens"]["prompt"]),
        "completion tokens": lambda s: wording.tokens(s["tokens"]["completion"]),
        "**truncated**": hits("truncated"),
        **{f"finish_reason {reason}": hits("finish_reasons", reason) for reason in FINISH_REASONS},
        **({"cut in a loop": hits("looping")} if values["whole"]["looping"]["rows"] else {}),
        **(
            {"rows with thinking": hits("thinking"), "thinking cut off": hits("thinking", "unfinished")}
            if values["whole"]["tokens"]["reasoning"]
            else {}
        ),
        **({"rows with tool calls": hits("tool_calls")} if values["whole"]["tool_calls"]["rows"] else {}),
        "largest max_new_tokens": lambda s: wording.tokens(s["budgets"]["max"]),
        "cap of the cut rows": lambda s: wording.tokens(s["budgets_of_cut"]["max"]),
    }
    if not values["complete"]:
        rows |= {
            "not answered yet": lambda s: wording.tokens(s["unfinished"]["waiting"]),
            "timed out": lambda s: wording.tokens(s["unfinished"]["timed_out"]),
            "failed": lambda s: wording.tokens(s["unfinished"]["failed"]),
        }
    if values["whole"]["unfinished"]["skipped"]:
        rows["skipped (prompt too long)"] = lambda s: wording.tokens(s["unfinished"]["skipped"])
    return _table(values, "overview", "Rows and truncation", rows)


def distribution(values: Mapping[str, Any], measure: str) -> Table:
    """Return the distribution of one measure, a column for each source."""

    def of(section: Section) -> Mapping[str, Any]:
        found: Mapping[str, Any] = section["lengths"][measure]
        return found

    def quantile(name: str) -> Callable[[Section], str]:
        return lambda s: wording.tokens_with_interval(of(s)["quantiles"][name], of(s)["known_until"])

    def under(limit: str) -> Callable[[Section], str]:
        return lambda s: wording.share_with_interval(of(s)["under"][limit])

    first = of(values["whole"])
    rows: dict[str, Callable[[Section], str]] = {
        "rows": lambda s: wording.tokens(of(s)["count"]),
        "mean": lambda s: _mean(of(s)),
        "sd": lambda s: at_least(of(s), "sd"),
        "min": lambda s: wording.tokens(of(s)["min"]),
    }
    rows |= {"median" if name == "p50" else name: quantile(name) for name in _ascending(first["quantiles"])}
    rows["max"] = lambda s: at_least(of(s), "max")
    limits = _until_all(_ascending(first["under"]), values, lambda s, limit: of(s)["under"][limit]["value"])
    rows |= {f"under {wording.tokens(int(limit))}": under(limit) for limit in limits}
    if first["cut"] or first["lower_bounds_only"]:
        rows["lower bounds only"] = lambda s: wording.tokens(of(s)["cut"] + of(s)["lower_bounds_only"])
    if first["stuck"]:
        rows["never end (not counted above)"] = lambda s: wording.tokens(of(s)["stuck"])
    return _table(values, measure, MEASURE_TITLES[measure], rows, _note(first))


def _mean(lengths: Mapping[str, Any]) -> str:
    bound = at_least(lengths, "mean")
    if bound.startswith("≥") or not lengths["mean_ok"]:
        return bound
    return wording.tokens_with_interval(lengths["mean"])


def _ascending(named: Iterable[str]) -> list[str]:
    """Sort p1 … p99.9 or 100 … 8000 by number: a JSON file holds them sorted as text."""
    return sorted(named, key=lambda name: float(name.removeprefix("p")))


def _until_all(
    limits: list[str], values: Mapping[str, Any], share: Callable[[Section, str], float | None]
) -> list[str]:
    """Return the limits up to the first that holds every row of every source, or beyond which nothing is known.

    Higher limits would say the same again: all, or unknown.
    """
    for place, limit in enumerate(limits):
        shares = [share(section, limit) for section in sections(values).values()]
        if all(value is None or value == 1 for value in shares):
            return limits[: place + 1]
    return limits


def _note(first: Mapping[str, Any]) -> str:
    heavy = (
        "The mean has no interval: the tail is so heavy that a few rows decide it (Cochran's rule); use the median."
        if first["count"] and not first["mean_ok"]
        else ""
    )
    return " ".join(part for part in (_cut_note(first), heavy) if part)


def _cut_note(first: Mapping[str, Any]) -> str:
    if first["lower_bounds_only"]:
        return (
            "Cut rows give lower bounds only, and how long an answer could grow before the cap depends on the "
            "thinking before it, so quantiles and shares carry the widest limits that the rows allow."
        )
    if first["cut"] or first["waiting"]:
        return (
            "Mean, sd, min and max are of the recorded lengths. Quantiles and shares are Kaplan–Meier estimates of "
            "the lengths without a cap, in which a cut row is a lower bound."
        )
    return ""


def cutoffs(values: Mapping[str, Any]) -> Table:
    """Return what training cut-offs leave of rows and tokens, a column for each source."""
    rows: dict[str, Callable[[Section], str]] = {}
    named = _ascending(values["whole"]["cutoffs"])
    for cutoff in _until_all(named, values, lambda s, limit: s["cutoffs"][limit]["rows_whole"]["share"]["value"]):
        for key, label in (
            ("rows_whole", "rows whole"),
            ("tokens_kept", "tokens kept"),
            ("completion_tokens_kept", "completion tokens kept"),
        ):
            rows[f"{wording.tokens(int(cutoff))}: {label}"] = _cutoff_cell(cutoff, key)
    return _table(
        values,
        "cutoffs",
        "What a training cut-off keeps",
        rows,
        "Of prompt and completion together: rows that fit whole, and tokens left when longer rows are cut.",
    )


def _cutoff_cell(cutoff: str, key: str) -> Callable[[Section], str]:
    def cell(section: Section) -> str:
        found = section["cutoffs"][cutoff][key]
        return wording.share_with_interval(found["share"] if key == "rows_whole" else found)

    return cell
