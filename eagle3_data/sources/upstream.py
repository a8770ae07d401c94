"""Which files a source reads: local ones, shipped samples, or a Hub data set at one commit.

Goes in: `data_files` as the user wrote them, or a Hub id with config, split and revision. Comes out: `SourceFile`s
with a path to read, the upstream name, and the commit or content hash that pins what was read.
"""

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import datasets
import fsspec  # type: ignore[import-untyped]

from eagle3_data.errors import HubError, SourceError
from eagle3_data.sources.dialogue import excerpt
from eagle3_data.sources.reading import SUFFIXES, suffix_of

SAMPLES: Final = Path(__file__).parent / "samples"
_HUB_URL: Final = re.compile(r"hf://datasets/(?P<repo>[^/]+/[^/@]+|[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DOWNLOADS: Final = 8


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read: where it lies, its upstream name, and the commit or `sha256:` hash of its content."""

    path: str
    name: str
    revision: str

    @classmethod
    def named(cls, urls: Sequence[str], paths: Sequence[str]) -> "list[SourceFile]":
        """Pair local paths with upstream names; a revision is "" where only the content can tell."""
        local = [url for url in urls if "://" not in url]
        # No absolute paths in what is published: names are relative to the folder that holds all the files.
        parent = os.path.commonpath([str(Path(url).parent) for url in local]) if local else ""
        files = []
        for url, path in zip(urls, paths, strict=True):
            match = _HUB_URL.fullmatch(url)
            if match is not None:
                revision = match["revision"] or ""
                files.append(cls(str(path), match["path"], revision if _COMMIT.fullmatch(revision) else ""))
            else:
                name = url if "://" in url else Path(os.path.relpath(url, parent)).as_posix()
                files.append(cls(str(path), name, ""))
        return files


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The data files of one split of a Hub data set at one commit."""

    repo: str
    revision: str
    split: str
    urls: list[str]


def file_revision(path: str) -> str:
    """Return `sha256:<hex>` of a file's content.

    Raises:
        SourceError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with fsspec.open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except (OSError, ValueError, ImportError) as error:  # a URL of an unknown kind too
        reason = excerpt(getattr(error, "strerror", None) or error)
        raise SourceError(f"{excerpt(path)}: cannot be read ({reason}); correct data_files") from error
    return f"sha256:{digest.hexdigest()}"


def sample_files(name: str, config: str | None = None) -> list[Path]:
    """Return the shipped sample files of a source, or of one config of it.

    Raises:
        SourceError: there are none.
    """
    # <source>.<config>.<format>, and a config may hold a dot of its own
    found = sorted(path for path in SAMPLES.glob(f"{name}.*") if config in (None, path.stem.removeprefix(f"{name}.")))
    if not found:
        shipped = sorted({path.name.split(".")[0] for path in SAMPLES.glob("*.*")})
        raise SourceError(f"{name}: no samples{f' of config {config}' if config else ''}; there are {shipped}")
    return found


def local_files(name: str, data_files: Any, split: str = "") -> list[str]:
    """Resolve `data_files` (a path, glob, folder, URL, a list of these, or {split: these}) to paths and URLs.

    Raises:
        SourceError: nothing is there, or the value is of another kind.
    """
    if isinstance(data_files, dict):
        if split and split not in data_files:
            raise SourceError(
                f"{name}: data_files has no split {split!r}; there are {', '.join(map(str, data_files))}"
            )
        if not split and len(data_files) > 1:
            raise SourceError(f"{name}: data_files has {len(data_files)} splits; choose one with split:")
        data_files = data_files[split] if split else next(iter(data_files.values()), [])
    patterns = [data_files] if isinstance(data_files, str | os.PathLike) else data_files
    if not isinstance(patterns, list | tuple) or not patterns:
        raise SourceError(f"{name}: data_files must be a path, a list of paths or a map of splits, not {data_files!r}")
    found: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, str | os.PathLike):
            raise SourceError(f"{name}: data_files holds {pattern!r}, expected a path")
        try:
            found.extend(_matching(name, os.fspath(pattern)))
        except (OSError, RuntimeError, ValueError, NotImplementedError) as error:  # a path or URL that cannot be one
            reason = excerpt(getattr(error, "strerror", None) or error)
            raise SourceError(f"{name}: {excerpt(pattern)}: {reason}; correct data_files") from error
    return list(dict.fromkeys(found))


def _matching(name: str, pattern: str) -> list[str]:
    if "://" in pattern:
        urls = [str(url) for url in pinned_files({"train": [pattern]}, None)["train"]]
        if not urls:
            raise SourceError(f"{name}: {pattern}: no such file on the Hub")
        return urls
    path = Path(pattern).expanduser()
    if path.is_file():
        return [str(path.absolute())]
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and suffix_of(p.name) in SUFFIXES)
        if not found:
            raise SourceError(f"{name}: {pattern}: no {', '.join(SUFFIXES)} files in this folder")
    else:
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        relative = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
        magic = any(mark in pattern for mark in "*?[")
        found = sorted(p for p in anchor.glob(relative) if p.is_file()) if magic else []
        if not found:
            raise SourceError(f"{name}: {pattern}: no such file")
    return [str(p.absolute()) for p in found]


def pinned_files(data_files: Any, token: Any) -> Any:
    """Return `data_files` with every Hub URL bound to a commit.

    `datasets` keys its cache by the revision as written, so that a changed file on `main` would be answered from the
    older cache; with the commit in the URL it is not.

    Raises:
        HubError: the commit cannot be found out.
    """

    def unpinned(value: Any) -> bool:
        match = _HUB_URL.fullmatch(str(value)) if str(value).startswith("hf://") else None
        return match is not None and not _COMMIT.fullmatch(match["revision"] or "")

    def listed(value: Any) -> list[Any]:
        return [value] if isinstance(value, str | os.PathLike) else list(value)

    if not isinstance(data_files, dict):
        data_files = {"train": listed(data_files)}
    if not any(unpinned(item) or "*" in str(item) for value in data_files.values() for item in listed(value)):
        return data_files
    pinned: dict[Any, list[str]] = {}
    for split, value in data_files.items():
        pinned[split] = [_pin(str(item), token) if unpinned(item) else str(item) for item in listed(value)]
    config = datasets.DownloadConfig(token=token)
    try:
        return datasets.data_files.DataFilesDict.from_patterns(pinned, download_config=config)
    except FileNotFoundError as error:
        raise SourceError(f"data_files: {error}") from error


def _pin(url: str, token: Any) -> str:
    match = _HUB_URL.fullmatch(url)
    assert match is not None
    commit = hub_commit(match["repo"], match["revision"], token)
    return f"hf://datasets/{match['repo']}@{commit}/{match['path']}"


@functools.lru_cache(maxsize=64)
def hub_commit(repo: str, revision: str | None = None, token: Any = None) -> str:
    """Return the commit that a revision of a Hub data set stands for, asked once a process.

    Raises:
        HubError: the Hub does not answer, or has no such data set or revision.
    """
    if revision and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    try:
        commit = HfApi(token=token).dataset_info(repo, revision=revision or None).sha
    except Exception as error:  # the Hub client raises errors of several libraries, by version
        at = f" at revision {revision}" if revision else ""
        raise HubError(f"{repo}{at}: the Hub does not give this data set ({_cause(error)})") from error
    if not commit:
        raise HubError(f"{repo}: the Hub names no commit")
    return str(commit)


def hub_files(info: Any, config: Any) -> HubFiles:
    """Find the files of a source's config on the Hub, at one commit.

    Args:
        info: SourceInfo.
        config: its `repo`, `revision` and `split` override those of the info.

    Raises:
        HubError: the Hub does not answer, or has no such data set or revision.
        SourceError: the data set has no such split, or files that no source reads.
    """
    known = info.configs[config.name]
    repo = config.repo or known.repo
    split = config.split or known.split
    if not repo:
        raise SourceError(f"{info.name}: name a Hub data set with repo:, or local files with data_files:")
    commit = hub_commit(repo, config.revision or None)
    upstream = config.upstream or known.upstream
    try:
        builder = datasets.load_dataset_builder(repo, upstream, revision=commit)
        found = builder.config.data_files or {}
    except Exception as error:  # as above
        raise HubError(f"{repo}@{commit[:8]}: cannot list its data files ({_cause(error)})") from error
    splits = {str(name): [str(url) for url in urls] for name, urls in found.items()}
    if split not in splits:
        raise SourceError(f"{info.name}: {repo} has no split {split!r}; there are {', '.join(splits) or 'none'}")
    return HubFiles(repo, commit, split, splits[split])


def downloaded(found: HubFiles, cache_dir: str | None) -> list[SourceFile]:
    """Fetch the files of a Hub data set into the Hub cache (resumed where an earlier fetch stopped).

    Raises:
        HubError: a file cannot be fetched.
    """
    from huggingface_hub import hf_hub_download

    names = []
    for url in found.urls:
        match = _HUB_URL.fullmatch(url)
        if match is None:
            raise SourceError(f"{url}: not a file of a Hub data set")
        names.append((match["repo"], match["revision"] or found.revision, match["path"]))

    def fetch(name: tuple[str, str, str]) -> SourceFile:
        repo, revision, path = name
        local = hf_hub_download(repo, path, repo_type="dataset", revision=revision, cache_dir=cache_dir)
        return SourceFile(local, path, revision)

    try:
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            return list(pool.map(fetch, names))
    except Exception as error:  # as above
        raise HubError(f"{found.repo}@{found.revision[:8]}: cannot fetch its files ({_cause(error)})") from error


def hub_urls(urls: Iterable[str]) -> HubFiles | None:
    """Return the Hub files that a list of pinned URLs stands for, or None when they are not all of one data set."""
    urls = list(urls)
    matches = [_HUB_URL.fullmatch(url) for url in urls]
    if not matches or any(match is None for match in matches):
        return None
    places = {(match["repo"], match["revision"] or "") for match in matches if match is not None}
    if len(places) != 1:
        return None
    repo, revision = next(iter(places))
    return HubFiles(repo, revision, "train", urls)


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split("\n")[:2]).strip()
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
