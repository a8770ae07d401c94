"""What a publish did, for people and for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["published", "completed", "tagged", "nothing to do", "pull request", "dry run"]


@dataclass(frozen=True)
class PublishedFile:
    """A file of the version: its path in the repository, its size in bytes, and what happens to it."""

    path: str
    bytes: int
    action: Literal["new", "replaced", "unchanged", "deleted"]


@dataclass(frozen=True)
class PublishReport:
    """What a publish did.

    Attributes:
        repo, version: the data set and the version, without "v".
        status: see `publish`.
        commit: the commit of the version; "" for a dry run of a new repository.
        pull_request: its address, "" when there is none.
        changes: the lines that this version adds to the card's change list.
        files: every file of the version; empty when there was nothing to do.
        card: the text of the card; "" when there was nothing to do.
        note: something to know besides.
    """

    repo: str
    version: str
    status: Status
    commit: str = ""
    pull_request: str = ""
    changes: Sequence[str] = ()
    files: Sequence[PublishedFile] = ()
    card: str = ""
    note: str = ""

    @property
    def sent(self) -> int:
        """Bytes of the files that are new or replaced."""
        return sum(file.bytes for file in self.files if file.action in ("new", "replaced"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "sent": self.sent}

    def to_text(self) -> str:
        """Return the report for a terminal; a dry run lists the files and shows the card."""
        name = f"{self.repo} v{self.version}"
        lines = {
            "published": [f"published {name}: {self._size()}"],
            "completed": [f"completed {name}: its commit was there, now its tag is too"],
            "tagged": [f"tagged {name}: {self.note}"],
            "nothing to do": [f"nothing to do: {name} already holds exactly this"],
            "pull request": [
                f"opened a pull request for {name}: {self.pull_request} ({self._size()})",
                "when it is merged, publish once more to set the tag",
            ],
            "dry run": [f"would publish {name}: {self._size()}"],
        }[self.status]
        lines += [f"  {line}" for line in self.changes]
        if self.status == "dry run":
            lines += [f"  {file.action:<9} {file.bytes:>14,}  {file.path}" for file in self.files]
            lines += ["", self.card]
        elif self.status in ("published", "completed", "tagged"):
            lines.append(f'  load_dataset("{self.repo}", revision="v{self.version}")')
        if self.note and self.status != "tagged":
            lines.insert(0, self.note)
        return "\n".join(lines)

    def _size(self) -> str:
        count = sum(file.action in ("new", "replaced") for file in self.files)
        return f"{count} new or changed {'file' if count == 1 else 'files'}, {self.sent / 1e6:,.1f} MB"
