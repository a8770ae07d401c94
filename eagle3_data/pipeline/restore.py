"""`restore`: the journal of a run again, from its records or from a published version; and packing, its opposite.

Goes in: a run folder, and where it should come from. Comes out: a journal that holds every answer that is left, so
that the run can be extended, grown and repaired without asking for a finished row. Packing removes a journal whose
every answer stands in the records, which takes half of a finished run's disk; `restore` makes it again.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eagle3_data.errors import DataError, UsageError
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.records.restoring import Held, compare_with_journal, restore_entries
from eagle3_data.pipeline.keeping import answered_rows, check_whole, summed
from eagle3_data.publishing.hub.repository import Repository, parse_repo
from eagle3_data.publishing.version_files import MANIFEST, RECIPE
from eagle3_data.run_folder import RunFolder, atomic_file
from eagle3_data.run_names import no_run_folder

_RECORDS: Final = re.compile(r"records/[A-Za-z][A-Za-z0-9_]*/(?:train|validation)-\d{5}-of-\d{5}\.parquet")
_BESIDE: Final = ("lengths.json", "README.md", RECIPE, MANIFEST)
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Restored:
    """What came back.

    Attributes:
        folder: the run folder.
        held: by source, the rows of its record files and how many of them the journal had lost.
        fetched: bytes that came from the Hub.
        packed: bytes of the journal that was removed, -1 where nothing was packed.
    """

    folder: Path
    held: Mapping[str, Held]
    fetched: int = 0
    packed: int = -1

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, ready for JSON."""
        sources = {
            name: {"rows": held.rows, "restored": held.lost, "damaged_rows": held.unread}
            for name, held in self.held.items()
        }
        return {
            "folder": str(self.folder),
            "sources": sources,
            "fetched_bytes": self.fetched,
            "packed_bytes": max(self.packed, 0),
        }

    def to_text(self) -> str:
        """Return a line for each source, and what can be done next."""
        if self.packed >= 0:
            return (
                f"{self.folder}: packed, {self.packed / 1e6:,.1f} MB of journal removed; every answer stands in the "
                f"records, and `eagle3-data restore {self.folder}` makes the journal again"
            )
        lines = [
            f"{name}: {held.lost:,} of {held.rows:,} answers read back into the journal, which held the others"
            for name, held in self.held.items()
        ]
        for held in self.held.values():
            for path in held.damaged:
                lines.append(
                    f"{path}: damaged, now under {self.folder / 'damaged'}; what could be read is in the journal"
                )
            if held.unread:
                lines.append(f"{held.unread:,} rows stood in damaged bytes only; `generate` asks for them again")
        recipe = self.folder / RECIPE if self.fetched else "its recipe"
        lines.append(f"go on with `eagle3-data generate` or `extend` and {recipe}; no finished row is asked again")
        return "\n".join(lines)


def restore(run: Path, *, source: str | None = None, pack: bool = False, token: str | None = None) -> Restored:
    """Read records back into the journal of a run folder.

    Args:
        run: the run folder; with `source` one that has no records yet.
        source: a published version, `hf://datasets/org/name@v1.0.0`, to start from.
        pack: remove the journal in place of restoring it, after checking that the records hold every answer.
        token: of the Hub.

    Raises:
        UsageError: there are no records to restore from, or the folder has records of its own.
        DataError: packing would lose answers; or a published file is not whole.
        HubError: the Hub refused.
        RunLocked, DiskFull: this machine.
    """
    folder = RunFolder(run)
    if pack:
        return _pack(folder)
    if not source and not any(folder.path.glob("records/[!.]*/*.parquet")):
        if not folder.path.is_dir():
            raise no_run_folder(run)
        raise UsageError(
            f"{run}: no records to restore from; name a run folder, or a published version with --from hf://…"
        )
    fetched = 0
    with folder.lock():
        if source:
            fetched = _fetch(folder, source, token)
        with Journal(folder.journal_path) as journal:
            held = restore_entries(folder, journal)
        for path in summed(held).damaged:
            place = folder.path / "damaged" / path.relative_to(folder.path / "records")
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
    return Restored(folder.path, held, fetched)


def _fetch(folder: RunFolder, source: str, token: str | None) -> int:
    """Bring the files of a published version into an empty run folder, the manifest last."""
    if any(folder.path.glob("records/[!.]*/*.parquet")) or folder.manifest_path.exists():
        raise UsageError(f"{folder.path}: is a run already, which a published version must not replace; name another")
    name, revision = parse_repo(source)
    repository = Repository(name, token)
    revision = revision or (["main"] + [f"v{version}" for version in repository.versions()])[-1]
    files = repository.files(revision)
    records = [path for path in files if _RECORDS.fullmatch(path)]
    if MANIFEST not in files or not records:
        raise UsageError(f"{source}: no version of eagle3-data there (records and {MANIFEST})")
    repository.manifest(revision)
    fetched = 0
    for path in [*records, *(path for path in _BESIDE if path in files)]:
        with repository.open(path, revision) as remote, atomic_file(folder.path / path) as local:
            shutil.copyfileobj(remote, local, _CHUNK)
            if local.tell() != files[path].size:
                raise DataError(f"{source}: {path} came as {local.tell():,} of {files[path].size:,} bytes; try again")
        fetched += files[path].size
    return fetched


def _pack(folder: RunFolder) -> Restored:
    manifest = folder.read_manifest()
    if not manifest.stages.generate:
        raise DataError(f"{folder.path}: not packed: the run is not finished; run `eagle3-data generate` first")
    if not folder.journal_path.is_dir():
        raise UsageError(f"{folder.path}: has no journal to pack")
    with folder.lock():
        check_whole(folder)
        with Journal(folder.journal_path) as journal:
            held = compare_with_journal(folder, journal)
            answered = answered_rows(journal)
            whole = summed(held)
            if whole.damaged:
                raise DataError(f"{whole.damaged[0]}: cannot be read, so the journal is kept; `generate` repairs it")
            if answered > whole.rows - whole.lost:
                raise DataError(
                    f"{folder.path}: not packed: the journal holds {answered - whole.rows + whole.lost:,} answers "
                    "that no record has (of sources or rows that left the recipe)"
                )
            size = sum(path.stat().st_size for path in folder.journal_path.rglob("*") if path.is_file())
            shutil.rmtree(folder.journal_path)
    return Restored(folder.path, held, packed=size)
