"""The invariants of a record, checked on whole batches of Arrow columns at once.

Goes in: a batch of records, what the manifest says about the target, the engine and the sources. Comes out:
findings, each a kind, the rows that have it and what is wrong with the first of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_data.generation.budget import CONTEXT_MARGIN
from eagle3_data.loops import loop_tokens
from eagle3_data.outcome import FINISH_REASONS, reasons
from eagle3_data.schema import RECORD_FEATURES
from eagle3_data.target.harmony import harmony_counts
from eagle3_data.target.profile import TokenProfile
from eagle3_data.target.segments import call_begins

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

LEADING: Final = 3  # tokens of white space a model may write before it opens its thinking

KINDS: Final[dict[str, str]] = {
    "unreadable": "the file is no readable Parquet",
    "columns": "the file's columns are not those of a record",
    "identity": "the file was written for another target or sampling than the manifest's",
    "row_count": "a source has another number of records than the manifest says",
    "null": "a value is null",
    "sample_id": "not <source>- and 24 hex digits",
    "duplicate": "the same sample_id and sample stand twice",
    "unknown_prompt": "there is no such prompt in the run",
    "source": "the source is not the one of its folder",
    "prompt_tokens": "prompt_tokens is not the length of input_ids",
    "completion_tokens": "completion_tokens is not the length of output_ids",
    "empty_prompt": "input_ids is empty",
    "empty_output": "output_ids is empty",
    "vocabulary": "an id is negative or not in the vocabulary",
    "generation_prompt": "input_ids does not end in the target's generation prompt",
    "prompt_tail": "output_ids begins with the generation prompt",
    "control_token": "output_ids holds a token that only a template writes",
    "finish_reason": f"finish_reason is none of {', '.join(FINISH_REASONS)}",
    "stop_token": "stop_token_id is not the last id of a stopped output, or not −1 for another",
    "unknown_stop": "stop_token_id is no end of turn of the target",
    "stop_inside": "an end of turn stands before the end of the output, or at the end of one that did not stop",
    "over_budget": "completion_tokens is more than max_new_tokens",
    "short_of_budget": "cut by length before its budget was used up",
    "over_cap": "max_new_tokens is more than the cap of its source",
    "wrong_limit": "finish_reason names the limit that did not cut it",
    "context": "prompt and output are longer than the engine's context",
    "reasoning_tokens": "reasoning_tokens is not what the output says",
    "tool_calls": "tool_calls is not what the output says",
    "rounds": "rounds is below 1, or sample, turn or max_new_tokens below its least",
    "loop_tokens": "loop_tokens is not what the output says",
    "turns": "a turn of a dialogue is there without the turn before it",
    "dialogue": "the first turn of a dialogue does not name itself, or a later turn does",
}


@dataclass(frozen=True)
class Facts:
    """What is known about a data set beside its records; each is None or empty where it is not.

    Attributes:
        profile: TokenProfile fields of the target.
        source_profiles: source -> the same where it is asked to think otherwise.
        context_length: of the engine, in tokens.
        caps: source -> max_new_tokens.
        rollouts: sources whose dialogues the target had itself, so that none lacks a turn.
    """

    profile: Mapping[str, Any] = field(default_factory=dict)
    context_length: int | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    vocabulary_size: int | None = None
    rollouts: frozenset[str] = frozenset()
    source_profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, source: str) -> "Facts":
        """Return what is known about one source."""
        return replace(self, profile=self.source_profiles[source]) if source in self.source_profiles else self


@dataclass(frozen=True)
class Finding:
    """Rows of a batch that break one rule; `detail` says of a row what is wrong with it."""

    kind: str
    rows: npt.NDArray[np.intp]
    detail: Callable[[int], str]


class Lists:
    """A column of id lists: all ids flat (m,) int32, and where row i begins and ends."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.combine_chunks()
        lengths = np.asarray(array.value_lengths().fill_null(0), dtype=np.int64)
        self.flat: npt.NDArray[np.int32] = np.asarray(array.flatten().fill_null(-1), dtype=np.int32)
        self.lengths: Numbers = lengths
        self.starts: Numbers = np.concatenate(([0], np.cumsum(lengths)))[:-1] if len(lengths) else lengths
        self.ends: Numbers = self.starts + lengths

    def rows_of(self, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the row of each place in `flat`."""
        return np.searchsorted(self.ends, places, side="right")

    def first(self, flags: Flags) -> Numbers:
        """Return the place within each row where `flags` (over `flat`) is first True, the row's length if nowhere."""
        places = np.flatnonzero(flags)
        found = self.lengths.copy()
        rows = self.rows_of(places)
        firsts, index = np.unique(rows, return_index=True)
        found[firsts] = places[index] - self.starts[firsts]
        return found

    def count(self, flags: Flags, begin: Numbers) -> Numbers:
        """Return how often `flags` is True in each row from `begin` on."""
        places = np.flatnonzero(flags)
        rows = self.rows_of(places)
        kept = places - self.starts[rows] >= begin[rows]
        return np.bincount(rows[kept], minlength=len(self.lengths)).astype(np.int64)

    def last(self) -> Numbers:
        """Return the last id of each row, −2 for an empty one."""
        if not len(self.flat):
            return np.full(len(self.lengths), -2, dtype=np.int64)
        return np.where(self.lengths > 0, self.flat[np.maximum(self.ends - 1, 0)], -2).astype(np.int64)

    def ends_in(self, ids: list[int]) -> Flags:
        """Tell which rows end in `ids`."""
        return self._matches(ids, self.ends - len(ids))

    def begins_with(self, ids: list[int]) -> Flags:
        """Tell which rows begin with `ids`."""
        return self._matches(ids, self.starts)

    def _matches(self, ids: list[int], begin: Numbers) -> Flags:
        same = self.lengths >= len(ids)
        for offset, wanted in enumerate(ids):
            places = np.where(same, begin + offset, 0)
            same &= (self.flat[places] == wanted) if len(self.flat) else False
        return same

    def row(self, index: int, most: int = 8) -> str:
        """Show the end of a row's ids."""
        ids = self.flat[self.starts[index] : self.ends[index]]
        shown = ", ".join(map(str, ids[-most:].tolist()))
        return f"[{'… ' if len(ids) > most else ''}{shown}]"


def wrong_columns(schema: pa.Schema) -> str:
    """Return what is wrong with a file's columns, "" if nothing."""
    faults = [f"{name} is missing" for name in RECORD_FEATURES if name not in schema.names]
    faults += [f"{name} is not a column of a record" for name in schema.names if name not in RECORD_FEATURES]
    for wanted in RECORD_FEATURES.arrow_schema:
        if wanted.name in schema.names and not _same_type(schema.field(wanted.name).type, wanted.type):
            faults.append(f"{wanted.name} is {schema.field(wanted.name).type}, not {wanted.type}")
    return "; ".join(faults)


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):
        lists = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(lists and found.value_type.equals(wanted.value_type))
    if pa.types.is_dictionary(found):
        found = found.value_type
    return bool(found.equals(wanted) or (pa.types.is_string(wanted) and pa.types.is_large_string(found)))


