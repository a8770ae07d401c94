"""A run: a recipe, the folder it lives in, and the guard that keeps two runs from mixing in one folder.

Goes in: a recipe and the folder of runs. Comes out: a `Run` that every stage takes.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_data.engine import locate_model
from eagle3_data.errors import IdentityError, UsageError
from eagle3_data.generation import SourceSettings
from eagle3_data.manifest import Manifest
from eagle3_data.recipe import Recipe, Settings, load_recipe
from eagle3_data.run_folder import RunFolder
from eagle3_data.target import Target


@dataclass(frozen=True)
class Run:
    """A recipe and the folder that its run lives in; `progress` is auto, bar, json or none."""

    recipe: Recipe
    folder: RunFolder
    progress: str = "auto"


def open_run(
    recipe: str | Path | Recipe,
    *,
    runs: Path | str = "runs",
    progress: str = "none",
    settings: Settings | None = None,
) -> Run:
    """Return the run of a recipe; its folder is `runs/<recipe name>` and need not exist yet.

    Args:
        recipe: a path, the name of a shipped recipe, `hf://datasets/org/name@version`, or a recipe that was read.
        runs: where run folders lie.
        progress: auto, bar, json or none.
        settings: what the reader of a recipe decides whatever it says; of one from the Hub, where to ask at all.

    Raises:
        RecipeError: no such recipe, or a wrong one.
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, settings)
    return Run(loaded, RunFolder(Path(runs) / loaded.name), progress)


def load_target(recipe: Recipe, *, thinking: bool | None = None) -> Target:
    """Load the target of a recipe; with the embedded engine it is that engine's model.

    Args:
        recipe: names it.
        thinking: of a single source, in place of the recipe's.

    Raises:
        TargetError: the tokenizer or its template is wrong.
    """
    if recipe.engine.embedded:
        return Target.from_gguf(locate_model(recipe.engine.embedded), thinking=thinking)
    spec = recipe.target
    assert spec is not None
    return Target.from_pretrained(
        spec.model,
        spec.revision,
        trust_remote_code=spec.trust_remote_code,
        thinking=spec.thinking if thinking is None else thinking,
        profile=dict(spec.profile) or None,
        forge=spec.control_text,
    )


def source_targets(recipe: Recipe, target: Target) -> dict[str, Target]:
    """Return the target of each source: the recipe's, under the thinking of that source.

    Raises:
        TargetError: the template has no switch for the thinking that a source asks for.
    """
    targets: dict[bool | None, Target] = {recipe.target.thinking if recipe.target else None: target}
    for spec in recipe.sources:
        thinking = recipe.thinking_of(spec)
        if thinking not in targets:
            targets[thinking] = load_target(recipe, thinking=thinking)
    return {spec.name: targets[recipe.thinking_of(spec)] for spec in recipe.sources}


def source_settings(recipe: Recipe, target: Target) -> dict[str, SourceSettings]:
    """Return how each source is asked.

    Args:
        recipe: what it says of each.
        target: the recipe's own, for the sources that think as it does.

    Raises:
        TargetError: see `source_targets`.
    """
    targets = source_targets(recipe, target)
    return {
        spec.name: SourceSettings(spec.samples, recipe.sampling_of(spec), targets[spec.name], spec.tool_results)
        for spec in recipe.sources
    }


def source_identity(recipe: Recipe, settings: Mapping[str, SourceSettings]) -> dict[str, Any]:
    """Return what the answers of each source depend on beside the identity of the run, for manifest and files."""
    return {
        spec.name: {
            "sampling": dict(settings[spec.name].sampling or {}),
            "thinking": target.identity()["thinking"] if (target := settings[spec.name].target) else None,
            **({"tool_results": spec.tool_results} if spec.turns == "rollout" else {}),
        }
        for spec in recipe.sources
    }


def guard_identity(folder: RunFolder, manifest: Manifest, identity: Mapping[str, Any]) -> None:
    """Refuse to go on in a run folder that was made with another identity.

    Raises:
        IdentityError: a key that stands in both has another value; the message shows each such key.
    """
    there = dict(_flat(manifest.identity.to_dict()))
    lines = [
        f"{key}: {there[key]!r} there, {value!r} asked for"
        for key, value in _flat(identity)
        if key in there and there[key] != value
    ]
    if lines:
        raise IdentityError(
            f"{folder.path}: this run was made with another identity ({'; '.join(lines)}); "
            "give the recipe another name, or set these back"
        )


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def key_of(variable: str, asked_by: str) -> str:
    """Return the key that a variable holds.

    Args:
        variable: the name of the variable.
        asked_by: the recipe's field or the option that names it.

    Raises:
        UsageError: it is not set, or empty.
    """
    key = os.environ.get(variable)
    if key is None or not key.strip():
        fault = "not set" if key is None else "empty"
        raise UsageError(
            f"{asked_by}: the environment variable {variable} is {fault}; put the key into it, or leave {asked_by} "
            "out where no key is wanted"
        )
    return key
