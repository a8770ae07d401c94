"""The config `train_rows` of a version: rows that trainers read as they are, beside the records.

Goes in: a run folder that is about to be published. Comes out: `train_rows/<source>/…` in it, a file for each record
file (so that files that did not change stay the same bytes), and the trainer's name in the manifest.
"""

from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from eagle3_data.publishing.card.facts import SPLITS
from eagle3_data.publishing.records import open_records, read_ahead
from eagle3_data.publishing.training.rows import (
    RECORD_COLUMNS,
    TRAINING_SCHEMA,
    RowOptions,
    SourceTally,
    training_tables,
)
from eagle3_data.publishing.training.trainers import Trainer
from eagle3_data.run_folder import RunFolder, write_parquet

TRAIN_ROWS: Final = "train_rows"


def training_files(run: RunFolder, source: str, split: str) -> list[Path]:
    """Return the files of training rows of a source's split."""
    return sorted((run.path / TRAIN_ROWS / source).glob(f"{split}-*.parquet"))


def add_training_rows(run: RunFolder, trainer: Trainer) -> None:
    """Write the training rows of every record file.

    Raises:
        DataError: a record's lengths do not agree with its ids.
        DiskFull, MachineError: they cannot be written.
    """
    tallies: dict[str, SourceTally] = {}
    for source in run.sources():
        for split in SPLITS:
            for path in run.record_files(source, split):
                tables = read_ahead(open_records(path, split=None).tables(RECORD_COLUMNS))
                rows = training_tables(tables, RowOptions(), tallies, str(path))
                write_parquet(run.path / TRAIN_ROWS / source / path.name, rows, TRAINING_SCHEMA)
    files = list((run.path / TRAIN_ROWS).glob("*/*.parquet"))
    whole = sum(tallies.values(), SourceTally())
    run.write_manifest(
        {
            **run.read_manifest().to_dict(),
            "training": {
                "trainer": trainer,
                "rows": whole.written,
                "tokens": whole.tokens,
                "longest": whole.longest,
                "bytes": sum(path.stat().st_size for path in files),
                "mask_bytes": sum(map(_mask_bytes, files)),
            },
        }
    )


def _mask_bytes(path: Path) -> int:
    metadata = pq.read_metadata(path)
    return sum(
        metadata.row_group(group).column(column).total_compressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
        if metadata.row_group(group).column(column).path_in_schema.startswith("loss_mask")
    )
