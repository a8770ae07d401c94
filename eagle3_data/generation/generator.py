"""The map step: one row of prompts in, the columns of one record out, through the journal.

Goes in: rows with `sample_id`, `source` and either `input_ids` or `messages` and `tools`. Comes out: STEP_FEATURES.
A row whose answer is in the journal costs no request; a failed one comes back as a value, never as an exception.
"""

import asyncio
import functools
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiohttp
import datasets
import numpy as np

from eagle3_data.errors import DataError, UsageError
from eagle3_data.generation.answers import Answers, said
from eagle3_data.generation.asked_how import AskedHow
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.budget import Extend
from eagle3_data.generation.client.connections import Connections
from eagle3_data.generation.client.facts import ServerFacts
from eagle3_data.generation.client.preflight import compare_texts
from eagle3_data.generation.client.protocol import AnswerReader, RequestBody
from eagle3_data.generation.client.retry_policy import RetryPolicy
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.servers import Concurrency
from eagle3_data.generation.dialogues import ScriptedPrompt, SourceSettings
from eagle3_data.generation.failure_guard import FailureGuard
from eagle3_data.generation.journal.journal import Journal, shared_journal
from eagle3_data.generation.records.columns import DIALOGUE_FEATURES, Answered, step_columns
from eagle3_data.schema import clean_messages

# Below this many rows at once Dataset.map spins on the tasks that wait behind a slow one (60 CPU seconds where 3 do).
_MAP_TASKS: Final = 200_000
_T = TypeVar("_T")