def findings(table: pa.Table, facts: Facts, source: str | None) -> Iterator[Finding]:
    """Check a batch of records.

    Args:
        table: a batch with the columns of a record.
        facts: what else is known.
        source: the source that the file's place says, None if it says none.
    """
    yield from _nulls(table)
    prompt, output = Lists(table["input_ids"]), Lists(table["output_ids"])
    number = {name: _numbers(table[name]) for name in _NUMBERS}
    ends = np.asarray(table["finish_reason"].to_pylist(), dtype=object)
    sources = table["source"].to_pylist()
    yield from _names(table["sample_id"].to_pylist(), sources, source)
    yield from _lengths(prompt, output, number)
    yield from _ids(prompt, output, facts)
    yield from _stops(output, number, ends, facts)
    yield from _limits(prompt, output, number, ends, sources, facts)
    yield from _parts(prompt, output, number, facts)
    yield from _loops(output, number["loop_tokens"], ends)
    yield from _dialogues(table, number["turn"])


_NUMBERS: Final = (
    "sample",
    "turn",
    "stop_token_id",
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "tool_calls",
    "max_new_tokens",
    "rounds",
    "loop_tokens",
)


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.combine_chunks().fill_null(-9), dtype=np.int64)


def _finding(kind: str, flags: Flags, detail: Callable[[int], str]) -> Iterator[Finding]:
    if flags.any():
        yield Finding(kind, np.flatnonzero(flags), detail)


