"""Which records become one training row: each alone, or the turns of a dialogue that continue one another.

Goes in: tables of records. Comes out: `Chains`, each the records of one row. Two turns are joined where the prompt of
the later one begins, id by id, with the prompt and the output of the earlier one: then one row holds both, with a span
under the loss for each. Templates that change history break that equality, and the turns stay rows of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Span = tuple[int, int]


@dataclass(frozen=True)
class Chains:
    """Rows to be made of the records of one table.

    Attributes:
        first, last: int64 (n,), the places of the first and the last record in the table. The prompt of the last one
            holds everything before it, so its ids are those of the row.
        tokens: int64 (n,), length of the row.
        turns: int64 (n,), records in it.
        saved: int64 (n,), tokens that rows of their own would have had besides.
        output: int64 (n,), tokens of the last record's output.
        spans: for each row the spans under the loss, from and to (exclusive), in tokens of the row; None where it is
            the last record's output for all of them.
        members: for each row the places of its records; None where it is `last` for all of them.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    tokens: NDArray[np.int64]
    turns: NDArray[np.int64]
    saved: NDArray[np.int64]
    output: NDArray[np.int64]
    spans: list[list[Span]] | None = None
    members: list[list[int]] | None = None

    def __len__(self) -> int:
        return len(self.last)

    def where(self, keep: NDArray[np.bool_]) -> "Chains":
        """Return the rows that are kept."""
        if keep.all():
            return self
        places = np.flatnonzero(keep).tolist()
        return Chains(
            self.first[keep],
            self.last[keep],
            self.tokens[keep],
            self.turns[keep],
            self.saved[keep],
            self.output[keep],
            None if self.spans is None else [self.spans[place] for place in places],
            None if self.members is None else [self.members[place] for place in places],
        )

    def rows(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the places of all records of the chosen rows."""
        if self.members is None:
            return self.last[chosen]
        places = [place for index in np.flatnonzero(chosen).tolist() for place in self.members[index]]
        return np.array(places, np.int64)

    def loss_within(self, max_length: int | None) -> NDArray[np.int64]:
        """Return the tokens under the loss of each row when it is cut to `max_length`."""
        if self.spans is None:
            if max_length is None:
                return self.output
            within = np.minimum(self.output, max_length - (self.tokens - self.output))
            return np.asarray(np.maximum(within, 0), np.int64)
        ends = [max_length if max_length is not None else until for row in self.spans for _, until in row[-1:]]
        return np.array(
            [
                sum(max(0, min(until, end) - begin) for begin, until in row)
                for row, end in zip(self.spans, ends, strict=True)
            ],
            np.int64,
        )


def chains_of_turns(
    kept: NDArray[np.int64], prompt_tokens: NDArray[np.int64], completion_tokens: NDArray[np.int64]
) -> Chains:
    """Make each of the kept records a row of its own."""
    output = completion_tokens[kept]
    ones, nothing = np.ones(len(kept), np.int64), np.zeros(len(kept), np.int64)
    return Chains(kept, kept, prompt_tokens[kept] + output, ones, nothing, output)


def chains_of_dialogues(
    table: pa.Table, kept: NDArray[np.int64], prompts: Any, outputs: Any, limit: int | None
) -> Chains:
    """Join turns that continue one another.

    Args:
        table: whole dialogues, each in one piece; columns `dialogue`, `sample` and `turn`.
        kept: places of the records to use; a turn that is missing ends a chain.
        prompts, outputs: their ids, as Arrow lists.
        limit: rows are not joined to more tokens than this; None for no limit.
    """
    dialogue = table["dialogue"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    sample, turn = (np.asarray(table[name], np.int64) for name in ("sample", "turn"))
    # by dialogue as they come, then by sample and turn
    order = kept[np.lexsort((turn[kept], sample[kept], dialogue[kept]))]
    (prompt_at, prompt_ids), (output_at, output_ids) = (
        (part.offsets.to_numpy().astype(np.int64), part.values.to_numpy(zero_copy_only=False))
        for part in (prompts, outputs)
    )
    chains: list[list[int]] = []
    for row in order.tolist():
        chain = chains[-1] if chains else []
        if chain:
            last = chain[-1]
            whole = prompt_at[last + 1] - prompt_at[last] + output_at[last + 1] - output_at[last]
            size = prompt_at[row + 1] - prompt_at[row] + output_at[row + 1] - output_at[row]
            if (
                dialogue[row] == dialogue[last]
                and sample[row] == sample[last]
                and turn[row] == turn[last] + 1
                and (limit is None or size <= limit)
                and _begins_with(
                    prompt_ids[prompt_at[row] : prompt_at[row + 1]],
                    prompt_ids[prompt_at[last] : prompt_at[last + 1]],
                    output_ids[output_at[last] : output_at[last + 1]],
                    int(whole),
                )
            ):
                chain.append(row)
                continue
        chains.append([row])
    chains.sort(key=lambda chain: chain[0])
    prompt_tokens, output_tokens = np.diff(prompt_at), np.diff(output_at)
    first, last_of = (np.array([chain[at] for chain in chains], np.int64) for at in (0, -1))
    tokens = prompt_tokens[last_of] + output_tokens[last_of]
    apart = np.array([(prompt_tokens[chain] + output_tokens[chain]).sum() for chain in chains], np.int64)
    spans = [
        [(int(prompt_tokens[row]), int(prompt_tokens[row] + output_tokens[row])) for row in chain] for chain in chains
    ]
    turns = np.array([len(chain) for chain in chains], np.int64)
    return Chains(first, last_of, tokens, turns, apart - tokens, output_tokens[last_of], spans, chains)


def _begins_with(later: NDArray[Any], prompt: NDArray[Any], output: NDArray[Any], whole: int) -> bool:
    return (
        len(later) >= whole
        and np.array_equal(later[: len(prompt)], prompt)
        and np.array_equal(later[len(prompt) : whole], output)
    )


def whole_dialogues(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut tables anew so that rows of one dialogue that stand in a row are in one table; memory: one dialogue more."""
    waiting: list[pa.Table] = []
    for table in tables:
        if not table.num_rows:
            continue
        begins = _last_run(table)
        if waiting and begins == 0 and table["dialogue"][0].as_py() == waiting[-1]["dialogue"][0].as_py():
            waiting.append(table)
            continue
        if waiting and table["dialogue"][0].as_py() != waiting[-1]["dialogue"][0].as_py():
            yield _joined(waiting)
            waiting = []
        if begins:
            yield _joined([*waiting, table.slice(0, begins)])
            waiting = []
        waiting.append(table.slice(begins))
    if waiting:
        yield _joined(waiting)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def _last_run(table: pa.Table) -> int:
    """Return the place from which on all rows are of the last row's dialogue."""
    column = table["dialogue"].combine_chunks()
    others = np.flatnonzero(~np.asarray(pc.equal(column, column[-1])))
    return int(others[-1]) + 1 if others.size else 0
