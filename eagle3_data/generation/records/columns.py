"""The columns of a record that generation makes, and the data set of records in the output of `map`.

Goes in: a target, the prompt's ids, an `Entry`. Comes out: the columns of RECORD_FEATURES that no prompt has, for one
row or for many. Nothing is re-tokenised: `input_ids` are the ids that were sent, `output_ids` the ids that came.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, IterableDataset, Value

from eagle3_data.errors import DataError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.journal.entry import Entry, Ids
from eagle3_data.loops import loop_tokens
from eagle3_data.outcome import Outcome
from eagle3_data.schema import RECORD_FEATURES, arrow_schema


@dataclass(slots=True)
class Answered:
    """What one record is made of: a prompt, its answer and their place in a dialogue."""

    input_ids: Ids
    entry: Entry
    dialogue: str
    turn: int

    @property
    def output_ids(self) -> Ids:
        """The whole answer."""
        return self.entry.output_ids


_COLUMNS: Final[dict[str, Callable[[AskedTarget, Answered], Any]]] = {
    "sample": lambda target, row: row.entry.sample,
    "dialogue": lambda target, row: row.dialogue,
    "turn": lambda target, row: row.turn,
    "input_ids": lambda target, row: row.input_ids,
    "output_ids": lambda target, row: row.output_ids,
    "finish_reason": lambda target, row: row.entry.outcome.label,
    "stop_token_id": lambda target, row: row.entry.stop_token_id,
    "prompt_tokens": lambda target, row: len(row.input_ids),
    "completion_tokens": lambda target, row: len(row.output_ids),
    "reasoning_tokens": lambda target, row: _of_answer(target.reasoning_tokens, row),
    "tool_calls": lambda target, row: _of_answer(target.tool_calls, row),
    "max_new_tokens": lambda target, row: row.entry.budget,
    "rounds": lambda target, row: row.entry.rounds,
    "loop_tokens": lambda target, row: loop_tokens(row.output_ids) if row.entry.outcome.cut else 0,
}

STEP_FEATURES: Final = Features(
    {
        **{name: RECORD_FEATURES[name] for name in _COLUMNS},
        "error": Value("string"),  # "" for a record, else the reason and the evidence
        "http_status": Value("int32"),  # of the last reply, 0 if none came
    }
)


DIALOGUE_FEATURES: Final = Features(
    {**{name: feature for name, feature in RECORD_FEATURES.items() if name not in STEP_FEATURES}, **STEP_FEATURES}
)


def _of_answer(count: Callable[[Ids, Ids], int], row: Answered) -> int:
    return count(row.output_ids, row.input_ids) if len(row.output_ids) else 0


def step_columns(target: AskedTarget, row: Answered) -> dict[str, Any]:
    """Return the columns of STEP_FEATURES for one row; a row without an answer has the same types, and `error` set."""
    entry = row.entry
    error = "" if entry.outcome.answered else f"{entry.reason}: {entry.message}"
    if error:
        nothing = Entry(entry.sample_id, Outcome.NONE, 0, 0, sample=entry.sample)
        row = Answered(row.input_ids, nothing, row.dialogue, row.turn)
    columns: dict[str, Any] = {name: value(target, row) for name, value in _COLUMNS.items()}
    numbers = {name: np.int32(value) for name, value in columns.items() if isinstance(value, int)}
    return {**columns, **numbers, "error": error, "http_status": np.int32(entry.http_status)}


def record_columns(target: AskedTarget, rows: Sequence[Answered]) -> dict[str, pa.Array]:
    """Return the columns that a record has beside those of its prompt, as Arrow arrays, for rows with an answer."""
    schema = arrow_schema(RECORD_FEATURES)
    columns = {}
    for name, value in _COLUMNS.items():
        values = [value(target, row) for row in rows]
        kind = schema.field(name).type
        columns[name] = _lists(values) if pa.types.is_list(kind) else pa.array(values, kind)
    return columns


def _lists(values: list[Ids]) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(ids) for ids in values], out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(values)))


def records(out: Dataset) -> Dataset:
    """Return the records in the output of `prompts.map(step.generate)`: failed rows left out, RECORD_FEATURES only.

    Raises:
        DataError: a column is missing, so `out` is not the output of a Generator.
    """
    if isinstance(out, IterableDataset):
        raise DataError("records() takes a Dataset; turn the stream into one with Dataset.from_generator first")
    missing = [name for name in (*RECORD_FEATURES, "error") if name not in out.column_names]
    if missing:
        raise DataError(f"not the output of Generator.generate: no column {', '.join(missing)}")
    kept = out.with_format("numpy", columns=["error"]).filter(
        lambda errors: [error == "" for error in errors], input_columns="error", batched=True
    )
    return kept.with_format(None).select_columns(list(RECORD_FEATURES)).cast(RECORD_FEATURES)