def _nulls(table: pa.Table) -> Iterator[Finding]:
    def detail(name: str) -> Callable[[int], str]:
        return lambda _: f"{name} is null"

    for name in table.column_names:
        column = table[name].combine_chunks()
        flags = np.array(column.is_null())
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            inner = np.flatnonzero(np.asarray(column.flatten().is_null()))
            flags[Lists(table[name]).rows_of(inner)] = True
        yield from _finding("null", flags, detail(name))


def _names(names: list[str | None], sources: list[str | None], source: str | None) -> Iterator[Finding]:
    def good(name: str | None, of: str | None) -> bool:
        if not name or not of or len(name) != len(of) + 25 or not name.startswith(of + "-"):
            return False
        return all(letter in "0123456789abcdef" for letter in name[-24:])

    bad = np.asarray([not good(name, of) for name, of in zip(names, sources, strict=True)], dtype=bool)
    yield from _finding("sample_id", bad, lambda row: f"{names[row]!r} of source {sources[row]!r}")
    if source is not None:
        other = np.asarray([of != source for of in sources], dtype=bool)
        yield from _finding("source", other, lambda row: f"{sources[row]!r} in the folder of {source!r}")


def _lengths(prompt: Lists, output: Lists, number: Mapping[str, Numbers]) -> Iterator[Finding]:
    def detail(said: Numbers, lists: Lists) -> Callable[[int], str]:
        return lambda row: f"{said[row]}, but {lists.lengths[row]} ids"

    for kind, lists in (("prompt_tokens", prompt), ("completion_tokens", output)):
        yield from _finding(kind, number[kind] != lists.lengths, detail(number[kind], lists))
    yield from _finding("empty_prompt", prompt.lengths == 0, lambda _: "no ids")
    yield from _finding("empty_output", output.lengths == 0, lambda _: "no ids")
    least = {"rounds": 1, "sample": 0, "turn": 0, "max_new_tokens": 1}
    low = np.logical_or.reduce([number[name] < lowest for name, lowest in least.items()])
    yield from _finding(
        "rounds",
        low,
        lambda row: ", ".join(f"{name}={number[name][row]}" for name in least),
    )


def _stranger(name: str, lists: Lists, wrong: Flags, size: int | None) -> Callable[[int], str]:
    first = lists.first(wrong)
    return lambda row: f"{name} holds {lists.flat[lists.starts[row] + first[row]]}, the vocabulary has {size}"


