"""Rows that are left out on request: `drop: [loop, cut, context]` of publish, export and to_training.

Goes in: names, and tables of records. Comes out: for each row the name that leaves it out. The names are how an answer
can be cut, from the table of outcomes, and `loop` for those that end in repetition.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eagle3_data.errors import UsageError
from eagle3_data.outcome import Outcome, reasons

_Test = Callable[[pa.Table], pa.ChunkedArray]


def _ends_in(labels: Sequence[str]) -> _Test:
    return lambda table: pc.is_in(table["finish_reason"], pa.array(list(labels), pa.string()))


def _by_limit() -> dict[str, _Test]:
    limits = dict.fromkeys(outcome.limit for outcome in Outcome if outcome.cut)
    return {limit: _ends_in([outcome.label for outcome in Outcome if outcome.limit == limit]) for limit in limits}


# `cut` is every cut answer; `cap` and `context` are those that the one or the other limit cut.
DROPPABLE: Final[Mapping[str, _Test]] = {
    "loop": lambda table: pc.greater(table["loop_tokens"], 0),
    "cut": _ends_in(reasons("cut")),
    **_by_limit(),
}
# What the filters read of a record.
FILTER_COLUMNS: Final = ("finish_reason", "loop_tokens")


def check_drop(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once.

    Raises:
        UsageError: a name is none of DROPPABLE.
    """
    for name in names:
        if name not in DROPPABLE:
            raise UsageError(f"drop: {name!r} is none of {', '.join(DROPPABLE)}")
    return tuple(dict.fromkeys(names))


def dropped_by(table: pa.Table, names: Sequence[str]) -> NDArray[np.int8]:
    """Tell which of `names` leaves each row out.

    Args:
        table: records, with FILTER_COLUMNS at least.
        names: from DROPPABLE; the first that holds of a row counts.

    Returns:
        int8 (rows,): index into `names`, −1 for a row that stays.
    """
    found = np.full(table.num_rows, -1, np.int8)
    for index in reversed(range(len(names))):
        found[np.asarray(DROPPABLE[names[index]](table))] = index
    return found
