"""One data set on the Hub, as publishing and its readers need it: what is at a revision, and how to read it.

Goes in: a repository name and a token. Comes out: files, versions and contents. Every call waits out passing troubles,
and every failure is a HubError (see `hub_errors`).
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from huggingface_hub import HfApi, HfFileSystem, get_token, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import DatasetInfo, RepoFile

from eagle3_data.errors import HubError, HubUnreachable, UsageError
from eagle3_data.publishing.hub.errors import hub_errors, patiently
from eagle3_data.publishing.version_files import CARD, MANIFEST, RemoteFile, parse_version

KIND: Final = "dataset"
_PREFIX: Final = "hf://"


def parse_repo(name: str) -> tuple[str, str | None]:
    """Split `org/name`, `org/name@v1.0.0` or `hf://datasets/org/name@v1.0.0` into a repository and a revision.

    Raises:
        UsageError: it names a repository of another kind, or none.
    """
    text = name.removeprefix(_PREFIX).removeprefix("datasets/").strip("/")
    repo, _, revision = text.partition("@")
    parts = repo.split("/")
    if parts[0] in ("models", "spaces", "buckets", "kernels") and len(parts) > 2:
        raise UsageError(f"{name}: a {parts[0].rstrip('s')} repository; data sets are named org/name")
    if len(parts) != 2 or not all(parts):
        raise UsageError(f"{name!r} is no repository name; write org/name, or org/name@v1.0.0")
    return repo, revision or None


class Repository:
    """A data set on the Hub.

    Attributes:
        name: `org/name`.
        token: the one given, else that of the environment or of `hf auth login`; None when there is none.
        api: the client.
    """

    def __init__(self, name: str, token: str | None = None) -> None:
        self.name = parse_repo(name)[0]
        self.token = token or get_token()
        self.api = HfApi(token=self.token or False)

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn failures of the block into HubErrors that say `doing`."""
        with hub_errors(self.name, self.token, doing):
            yield

    def info(self, revision: str | None = None) -> DatasetInfo | None:
        """Return what the Hub says of the repository at a revision, None when there is none, or no such revision."""
        with self.errors("read"):
            try:
                return patiently(lambda: self.api.dataset_info(self.name, revision=revision))
            except RepositoryNotFoundError as error:
                if type(error) is RepositoryNotFoundError:
                    return None
                raise
            except RevisionNotFoundError:
                return None

    def other_kind(self) -> str | None:
        """Return "model" or "space" when a repository of that kind has this name, else None."""
        for kind in ("model", "space"):
            with self.errors("look for"):
                if patiently(lambda kind=kind: self.api.repo_exists(self.name, repo_type=kind)):  # type: ignore[misc]
                    return kind
        return None

    def tags(self) -> dict[str, str]:
        """Return the tags and the commits that they stand for."""
        with self.errors("read"):
            found = patiently(lambda: self.api.list_repo_refs(self.name, repo_type=KIND))
        return {tag.name: tag.target_commit for tag in found.tags}

    def versions(self) -> list[str]:
        """Return the published versions, oldest first, without "v"."""
        names = [tag.removeprefix("v") for tag in self.tags() if is_version_tag(tag)]
        return sorted(names, key=parse_version)

    def files(self, revision: str) -> dict[str, RemoteFile]:
        """Return the files at a revision by path."""
        with self.errors("read"):
            tree = patiently(
                lambda: list(self.api.list_repo_tree(self.name, revision=revision, recursive=True, repo_type=KIND))
            )
        return {
            entry.path: RemoteFile(entry.path, entry.size, entry.blob_id, entry.lfs.sha256 if entry.lfs else "")
            for entry in tree
            if isinstance(entry, RepoFile)
        }

    def read(self, path: str, revision: str) -> bytes | None:
        """Return the content of a small file at a revision, None when there is none; the cache keeps it."""
        with self.errors(f"read {path} of"):
            try:
                local = patiently(
                    lambda: hf_hub_download(
                        self.name, path, repo_type=KIND, revision=revision, token=self.token or False
                    )
                )
            except LocalEntryNotFoundError:  # a kind of EntryNotFoundError, but the Hub was not reached
                raise HubUnreachable(
                    f"{self.name}: no connection to the Hub, and {path} is not in the cache; connect and try again"
                ) from None
            except EntryNotFoundError:
                return None
            except RevisionNotFoundError:
                raise HubError(f"{self.name}: it has no version or branch {revision!r}") from None
        with open(local, "rb") as file:  # noqa: PTH123
            return file.read()

    def fetch(self, path: str, revision: str, place: Path) -> None:
        """Put a file of any size at `place`; the cache keeps it too where it is on the same disk."""
        with self.errors(f"fetch {path} of"):
            cached = patiently(
                lambda: hf_hub_download(self.name, path, repo_type=KIND, revision=revision, token=self.token or False)
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        source = os.path.realpath(cached)
        try:
            os.link(source, place)
        except OSError:
            shutil.copyfile(source, place)

    def read_json(self, path: str, revision: str) -> Any:
        """Return the values of a JSON file at a revision, {} when there is none or it is damaged."""
        data = self.read(path, revision)
        try:
            return json.loads(data) if data else {}
        except ValueError:
            return {}

    def manifest(self, revision: str) -> dict[str, Any]:
        """Return manifest.json at a revision, {} when the repository was not published by us."""
        values = self.read_json(MANIFEST, revision)
        return values if isinstance(values, dict) and "format" in values else {}

    def card(self, revision: str) -> str | None:
        """Return README.md at a revision."""
        data = self.read(CARD, revision)
        return None if data is None else data.decode("utf-8", errors="replace")

    @cached_property
    def file_system(self) -> HfFileSystem:
        """File system that reads ranges of remote files."""
        return HfFileSystem(token=self.token or False, endpoint=self.api.endpoint)

    @contextlib.contextmanager
    def open(self, path: str, revision: str) -> Iterator[Any]:
        """Open a remote file for reading with seeks; only what is read is fetched."""
        with (
            self.errors(f"read {path} of"),
            self.file_system.open(
                f"datasets/{self.name}@{revision}/{path}", "rb", block_size=2**20, cache_type="readahead"
            ) as file,
        ):
            yield file


def is_version_tag(tag: str) -> bool:
    """Whether a tag names a version, as in v1.0.0."""
    try:
        parse_version(tag)
    except UsageError:
        return False
    return tag.startswith("v")
