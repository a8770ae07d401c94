"""Rows in a random order, in flat memory: dealt into piles on disk, each of which is shuffled in memory.

Goes in: tables of any length, and a seed. Comes out: the same rows in an order that only depends on the rows and the
seed. Each row goes to a pile at random and each pile is put into random order, so every order of all rows is equally
likely.
"""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from eagle3_data.run_folder import machine_errors

PILES: Final = 32
PILE_BYTES: Final = 2**26  # shuffled in memory up to this size; larger piles are dealt again
_TABLE_ROWS: Final = 1_000


def shuffled(tables: Iterable[pa.Table], seed: int, folder: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield all rows in a random order.

    Args:
        tables: of `schema`.
        seed: another seed is another order.
        folder: where the piles lie meanwhile, about as large as the rows.
        schema: of the tables.

    Raises:
        DiskFull, MachineError: the piles cannot be written.
    """
    with machine_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".shuffle-", dir=folder) as name:
            yield from _shuffle(tables, np.random.default_rng(seed), Path(name), schema)


def _shuffle(
    tables: Iterable[pa.Table], rng: np.random.Generator, folder: Path, schema: pa.Schema
) -> Iterator[pa.Table]:
    paths = [folder / f"{index}.arrow" for index in range(PILES)]
    with contextlib.ExitStack() as stack:
        piles = [
            stack.enter_context(pa.ipc.new_stream(stack.enter_context(path.open("wb")), schema)) for path in paths
        ]
        for table in tables:
            pile_of = rng.integers(PILES, size=table.num_rows)
            for index in np.unique(pile_of).tolist():
                piles[index].write_table(table.take(np.flatnonzero(pile_of == index)).cast(schema))
    for index, path in enumerate(paths):
        if path.stat().st_size > PILE_BYTES:
            inner = folder / f"{index}"
            inner.mkdir()
            yield from _shuffle(_read(path), rng, inner, schema)
        else:
            whole = pa.concat_tables(_read(path), promote_options="none") if path.stat().st_size else None
            if whole is not None and whole.num_rows:
                mixed = whole.combine_chunks().take(rng.permutation(whole.num_rows))
                for first in range(0, whole.num_rows, _TABLE_ROWS):
                    yield mixed.slice(first, _TABLE_ROWS).combine_chunks()
        path.unlink()


def _read(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield stream.schema.empty_table()
        for batch in stream:
            yield pa.Table.from_batches([batch])
