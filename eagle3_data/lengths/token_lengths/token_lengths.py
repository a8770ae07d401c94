"""Token lengths as an `evaluate` measurement: the numbers of `measure_lengths`, batch by batch.

Goes in: token ids or lengths, with the finish reasons that say which are only lower bounds. Comes out: for each
measure the dictionary that `lengths.json` holds. Ids are reduced to lengths before evaluate stores anything, so a
million rows cost megabytes.

    measurement = evaluate.load("<this folder>", module_type="measurement")
    measurement.add_batch(input_ids=batch["input_ids"], output_ids=batch["output_ids"],
                          finish_reason=batch["finish_reason"])
    measurement.compute()["completion"]["quantiles"]["p50"]     # {"value": ..., "low": ..., "high": ...}
"""

from collections.abc import Mapping
from typing import Any, Final

import datasets
import evaluate
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eagle3_data.errors import UsageError
from eagle3_data.lengths.reading import SourceTally
from eagle3_data.lengths.statistics.distribution import Ints, checked_lengths
from eagle3_data.lengths.statistics.intervals import CONFIDENCE
from eagle3_data.lengths.summary import distribution
from eagle3_data.outcome import FINISH_REASONS, Outcome, of_reason

_DESCRIPTION: Final = """\
Distribution of token lengths, with 95 % intervals: mean, sd, quantiles from p1 to p99.9, shares under thresholds. Rows
that were cut by a cap (finish_reason length_cap or length_context) are lower bounds, and quantiles and shares are
Kaplan-Meier estimates of the lengths without the cap."""
_INPUTS: Final = """\
Give, of each row, at least one of:
    input_ids or prompt_tokens: the prompt's token ids, or how many there are
    output_ids or completion_tokens: the completion's
    lengths: any lengths, as a measure of their own
and beside them, where known, reasoning_tokens and finish_reason ("stop", "length_cap", "length_context"; without it
no row counts as cut)."""
_ABSENT: Final = -1
_LENGTHS: Final = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "lengths")
_IDS: Final = {"input_ids": "prompt_tokens", "output_ids": "completion_tokens"}
_COLUMNS: Final = (*_LENGTHS, "cut")


class _Scalars(datasets.Features):  # type: ignore[misc]
    """Integer columns that are numpy arrays already: the usual encoding would visit each number in Python."""

    def encode_batch(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return batch


class TokenLengths(evaluate.Measurement):  # type: ignore[misc]
    """Distribution of token lengths; see the module."""

    def _info(self) -> evaluate.MeasurementInfo:
        return evaluate.MeasurementInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=_Scalars({name: datasets.Value("int32") for name in _COLUMNS}),
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **columns: Any) -> None:
        """Add rows.

        Args:
            predictions: the same as `output_ids`, for code that knows no other name.
            references: not used by this measurement.
            **columns: see `inputs_description`; lists, numpy arrays or Arrow arrays, all of the same length.

        Raises:
            UsageError: an unknown column, columns of different lengths, none, or a finish reason of another kind.
            DataError: an impossible length.
        """
        super().add_batch(**reduce_columns({**columns, "output_ids": columns.get("output_ids", predictions)}))

    def add(self, *, prediction: Any = None, reference: Any = None, **columns: Any) -> None:
        """Add one row; see `add_batch`."""
        row = {**columns, "output_ids": columns.get("output_ids", prediction)}
        self.add_batch(**{name: [value] for name, value in row.items() if value is not None})

    def compute(
        self, *, predictions: Any = None, references: Any = None, confidence: float = CONFIDENCE, **columns: Any
    ) -> dict[str, Any] | None:
        """Return the distributions of all rows added, and of the rows given here.

        Returns:
            measure ("prompt", "completion", "reasoning", "answer", "lengths") -> its dictionary, for the measures
            that rows were given of; None in every process but the first.
        """
        if predictions is not None or any(value is not None for value in columns.values()):
            self.add_batch(predictions=predictions, **columns)
        result: dict[str, Any] | None = super().compute(confidence=confidence)
        return result

    def _compute(self, confidence: float = CONFIDENCE, **columns: Any) -> dict[str, Any]:
        arrays = {name: np.asarray(columns[name], np.int64) for name in _COLUMNS}
        given = {name: bool((arrays[name] != _ABSENT).any()) for name in _LENGTHS}
        for name in _LENGTHS:
            if given[name] and (arrays[name] == _ABSENT).any():
                raise UsageError(f"TokenLengths: some batches have {name} and some do not; give it with all of them")
        rows = len(arrays["cut"])
        zeros = np.zeros(rows, np.int64)
        tally = SourceTally()
        tally.add(
            {
                **{name: arrays[name] if given[name] else zeros for name in _LENGTHS[:3]},
                "tool_calls": zeros,
                "max_new_tokens": zeros,
                "loop_tokens": zeros,
            },
            np.maximum(arrays["cut"], 0),
            [Outcome.STOP.label, Outcome.LENGTH_CAP.label],
        )
        measures = ["prompt"] * given["prompt_tokens"] + ["completion"] * given["completion_tokens"]
        if given["completion_tokens"] and given["reasoning_tokens"]:
            measures += ["reasoning", "answer"]
        result = {name: distribution([(1.0, tally.lengths[name].counts())], confidence)[1] for name in measures}
        if given["lengths"]:
            plain = SourceTally()
            plain.lengths["completion"].add(arrays["lengths"], arrays["cut"] == 1)
            result["lengths"] = distribution([(1.0, plain.lengths["completion"].counts())], confidence)[1]
        return result


