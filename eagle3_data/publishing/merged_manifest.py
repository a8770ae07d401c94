"""One manifest for a version that is made of several runs.

Goes in: their manifests, oldest first. Comes out: the manifest of all of them: sources side by side, a source of
several runs as the latest has it, the sampling of each source where the runs differ, and under `runs` what each run
said of itself, its recipe included.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from eagle3_data.errors import DataError, UsageError

# What makes two runs runs of one target.
_TARGET: Final = ("tokenizer_sha256", "chat_template_sha256", "vocabulary_size")


def merge_manifests(manifests: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> dict[str, Any]:
    """Merge manifests.

    Args:
        manifests: oldest first; at least one.
        sources: those of all of them that are published.

    Raises:
        UsageError: they are of different targets.
    """
    newest = dict(manifests[-1])
    for manifest in manifests[:-1]:
        _check_target(manifest, newest)
    owners = {name: next((each for each in reversed(manifests) if name in _extents(each)), newest) for name in sources}
    for key in ("sources", "generation"):
        newest[key] = {name: each[key][name] for name, each in owners.items() if name in each.get(key, {})}
    newest["extent"] = {
        **newest.get("extent", {}),
        "sources": {
            name: {
                **_extents(each).get(name, {}),
                **_other_sampling(each, manifests[-1], _extents(each).get(name, {})),
            }
            for name, each in owners.items()
            if name in _extents(each)
        },
    }
    if len(manifests) > 1:
        newest["recipe"] = _merge_recipes(owners, manifests[-1])
        newest["runs"] = _runs(manifests)
    return newest


def only_sources(manifest: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a manifest of some of its sources."""
    kept = dict(manifest)
    for key in ("sources", "generation"):
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: value for name, value in kept[key].items() if name in names}
    entries = {name: value for name, value in _extents(manifest).items() if name in names}
    return {**kept, "extent": {**manifest.get("extent", {}), "sources": entries}}


def _extents(manifest: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = manifest.get("extent", {}).get("sources", {})
    return found


def _check_target(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    left, right = (each.get("identity", {}).get("target", {}) for each in (one, other))
    if Path(str(left.get("model", ""))).name != Path(str(right.get("model", ""))).name:
        raise UsageError(
            f"one version holds one target, and these runs are of {left.get('model')} and {right.get('model')}; give "
            "each a repository of its own"
        )
    for key in _TARGET:
        if left.get(key) and right.get(key) and left[key] != right[key]:
            values = f"{str(left[key])[:16]}, {str(right[key])[:16]}"
            raise UsageError(
                f"these runs of {right.get('model')} differ in {key} ({values}), so their ids mean different things; "
                "give each a repository of its own"
            )


def _other_sampling(
    manifest: Mapping[str, Any], newest: Mapping[str, Any], extent: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the sampling of a run as a setting of its source, where it is not that of the newest run."""
    mine, usual = (each.get("identity", {}).get("sampling", {}) for each in (manifest, newest))
    return {} if mine == usual else {"sampling": {**mine, **(extent.get("sampling") or {})}}


def _runs(manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what each run says of itself; a version made of runs is replaced by them."""
    found: list[dict[str, Any]] = []
    for manifest in manifests:
        inner = manifest.get("runs")
        own = [{key: value for key, value in manifest.items() if key not in ("changes", "runs", "versions_file")}]
        found += [dict(each) for each in inner] if inner else own
    unique: list[dict[str, Any]] = []
    for each in reversed(found):
        if not any(_same_run(each, other) for other in unique):
            unique.append(each)
    return unique[::-1]


def _same_run(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two manifests are of one run, perhaps at two times: the later one stays."""
    keys = ("name", "identity")
    return all(one.get(key) == other.get(key) for key in keys) and set(_extents(one)) == set(_extents(other))


def _merge_recipes(owners: Mapping[str, Mapping[str, Any]], newest: Mapping[str, Any]) -> str:
    """Return the newest recipe with the entries of all sources, each from the run that owns it."""
    recipe = _recipe(newest)
    entries: dict[str, Any] = {}
    for name, manifest in owners.items():
        own = _recipe(manifest)
        entry = dict((own.get("sources") or {}).get(name) or {})
        if own.get("sampling") != recipe.get("sampling") and own.get("sampling"):
            entry["sampling"] = {**own["sampling"], **(entry.get("sampling") or {})}
        entries[name] = entry
    return yaml.safe_dump({**recipe, "sources": entries}, sort_keys=False, allow_unicode=True, width=119)


def _recipe(manifest: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = yaml.safe_load(str(manifest.get("recipe") or ""))
    except yaml.YAMLError as error:
        raise DataError(f"manifest.json of {manifest.get('name')}: its recipe is not valid YAML") from error
    return found if isinstance(found, dict) else {}
