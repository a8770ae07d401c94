"""How a row can end: one table, from which journal, records, counts, checks and lengths follow.

Goes in: nothing. Comes out: `Outcome`, each with its code in the journal, its name in files and what holds of it. No
other module compares codes or names: it asks a property, of one outcome, of a column of codes or of a finish_reason.
"""

import functools
from enum import Enum, IntEnum
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from eagle3_data.errors import DataError

Flags = npt.NDArray[np.bool_]


class Kind(Enum):
    """Where the rows that end so are kept."""

    NOWHERE = "nowhere"  # no outcome yet
    RECORD = "record"
    FAILURE = "failure"  # failures.parquet
    SKIPPED = "skipped"  # skipped.parquet
    ENDED = "ended"  # no row: the dialogue ended before this turn


class Outcome(IntEnum):
    """One way to end; its value is its code in the journal, which is never given to another.

    Attributes:
        kind: where such rows are kept.
        label: what files and people call it; of a record its finish_reason.
        limit: what cut the answer: "cap" (the cap of its source), "context", or "" where nothing did.
        relabels: replaces an earlier answer of as many rounds, because it says more about the same one.
        loops: the cut answer repeats itself, so that no higher cap helps it.
    """

    kind: Kind
    label: str
    limit: str
    relabels: bool
    loops: bool

    def __new__(
        cls, code: int, kind: Kind, label: str, limit: str = "", relabels: bool = False, loops: bool = False
    ) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.kind, member.label, member.limit = kind, label, limit
        member.relabels, member.loops = relabels, loops
        return member

    #                code  kind         label             limit      relabels loops
    NONE = (0, Kind.NOWHERE, "")
    STOP = (1, Kind.RECORD, "stop")
    LENGTH_CAP = (2, Kind.RECORD, "length_cap", "cap")
    LENGTH_CONTEXT = (3, Kind.RECORD, "length_context", "context", True)
    FAILED = (4, Kind.FAILURE, "failed")
    SKIPPED = (5, Kind.SKIPPED, "skipped")
    LOOP_CAP = (6, Kind.RECORD, "length_cap", "cap", False, True)
    ENDED_CUT = (7, Kind.ENDED, "cut")
    ENDED_LOOP = (8, Kind.ENDED, "loop")
    ENDED_OTHER_CALL = (9, Kind.ENDED, "other_call")
    ENDED_NO_CALL = (10, Kind.ENDED, "no_call")
    ENDED_CALL_UNREADABLE = (11, Kind.ENDED, "call_unreadable")
    ENDED_AT_CALL = (12, Kind.ENDED, "call")  # with tool_results: stop
    ENDED_CONTEXT = (13, Kind.ENDED, "context")

    @property
    def answered(self) -> bool:
        """Whether the row has an answer and so is a record."""
        return self.kind is Kind.RECORD

    @property
    def cut(self) -> bool:
        """Whether the answer was cut, so that its length is a lower bound."""
        return self.answered and bool(self.limit)

    @property
    def finished(self) -> bool:
        """Whether the target ended the answer itself, with a stop token."""
        return self.answered and not self.limit

    @property
    def cut_by_cap(self) -> bool:
        """Whether a higher cap lets the answer go on."""
        return self.answered and self.limit == "cap"

    @property
    def extendable(self) -> bool:
        """Whether `extend` lets the answer go on."""
        return self.cut_by_cap and not self.loops

    @property
    def cut_by_context(self) -> bool:
        """Whether the context was full."""
        return self.answered and self.limit == "context"

    @property
    def failed(self) -> bool:
        """Whether the row failed; the next run tries it again."""
        return self.kind is Kind.FAILURE

    @property
    def skipped(self) -> bool:
        """Whether the row was left out; the next run looks at it again."""
        return self.kind is Kind.SKIPPED

    @property
    def ended(self) -> bool:
        """Whether the dialogue ended before this turn, with `label` as the reason."""
        return self.kind is Kind.ENDED

    @property
    def ended_by_cut(self) -> bool:
        """Whether the dialogue goes on when the answer before this turn is no longer cut."""
        return self.ended and self.label == "cut"

    @property
    def tried_again(self) -> bool:
        """Whether the next run looks at the row again."""
        return self.missing or self.failed or self.skipped or (self.ended and self.label == "context")

    @property
    def missing(self) -> bool:
        """Whether there is no outcome yet."""
        return self.kind is Kind.NOWHERE


_BY_CODE: Final = {int(outcome): outcome for outcome in Outcome}
# Of outcomes with one label, the first: what a finish_reason cannot say is in a column of its own (loop_tokens).
_BY_REASON: Final = {outcome.label: outcome for outcome in reversed(Outcome) if outcome.answered}
FINISH_REASONS: Final = tuple(dict.fromkeys(outcome.label for outcome in Outcome if outcome.answered))


def of_code(code: int) -> Outcome:
    """Return the outcome that a journal's code stands for.

    Raises:
        DataError: a newer version wrote it.
    """
    try:
        return _BY_CODE[code]
    except KeyError:
        raise DataError(
            f"the journal holds rows that ended in a way (code {code}) this version does not know; upgrade eagle3-data"
        ) from None


def of_reason(finish_reason: str) -> Outcome:
    """Return the outcome of a record by its finish_reason.

    Raises:
        KeyError: it is none of FINISH_REASONS.
    """
    return _BY_REASON[finish_reason]


def reasons(holds: str) -> tuple[str, ...]:
    """Return the finish_reasons of which the property named `holds` is true, in the order of the table."""
    return tuple(label for label in FINISH_REASONS if getattr(_BY_REASON[label], holds))


def flags(codes: npt.NDArray[Any], holds: str) -> Flags:
    """Return of which rows the property named `holds` is true.

    Args:
        codes: codes of outcomes, any integer dtype, shape (rows,).
        holds: name of a property of Outcome, such as "answered".

    Returns:
        Booleans, shape (rows,); False for a code that the table does not have.
    """
    found: Flags = _table(holds)[codes]
    return found


@functools.cache
def _table(holds: str) -> Flags:
    table = np.zeros(256, bool)
    for outcome in Outcome:
        table[outcome] = bool(getattr(outcome, holds))
    return table
