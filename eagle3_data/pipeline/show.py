"""`show`: records decoded, for people to read.

Goes in: a run folder, Parquet files or a Hub version, and which records. Comes out: their text, control tokens visible
and everything that a terminal would obey written out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from eagle3_data.errors import DataError, UsageError
from eagle3_data.foreign_text import visible
from eagle3_data.outcome import FINISH_REASONS
from eagle3_data.pipeline.existing import target_of
from eagle3_data.publishing.records import Records, open_records
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import RECORD_FEATURES
from eagle3_data.target import Target


@dataclass(frozen=True)
class Wanted:
    """Which records to show: all that are given must hold.

    Attributes:
        source: of this source ("" for any).
        finish: with this finish_reason ("" for any).
        sample_id: a sample_id, or the beginning of one ("" for any).
        count: at most so many.
    """

    source: str = ""
    finish: str = ""
    sample_id: str = ""
    count: int = 3

    def __str__(self) -> str:
        said = {"--source": self.source, "--finish": self.finish, "--id": self.sample_id}
        return " ".join(f"{option} {value}" for option, value in said.items() if value)


def show(dataset: str, wanted: Wanted, *, tokenizer: str = "", trust_remote_code: bool = False) -> Iterator[str]:
    """Yield the text of each wanted record, in the order of the files.

    Args:
        dataset: a run folder, a Parquet file or a folder of them, or `org/name@v1.0.0` on the Hub.
        wanted: which records.
        tokenizer: model or folder whose tokenizer decodes them; the run's own target when "".
        trust_remote_code: let the tokenizer's own code run; nothing in the data set can consent to that.

    Raises:
        UsageError: no such data set, source or finish_reason; or the target's tokenizer is not at hand.
        DataError: no record is like that.
    """
    if wanted.finish and wanted.finish not in FINISH_REASONS:
        raise UsageError(f"--finish {wanted.finish}: the reasons are {', '.join(FINISH_REASONS)}")
    records = open_records(dataset, split=None, sources=[wanted.source] if wanted.source else None)
    if not any(_matching(table, wanted).num_rows for table in records.tables(["sample_id", "finish_reason"])):
        raise DataError(f"{records.name}: no record {f'matches {wanted}' if str(wanted) else 'in it'}")
    target = _target(dataset, records, tokenizer, trust_remote_code)
    left = wanted.count
    for table in records.tables(list(RECORD_FEATURES)):
        for row in _matching(table, wanted).slice(0, left).to_pylist():
            yield visible(target.describe(row))
            left -= 1
        if not left:
            return


def _matching(table: pa.Table, wanted: Wanted) -> pa.Table:
    mask = pc.starts_with(table["sample_id"], wanted.sample_id)
    if wanted.finish:
        mask = pc.and_(mask, pc.equal(table["finish_reason"], wanted.finish))
    return table.filter(mask)


def _target(dataset: str, records: Records, tokenizer: str, trust_remote_code: bool) -> Target:
    if not tokenizer:
        folder = RunFolder(dataset)
        target = target_of(folder, trust_remote_code=trust_remote_code) if folder.manifest_path.is_file() else None
        if target is not None:
            return target
        of = records.identity.get("target", {})
        tokenizer, revision = str(of.get("model") or ""), of.get("revision")
        if not tokenizer:
            raise UsageError(
                f"{records.name}: it does not say which target wrote it; name its tokenizer with --tokenizer"
            )
    else:
        revision = None
    try:
        return Target.from_pretrained(tokenizer, revision, trust_remote_code=trust_remote_code)
    except (UsageError, DataError) as error:
        raise UsageError(f"{error}; or name a tokenizer on this machine with --tokenizer") from error
