"""The second stage: the target answers every prompt that has no answer yet, and the answers become record files.

Goes in: a prepared run. Comes out: the journal, `records/<source>/*.parquet`, `failures.parquet`, `skipped.parquet`
and the accounts in the manifest.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_data import __version__
from eagle3_data.engine import EmbeddedEngine
from eagle3_data.errors import IdentityError, RunLocked, UsageError
from eagle3_data.generation import Extend, Generator
from eagle3_data.generation.client.preflight import ServerInfo, check_server
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.prompts.standing import standing, turn_ids
from eagle3_data.generation.records.writer import SourceCounts, write_records
from eagle3_data.generation.runner import run_generation
from eagle3_data.manifest import Counts, Engine, Extent, Identity, Manifest, SourceExtent, Weights
from eagle3_data.pipeline.generated import Generated, below_cap, extend_command
from eagle3_data.pipeline.keeping import guard_records
from eagle3_data.pipeline.opening import Run, guard_identity, key_of, load_target, source_identity, source_settings
from eagle3_data.pipeline.prepare import prepare_locked
from eagle3_data.pipeline.token_rows import reached_notes
from eagle3_data.progress import Listener, kept, shown
from eagle3_data.recipe import Recipe
from eagle3_data.run_folder import RunFolder
from eagle3_data.target import Target

_LOCK_SECONDS = 60.0


def generate(run: Run, *, shard: tuple[int, int] | None = None) -> Generated:
    """Ask the target for every prompt that has no answer yet, and write the records.

    Args:
        run: prepared first where prompts are missing (not for a shard: prepare once, before the shards start).
        shard: (index, count): only this share of the prompts; the shard that finishes last writes the records.

    Raises:
        UsageError: `engine.api_key_env` names a variable that is not set, or empty.
        EngineError: no server, a server with another model, or most rows fail.
        IdentityError: the run was made with another target, sampling or seed, or a cap was lowered.
        RunLocked, DiskFull: this machine.
    """
    if shard is None:
        with run.folder.lock():
            prepare_locked(run, again=False)
            return generate_locked(run)
    return generate_shard(run, shard)


def generate_shard(run: Run, shard: tuple[int, int], on_progress: Listener | None = None) -> Generated:
    """Work on one shard; nothing but the journal is written, and the records by the shard that finishes last.

    Raises:
        UsageError: there are no prompts yet.
    """
    missing = [spec.name for spec in run.recipe.sources if not run.folder.prompts_path(spec.name).is_file()]
    if missing:
        raise UsageError(
            f"{run.folder.path}: no prompts of {', '.join(missing)} yet; run `eagle3-data prepare` before the shards"
        )
    return _work(run, caps_of(run), extend=_recipe_extend(run), shard=shard, on_progress=on_progress)


def extend(run: Run, *, max_new_tokens: int | Mapping[str, int], sources: Sequence[str] = ()) -> Generated:
    """Continue the truncated rows from where they were cut, up to `max_new_tokens` in all, and only those.

    Args:
        run: a run that was generated.
        max_new_tokens: the budget in all, of every source or by source; a source that is not named stays as it is.
        sources: only these.

    Raises:
        UsageError: nothing was generated yet, or a source is not in the recipe.
        EngineError and others: as `generate`.
    """
    names = [spec.name for spec in run.recipe.sources]
    given = max_new_tokens if isinstance(max_new_tokens, Mapping) else dict.fromkeys(sources or names, max_new_tokens)
    if unknown := [name for name in (*given, *sources) if name not in names]:
        raise UsageError(f"--source {unknown[0]}: the recipe has {', '.join(names)}")
    with run.folder.lock():
        manifest = run.folder.read_manifest()
        if not manifest.stages.generate:
            raise UsageError(f"{run.folder.path}: nothing to extend; run `eagle3-data generate` first")
        caps = {name: max(given.get(name, 0), cap) for name, cap in caps_of(run).items()}
        chosen = [name for name in given if not sources or name in sources]
        return _work(run, caps, extend=True, only_truncated=True, only=chosen)


def generate_locked(run: Run) -> Generated:
    """As `generate` in one process, for a caller that holds the run's lock."""
    return _work(run, caps_of(run), extend=_recipe_extend(run))


