"""Recipes of strangers: what a recipe from the Hub may decide, and what only its reader may.

Goes in: the values of such a recipe, and the data set that it came from. Comes out: its prompts, sampling and caps,
without where to ask, with which key, whose code may run and where to publish. Its data are read from pinned Hub data
sets, its own repository, or the samples of this package.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from eagle3_data.engine import SMOLLM2

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_PINNED_FILE: Final = re.compile(r"hf://datasets/[\w.-]+/[\w.-]+@[0-9a-f]{40}/(?P<path>.+)")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What of each section a stranger may set; all else there is the reader's.
_KEPT: Final[Mapping[str, frozenset[str]]] = {
    "target": frozenset({"model", "revision", "thinking", "control_text", "profile"}),
    "engine": frozenset({"embedded", "deterministic", "slots"}),
    "publish": frozenset(),
}
# How the reader gives a key instead.
_INSTEAD: Final[Mapping[str, str]] = {
    "engine.urls": "--url",
    "engine.api_key_env": "--api-key-env",
    "target.trust_remote_code": "--trust-remote-code",
    "publish": "--publish",
}


@dataclass
class Foreign:
    """A stranger's recipe, reduced.

    Attributes:
        values: what is left of it.
        left_out: a line for each key that was taken away.
        refused: what it may not read, by the path of its key: an error, unless the reader gives that key.
    """

    values: Any
    left_out: list[str] = field(default_factory=list)
    refused: dict[tuple[str | int, ...], str] = field(default_factory=dict)


def reduced(values: Any, repo: str, commit: str) -> Foreign:
    """Return what a recipe from the Hub may decide.

    Args:
        values: of its YAML; they may have any form, since nothing was validated yet.
        repo: the data set that holds it, `org/name`.
        commit: of that data set, 40 hex digits.
    """
    if not isinstance(values, Mapping):
        return Foreign(values)
    found = Foreign({})
    for key, value in values.items():
        if key in _KEPT:
            kept = {name: item for name, item in value.items() if name in _KEPT[key]} if _is_keys(value) else {}
            dropped = [f"{key}.{name}" for name in value if name not in kept] if _is_keys(value) else [key]
            for name in [key] if not kept and key == "publish" else dropped:
                instead = _INSTEAD.get(name)
                hint = f"give {instead}, or --with a file of your own" if instead else "give --with a file of your own"
                found.left_out.append(f"{name} is left out: it is yours to decide; {hint}")
            if kept or key == "engine":
                found.values[key] = kept
        elif key == "sources" and _is_keys(value):
            items = value.items()
            found.values[key] = {name: _entry(found, (key, name), item, repo, commit) for name, item in items}
        elif key == "decontaminate":
            found.values[key] = _benchmarks(found, (key,), value, repo, commit)
        else:
            found.values[key] = value
    _check_models(found)
    return found


def allowed(path: tuple[str | int, ...], own: Any, urls: Sequence[str]) -> bool:
    """Whether the reader gives what a stranger's recipe may not: in values of their own, or as the servers to ask."""
    if path == ("engine", "embedded") and urls:
        return True
    section = own.get(path[0]) if isinstance(own, Mapping) else None
    if path[0] == "decontaminate":
        return section is not None
    if path[0] == "engine" and isinstance(section, Mapping) and section.get("urls"):
        return True
    at = section.get(path[1]) if path[0] == "sources" and isinstance(section, Mapping) else section
    if "decontaminate" in path:
        return isinstance(at, Mapping) and at.get("decontaminate") is not None
    # files of one's own make it irrelevant what of the Hub is named
    return isinstance(at, Mapping) and any(at.get(name) is not None for name in (path[-1], "data_files"))


def _entry(found: Foreign, path: tuple[str | int, ...], entry: Any, repo: str, commit: str) -> Any:
    if not _is_keys(entry):
        return entry
    kept = {key: value for key, value in entry.items() if key != "num_proc"}
    if kept.get("decontaminate") is not None:
        kept["decontaminate"] = _benchmarks(found, (*path, "decontaminate"), kept["decontaminate"], repo, commit)
    if "data_files" in kept and kept["data_files"] is not None:
        kept["data_files"] = _files(found, (*path, "data_files"), kept["data_files"], repo, commit)
        return kept
    if isinstance(kept.get("repo"), str) and (not _HUB_NAME.fullmatch(kept["repo"]) or Path(kept["repo"]).exists()):
        found.refused[(*path, "repo")] = "is not the name of a Hub data set, org/name"
    if not (isinstance(kept.get("revision"), str) and _COMMIT.fullmatch(kept["revision"])):
        found.refused[(*path, "revision")] = "is not pinned; a recipe from the Hub names the commit, 40 hex digits"
    return kept


def _benchmarks(found: Foreign, path: tuple[str | int, ...], given: Any, repo: str, commit: str) -> list[Any]:
    """Return the benchmarks that prompts are compared with, which name files as sources do; one may stand alone."""
    items = given if isinstance(given, list | tuple) else [given]
    return [_entry(found, (*path, at), item, repo, commit) for at, item in enumerate(items)]


def _files(found: Foreign, path: tuple[str | int, ...], given: Any, repo: str, commit: str) -> Any:
    if given == "samples":
        return given
    files = given if isinstance(given, list) else [given]
    placed = []
    for file in files:
        pinned = _PINNED_FILE.fullmatch(file) if isinstance(file, str) else None
        name = pinned["path"] if pinned else file
        inside = isinstance(name, str) and bool(name) and not re.search(r"[*?\[\]\\~:]|^/", name)
        if not inside or ".." in PurePosixPath(name).parts:
            found.refused[path] = (
                "a recipe from the Hub reads files of its own repository or of a pinned Hub data set, without "
                "wildcards; to read this one, give it in a file of your own (--with)"
            )
            return given
        placed.append(file if pinned else f"hf://datasets/{repo}@{commit}/{name}")
    return placed


def _check_models(found: Foreign) -> None:
    """Refuse targets and engines that are files of the reader's machine."""
    target, engine = found.values.get("target"), found.values.get("engine")
    model = target.get("model") if _is_keys(target) else None
    if model is not None and not (isinstance(model, str) and _HUB_NAME.fullmatch(model) and not Path(model).exists()):
        found.refused[("target", "model")] = "is not the name of a Hub model, org/name; give yours with --with"
    embedded = engine.get("embedded") if _is_keys(engine) else None
    if embedded is not None and embedded != SMOLLM2:
        found.refused["engine", "embedded"] = "is not the packaged model; give yours with --with, or --url"


def _is_keys(value: Any) -> bool:
    return isinstance(value, Mapping)
