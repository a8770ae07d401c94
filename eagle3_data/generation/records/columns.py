"""From a journalled outcome to the columns of a record, and from the output of `map` to a data set of records.

Goes in: a target, the prompt's ids, an `Entry`. Comes out: exactly RECORD_FEATURES, or the failed and skipped rows'
tables. Nothing is re-tokenised: `input_ids` are the ids that were sent, `output_ids` the ids that came.
"""

from typing import Any, Final, Protocol

import numpy as np
from datasets import Dataset, Features, IterableDataset, Value

from eagle3_data.errors import DataError
from eagle3_data.generation.journal.entry import Entry, Ids
from eagle3_data.schema import RECORD_FEATURES

_EMPTY: Final[Ids] = np.zeros(0, np.int32)

STEP_FEATURES: Final = Features(
    {
        **{
            name: RECORD_FEATURES[name]
            for name in (
                "sample",
                "input_ids",
                "output_ids",
                "finish_reason",
                "stop_token_id",
                "prompt_tokens",
                "completion_tokens",
                "reasoning_tokens",
                "tool_calls",
                "max_new_tokens",
                "rounds",
            )
        },
        "error": Value("string"),  # "" for a record, else the reason and the evidence
        "http_status": Value("int32"),  # of the last reply, 0 if none came
    }
)


class Reader(Protocol):
    """What counts thinking and tool calls in an answer: `eagle3_data.Target`."""

    def reasoning_tokens(self, output_ids: Ids, input_ids: Ids) -> int:
        """Return the tokens of thinking in the answer to a prompt, the end token included."""

    def tool_calls(self, output_ids: Ids, input_ids: Ids) -> int:
        """Return the tool calls begun in the answer to a prompt."""


def step_columns(target: Reader, ids: Ids, entry: Entry) -> dict[str, Any]:
    """Return the columns of STEP_FEATURES for one row; a row without an answer has the same types, and `error` set."""
    done = entry.outcome.answered
    output = entry.output_ids if done else _EMPTY
    error = "" if done else f"{entry.reason}: {entry.message}"
    return {
        "sample": np.int32(0),
        "input_ids": ids,
        "output_ids": output,
        "finish_reason": entry.outcome.label if done else "",
        "stop_token_id": np.int32(entry.stop_token_id),
        "prompt_tokens": np.int32(len(ids)),
        "completion_tokens": np.int32(len(output)),
        "reasoning_tokens": np.int32(target.reasoning_tokens(output, ids) if done else 0),
        "tool_calls": np.int32(target.tool_calls(output, ids) if done else 0),
        "max_new_tokens": np.int32(entry.budget if done else 0),
        "rounds": np.int32(entry.rounds if done else 0),
        "error": error,
        "http_status": np.int32(entry.http_status),
    }


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
