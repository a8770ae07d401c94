"""The shards of a run as tasks of a Ray cluster whose nodes share the run's folder: a thin layer over `--shard I/N`.

Goes in: a function that works on one shard. Comes out: what it returned for each. Ray moves the shards of a dead node
to another; the shared journal makes that cheap, because only what was in flight is asked again.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, TypeVar

from eagle3_data.errors import Eagle3DataError, EngineUnavailable, RunLocked, UsageError
from eagle3_data.generation.progress import Progress, SourceProgress

Result = TypeVar("Result")
Work = Callable[[tuple[int, int], Callable[[Progress], None]], Result]

_LOCK_PATIENCE: Final = 120.0
_POLL_SECONDS: Final = 1.0


def run_shards(
    work: Work[Result],
    address: str,
    *,
    shards: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Result]:
    """Run `work` for each shard on a Ray cluster and return its results, shard by shard.

    Args:
        work: called with (index, count) and a function that takes its progress; a function of an importable module
            (or a partial of one), because it travels to other machines, where this package is installed too.
        address: of the Ray cluster, "auto" for the one this machine belongs to, or "local" to start one here.
        shards: how many; one a node when not given.
        on_progress: called with the progress of all shards together.

    Raises:
        UsageError: Ray is not installed.
        EngineUnavailable: no cluster at `address`.
        Eagle3DataError: as `work` raises it; the other shards are then stopped, their finished rows are kept.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise UsageError("--ray needs Ray: pip install 'eagle3-data[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EngineUnavailable(f"--ray {address}: no Ray cluster answers ({error}); start one") from error
    try:
        nodes: list[dict[str, Any]] = ray.nodes()
        count = shards or max(1, sum(bool(node["Alive"] and node["Resources"].get("CPU")) for node in nodes))
        # On the driver's own node: lost with another one, it would end a run that survives the loss.
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        here = affinity(ray.get_runtime_context().get_node_id(), soft=False)
        board: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
        task: Any = ray.remote(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")(_shard)
        waiting: dict[Any, int] = {task.remote(work, index, count, board): index for index in range(count)}
        results: dict[int, Result] = {}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=_POLL_SECONDS)
                for reference in done:
                    results[waiting.pop(reference)] = ray.get(reference)
                told: dict[int, dict[str, Any]] = ray.get(board.read.remote())
                if told:
                    on_progress(_together([_progress(one) for one in told.values()], finished=not waiting))
        except BaseException as error:
            # Not by force: a shard that is told to end lets its requests in flight finish.
            for reference in waiting:
                ray.cancel(reference, force=False)
            ray.wait(list(waiting), num_returns=len(waiting), timeout=60)
            cause = getattr(error, "cause", None)
            if isinstance(cause, Eagle3DataError):
                raise cause from None
            raise
        return [results[index] for index in range(count)]
    finally:
        if ours:
            ray.shutdown()


class _Board:
    """Where shards leave their progress; lives in a process of its own."""

    def __init__(self) -> None:
        self._latest: dict[int, dict[str, Any]] = {}

    def write(self, shard: int, progress: dict[str, Any]) -> None:
        self._latest[shard] = progress

    def read(self) -> dict[int, dict[str, Any]]:
        return self._latest


def _shard(work: Work[Result], index: int, count: int, board: Any) -> Result:
    """Work on one shard; wait for its lock, which a process that Ray has just given up may hold for a moment."""
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if progress.finished or time.monotonic() - last >= _POLL_SECONDS:
            last = time.monotonic()
            board.write.remote(index, progress.to_dict())

    began = time.monotonic()
    while True:
        try:
            return work((index, count), report)
        except RunLocked:
            if time.monotonic() - began > _LOCK_PATIENCE:
                raise
            time.sleep(_POLL_SECONDS)


def _progress(values: dict[str, Any]) -> Progress:
    sources = {name: SourceProgress(**source) for name, source in values["sources"].items()}
    return Progress(**{**values, "sources": sources})


def _together(parts: list[Progress], *, finished: bool) -> Progress:
    """Return the progress of several shards as one: rows and rates add up, the slowest tells the time left."""
    whole = Progress(finished=finished)
    for part in parts:
        for name, source in part.sources.items():
            sums = whole.sources.setdefault(name, SourceProgress())
            for each in fields(SourceProgress):
                setattr(sums, each.name, getattr(sums, each.name) + getattr(source, each.name))
        for name in ("tokens", "tokens_per_second", "in_flight", "concurrency", "requests", "retries"):
            setattr(whole, name, getattr(whole, name) + getattr(part, name))
        whole.servers = whole.servers or part.servers
        whole.since = min(filter(None, (whole.since, part.since)), default=0.0)
        whole.seconds = max(whole.seconds, part.seconds)
        whole.seconds_left = max(whole.seconds_left, part.seconds_left)
        whole.cached_share += part.cached_share / len(parts)
        whole.paused = whole.paused or part.paused
        whole.draining = whole.draining or part.draining
    return whole
