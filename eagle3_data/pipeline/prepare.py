"""The first stage: raw rows of every source to prompts in draw order, and the table of what was left out.

Goes in: a run. Comes out: `prompts/<source>.parquet`, `prompts/rejects.json` and the accounts in the manifest.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from eagle3_data import __version__, sources
from eagle3_data.errors import DataError, IdentityError
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.manifest import DrawReport, Extent, SourceExtent
from eagle3_data.pipeline import token_rows
from eagle3_data.pipeline.consent import without_token
from eagle3_data.pipeline.opening import Run, guard_identity, load_target
from eagle3_data.pipeline.tables import show_table
from eagle3_data.recipe import Recipe, SourceSpec
from eagle3_data.run_folder import ROWS_PER_GROUP, write_json, write_parquet
from eagle3_data.schema import PROMPT_FEATURES, arrow_schema
from eagle3_data.target import Target

_ROWS_AT_ONCE = 5 * ROWS_PER_GROUP
# What of a source entry does not decide which prompts there are.
_USED_CAPS = ("sent_cap", "extended_to")
_LIBRARIES = ("datasets", "transformers")
_LATER = (
    *("max_new_tokens", "truncation_target", "holdout", "num_proc"),
    *("sampling", "thinking", "samples", "tool_results", "tokens", "tokens_final"),
)
_NUMBERS = ("rows", "token_rows")


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made: a report for each source, which sources were there already, and the draws by tokens."""

    folder: Path
    reports: Mapping[str, DrawReport]
    reused: tuple[str, ...] = ()
    by_tokens: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the reports, ready for JSON."""
        return {
            "folder": str(self.folder),
            "sources": {name: report.to_dict() for name, report in self.reports.items()},
            "reused": list(self.reused),
        }

    def to_text(self) -> str:
        """Return the table of rows read, kept, rejected and drawn, with the reasons below it."""
        rows: list[list[str | int]] = []
        notes: list[str] = []
        for name, report in self.reports.items():
            rejected = report.rejected
            counts = [report.read, report.kept, sum(rejected.values()), report.duplicates]
            rows.append([name, *counts, report.prompts, report.drawn])
            notes += [
                f"{name}: {count:,} rejected, {reason}: {sources.REASONS.get(reason, '')}"
                for reason, count in sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
            ]
            notes += [f"{name}: {difference}" for difference in report.differences]
            notes += [f"{name}: {count:,} left out when drawn: {words}" for words, count in report.screened.items()]
            if report.files_of:
                notes.append(
                    f"{name}: a cluster sample, out of {len(report.files)} of {report.files_of} files; rows of one "
                    "file are alike, so intervals are wider than those shown"
                )
            if name in self.by_tokens:
                notes.append(f"{name}: {self.by_tokens[name]}")
            elif report.short:
                notes.append(f"{name}: {report.requested:,} prompts were asked for, there are only {report.drawn:,}")
        columns = ["source", "rows read", "kept", "rejected", "duplicates", "prompts", "drawn"]
        return show_table("Prompts", columns, rows, *notes, f"prompts: {self.folder / 'prompts'}")


def prepare(run: Run, *, again: bool = True) -> Prepared:
    """Read the raw rows of every source and write its prompts.

    Args:
        run: what to prepare.
        again: also read sources whose entry in the recipe (and whose local files) did not change since the last time.

    Raises:
        SourceError: an upstream file is not what the source expects.
        IdentityError: the run folder was drawn with another seed.
        HubError: the Hub refused.
        RunLocked, DiskFull: this machine.
    """
    with run.folder.lock():
        return prepare_locked(run, again=again)


def prepare_locked(run: Run, *, again: bool, journal: Journal | None = None) -> Prepared:
    """As `prepare`, for a caller that holds the run's lock and may have its journal open."""
    recipe, folder = run.recipe, run.folder
    manifest = folder.read_manifest()
    guard_identity(folder, manifest, {"draw_seed": recipe.draw_seed})
    extents: dict[str, SourceExtent] = {}
    done: dict[str, DrawReport] = {}
    reused: list[str] = []
    earlier: list[sources.Drawn] = []
    target: Target | None = None
    for spec in recipe.sources:
        before, now = manifest.extent_of(spec.name), extent_of(recipe, spec)
        _refuse_fewer_answers(run, spec, before)
        # the caps that generation has really used stay until generation itself raises them
        used: dict[str, Any] = {key: value for key in _USED_CAPS if (value := getattr(before, key)) is not None}
        rows = spec.rows
        if spec.tokens is not None:
            alike = _drawn_from(before, but=_NUMBERS) == _drawn_from(now, but=_NUMBERS)
            draw = token_rows.rows_to_draw(folder, spec, manifest, same=alike, journal=journal)
            rows, used["token_rows"] = draw.rows, draw.rows
            used["tokens_final"] = draw.final
        extents[spec.name] = now.model_copy(update=used)
        same = _drawn_from(before) == _drawn_from(extents[spec.name])
        there = spec.name in manifest.reports and folder.prompts_path(spec.name).is_file()
        if not again and same and there and not recipe.dedupe_across:
            done[spec.name] = manifest.reports[spec.name]
            reused.append(spec.name)
            continue
        target = target or load_target(recipe)
        with without_token(recipe.anonymous):
            drawn = _draw(recipe, spec, rows, earlier, target)
        if recipe.dedupe_across:
            earlier.append(drawn)
        write_parquet(folder.prompts_path(spec.name), _tables(drawn.prompts), arrow_schema(PROMPT_FEATURES))
        done[spec.name] = DrawReport.model_validate(drawn.report.to_dict())
    accounts = {"read", "kept", "duplicates", "rejected", "reject_examples"}
    accounted = {name: report.model_dump(mode="json", include=accounts) for name, report in done.items()}
    write_json(folder.rejects_path, accounted)
    folder.write_manifest(
        manifest.model_copy(
            update={
                "name": recipe.name,
                "recipe": recipe.text,
                "versions": {"eagle3-data": __version__, **{name: version(name) for name in _LIBRARIES}},
                "identity": manifest.identity.model_copy(update={"draw_seed": recipe.draw_seed}),
                "extent": Extent(sources=extents),
                "reports": done,
                "stages": manifest.stages.model_copy(update={"prepare": True}),
            }
        )
    )
    by_tokens = {
        spec.name: f"{done[spec.name].drawn:,} prompts are drawn for {spec.tokens:,} output tokens"
        + ("" if extents[spec.name].tokens_final else " so far")
        for spec in recipe.sources
        if spec.tokens is not None
    }
    return Prepared(folder.path, done, tuple(reused), by_tokens)


