"""`pilot`: real answers to a random sample under a high cap, and the cap that each source needs.

Goes in: a run. Comes out: the caps, which `max_new_tokens: auto` takes, and the lengths that they rest on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eagle3_data.errors import UsageError
from eagle3_data.lengths import LengthReport, rows_for_cap
from eagle3_data.lengths.report import DEFAULT_TARGET
from eagle3_data.lengths.views import wording
from eagle3_data.manifest import Extent, PilotCap
from eagle3_data.pipeline.generate import generate_locked
from eagle3_data.pipeline.lengths import describe, recipe_words
from eagle3_data.pipeline.opening import Run
from eagle3_data.pipeline.prepare import prepare_locked
from eagle3_data.pipeline.tables import show_table
from eagle3_data.recipe import ExtendSpec, SourceSpec
from eagle3_data.run_folder import RunFolder

HIGH_CAP: Final = 32_768
_PILOT_ROUNDS: Final = 3
_PILOT_SPARE: Final = 1  # rows of a pilot that may be lost or cut, and it still finds a cap


@dataclass(frozen=True)
class Pilot:
    """What a pilot found: the lengths of its sample, and the cap of every source."""

    folder: Path
    lengths: LengthReport
    caps: Mapping[str, Mapping[str, Any]]
    exit_status: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the caps, ready for JSON."""
        return {"folder": str(self.folder), "caps": dict(self.caps)}

    def to_text(self) -> str:
        """Return the caps with what they rest on."""
        rows: list[list[str | int]] = []
        notes: list[str] = []
        for name, found in self.caps.items():
            low, high = found["interval"]
            interval = f"{_or_none(low)} – {_or_none(high)}"
            rows.append([name, found["rows"], found["max_new_tokens"] or "cannot tell", interval])
            if found["max_new_tokens"] is None and found["prompts"] < found["rows_needed"]:
                notes.append(_too_few_prompts(name, found))
        columns = ["source", "rows", "max_new_tokens", "smallest (95 %)"]
        table = show_table("Caps that meet the truncation targets", columns, rows, *notes)
        found_any = any(found["max_new_tokens"] for found in self.caps.values())
        last = "\nmax_new_tokens: auto in the recipe takes these caps" if found_any else ""
        return f"{self.lengths.to_text()}\n{table}{last}"


def _too_few_prompts(name: str, found: Mapping[str, Any]) -> str:
    """What to do where no pilot can be large enough; the advice on the lengths says everything else."""
    return (
        f"{name} has only {wording.count(found['prompts'], 'prompt')}, and a cap for a target of "
        f"{wording.percent(found['truncation_target'])} takes {wording.tokens(found['rows_needed'])}: give "
        "max_new_tokens as a number"
    )


def pilot(run: Run, *, rows: int | None = None, high_cap: int | None = None) -> Pilot:
    """Generate a random sample of every source under a high cap, in rounds, and find the cap each source needs.

    Args:
        run: the run that the caps are for; the pilot lives in its folder, under `pilot`.
        rows: prompts of each source, by default as many as its truncation target needs (474 for 1 %), one of which may
            be lost or longer than the high cap. Not bounded by the recipe's rows: a pilot may be larger than its run.
        high_cap: the longest answer the pilot lets through; the context bounds it as well.

    Raises:
        UsageError: the high cap is not above 0.
        EngineError and others: as `generate`.
    """
    folder = RunFolder(run.folder.path / "pilot")
    before = max([0, *(entry.extended_to or 0 for entry in folder.read_manifest().extent.sources.values())])
    top = max(HIGH_CAP, before) if high_cap is None else high_cap
    if top < 1:
        raise UsageError(f"--high-cap {top}: give a number of tokens above 0")
    if top < before:
        raise UsageError(f"--high-cap {top}: {folder.path} has answers under {before}; give that, or remove it")
    first = max(1, top // 2**_PILOT_ROUNDS)

    def small(spec: SourceSpec) -> SourceSpec:
        wanted = rows or rows_for_cap(spec.truncation_target or DEFAULT_TARGET, allowed=_PILOT_SPARE)
        return spec.model_copy(update={"rows": wanted, "tokens": None, "max_new_tokens": first, "holdout": 0})

    recipe = run.recipe.model_copy(
        update={
            "sources": tuple(small(spec) for spec in run.recipe.sources),
            "extend": ExtendSpec(up_to=top, rounds=_PILOT_ROUNDS),
            "publish": None,
        }
    )
    trial = Run(recipe, folder, run.progress)
    with run.folder.lock():
        with trial.folder.lock():
            prepared = prepare_locked(trial, again=False)
            generated = generate_locked(trial)
            _state_cap(trial.folder, top)
            targets = {spec.name: spec.truncation_target or DEFAULT_TARGET for spec in run.recipe.sources}
            report = describe(trial.folder, targets, recipe=recipe_words(run.recipe), pilot=True)
        drawn = prepared.reports
        caps = {name: _choice(report, name, targets[name], drawn[name].prompts) for name in report.sources}
        manifest = run.folder.read_manifest()
        found = {name: PilotCap.model_validate(cap) for name, cap in caps.items() if cap["max_new_tokens"]}
        measured = manifest if manifest.throughput.tokens_per_second else trial.folder.read_manifest()
        changed = {
            "name": manifest.name or run.recipe.name,
            "pilot": {**manifest.pilot, **found},
            "throughput": measured.throughput,
        }
        run.folder.write_manifest(manifest.model_copy(update=changed))
    return Pilot(trial.folder.path, report, caps, generated.exit_status)


def _state_cap(folder: RunFolder, cap: int) -> None:
    """Let the pilot's manifest say how far its answers could go: the first round's cap is not what judges them."""
    manifest = folder.read_manifest()
    stated = {name: entry.model_copy(update={"extended_to": cap}) for name, entry in manifest.extent.sources.items()}
    folder.write_manifest(manifest.model_copy(update={"extent": Extent(sources=stated)}))


def _choice(report: LengthReport, name: str, target: float, prompts: int) -> dict[str, Any]:
    advice = report.to_dict()["sources"][name]["advice"]
    advised, smallest = advice["advised"], advice["advised"]["smallest"]
    return {
        "max_new_tokens": advised["cap"],
        "truncation_target": target,
        "rows": advice["rows"],
        "prompts": prompts,
        "rows_needed": advised["rows_needed"],
        "rows_good": rows_for_cap(target, allowed=_PILOT_SPARE),
        "reason": advised["reason"],
        "interval": [smallest["low"], smallest["high"]],
    }


def _or_none(value: int | None) -> str:
    return "no bound" if value is None else f"{value:,}"