def _outside_loops(work: Callable[[], _T]) -> _T:
    """Do work that runs an event loop of its own: in a thread where this one runs one already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "eagle3-data") as worker:
        return worker.submit(work).result()


class Generator:
    """Answers prompts with the target model behind `urls`; give `generate` to `Dataset.map`.

    Args:
        target: the model the drafter serves.
        urls: roots of SGLang servers or routers; a mapping gives each server its share of the work.
        sampling: temperature, top_p, …; what is left out gets SGLang's neutral value, never the model's own.
        max_new_tokens: the cap of every source, or one number for all.
        journal: folder of the journal.
        api_key: sent as a bearer token; never stored.
        concurrency: requests in flight over all servers, or "auto".
        extend: continue rows that were cut at an older cap, up to `max_new_tokens`; or how far to take every cut row.
        context_length: where the servers do not tell theirs (sglang-router).
        request_timeout: seconds without a byte after which one request is given up and tried again.
        patience: seconds to wait when no server answers, before the run stops.
        retries: how often and how patiently to ask for one row.
        max_failure_share: share of failed rows among the last hundred above which the run stops.
        shard: (index, count): the share of rows this process works on.
        round_tokens: fetch answers in pieces of so many tokens, for balancers that end silent requests; by default
            such are recognised, and answers fetched whole until then.
        proxy: URL of an HTTP proxy to the servers; HTTP(S)_PROXY are ignored for them.
        sources: how single sources are asked where that differs.
        answer_timeout: seconds that one request may take in all; by default `request_timeout`, and the time that its
            answer needs at 10 kB a second.

    Raises:
        UsageError, RecipeError: an argument is wrong.
        IdentityError, RunLocked, MachineError: as `Journal`.
    """

    def __init__(
        self,
        target: AskedTarget,
        urls: Sequence[str] | Mapping[str, float],
        sampling: Mapping[str, float | int],
        max_new_tokens: int | Mapping[str, int],
        journal: Path | str,
        *,
        api_key: str | None = None,
        concurrency: Concurrency = "auto",
        extend: bool | Extend = False,
        context_length: int | None = None,
        request_timeout: float = 7200.0,
        patience: float = 3600.0,
        retries: RetryPolicy | None = None,
        max_failure_share: float = 0.5,
        shard: tuple[int, int] = (0, 1),
        round_tokens: int | None = None,
        proxy: str | None = None,
        sources: Mapping[str, SourceSettings] | None = None,
        answer_timeout: float | None = None,
    ) -> None:
        if isinstance(urls, str):
            raise UsageError("urls: give a list of servers, not one text")
        self.target = target
        self.shard = shard
        self.asked = AskedHow(target, sampling, max_new_tokens, extend, sources)
        self.sampling = self.asked.sampling
        self.connections = Connections(
            urls,
            RequestBody(self.sampling, target.stop_token_ids),
            _reader_of(target),
            retries or RetryPolicy(),
            concurrency=concurrency,
            api_key=api_key,
            context_length=context_length,
            request_timeout=request_timeout,
            patience=patience,
            round_tokens=round_tokens,
            proxy=proxy,
            answer_timeout=answer_timeout,
            verify=_verifier(target),
        )
        self.journal: Journal = shared_journal(Path(journal), self.identity(), shard, target.vocabulary_size)
        self.connections.admit = functools.partial(_admit, self.journal)
        self.answers = Answers(self.asked, self.connections, self.journal, FailureGuard(max_failure_share))
        self._finalizer = weakref.finalize(self, _shut, self.connections, self.journal)
        datasets.config.MAX_NUM_RUNNING_ASYNC_MAP_FUNCTIONS_IN_PARALLEL = max(
            _MAP_TASKS, datasets.config.MAX_NUM_RUNNING_ASYNC_MAP_FUNCTIONS_IN_PARALLEL
        )
        self._token = uuid.uuid4().hex

    def identity(self) -> dict[str, Any]:
        """Return what the answers depend on, as the journal guards it."""
        whole = {
            "target": self.target.identity(),
            "sampling": {**self.sampling, "stop_token_ids": list(self.target.stop_token_ids)},
        }
        return whole | {
            f"source {name}": {
                "sampling": self.asked.sampling_of(name),
                "thinking": self.target_of(name).identity().get("thinking"),
            }
            for name in self.asked.names
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # datasets hashes a mapped function by pickling it: a new token each time keeps map's cache from serving rows
        # (it would replay old errors). Another process gets an object that says why it cannot work there.
        return (_ForOneProcess, (self._token,))

    def map(self, prompts: datasets.Dataset, **options: Any) -> datasets.Dataset:
        """Return `prompts.map(self.generate, **options)`, also where an event loop is running: in a notebook cell.

        `Dataset.map` starts an event loop of its own, which no thread that runs one already allows; there the work is
        done in a thread, and this call waits for it. Raises as `generate`.
        """

        def work() -> datasets.Dataset:
            try:
                return prompts.map(self.generate, **options)
            finally:
                self.connections.abandon()  # the loop of this `map` is gone: its sockets would be named at exit

        return _outside_loops(work)

    def close(self) -> None:
        """Write out the journal, close the connections and free the lock. Idempotent.

        Raises:
            DiskFull, MachineError: the last rows could not be written.
        """
        _outside_loops(self._finalizer)

    # --- one row ------------------------------------------------------------------------------------------------

    async def generate(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of STEP_FEATURES for one prompt.

        Args:
            row: has `sample_id`, `source` (where caps differ) and `input_ids`, or `messages` and `tools`.

        Raises:
            DataError: a column is missing.
            EngineError: the run must stop: no server, another model, or most rows fail.
            DiskFull, MachineError: the journal cannot be written.
        """
        try:
            sample_id, source = str(row["sample_id"]), str(row.get("source", ""))
            given = row.get("input_ids")
            messages = row["messages"] if given is None else None
        except KeyError as error:
            raise DataError(
                f"generate: the row has no column {error}; it needs sample_id, and input_ids or messages and tools"
            ) from None
        if len(row.get("later_turns") or ()) or self.samples_of(source) > 1:
            raise DataError(
                f"generate: {sample_id} has several answers (turns: rollout, or samples); use "
                "prompts.map(step.generate_dialogues, batched=True, batch_size=1, "
                "remove_columns=prompts.column_names, features=eagle3_data.generation.DIALOGUE_FEATURES)"
            )
        target = self.target_of(source)
        place = str(row.get("dialogue") or sample_id), int(row.get("turn") or 0)
        if given is not None:
            ids = np.asarray(given, np.int32)
        else:
            tools = row.get("tools") or "[]"
            try:
                ids = np.asarray(target.render_batch([clean_messages(messages or [])], [tools])[0], np.int32)
            except Exception as error:
                ids, entry = np.zeros(0, np.int32), self.answers.fault(sample_id, said(error))
                return step_columns(target, Answered(ids, entry, *place))
        entry = await self.answers.answer(sample_id, source, ids)
        if self.journal.backlog_full:
            await asyncio.to_thread(self.journal.flush)
        return step_columns(target, Answered(ids, entry, *place))

    async def generate_dialogues(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return every record of some prompts: each sample, and of a script each turn, as rows of DIALOGUE_FEATURES.

        For `prompts.map(…, batched=True, batch_size=1, remove_columns=prompts.column_names)`: one prompt or dialogue
        in, its records out, failed turns with `error`.

        Args:
            batch: columns of PROMPT_FEATURES.

        Raises: as `generate`.
        """
        columns: dict[str, list[Any]] = {name: [] for name in DIALOGUE_FEATURES}
        for at in range(len(batch["sample_id"])):
            row = {name: values[at] for name, values in batch.items()}
            source, sample_id = str(row.get("source", "")), str(row["sample_id"])
            target, prompt = self.target_of(source), ScriptedPrompt.of_row(row)
            prompt = prompt or ScriptedPrompt.of_one(row)
            home: Server | None = None
            for sample in range(self.samples_of(source)):
                turns, _, home = await self.answers.converse(prompt, sample_id, source, None, sample=sample, home=home)
                for turn in turns:
                    made = Answered(turn.input_ids, turn.entry, str(row.get("dialogue") or sample_id), turn.number)
                    if not prompt.later_turns:
                        made.turn = int(row.get("turn") or 0)
                    known = {**row, "sample_id": turn.sample_id, "source_turn": prompt.script.turns[turn.number]}
                    values = {**known, **step_columns(target, made)}
                    for name, column in columns.items():
                        column.append(values[name])
            if self.journal.backlog_full:
                await asyncio.to_thread(self.journal.flush)
        return columns

    # --- for the runner -----------------------------------------------------------------------------------------

    @property
    def extends(self) -> bool:
        """Whether finished rows may have to go on."""
        return self.asked.extends

    def caps(self, source: str) -> list[int]:
        """Return the caps a row of `source` is taken to, round by round. See `AskedHow.caps`."""
        return self.asked.caps(source)

    def samples_of(self, source: str) -> int:
        """Return how many answers each prompt of a source gets."""
        return self.asked.samples_of(source)

    def target_of(self, source: str) -> AskedTarget:
        """Return the target under the thinking switch of a source."""
        return self.asked.target_of(source)


class _ForOneProcess:
    """What another process unpickles in place of a Generator; `map` calls Generator.generate with it as self."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            "Generator.generate runs in one process (it waits for servers, and its journal has one writer): "
            "leave num_proc out; to use several machines run shards (--shard I/N)"
        )


def _reader_of(target: AskedTarget) -> AnswerReader:
    profile = getattr(target, "profile", None)
    return AnswerReader(
        target.vocabulary_size,
        target.stop_token_ids,
        getattr(profile, "template_only_ids", ()),
        getattr(profile, "generation_prompt_ids", ()) or (),
    )


def _verifier(target: Any) -> Callable[[aiohttp.ClientSession, ServerFacts], Awaitable[object]] | None:
    """Return what compares a server's tokenizer with the target's when it comes back; None for targets without one."""
    return functools.partial(compare_texts, target=target) if hasattr(target, "canaries") else None


def _admit(journal: Journal, facts: ServerFacts) -> None:
    """Refuse servers of other weights than those that wrote the journal."""
    if facts.weight_version:
        journal.check_identity({"weights": {"weight_version": facts.weight_version}})


def _shut(connections: Connections, journal: Journal) -> None:
    try:
        connections.abandon()
    finally:
        journal.close()
