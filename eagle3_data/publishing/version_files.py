"""The files of one version: what of a run folder goes to the Hub, and in which form.

Goes in: a finished run folder. Comes out: record files, lengths and figures as they lie there, and a manifest and a
recipe made fit for publication: revisions pinned, addresses and paths of the machine that made them left out.
"""

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow.parquet as pq
import yaml

from eagle3_data.errors import DataError, UsageError
from eagle3_data.foreign_text import holds_secret, protect
from eagle3_data.publishing.card.facts import SPLITS, caps
from eagle3_data.publishing.hub.errors import redact
from eagle3_data.run_folder import RunFolder

RECIPE: Final = "recipe.yaml"
MANIFEST: Final = "manifest.json"
CARD: Final = "README.md"
# What a publish may delete from the repository: only what a publish has put there.
OWNED_FOLDERS: Final = ("records/", "figures/", "train_rows/")
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s\"']+@")
_SECRET_KEYS: Final = re.compile(r"(^|_)(api_key|hf_token|access_token|password|secret|authorization)$", re.IGNORECASE)


def parse_version(text: str) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
    """Return a sortable form of a semantic version ("1.0.0", "v1.2.0-rc.1").

    Raises:
        UsageError: it is none.
    """
    found = _VERSION.fullmatch(text)
    if not found:
        raise UsageError(f"version {text!r}: give three numbers, as in 1.0.0 (or 1.0.0-rc.1)")
    parts = (found[4] or "").split(".") if found[4] else []
    key = tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)
    return int(found[1]), int(found[2]), int(found[3]), not parts, key


def plain_version(text: str) -> str:
    """Return a version without its leading "v". Raises UsageError when it is no version."""
    parse_version(text)
    return text.removeprefix("v")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


@dataclass(frozen=True)
class VersionFile:
    """One file of a version: a path in the repository, and its content on disk or in memory."""

    path: str
    content: Path | bytes

    @cached_property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the content: the id under which LFS and Xet keep it."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with open(self.content, "rb", opener=_open_no_link) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def git_id(self) -> str:
        """SHA-1 of the git blob: the id of a file that is not in LFS."""
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def same_as(self, entry: "RemoteFile | None") -> bool:
        """Tell whether the repository already holds this content under this path."""
        if entry is None or entry.size != self.size:
            return False
        return entry.sha256 == self.sha256 if entry.sha256 else entry.git_id == self.git_id


@dataclass(frozen=True)
class RemoteFile:
    """One file in a repository; `sha256` is "" unless it is in LFS or Xet."""

    path: str
    size: int
    git_id: str
    sha256: str


def check_complete(run: RunFolder, manifest: Mapping[str, Any], sources: Sequence[str], allow_failed: bool) -> int:
    """Refuse a run that is not finished.

    Returns:
        The number of failed rows of the sources.

    Raises:
        DataError: there is no manifest, stages are missing, or rows failed and `allow_failed` is not set.
    """
    if not run.manifest_path.is_file():
        raise DataError(f"{run.path}: no manifest.json, so it is no run folder; run `eagle3-data run RECIPE` first")
    if not manifest.get("stages", {}).get("generate", False):
        raise DataError(f"{run.path}: the run is not finished; run `eagle3-data generate` again until it is")
    failed = 0
    if run.failures_path.is_file():
        table = pq.read_table(run.failures_path, columns=["source"])
        failed = sum(1 for source in table["source"].to_pylist() if source in sources)
    if failed and not allow_failed:
        rows = "1 row" if failed == 1 else f"{failed:,} rows"
        raise DataError(
            f"{run.path}: {rows} failed ({run.failures_path.name} names them); run `eagle3-data generate` again to "
            "try them anew, or publish without them with --allow-failed"
        )
    return failed


def refuse_links(run: RunFolder) -> None:
    """Refuse a run folder in which something that is published, or read for it, is a link: it could lead anywhere.

    Raises:
        DataError: names the link.
    """
    single = (run.manifest_path, run.lengths_path, run.page_path, run.failures_path, run.skipped_path)
    for path in [*single, *(run.path / name for name in ("records", "prompts", "figures", "train_rows"))]:
        inner = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
        if link := next((each for each in (path, *inner) if each.is_symlink()), None):
            raise DataError(f"{link}: a link, and publishing follows none; put what it points to in its place")


