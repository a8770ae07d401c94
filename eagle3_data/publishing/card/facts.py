"""What a card says about a run, gathered from its files: counts, mixture, sources, one example.

Goes in: a run folder. Comes out: plain values for the template, and the metadata block that `load_dataset` reads. Only
the columns of counts are read, in batches, so memory does not grow with the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import CardData, DatasetCardData

from eagle3_data.errors import DataError
from eagle3_data.manifest import SourceExtent
from eagle3_data.outcome import FINISH_REASONS, reasons
from eagle3_data.publishing.card.licenses import hub_licenses
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import RECORD_FEATURES, arrow_schema, clean_messages

SPLITS: Final = ("train", "validation")
DEFAULT_CONFIG: Final = "default"
TRAIN_CONFIG: Final = "train_rows"
TAGS: Final = ("eagle3", "speculative-decoding", "drafter", "pre-tokenized", "synthetic")
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "finish_reason", "tool_calls", "license")
# Upper ends of the Hub's size categories, in rows.
_SIZES: Final = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (1_000_000_000, "100M<n<1B"),
)


@dataclass
class SplitFacts:
    """Counts over the records of one split of one source.

    Attributes:
        rows, prompt_tokens, completion_tokens, reasoning_tokens, tool_calls: sums over the rows.
        finish_reasons: rows by finish_reason.
        licenses: rows by the licence of their upstream row.
        cut_at: rows that a cap cut, by their output tokens, which are the cap that they met.
    """

    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    tool_calls: int = 0
    finish_reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    licenses: dict[str, int] = field(default_factory=dict)
    cut_at: dict[int, int] = field(default_factory=dict)

    @property
    def truncated(self) -> int:
        """Rows that a cap or the context cut."""
        return sum(self.finish_reasons[reason] for reason in reasons("cut"))

    def __add__(self, other: "SplitFacts") -> "SplitFacts":
        total = SplitFacts()
        for name, value in vars(total).items():
            left, right = getattr(self, name), getattr(other, name)
            if isinstance(value, dict):
                keys = [*left, *(key for key in right if key not in left)]
                setattr(total, name, {key: left.get(key, 0) + right.get(key, 0) for key in keys})
            else:
                setattr(total, name, left + right)
        return total


def read_split(files: list[Path]) -> SplitFacts:
    """Count the records in Parquet files.

    Raises:
        DataError: a file is damaged, or its columns are not those of a record.
    """
    facts = SplitFacts()
    wanted = arrow_schema(RECORD_FEATURES)
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                if not file.schema_arrow.remove_metadata().equals(wanted):
                    raise DataError(
                        f"{path}: its columns are not those of a record; write the records again "
                        "(`eagle3-data generate`) with this version"
                    )
                _count(file, facts)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}: not a whole Parquet file ({error}); run `eagle3-data generate` again") from error
    return facts


def _count(file: pq.ParquetFile, facts: SplitFacts) -> None:
    for batch in file.iter_batches(batch_size=65_536, columns=list(_COUNTS)):
        facts.rows += batch.num_rows
        for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens", "tool_calls"):
            setattr(facts, name, getattr(facts, name) + int(pc.sum(batch[name]).as_py() or 0))
        _tally(facts.finish_reasons, batch["finish_reason"])
        _tally(facts.licenses, batch["license"])
        _tally(facts.cut_at, batch["completion_tokens"].filter(pc.equal(batch["finish_reason"], "length_cap")))


def _tally(counts: dict[Any, int], values: pa.Array) -> None:
    for entry in pc.value_counts(values).to_pylist():
        counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]


def read_counts(run: RunFolder, sources: list[str]) -> dict[str, dict[str, SplitFacts]]:
    """Count the records of each source and split; splits without files are left out.

    Raises:
        DataError: there are no records, a file is damaged, or a source is called `default`.
    """
    if not sources:
        raise DataError(f"{run.path}: no records; run `eagle3-data generate` first")
    for name in (DEFAULT_CONFIG, TRAIN_CONFIG):
        if name in sources:
            raise DataError(f"{run.path}: a source is named `{name}`, the name of another config; rename it")
    counts = {
        source: {split: read_split(files) for split in SPLITS if (files := run.record_files(source, split))}
        for source in sources
    }
    if not sum(split.rows for splits in counts.values() for split in splits.values()):
        raise DataError(f"{run.path}: the record files hold no rows; run `eagle3-data generate` again")
    return counts


def total(counts: Mapping[str, Mapping[str, SplitFacts]], split: str | None = None) -> SplitFacts:
    """Add up counts over all sources, for one split or for all."""
    return sum(
        (facts for splits in counts.values() for name, facts in splits.items() if split in (None, name)), SplitFacts()
    )


def caps(extent: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the cap of a source's answers, and the higher one to which its cut rows were continued (else None)."""
    stated = SourceExtent.model_validate(extent)
    return stated.cap, stated.continued_to


