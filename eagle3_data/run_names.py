"""What is said where a run folder was named and is not there.

Goes in: the name. Comes out: an error that lists the run folders that lie where it was looked for, raised before
anything is asked of the Hub about a name such as `runs/q3`.
"""

from itertools import islice
from pathlib import Path
from typing import Final

from eagle3_data.errors import UsageError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.run_folder import RunFolder

_LISTED: Final = 8  # run folders in a message
_LOOKED_AT: Final = 1_000  # names in a folder
_RUNS: Final = Path("runs")  # where run folders lie by default


def no_run_folder(name: Path | str) -> UsageError:
    """Return the error for a name that is no run folder: what is there instead, and which run folders are."""
    path = Path(name)
    what = "not a run folder (no manifest.json)" if path.exists() else "there is no such folder here"
    if _stands_in_runs(path):
        return UsageError(f"{name}: {what}; did you mean {_RUNS / path}?")
    if there := _runs_in(path.parent):
        return UsageError(f"{name}: {what}; run folders in {path.parent}: {', '.join(there)}")
    return UsageError(f"{name}: {what}, nor any run folder; change to the folder in which the run was started")


def refuse_missing(name: Path | str) -> None:
    """Refuse a name that only a path can have been meant by: one in `runs`, or beside run folders.

    Raises:
        UsageError: it is such a name, and nothing is there.
    """
    path = Path(name)
    if str(name).startswith("hf:") or path.exists():
        return
    if path.parent.name == _RUNS.name or _stands_in_runs(path) or _runs_in(path.parent):
        raise no_run_folder(name)


def _stands_in_runs(path: Path) -> bool:
    return len(path.parts) == 1 and RunFolder(_RUNS / path).manifest_path.is_file()


def _runs_in(folder: Path) -> list[str]:
    """Return the names of run folders in a folder, the last changed first, at most some."""
    try:
        manifests = [RunFolder(path).manifest_path for path in islice(folder.iterdir(), _LOOKED_AT)]
        there = [(path.stat().st_mtime, path.parent.name) for path in manifests if path.is_file()]
    except OSError:  # no such folder, or none that may be read
        return []
    names = [foreign_text(name, 80) for _, name in sorted(there, reverse=True)]
    return names[:_LISTED] + ["…"] * (len(names) > _LISTED)