def secret_names(manifest: Mapping[str, Any]) -> set[str]:
    """Return the environment variables with secrets that a manifest and its recipes name (`api_key_env`)."""
    names: set[str] = set()

    def collect(value: Any, key: str = "") -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, str(name))
        elif isinstance(value, list):
            for inner in value:
                collect(inner, key)
        elif isinstance(value, str) and key.endswith("_env"):
            names.add(value)

    collect(manifest)
    for each in (manifest, *manifest.get("runs", ())):
        with contextlib.suppress(yaml.YAMLError):
            collect(yaml.safe_load(str(each.get("recipe") or "")))
    return names


def record_paths(run: RunFolder, sources: Sequence[str]) -> list[VersionFile]:
    """Return the record files of the sources."""
    return [
        VersionFile(f"records/{source}/{path.name}", path)
        for source in sources
        for split in SPLITS
        for path in run.record_files(source, split)
    ]


def training_paths(run: RunFolder, sources: Sequence[str]) -> list[VersionFile]:
    """Return the files of training rows of the sources, where the run has them."""
    folder = run.path / "train_rows"
    return [
        VersionFile(f"train_rows/{source}/{path.name}", path)
        for source in sources
        for path in sorted((folder / source).glob("*.parquet"))
    ]


def version_files(
    run: RunFolder, manifest: Mapping[str, Any], sources: Sequence[str], version: str, changes: Sequence[Any]
) -> list[VersionFile]:
    """Return every file of a version but the card.

    Raises:
        DataError: `lengths.json` is missing, or a text file holds a token.
    """
    if not run.lengths_path.is_file():
        raise DataError(f"{run.lengths_path}: missing; run `eagle3-data lengths {run.path}` first")
    files = record_paths(run, sources) + training_paths(run, sources)
    public = public_manifest(manifest, sources) | {"version": version, "changes": list(changes)}
    files.append(VersionFile(MANIFEST, _json(public)))
    if public["recipe"]:
        files.append(VersionFile(RECIPE, public["recipe"].encode()))
    files.append(VersionFile(run.lengths_path.name, run.lengths_path))
    if run.page_path.is_file():
        files.append(VersionFile(run.page_path.name, run.page_path))
    for pattern in ("*.png", "*.svg"):
        files += [VersionFile(f"figures/{path.name}", path) for path in sorted(run.figures_path.glob(pattern))]
    return files


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def forbid_secrets(files: Sequence[VersionFile], secrets: Mapping[str, str]) -> None:
    """Refuse to publish a text file, or a Parquet file whose metadata, holds a secret, as it is or encoded.

    Args:
        files: what is about to be sent; the rows of Parquet files and pictures are not read.
        secrets: name (for the message) to value; they are protected from here on (`foreign_text.protect`).

    Raises:
        DataError: names the file and which secret, never its value.
    """
    for value in secrets.values():
        protect(value)
    for file in files:
        suffix = PurePosixPath(file.path).suffix
        if suffix == ".parquet":
            data = _parquet_metadata(file)
            if _CREDENTIALS.search(data.decode("utf-8", errors="replace")):
                raise DataError(
                    f"{file.path}: its metadata holds an address with a password; take it out of the recipe "
                    "(engine.api_key_env names a variable in its place) and write the records again"
                )
        elif suffix in (".md", ".json", ".yaml", ".html", ".svg"):
            data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
        else:
            continue
        text = data.decode("utf-8", errors="replace")
        for name, value in secrets.items():
            if value and value in text:
                raise DataError(f"{file.path}: it holds the value of {name}; remove it and publish again")
        if holds_secret(data):
            raise DataError(
                f"{file.path}: it holds a key or a token that is in use, encoded; remove it and publish again"
            )
        if re.search(r"\bhf_[A-Za-z0-9]{30,}\b", text):
            raise DataError(f"{file.path}: it holds what looks like a Hub token; remove it and publish again")


