"""No answer is lost unasked: records that outnumber the journal are not replaced, and missing ones are noticed.

Goes in: a run folder. Comes out: nothing, or one error that says how many rows are concerned and which command helps.
"""

import logging

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import DataError
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.records.restoring import Held, compare_with_journal
from eagle3_data.run_folder import RunFolder

logger = logging.getLogger(__name__)


def guard_records(folder: RunFolder) -> None:
    """Refuse to go on where writing the records from the journal would lose rows.

    Raises:
        DataError: records hold answers that the journal does not, or are damaged and not in the journal.
    """
    if not any(folder.path.glob("records/[!.]*/*.parquet")):
        return
    with Journal(folder.journal_path, readonly=True) as journal:
        held = compare_with_journal(folder, journal)
        answered = answered_rows(journal)
    if lost := {name: source.lost for name, source in held.items() if source.lost}:
        words = ", ".join(f"{rows:,} of {name}" for name, rows in lost.items())
        raise DataError(
            f"{folder.path}: the records hold {sum(lost.values()):,} answers that the journal does not ({words}), so "
            f"nothing was asked or written; `eagle3-data restore {folder.path}` reads them back into the journal"
        )
    damaged = [path for source in held.values() for path in source.damaged]
    stated = sum(counts.records for counts in folder.read_manifest().generation.values())
    if damaged and answered < stated:
        raise DataError(
            f"{damaged[0]}: cannot be read, and the journal holds {answered:,} of the {stated:,} answers that the "
            f"manifest states; `eagle3-data restore {folder.path}` keeps what can be read"
        )


def answered_rows(journal: Journal) -> int:
    """Return how many rows of a journal have an answer."""
    return journal.index.count("answered")


def check_whole(folder: RunFolder) -> None:
    """Refuse to read a run as a whole data set where rows are missing that its manifest states.

    A run that goes on, or was stopped, is read as far as its records go, and that is said.

    Raises:
        DataError: record files are missing, shortened or damaged.
    """
    short = {
        name: (rows, counts.records)
        for name, counts in folder.read_manifest().generation.items()
        if (rows := _rows(folder, name)) < counts.records
    }
    if short:
        words = ", ".join(f"{rows:,} of {stated:,} rows of {name}" for name, (rows, stated) in short.items())
        raise DataError(f"{folder.path}: the record files hold {words} that the manifest states; {way_back(folder)}")
    journal = [path.stat().st_mtime for path in folder.journal_path.glob("*.log")]
    if journal and folder.failures_path.is_file() and max(journal) > folder.failures_path.stat().st_mtime:
        logger.warning(
            "%s: answers came in after the records were last written; `eagle3-data generate` with the run's recipe "
            "writes them",
            folder.path,
        )


def way_back(folder: RunFolder) -> str:
    """Return the sentence that names the command which brings missing records back."""
    with Journal(folder.journal_path, readonly=True) as journal:
        answered = answered_rows(journal)
    stated = sum(counts.records for counts in folder.read_manifest().generation.values())
    if answered >= stated:
        return "the journal holds them all: `eagle3-data generate` with the run's recipe writes the files again"
    return (
        f"the journal holds {answered:,} of {stated:,}: `eagle3-data restore {folder.path}` keeps what is left, with "
        "--from hf://datasets/org/name@version also what was published; the rest is asked again by `generate`"
    )


def summed(held: dict[str, Held]) -> Held:
    """Return the sum over sources."""
    whole = Held()
    for source in held.values():
        whole.rows += source.rows
        whole.lost += source.lost
        whole.unread += source.unread
        whole.damaged += source.damaged
    return whole


def _rows(folder: RunFolder, source: str) -> int:
    rows = 0
    for path in folder.records_path(source).glob("*.parquet"):
        try:
            rows += pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {way_back(folder)}") from error
    return rows