def merge_locked(run: Run) -> Mapping[str, SourceCounts]:
    """Write the records from the journals of all shards, for a caller that holds the run's lock."""
    guard_records(run.folder)
    return _write(run, load_target(run.recipe), None)


# -- the work
def _work(
    run: Run,
    caps: Mapping[str, int],
    *,
    extend: bool | Extend,
    shard: tuple[int, int] | None = None,
    only_truncated: bool = False,
    only: Sequence[str] | None = None,
    on_progress: Listener | None = None,
) -> Generated:
    recipe, folder = run.recipe, run.folder
    target = load_target(recipe)
    identity = _identity(run, target)
    manifest = folder.read_manifest()
    guard_identity(folder, manifest, identity)
    guard_records(folder)
    worked = [spec.name for spec in recipe.sources if only is None or spec.name in only]
    prompts = {name: folder.prompts_path(name) for name in worked}
    if shard is None and not extend and manifest.stages.generate and not _to_be_drawn(run, manifest):
        counts = _write(run, target, None)
        if not any(count.missing or count.failed for count in counts.values()):
            # a finished run asks nothing, so it needs no engine: that may be gone by now
            below = below_cap(run, caps, counts)
            return Generated(
                folder.path,
                counts,
                warnings=tools_warnings(run, target),
                below_cap=below,
                go_on=extend_command(run, caps),
                by_tokens=tuple(reached_notes(folder.read_manifest())),
            )
    began = time.monotonic()
    api_key = _api_key(recipe)
    with contextlib.ExitStack() as stack:
        urls = _urls(recipe, stack)
        facts = check_servers(recipe, target, list(urls))
        with _locked(folder, alone=shard is None):
            manifest = folder.read_manifest()
            served = Weights(model_path=facts.model_path, weight_version=facts.weight_version)
            extents = {name: _sent(manifest.extent_of(name), caps[name], extend, only_truncated) for name in worked}
            changed = {
                "identity": Identity.model_validate(identity).model_copy(update={"weights": served}),
                "profile": _plain(asdict(target.profile)),
                "source_profiles": _other_profiles(recipe, target),
                "engine": _engine(recipe, facts),
                "extent": Extent(sources={**manifest.extent.sources, **extents}),
            }
            folder.write_manifest(manifest.model_copy(update=changed))
        options: dict[str, Any] = {}
        if recipe.engine.timeout is not None:
            options["request_timeout"] = recipe.engine.timeout
        step = Generator(
            target,
            urls,
            recipe.sampling.values(),
            dict(caps),
            folder.journal_path,
            api_key=api_key,
            concurrency=recipe.engine.concurrency,
            extend=extend,
            context_length=recipe.engine.context_length,
            round_tokens=recipe.engine.round_tokens,
            proxy=recipe.engine.proxy,
            answer_timeout=recipe.engine.answer_timeout,
            shard=shard or (0, 1),
            sources=source_settings(recipe, target),
            **options,
        )
        with step, shown(run.progress) as bars:
            told = kept(folder.progress_path(shard or (0, 1)), on_progress or bars)
            result = run_generation(prompts, step, told, only_truncated=only_truncated)
            tokens = result.progress.tokens
            while shard is None and not (only_truncated or result.interrupted) and draw_more(run, step.journal):
                result = run_generation(prompts, step, told)
                tokens += result.progress.tokens
            seconds = time.monotonic() - began
            with _locked(folder, alone=shard is None):
                manifest = folder.read_manifest()
                throughput = manifest.throughput.plus(seconds, tokens)
                folder.write_manifest(manifest.model_copy(update={"throughput": throughput}))
            if shard is not None:
                counts = {name: _counted(source) for name, source in result.progress.sources.items()}
            else:
                counts = _write(run, target, step)
        if shard is not None and not result.interrupted:
            _write_if_last(run, target)
    return Generated(
        folder.path,
        counts,
        seconds,
        tokens,
        result.interrupted,
        shard,
        (*tools_warnings(run, target), *result.progress.answer_notes()),
        # a shard writes no records; with `extend` such rows are continued by the same command
        {} if shard is not None or extend else below_cap(run, caps, counts),
        extend_command(run, caps),
        tuple(reached_notes(folder.read_manifest())),
    )