def _ids(prompt: Lists, output: Lists, facts: Facts) -> Iterator[Finding]:
    profile = facts.profile
    size = facts.vocabulary_size
    for name, lists in (("input_ids", prompt), ("output_ids", output)):
        wrong = lists.flat < 0
        if size is not None:
            wrong = wrong | (lists.flat >= size)
        if wrong.any():
            rows = lists.rows_of(np.flatnonzero(wrong))
            yield Finding("vocabulary", np.unique(rows), _stranger(name, lists, wrong, size))
    endings = [list(ids) for key in ("generation_prompt_ids", "tool_turn_ids") if (ids := profile.get(key))]
    if endings and profile.get("generation_prompt_ids"):  # some templates add none: the user's turn ends in the cue
        unended = ~np.logical_or.reduce([prompt.ends_in(ids) for ids in endings])
        yield from _finding(
            "generation_prompt", unended & (prompt.lengths > 0), lambda row: f"ends in {prompt.row(row)}"
        )
        tail = endings[0]
        if len(tail) > 1:
            yield from _finding("prompt_tail", output.begins_with(tail), lambda row: f"begins with {tail}")
    if profile.get("template_only_ids"):
        hit = output.first(np.isin(output.flat, profile["template_only_ids"]))
        yield from _finding(
            "control_token",
            hit < output.lengths,
            lambda row: f"{output.flat[output.starts[row] + hit[row]]} at place {hit[row]}",
        )


def _ends_with(ends: Any, holds: str) -> Flags:
    return np.isin(ends.astype(str), reasons(holds))


def _stops(output: Lists, number: Mapping[str, Numbers], ends: Any, facts: Facts) -> Iterator[Finding]:
    unknown = ~_ends_with(ends, "answered")
    yield from _finding("finish_reason", unknown, lambda row: repr(ends[row]))
    stopped = _ends_with(ends, "finished")
    last, said = output.last(), number["stop_token_id"]
    wrong = np.where(stopped, (last != said) & (output.lengths > 0), (said != -1) & ~unknown)
    yield from _finding(
        "stop_token",
        wrong.astype(bool),
        lambda row: f"{said[row]} with {ends[row]}, the output ends in {last[row]}",
    )
    known = facts.profile.get("end_of_turn_ids")
    if known:
        stops = np.asarray(known, dtype=np.int64)
        yield from _finding("unknown_stop", stopped & ~np.isin(said, stops), lambda row: f"{said[row]}")
        hit = output.first(np.isin(output.flat, stops))
        inside = hit < output.lengths - stopped
        yield from _finding(
            "stop_inside", inside, lambda row: f"{output.flat[output.starts[row] + hit[row]]} at place {hit[row]}"
        )


def _limits(
    prompt: Lists, output: Lists, number: Mapping[str, Numbers], ends: Any, sources: list[Any], facts: Facts
) -> Iterator[Finding]:
    budget, cut = number["max_new_tokens"], _ends_with(ends, "cut")
    used = output.lengths
    yield from _finding("over_budget", used > budget, lambda row: f"{used[row]} ids of {budget[row]}")
    yield from _finding("short_of_budget", cut & (used < budget), lambda row: f"{used[row]} ids of {budget[row]}")
    whole = prompt.lengths + used
    context = facts.context_length
    if context is not None:
        yield from _finding("context", whole > context, lambda row: f"{whole[row]} tokens, the context is {context}")
    if facts.caps:
        caps = np.asarray([facts.caps.get(str(source), -1) for source in sources], dtype=np.int64)
        known = caps > 0
        yield from _finding("over_cap", known & (budget > caps), lambda row: f"{budget[row]}, the cap is {caps[row]}")
        by_context, by_cap = _ends_with(ends, "cut_by_context"), _ends_with(ends, "cut_by_cap")
        wrong = known & by_context & (budget >= caps)
        if context is not None:
            full = prompt.lengths + budget >= context - CONTEXT_MARGIN
            wrong |= known & by_cap & (budget < caps) & full
        yield from _finding(
            "wrong_limit",
            wrong,
            lambda row: f"{ends[row]} at {budget[row]} tokens, the cap is {caps[row]}, the context {context}",
        )


def _loops(output: Lists, said: Numbers, ends: Any) -> Iterator[Finding]:
    found = np.zeros(len(said), np.int64)
    for row in np.flatnonzero(_ends_with(ends, "cut")).tolist():
        found[row] = loop_tokens(output.flat[output.starts[row] : output.ends[row]])
    yield from _finding("loop_tokens", said != found, lambda row: f"{said[row]}, the output says {found[row]}")