def extent_of(recipe: Recipe, spec: SourceSpec) -> SourceExtent:
    """Return what of a source entry stands in the manifest; local files with size and time, so that a change shows."""
    files = recipe.data_files(spec)
    names = zip(spec.data_files or (), files, strict=True) if isinstance(files, list) else ()
    stats = {name: path.stat() for name, file in names if (path := Path(file)).is_file()}
    local = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    target = recipe.target.model_dump(mode="json") if recipe.target else recipe.engine.embedded
    decontaminated = [one.model_dump(mode="json") for one in recipe.decontaminate]
    judged = {"target": target, "decontaminated": decontaminated}  # what may refuse a drawn prompt
    return SourceExtent.model_validate({**spec.to_dict(), **judged, "local_files": local})


def _refuse_fewer_answers(run: Run, spec: SourceSpec, before: SourceExtent) -> None:
    """Refuse a change that would take answers that were paid for out of the records."""
    if before.sent_cap is None:
        return
    known = before.to_dict()
    turns = known.get("max_turns") or math.inf
    for key, fewer in (
        ("samples", spec.samples < known.get("samples", 1)),
        ("max_turns", spec.turns == "rollout" == before.turns and (spec.max_turns or math.inf) < turns),
        ("turns", spec.turns != "rollout" == before.turns),
    ):
        if fewer:
            raise IdentityError(
                f"sources.{spec.name}.{key}: was {known.get(key)!r} when rows of {run.folder.path} were generated; "
                "with less of it records would be lost: set it back, or give the recipe another name"
            )


def _drawn_from(extent: SourceExtent, but: Sequence[str] = ()) -> dict[str, Any]:
    # a key that is not given is as good as one that an older version did not know
    return extent.model_dump(mode="json", exclude={*_LATER, *_USED_CAPS, *but}, exclude_none=True)


def _screens(recipe: Recipe, spec: SourceSpec, target: Target) -> Iterator[sources.Screen]:
    """Yield what may refuse a drawn prompt: the target's template, and the benchmarks to be kept unseen."""
    identity = hashlib.sha256(json.dumps(target.identity(), sort_keys=True).encode()).hexdigest()[:24]
    yield sources.TemplateScreen(target.render_text, DataError, identity)
    given = recipe.decontaminate if spec.decontaminate is None else spec.decontaminate
    if given:
        benchmarks = sources.Benchmarks()
        for one in given:
            files = recipe.data_files(one)
            benchmarks.add(
                one.repo,
                config=one.config,
                split=one.split,
                revision=one.revision,
                data_files=files if isinstance(files, list) else None,
                column=one.column,
            )
        yield benchmarks


def _draw(
    recipe: Recipe, spec: SourceSpec, rows: int | None, earlier: list[sources.Drawn], target: Target
) -> sources.Drawn:
    return sources.draw(
        spec.source,
        spec.config,
        recipe.data_files(spec),
        rows,
        recipe.draw_seed,
        entry=spec.name,
        turns=spec.turns,
        revision=spec.revision,
        filter=spec.filters or None,
        split=spec.split,
        num_proc=spec.num_proc,
        max_turns=spec.max_turns,
        files=spec.files,
        dedupe_against=earlier or None,
        screens=tuple(_screens(recipe, spec, target)),
        **spec.options,
    )


def _tables(dataset: Dataset) -> Iterator[pa.Table]:
    yield from dataset.with_format("arrow").iter(_ROWS_AT_ONCE)