def draw_more(run: Run, journal: Journal | None = None) -> bool:
    """Draw the prompts that sources with `tokens` still need; return whether there are any, to be asked next."""
    if not any(spec.tokens for spec in run.recipe.sources):
        return False
    before = run.folder.read_manifest()
    prepare_locked(run, again=False, journal=journal)
    after = run.folder.read_manifest()
    more = _to_be_drawn(run, after)
    return any(after.extent_of(name).token_rows != before.extent_of(name).token_rows for name in more)


def _to_be_drawn(run: Run, manifest: Manifest) -> list[str]:
    """Return the sources with `tokens` whose number of prompts is not final."""
    return [spec.name for spec in run.recipe.sources if spec.tokens and not manifest.extent_of(spec.name).tokens_final]


def tools_warnings(run: Run, target: Target) -> tuple[str, ...]:
    """Return a line for every source whose tools the target's template would drop without a word."""
    if target.profile.tools_format != "none":
        return ()
    warnings = []
    for spec in run.recipe.sources:
        file = pq.ParquetFile(run.folder.prompts_path(spec.name))
        tools = (batch.column(0) for batch in file.iter_batches(columns=["tools"]))
        rows = sum(pc.sum(pc.not_equal(column, "[]")).as_py() or 0 for column in tools)
        if rows:
            warnings.append(
                f"{spec.name}: {rows:,} prompts declare tools, which the template of {target.model} does not show: "
                "the target does not know of them (B1_glaive: set tools_in_system: true)"
            )
    return tuple(warnings)


def _write(run: Run, target: Target, step: Generator | None) -> Mapping[str, SourceCounts]:
    recipe, folder = run.recipe, run.folder
    manifest = folder.read_manifest()
    # Published as it is: no URL and no path, which would also make equal records differ.
    weights = {"weight_version": manifest.identity.weights.weight_version or ""}
    identity = {**manifest.identity.to_dict(), "weights": weights}
    made = {"recipe": manifest.name, "engine": manifest.engine.to_dict(), "eagle3-data": __version__}
    counts = write_records(
        {spec.name: folder.prompts_path(spec.name) for spec in recipe.sources},
        folder,
        target,
        holdout={spec.name: spec.holdout for spec in recipe.sources},
        metadata={"eagle3_data": _canonical(identity), "eagle3_data_made_with": _canonical(made)},
        journal=step.journal if step else None,
        sources=source_settings(recipe, target),
    )
    # the journal keeps the answers of a source that left the recipe; what is read as this run's records must not
    folder.drop_records_except([spec.name for spec in recipe.sources])
    done = not any(count.missing for count in counts.values())
    changed = {
        "generation": {name: Counts.model_validate(asdict(count)) for name, count in counts.items()},
        "stages": manifest.stages.model_copy(update={"generate": done}),
    }
    folder.write_manifest(manifest.model_copy(update=changed))
    return counts


def _write_if_last(run: Run, target: Target) -> None:
    """Write the records where every prompt of every shard has its outcome."""
    folder = run.folder
    with _locked(folder, alone=False):
        with Journal(folder.journal_path, readonly=True) as journal:
            for spec in run.recipe.sources:
                with pq.ParquetFile(folder.prompts_path(spec.name)) as file:
                    for batch in file.iter_batches(columns=["sample_id", "later_turns"]):
                        names, starts = turn_ids(pa.Table.from_batches([batch]))
                        for sample in range(spec.samples):
                            if standing(names, starts, journal, sample).missing.any():
                                return
        _write(run, target, None)


def _counted(source: Any) -> SourceCounts:
    return SourceCounts(
        records=source.done,
        failed=source.failed,
        skipped=source.skipped,
        truncated=source.truncated,
        missing=source.left,
    )


def caps_of(run: Run) -> dict[str, int]:
    """Return the cap of every source, `auto` taken from the pilot.

    Raises:
        UsageError: `auto` without a pilot.
        IdentityError: a cap lies below the one that rows were generated with.
    """
    manifest = run.folder.read_manifest()
    caps: dict[str, int] = {}
    for spec in run.recipe.sources:
        cap = manifest.cap_for(spec.name, spec.max_new_tokens)
        if cap is None:
            raise UsageError(
                f"sources.{spec.name}.max_new_tokens: auto takes the cap that a pilot found; run "
                f"`eagle3-data pilot {run.recipe.file or run.recipe.name}` first"
            )
        before = manifest.extent_of(spec.name).sent_cap
        if before is not None and cap < before:
            raise IdentityError(
                f"sources.{spec.name}.max_new_tokens: {cap} is below {before}, with which rows of {run.folder.path} "
                "were generated; set it back, or give the recipe another name"
            )
        caps[spec.name] = cap
    return caps


