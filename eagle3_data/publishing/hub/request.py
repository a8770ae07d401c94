"""What a publish is asked to do, and what stands in the repository before it.

Goes in: the arguments of `publish` and a repository. Comes out: an `Order` whose run is known to be fit, and the
`Head` of the branch that it goes to.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eagle3_data.errors import HubError, UsageError
from eagle3_data.publishing.hub.errors import patiently
from eagle3_data.publishing.hub.repository import KIND, Repository, is_version_tag
from eagle3_data.publishing.version_files import (
    CARD,
    RemoteFile,
    parse_version,
    public_manifest,
    record_paths,
    secret_names,
)
from eagle3_data.run_folder import RunFolder

if TYPE_CHECKING:
    from eagle3_data.target import Target

MAIN: Final = "main"
AUTO: Final = "auto"


@dataclass(frozen=True)
class Order:
    """What was asked for, checked."""

    run: RunFolder
    manifest: Mapping[str, Any]
    sources: tuple[str, ...]
    version: str
    branch: str
    template: Path | None
    target: "Target | None"
    secrets: Mapping[str, str]

    @property
    def tag(self) -> str:
        return f"v{self.version}"


@dataclass(frozen=True)
class Head:
    """What stands in the repository now."""

    commit: str = ""
    files: Mapping[str, RemoteFile] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    card: str | None = None

    @property
    def version(self) -> str:
        return str(self.manifest.get("version") or "")


def make_order(
    run: RunFolder,
    version: str,
    branch: str | None,
    template: Path | None,
    target: "Target | None",
    token: str | None,
) -> Order:
    """Return what is to be published; `run` is finished, and `version` plain or AUTO."""
    manifest = run.read_manifest().to_dict()
    secrets = {"the token": token or ""}
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", *sorted(secret_names(manifest))):
        secrets[name] = os.environ.get(name, "")
    return Order(run, manifest, tuple(run.sources()), version, branch or MAIN, template, target, secrets)


def read_head(repository: Repository, order: Order, *, create: bool) -> Head:
    """Read what stands on the branch; the branch is made first when it is not there."""
    if order.branch != MAIN and create:
        with repository.errors(f"make branch {order.branch} of"):
            patiently(
                lambda: repository.api.create_branch(
                    repository.name, branch=order.branch, repo_type=KIND, exist_ok=True
                )
            )
    info = repository.info(order.branch)
    if info is None or info.sha is None:
        return Head()
    files = repository.files(info.sha)
    manifest = repository.manifest(info.sha)
    strange = [path for path in files if path not in (".gitattributes", CARD)]
    if strange and not manifest:
        raise HubError(
            f"{repository.name}: it holds other data ({strange[0]} and {len(strange) - 1:,} more files), not a "
            "version of eagle3-data; publish to a repository of its own"
        )
    return Head(info.sha, files, manifest, repository.card(info.sha))


def same_records(order: Order, files: Mapping[str, RemoteFile]) -> bool:
    mine = record_paths(order.run, order.sources)
    theirs = {path for path in files if path.startswith("records/")}
    return theirs == {file.path for file in mine} and all(file.same_as(files[file.path]) for file in mine)


def same_manifest(order: Order, head: Head) -> bool:
    """Whether the manifests differ only in how long the run took."""
    ignored = {"throughput", "version", "changes", "versions", "stages"}
    mine = public_manifest(order.manifest, order.sources)
    return {k: v for k, v in mine.items() if k not in ignored} == {
        k: v for k, v in head.manifest.items() if k not in ignored
    }


def check_succession(repository: Repository, order: Order, head: Head, tags: Mapping[str, str]) -> None:
    there = [tag[1:] for tag, commit in tags.items() if commit == head.commit and is_version_tag(tag)]
    newest = max([head.version, *there] if head.version else there, key=parse_version, default="")
    if newest and parse_version(newest) > parse_version(order.version):
        raise UsageError(
            f"{repository.name}: {order.branch} holds v{newest}, which is newer than {order.tag}; choose a "
            "higher number, or publish on a branch of its own (--branch)"
        )
    model = head.manifest.get("identity", {}).get("target", {}).get("model")
    mine = order.manifest.get("identity", {}).get("target", {}).get("model")
    if model and mine and Path(model).name != Path(mine).name:
        raise UsageError(
            f"{repository.name}: it holds answers of {model}, and this run those of {mine}; give each target a "
            "repository of its own"
        )
