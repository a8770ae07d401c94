"""The prompts of one source in draw order, from a Parquet file or a Dataset, a thousand rows at a time.

Goes in: a path or a Dataset with PROMPT_FEATURES (and perhaps `input_ids`). Comes out: batches of chosen columns.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from eagle3_data.errors import DataError
from eagle3_data.run_folder import machine_errors


class PromptTable:
    """Prompts of one source.

    Args:
        prompts: path of a Parquet file, or a Dataset.

    Raises:
        DataError: the file is no Parquet, or a column that is needed is missing.
    """

    def __init__(self, prompts: Path | str | Dataset) -> None:
        self._dataset = prompts if isinstance(prompts, Dataset) else None
        self._path = None if isinstance(prompts, Dataset) else Path(prompts)
        if self._path is not None:
            with machine_errors(self._path):
                try:
                    metadata = pq.read_metadata(self._path)
                    self.columns: list[str] = pq.read_schema(self._path).names
                except pa.ArrowInvalid as error:
                    raise DataError(f"{self._path}: not a Parquet file ({error}); run prepare again") from None
            self.rows: int = metadata.num_rows
        elif self._dataset is not None:
            self.columns, self.rows = self._dataset.column_names, self._dataset.num_rows
        needed = {"sample_id"} if "input_ids" in self.columns else {"sample_id", "messages", "tools"}
        if missing := needed - set(self.columns):
            raise DataError(f"{self.name}: no column {', '.join(sorted(missing))}; run prepare again")

    @property
    def name(self) -> str:
        """What to call it in an error."""
        return str(self._path or "prompts")

    @property
    def signature(self) -> list[Any]:
        """Something that changes when the content may have changed."""
        if self._path is not None:
            status = self._path.stat()
            return [status.st_size, status.st_mtime_ns]
        assert self._dataset is not None
        return [self._dataset._fingerprint]

    def batches(self, columns: Sequence[str], start: int = 0, size: int = 1000) -> Iterator[pa.Table]:
        """Yield tables of `size` rows (the last may be shorter) from row `start`, those of `columns` that there are.

        Batches begin at `start` + a multiple of `size`.
        """
        wanted = [name for name in columns if name in self.columns]
        if start >= self.rows:
            return
        if self._dataset is not None:
            rest = self._dataset.select(range(start, self.rows)) if start else self._dataset
            yield from rest.select_columns(wanted).with_format("arrow").iter(size)
            return
        assert self._path is not None
        with pq.ParquetFile(self._path) as file:
            groups, skipped = list(range(file.num_row_groups)), 0
            while groups and skipped + file.metadata.row_group(groups[0]).num_rows <= start:
                skipped += file.metadata.row_group(groups.pop(0)).num_rows
            held: list[pa.RecordBatch] = []
            count, drop = 0, start - skipped
            for batch in file.iter_batches(batch_size=size, row_groups=groups, columns=wanted):
                part = batch.slice(drop)
                drop = max(0, drop - batch.num_rows)
                while count + part.num_rows >= size:
                    take = size - count
                    yield pa.Table.from_batches([*held, part.slice(0, take)])
                    part, held, count = part.slice(take), [], 0
                if part.num_rows:
                    held.append(part)
                    count += part.num_rows
            if held:
                yield pa.Table.from_batches(held)