def _parquet_metadata(file: VersionFile) -> bytes:
    """Return all texts beside the rows: of the file, its schema and its columns."""
    source = file.content if isinstance(file.content, Path) else io.BytesIO(file.content)
    stored = pq.read_metadata(source).metadata or {}
    schema = pq.read_schema(source)
    metadata = [stored, schema.metadata or {}, *(field.metadata or {} for field in schema)]
    return b"\n".join(text for part in metadata for key, value in part.items() for text in (key, value))


def public_manifest(manifest: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return the manifest as it is published: only the published sources, no addresses, paths or credentials."""
    kept: dict[str, Any] = {key: value for key, value in manifest.items() if key != "recipe"}
    for key in ("sources", "generation"):
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: value for name, value in kept[key].items() if name in sources}
    extent = kept.get("extent")
    if isinstance(extent, Mapping):
        entries = {name: value for name, value in extent.get("sources", {}).items() if name in sources}
        kept["extent"] = {**extent, "sources": entries}
    public: dict[str, Any] = public_values(kept)
    public["recipe"] = public_recipe(manifest, sources)
    if isinstance(manifest.get("runs"), list):
        public["runs"] = [
            public_manifest(each, [*each.get("extent", {}).get("sources", {})]) for each in manifest["runs"]
        ]
    return public


def public_values(value: Any, key: str = "") -> Any:
    """Return plain values without what only concerns the machine they come from: paths, credentials, keys."""
    if isinstance(value, Mapping):
        return {
            name: public_values(inner, str(name))
            for name, inner in value.items()
            if not _SECRET_KEYS.search(str(name)) and name != "stat"
        }
    if isinstance(value, list | tuple):
        return [public_values(inner, key) for inner in value]
    if isinstance(value, str):
        # a path of the machine says nothing to others but where somebody works
        if re.fullmatch(r"(/|~|[A-Za-z]:\\)[^\s:]*", value):
            return PurePosixPath(value.replace("\\", "/")).name
        return redact(_CREDENTIALS.sub("", value))
    return value


def public_recipe(manifest: Mapping[str, Any], sources: Sequence[str]) -> str:
    """Return the recipe that makes the same prompts anywhere: revisions and caps pinned, the maker's engine left out.

    It is "" for records that no recipe made.

    Raises:
        DataError: the manifest's recipe is no YAML mapping.
    """
    text = str(manifest.get("recipe") or "")
    if not text:
        return ""
    try:
        recipe = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DataError("manifest.json: its recipe is not valid YAML; run the recipe again") from error
    if not isinstance(recipe, dict):
        raise DataError("manifest.json: it holds no recipe; run the recipe again with this version")
    recipe.pop("publish", None)
    engine = recipe.get("engine")
    if isinstance(engine, dict) and "urls" in engine:
        recipe["engine"] = {k: v for k, v in engine.items() if k not in ("urls", "weights")}
        recipe["engine"]["urls"] = ["http://localhost:30000"]
    target, pinned = recipe.get("target"), manifest.get("identity", {}).get("target", {})
    if isinstance(target, dict) and pinned.get("revision"):
        target["revision"] = pinned["revision"]
    extents, reports = manifest.get("extent", {}).get("sources", {}), manifest.get("sources", {})
    entries = {name: dict(entry or {}) for name, entry in (recipe.get("sources") or {}).items() if name in sources}
    for name, entry in entries.items():
        commit = reports.get(name, {}).get("revision")
        if commit and "data_files" not in entry:
            entry["revision"] = commit
        cap, further = caps(extents.get(name, {}))
        if cap is not None:
            entry["max_new_tokens"] = cap
            entry.pop("truncation_target", None)
        if further is not None:
            extend = recipe.get("extend") or {}
            recipe["extend"] = {**extend, "up_to": max(further, extend.get("up_to", 0))}
    recipe["sources"] = entries
    note = "# The recipe of this data set, every revision and cap pinned. Point engine.urls at a server of the target."
    if any("data_files" in entry and entry["data_files"] != "samples" for entry in entries.values()):
        note += "\n# Some prompts came from local files, which are named without their folders: put them beside it."
    body = yaml.safe_dump(public_values(recipe), sort_keys=False, allow_unicode=True, width=119)
    return f"{note}\n{body}"
