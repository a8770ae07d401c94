"""What one commit does to the repository: files to add and to delete, the card, and the change list.

Goes in: an `Order` and the `Head` that it builds on. Comes out: a `Plan`; nothing is sent.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.publishing.card.card import VERSIONS_NAME, VERSIONS_SHOWN, render_card, render_versions
from eagle3_data.publishing.card.changes import (
    Opener,
    RowChanges,
    compare_rows,
    describe_changes,
    first_version,
    index_rows,
)
from eagle3_data.publishing.card.facts import read_counts, total
from eagle3_data.publishing.hub.repository import Repository, is_version_tag
from eagle3_data.publishing.hub.request import Head, Order, same_records
from eagle3_data.publishing.publish_report import PublishedFile
from eagle3_data.publishing.version_files import (
    CARD,
    OWNED_FOLDERS,
    VersionFile,
    forbid_secrets,
    parse_version,
    public_manifest,
    record_paths,
    version_files,
)
from eagle3_data.run_folder import read_json
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

FIRST_VERSION: Final = "1.0.0"


@dataclass(frozen=True)
class Plan:
    """What a commit would do."""

    files: Sequence[VersionFile]
    card: str
    add: Sequence[VersionFile]
    delete: Sequence[str]
    changes: Sequence[str]
    notes: Sequence[str] = ()


def changes_since(repository: Repository | None, order: Order, head: Head) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the change list so far and the lines of this version."""
    history = [change for change in head.manifest.get("changes", []) if change.get("version") != order.version]
    if repository is None or not head.version or not history:
        counts = read_counts(order.run, list(order.sources))
        whole = total(counts)
        return history, first_version(list(counts), whole.rows, whole.completion_tokens)
    if head.version == order.version:
        # an untagged commit of this very version is being replaced: compare with the version before it
        before = f"v{history[0]['version']}"
        head = Head(before, repository.files(before), repository.manifest(before))
    rows = row_changes(repository, order, head)
    lengths = (repository.read_json("lengths.json", head.commit), read_json(order.run.lengths_path))
    return history, describe_changes(head.manifest, public_manifest(order.manifest, order.sources), rows, lengths)


def row_changes(repository: Repository, order: Order, head: Head, *, ids: bool = True) -> dict[str, RowChanges]:
    """Compare the rows of the sources that the head has too; files that are alike are not read.

    Without `ids` only `added` and `removed` hold, and little is fetched.
    """
    mine = {file.path: file for file in record_paths(order.run, order.sources)}
    rows = {}
    for source in order.sources:
        theirs = {path for path in head.files if path.startswith(f"records/{source}/")}
        ours = {path for path in mine if path.startswith(f"records/{source}/")}
        if not theirs:
            continue
        same = {path for path in ours & theirs if mine[path].same_as(head.files[path])}
        old = index_rows([_remote(repository, path, head.commit) for path in sorted(theirs - same)], ids=ids)
        new = index_rows([_local(mine[path]) for path in sorted(ours - same)], ids=ids)
        alike = sum(_count_rows(mine[path]) for path in same)
        rows[source] = compare_rows(old, new, alike)
    return rows


def next_version(repository: Repository, order: Order, head: Head, tags: Mapping[str, str]) -> str:
    """Count on from the last version.

    Returns:
        The version of the head where it holds this very content; a patch where rows were only continued, answered
        anew or taken out; a minor version for more rows or sources; a major one for another target or other columns.
    """
    there = [tag[1:] for tag, commit in tags.items() if commit == head.commit and is_version_tag(tag)]
    last = max([*there, *([head.version] if head.version else [])], key=parse_version, default="")
    if not last:
        return FIRST_VERSION
    if same_records(order, head.files):
        return last
    major, minor, patch, whole, _ = parse_version(last)
    if not whole:
        return f"{major}.{minor}.{patch}"  # of a release candidate, the release
    old, new = (each.get("identity", {}).get("target", {}) for each in (head.manifest, order.manifest))
    if any(old.get(key) != new.get(key) for key in {*old, *new}) or _other_columns(repository, head):
        return f"{major + 1}.0.0"
    rows = row_changes(repository, order, head, ids=False)
    if any(change.added for change in rows.values()) or set(order.sources) - set(rows):
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def _other_columns(repository: Repository, head: Head) -> bool:
    path = next((path for path in sorted(head.files) if path.startswith("records/")), None)
    if path is None:
        return False
    with repository.open(path, head.commit) as handle:
        columns: pa.Schema = pq.read_schema(handle)
    return not columns.remove_metadata().equals(arrow_schema(RECORD_FEATURES))


def _remote(repository: Repository, path: str, commit: str) -> Opener:
    return lambda: repository.open(path, commit)


def _local(file: VersionFile) -> Opener:
    def opened() -> AbstractContextManager[Any]:
        assert isinstance(file.content, Path)
        return file.content.open("rb")

    return opened


def _count_rows(file: VersionFile) -> int:
    return int(pq.read_metadata(file.content).num_rows)


def make_plan(
    repository: Repository, order: Order, head: Head, changes: list[dict[str, Any]], lines: Sequence[str]
) -> Plan:
    files = version_files(order.run, order.manifest, order.sources, order.version, changes)
    notes: list[str] = []
    if len(changes) > VERSIONS_SHOWN:
        files.append(VersionFile(VERSIONS_NAME, render_versions(changes).encode()))
    card = render_card(
        order.run,
        order.template,
        target=order.target,
        repo=repository.name,
        version=order.version,
        sources=order.sources,
        changes=changes,
        existing=head.card,
        notes=notes,
    )
    files.append(VersionFile(CARD, card.encode()))
    forbid_secrets(files, order.secrets)
    kept = {file.path for file in files}
    delete = [path for path in head.files if path.startswith(OWNED_FOLDERS) and path not in kept]
    add = [file for file in files if not file.same_as(head.files.get(file.path))]
    return Plan(files, card, add, sorted(delete), lines, notes)


def listing(plan: Plan, head: Head) -> tuple[PublishedFile, ...]:
    added = {file.path for file in plan.add}
    listed = [
        PublishedFile(
            file.path,
            file.size,
            "unchanged" if file.path not in added else "replaced" if file.path in head.files else "new",
        )
        for file in plan.files
    ]
    return (*listed, *(PublishedFile(path, head.files[path].size, "deleted") for path in plan.delete))