def _dialogues(table: pa.Table, turn: Numbers) -> Iterator[Finding]:
    names, dialogues = table["sample_id"].to_pylist(), table["dialogue"].to_pylist()
    own = np.asarray([name == dialogue for name, dialogue in zip(names, dialogues, strict=True)], dtype=bool)
    yield from _finding("dialogue", own != (turn == 0), lambda row: f"turn {turn[row]} of {dialogues[row]!r}")


def _parts(prompt: Lists, output: Lists, number: Mapping[str, Numbers], facts: Facts) -> Iterator[Finding]:
    profile = facts.profile
    said, called = number["reasoning_tokens"], number["tool_calls"]
    if "thinking_state" not in profile:
        yield from _finding("reasoning_tokens", (said < 0) | (said > output.lengths), lambda row: f"{said[row]}")
        return
    end, unsure = thinking(prompt, output, profile)
    wrong = (said != end) & ~(unsure & (said == 0))
    yield from _finding("reasoning_tokens", wrong, lambda row: f"{said[row]}, the output says {end[row]}")
    end = np.where(unsure & (said == 0), 0, end)
    calls = _calls(output, end, profile)
    yield from _finding("tool_calls", called != calls, lambda row: f"{called[row]}, the output says {calls[row]}")


def _calls(output: Lists, end: Numbers, profile: Mapping[str, Any]) -> Numbers:
    """Return how many calls each row (n,) begins after its thinking, by the rule of `target.segments.Splitter`."""
    if profile.get("channel_begin_id") is not None:
        return np.asarray([count for _, count in _harmony(output, profile)], dtype=np.int64)
    begin = profile.get("tool_call_begin_id")
    if begin is None:
        return np.zeros(len(end), dtype=np.int64)
    return output.count(call_begins(output.flat, begin, profile.get("tool_call_begin_tail_ids") or ()), end)


def _harmony(output: Lists, profile: Mapping[str, Any]) -> list[tuple[int, int]]:
    whole = TokenProfile.from_dict(profile)
    rows = zip(output.starts.tolist(), output.ends.tolist(), strict=True)
    return [harmony_counts(output.flat[start:stop].tolist(), whole) for start, stop in rows]


def thinking(prompt: Lists, output: Lists, profile: Mapping[str, Any]) -> tuple[Numbers, Flags]:
    """Return the tokens of thinking of each row (n,), and where that hangs on what the first tokens say (n,).

    The rule is that of `target.segments.Splitter.reasoning_end`. Whether tokens before an opening marker are white
    space cannot be told without the tokenizer: those rows are unsure, and may also have no thinking.
    """
    nothing = np.zeros(len(output.lengths), dtype=np.int64)
    if profile.get("channel_begin_id") is not None:
        counted = [tokens for tokens, _ in _harmony(output, profile)]
        return np.asarray(counted, dtype=np.int64), nothing.astype(bool)
    close, opening = profile.get("think_end_id"), profile.get("think_begin_id")
    state = profile["thinking_state"]
    if close is None or state == "none":
        return nothing, nothing.astype(bool)
    closed = output.first(output.flat == close)
    tools = [profile[key] for key in ("tool_section_begin_id", "tool_call_begin_id") if profile.get(key) is not None]
    called = output.first(np.isin(output.flat, tools)) if tools else output.lengths
    end = np.where(closed < output.lengths, closed + 1, called)
    at_tools = profile.get("tool_turn_state") or state
    asked = prompt.ends_in(list(profile.get("generation_prompt_ids", ()))) if at_tools != state else True
    is_open = np.where(asked, state == "open", at_tools == "open")
    opened = output.first(output.flat == opening)
    thinks = (opened <= LEADING) & (opened < output.lengths)
    return np.where(is_open | thinks, end, 0), ~is_open & thinks & (opened > 0)