def size_category(rows: int) -> str:
    """Return the Hub's size category of a number of rows."""
    return next((name for limit, name in _SIZES if rows < limit), "1B<n<10B")


def card_metadata(
    counts: Mapping[str, Mapping[str, SplitFacts]], manifest: Mapping[str, Any], pretty_name: str
) -> DatasetCardData:
    """Build the YAML block: configs, licences, tags and size.

    Each source is a config of its own, and `default` is all of them; `train_rows` is there where the version has rows
    for a trainer. Types and row counts are those that Parquet states, so that they are not repeated here.
    """
    reports: Mapping[str, Any] = manifest.get("sources", {})
    whole = total(counts)
    origins = sorted({report["upstream"] for name, report in reports.items() if _hub_id(report, name, counts)})
    data = DatasetCardData(
        pretty_name=pretty_name,
        license=hub_licenses(_licenses(counts, manifest)),
        language=_languages(counts, reports) or None,
        task_categories=["text-generation"],
        size_categories=[size_category(whole.rows)],
        source_datasets=origins or None,
        tags=list(TAGS),
    )
    configs: dict[str, dict[str, Any]] = {}
    for name in [DEFAULT_CONFIG, *counts, *([TRAIN_CONFIG] if manifest.get("training") else [])]:
        selected = {name: counts[name]} if name in counts else counts
        folder = "train_rows/*" if name == TRAIN_CONFIG else f"records/{name if name in counts else '*'}"
        splits = [split for split in SPLITS if any(split in each for each in selected.values())]
        configs[name] = {
            "data_files": [{"split": split, "path": f"{folder}/{split}-*"} for split in splits],
            **({"default": True} if name == DEFAULT_CONFIG else {}),
        }
    MetadataConfigs(configs).to_dataset_card_data(data)
    return data


def _languages(counts: Mapping[str, Any], reports: Mapping[str, Any]) -> list[str]:
    """Return the languages of the sources, where every source states its own."""
    stated = [(reports.get(name, {}).get("attribution") or {}).get("languages") or [] for name in counts]
    return sorted({str(language) for each in stated for language in each}) if all(stated) else []


def _licenses(counts: Mapping[str, Mapping[str, SplitFacts]], manifest: Mapping[str, Any]) -> set[str]:
    """Return the licences of the rows; the package's own sample rows only play those of their source."""
    extents = manifest.get("extent", {}).get("sources", {})
    found: set[str] = set()
    for name, splits in counts.items():
        if extents.get(name, {}).get("data_files") == "samples":
            found.add("Apache-2.0")
        else:
            found.update(*(facts.licenses for facts in splits.values()))
    return found


def as_dict(data: CardData) -> dict[str, Any]:
    """Return card metadata as plain values."""
    values: dict[str, Any] = data.to_dict()  # type: ignore[no-untyped-call]
    return values


def _hub_id(report: Mapping[str, Any], name: str, counts: Mapping[str, Any]) -> bool:
    return name in counts and str(report.get("upstream", "")).count("/") == 1


def find_prompt(run: RunFolder, source: str, sample_id: str) -> list[dict[str, Any]] | None:
    """Return the messages that a record answers, or None when the run's prompts are not at hand."""
    path = run.prompts_path(source)
    if not path.is_file():
        return None
    found = pq.read_table(path, columns=["messages"], filters=[("sample_id", "=", sample_id)])
    return clean_messages(found["messages"][0].as_py()) if found.num_rows else None


def typical_record(run: RunFolder, source: str, among: int = 200) -> dict[str, Any] | None:
    """Return the finished record of median length among the first rows of `train`; the first row if none finished."""
    table = next((table for path in run.record_files(source) if (table := _head(path, among)).num_rows), None)
    if table is None:
        return None
    tokens = np.asarray(table["completion_tokens"])
    finished = np.flatnonzero(np.isin(table["finish_reason"].to_pylist(), reasons("finished")))
    order = finished[np.argsort(tokens[finished], kind="stable")]
    row: dict[str, Any] = table.slice(int(order[len(order) // 2]) if order.size else 0, 1).to_pylist()[0]
    return row


def _head(path: Path, rows: int) -> pa.Table:
    with pq.ParquetFile(path) as file:
        batches = list(islice(file.iter_batches(batch_size=rows), 1))
        return pa.Table.from_batches(batches, schema=file.schema_arrow)