def reduce_columns(columns: Mapping[str, Any]) -> dict[str, Ints]:
    """Reduce ids and finish reasons to the integer columns that are stored, −1 where a column was not given.

    Raises:
        UsageError: see `TokenLengths.add_batch`.
    """
    given = {name: value for name, value in columns.items() if value is not None}
    reduced: dict[str, Ints] = {}
    for name, value in given.items():
        if name in _IDS:
            reduced[_IDS[name]] = _row_lengths(value)
        elif name in _LENGTHS:
            reduced[name] = checked_lengths(_array(value))
        elif name == "finish_reason":
            reduced["cut"] = _cut(value)
        elif name == "cut":
            reduced["cut"] = np.asarray(_array(value)).astype(np.int64)
        else:
            known = ", ".join((*_IDS, *_LENGTHS, "finish_reason", "cut"))
            raise UsageError(f"TokenLengths knows no column {name!r}; it takes {known}")
    if not set(reduced) & set(_LENGTHS):
        raise UsageError("TokenLengths needs input_ids, output_ids or lengths")
    sizes = {name: len(value) for name, value in reduced.items()}
    if len(set(sizes.values())) > 1:
        raise UsageError(f"TokenLengths: columns differ in length: {sizes}")
    rows = next(iter(sizes.values()))
    return {name: reduced.get(name, np.full(rows, _ABSENT, np.int64)) for name in _COLUMNS}


def _array(value: Any) -> Any:
    return value.to_numpy(zero_copy_only=False) if isinstance(value, pa.Array) else np.asarray(value)


def _row_lengths(value: Any) -> Ints:
    if isinstance(value, pa.ChunkedArray | pa.Array):
        return checked_lengths(pc.list_value_length(value).to_numpy(zero_copy_only=False))
    return np.fromiter((len(row) for row in value), np.int64, len(value))


def _cut(value: Any) -> Ints:
    reasons = np.asarray(value.to_pylist() if isinstance(value, pa.ChunkedArray | pa.Array) else value, dtype=object)
    kinds = sorted(set(reasons.tolist()), key=str)
    if wrong := [kind for kind in kinds if kind not in FINISH_REASONS]:
        raise UsageError(f"TokenLengths: finish_reason {wrong[0]!r} is none of {', '.join(FINISH_REASONS)}")
    return np.array([of_reason(reason).cut for reason in reasons], np.int64)