def _recipe_extend(run: Run) -> bool | Extend:
    spec = run.recipe.extend
    return Extend(spec.up_to, spec.rounds) if spec else False


def _identity(run: Run, target: Target) -> dict[str, Any]:
    return {
        **run.folder.read_manifest().identity.to_dict(),
        "target": target.identity(),
        "sampling": run.recipe.sampling.values(),
        "draw_seed": run.recipe.draw_seed,
        "sources": source_identity(run.recipe, source_settings(run.recipe, target)),
    }


def _api_key(recipe: Recipe) -> str | None:
    name = recipe.engine.api_key_env
    return None if name is None or recipe.engine.embedded else key_of(name, "engine.api_key_env")


def _urls(recipe: Recipe, stack: contextlib.ExitStack) -> Sequence[str] | dict[str, float]:
    engine = recipe.engine
    if engine.embedded:
        started = EmbeddedEngine(engine.embedded, deterministic=engine.deterministic, slots=engine.slots)
        return [stack.enter_context(started).url]
    if engine.weights:
        return dict(zip(engine.urls, engine.weights, strict=True))
    return list(engine.urls)


def check_servers(recipe: Recipe, target: Target, urls: Sequence[str] = ()) -> ServerInfo:
    """Check every server of a recipe (or `urls`); the first one's facts stand for all, since others are refused later.

    Raises:
        UsageError: the variable of the key is not set.
        EngineUnavailable, WrongModelError, EngineError: as `check_server`.
    """
    api_key = _api_key(recipe)

    async def check() -> list[ServerInfo]:
        length, proxy = recipe.engine.context_length, recipe.engine.proxy
        return [
            await check_server(url, target, api_key, context_length=length, proxy=proxy, served=_served(recipe))
            for url in urls or recipe.engine.urls
        ]

    return asyncio.run(check())[0]


def _served(recipe: Recipe) -> list[str]:
    """What a server is started with: a folder by its whole path, for the server may be started anywhere."""
    if recipe.target is None:
        return []
    model = recipe.target.model
    words = [str(Path(model).resolve()) if Path(model).is_dir() else model]
    if recipe.target.revision:
        words += ["--revision", recipe.target.revision]
    return words + (["--trust-remote-code"] if recipe.target.trust_remote_code else [])


def _engine(recipe: Recipe, facts: ServerInfo) -> Engine:
    return Engine(
        kind="embedded" if recipe.engine.embedded else "sglang",
        version=facts.version,
        context_length=facts.context_length,
        deterministic=recipe.engine.deterministic,
    )


def _sent(before: SourceExtent, cap: int, extend: bool | Extend, only_truncated: bool) -> SourceExtent:
    """Return a source's extent with the caps that are sent from now on."""
    changed: dict[str, int] = {} if only_truncated else {"sent_cap": cap}
    if extend:
        up_to = extend.up_to if isinstance(extend, Extend) else cap
        changed["extended_to"] = max(up_to, before.extended_to or 0)  # rows taken further stay so
    return before.model_copy(update=changed)


def _other_profiles(recipe: Recipe, target: Target) -> dict[str, Any]:
    """Return the token profile of every source in which the target thinks otherwise."""
    asked = {name: settings.target for name, settings in source_settings(recipe, target).items()}
    return {
        name: _plain(asdict(other.profile))
        for name, other in asked.items()
        if isinstance(other, Target) and other is not target
    }


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@contextlib.contextmanager
def _locked(folder: RunFolder, *, alone: bool) -> Iterator[None]:
    """Hold the run's lock to change the manifest: a shard takes it for just that, and waits its turn."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with contextlib.ExitStack() as stack:
        while not alone:
            try:
                stack.enter_context(folder.lock())
                break
            except RunLocked:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield
