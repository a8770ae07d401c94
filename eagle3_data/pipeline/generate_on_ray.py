"""The shards of a run as tasks of a Ray cluster, whose nodes share the run's folder.

Goes in: a run and the address of the cluster. Comes out: what `generate` gives, the shards merged.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from eagle3_data.generation import Progress
from eagle3_data.generation.on_ray import run_shards
from eagle3_data.pipeline.generate import caps_of, draw_more, generate_shard, merge_locked
from eagle3_data.pipeline.generated import Generated, below_cap, extend_command
from eagle3_data.pipeline.opening import Run
from eagle3_data.pipeline.prepare import prepare_locked
from eagle3_data.progress import shown
from eagle3_data.recipe import parse_recipe
from eagle3_data.run_folder import RunFolder


def generate_on_ray(run: Run, address: str) -> Generated:
    """Prepare what is missing, work on one shard a node, merge.

    Raises:
        UsageError: Ray is not installed.
        EngineUnavailable: no cluster at `address`.
        Eagle3DataError: as `generate`.
    """
    with run.folder.lock():
        prepare_locked(run, again=False)
    # The folder's own path: another node may start its tasks elsewhere.
    work = functools.partial(_work, run.recipe.text, run.recipe.file, str(run.folder.path.resolve()))
    results: list[tuple[float, int, bool]] = []
    seconds, more = 0.0, True
    while more:
        with shown(run.progress) as on_progress:
            done = run_shards(work, address, on_progress=on_progress)
        results += done
        seconds += max(seconds for seconds, _, _ in done)
        with run.folder.lock():
            more = not any(interrupted for _, _, interrupted in done) and draw_more(run)
    with run.folder.lock():
        counts = merge_locked(run)
    caps = caps_of(run)
    return Generated(
        run.folder.path,
        counts,
        seconds=seconds,
        tokens=sum(tokens for _, tokens, _ in results),
        interrupted=any(interrupted for _, _, interrupted in results),
        below_cap={} if run.recipe.extend else below_cap(run, caps, counts),
        go_on=extend_command(run, caps),
    )


def _work(
    text: str, file: str, folder: str, shard: tuple[int, int], on_progress: Callable[[Progress], None]
) -> tuple[float, int, bool]:
    """Runs on a node: seconds, tokens and whether it was interrupted."""
    recipe = parse_recipe(text, file)
    done = generate_shard(Run(recipe, RunFolder(Path(folder)), "none"), shard, on_progress)
    return done.seconds, done.tokens, done.interrupted
