"""The map step: one row of prompts in, the columns of one record out, through the journal.

Goes in: rows with `sample_id`, `source` and either `input_ids` or `messages` and `tools`. Comes out: STEP_FEATURES.
A row whose answer is in the journal costs no request; a failed one comes back as a value, never as an exception.
"""

import asyncio
import dataclasses
import functools
import uuid
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiohttp
import datasets
import numpy as np

from eagle3_data.errors import DataError, TooManyFailures, UsageError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.budget import Extend, ladder, truncation
from eagle3_data.generation.client.connections import Connection, Connections
from eagle3_data.generation.client.facts import ServerFacts
from eagle3_data.generation.client.preflight import compare_texts
from eagle3_data.generation.client.protocol import AnswerReader, RequestBody
from eagle3_data.generation.client.retrying import ContextLearnt, RetryPolicy, RowError
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.servers import Concurrency
from eagle3_data.generation.dialogues import Conversation, ScriptedPrompt, SourceSettings, Turn
from eagle3_data.generation.journal.entry import Entry, Head, Ids, prompt_crc
from eagle3_data.generation.journal.journal import Journal, shared_journal
from eagle3_data.generation.records.columns import DIALOGUE_FEATURES, Answered, step_columns
from eagle3_data.loops import loop_tokens
from eagle3_data.outcome import Outcome, of_code
from eagle3_data.sampling import complete_sampling
from eagle3_data.schema import clean_messages

# Below this many rows at once Dataset.map spins on the tasks that wait behind a slow one (60 CPU seconds where 3 do).
_MAP_TASKS: Final = 200_000
_PLAIN: Final = SourceSettings()
_GUARD_WINDOW: Final = 100
_T = TypeVar("_T")
_GUARD_AT_LEAST: Final = 20


class FailureGuard:
    """Stops a run in which most rows fail. Rows that failed in an earlier run do not count."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._recent: deque[bool] = deque(maxlen=_GUARD_WINDOW)

    def note(self, failed: bool, reason: str = "") -> None:
        """Take in one outcome.

        Raises:
            TooManyFailures: too large a share of the last hundred rows failed.
        """
        self._recent.append(failed)
        count = sum(self._recent) if failed else 0
        if len(self._recent) >= _GUARD_AT_LEAST and count > self._share * len(self._recent):
            raise TooManyFailures(
                f"{count} of the last {len(self._recent)} rows failed, the last with {reason}; the run was stopped, "
                "finished rows are kept. Fix the cause and run the same command again"
            )


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
        caps = dict(max_new_tokens) if isinstance(max_new_tokens, Mapping) else {"": max_new_tokens}
        for source, cap in caps.items():
            if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
                name = f"max_new_tokens of {source}" if source else "max_new_tokens"
                raise UsageError(f"{name}: {cap!r} must be a whole number from 1")
        self.target = target
        self.sampling = complete_sampling(sampling)
        self.shard = shard
        self._sources = dict(sources or {})
        self._bodies: dict[str, RequestBody] = {}
        for source, settings in self._sources.items():
            sampling_here = self.sampling_of(source)
            if settings.samples > 1 and not sampling_here["temperature"]:
                raise UsageError(f"{source}: samples {settings.samples} at temperature 0 would all be the same answer")
            self._bodies[source] = RequestBody(sampling_here, target.stop_token_ids)
        self.failure_guard = FailureGuard(max_failure_share)
        self._ladders = {source: ladder(cap, extend) for source, cap in caps.items()}
        self._extend = bool(extend)
        self._vocabulary_size = target.vocabulary_size
        self._under_way: dict[str, asyncio.Future[Entry]] = {}
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
        named = {*self._sources, *self._ladders} - {""}
        return whole | {
            f"source {name}": {
                "sampling": self.sampling_of(name),
                "thinking": self.target_of(name).identity().get("thinking"),
            }
            for name in sorted(named)
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
                ids, entry = np.zeros(0, np.int32), self.fault(sample_id, _said(error))
                return step_columns(target, Answered(ids, entry, *place))
        entry = await self.answer(sample_id, source, ids)
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
                turns, _, home = await self.converse(prompt, sample_id, source, None, sample=sample, home=home)
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

    async def converse(
        self,
        prompt: ScriptedPrompt,
        sample_id: str,
        source: str,
        ids: Ids | None,
        *,
        sample: int = 0,
        home: Server | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[list[Turn], Outcome | None, Server | None]:
        """Have one dialogue, turn by turn; what the journal holds of it is replayed, not asked again.

        Args:
            prompt: its script.
            sample_id: of the first turn.
            source: its source.
            ids: the first prompt, rendered; None to render it here.
            sample: which of several dialogues to one script.
            home: the server that is asked first.
            stopping: ends it between two turns.

        Returns:
            The turns in order, of which the last may have failed; why the dialogue ended early (None where every turn
            was answered, or where it goes on in the next run); and the server that was asked last.

        Raises: as `generate`.
        """
        target = self.target_of(source)
        talk = Conversation(target, prompt, self.settings_of(source).tool_results)
        turns: list[Turn] = []
        for number, name in enumerate((sample_id, *prompt.later_turns)):
            if number or ids is None:
                try:
                    rendered = await asyncio.to_thread(target.render_batch, [list(talk.messages)], [talk.tools])
                    ids = np.asarray(rendered[0], np.int32)
                except Exception as error:
                    entry = self.fault(name, _said(error), sample)
                    turns.append(Turn(name, number, np.zeros(0, np.int32), entry))
                    return turns, None, home
            head = self.journal.head(name, sample)
            unfit = Outcome.ENDED_CONTEXT if number else Outcome.SKIPPED
            entry, asked = await self.outcome(name, source, ids, home, head, sample=sample, unfit=unfit)
            home = asked or home
            if entry.outcome.ended:
                return turns, entry.outcome, home
            turns.append(Turn(name, number, ids, entry))
            if not entry.outcome.answered or number == len(prompt.later_turns):
                return turns, None, home
            ended = talk.advance(entry.outcome, entry.output_ids, ids)
            following = prompt.later_turns[number]
            if ended is not None:
                known = self.journal.head(following, sample)
                if known is None or known.outcome != ended:
                    self.journal.append(Entry(following, ended, 0, 0, reason=ended.label, sample=sample))
                return turns, ended, home
            if stopping():
                return turns, None, home
        return turns, None, home

    async def answer(self, sample_id: str, source: str, ids: Ids, home: Server | None = None) -> Entry:
        """Return a row's outcome, from the journal or from a server. Rows asked for twice at once are asked once."""
        pending = self._under_way.get(sample_id)
        if pending is not None:
            return await asyncio.shield(pending)
        future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._under_way[sample_id] = future
        try:
            entry, _ = await self.outcome(sample_id, source, ids, home, self.journal.head(sample_id))
        except BaseException as error:
            future.set_exception(error)
            future.exception()
            raise
        else:
            future.set_result(entry)
            return entry
        finally:
            del self._under_way[sample_id]

    async def outcome(
        self,
        sample_id: str,
        source: str,
        ids: Ids,
        home: Server | None = None,
        head: Head | None = None,
        *,
        sample: int = 0,
        unfit: Outcome = Outcome.SKIPPED,
    ) -> tuple[Entry, Server | None]:
        """Return a row's outcome and the server that gave it (None when none was asked).

        `head` is what the journal says of the row, for callers who looked it up; `unfit` is what becomes of a prompt
        that leaves no room.
        """
        caps = self.caps(source)
        known: Entry | None = None
        if head is not None and of_code(head.outcome).answered:
            known = self.journal.get(sample_id, sample)
            assert known is not None
            if known.prompt_tokens != len(ids) or known.prompt_crc != prompt_crc(ids):
                raise DataError(
                    f"{self.journal.path}: {sample_id} was answered for another prompt ({known.prompt_tokens} ids, "
                    f"now {len(ids)}); use another journal for other prompts"
                )
            if not self.continues(known.outcome, known.budget, caps):
                return known, None
        fault = self.unsendable(ids)
        if fault:
            entry = Entry(sample_id, Outcome.FAILED, len(ids), prompt_crc(ids), reason="vocabulary", message=fault)
            entry.sample = sample
            return self._keep(entry, known_bad=head is not None), None
        connection = await self.connections.get()
        entry_now, server, crc = known, home, prompt_crc(ids)
        for cap in caps:
            if entry_now is not None and not self.continues(entry_now.outcome, entry_now.budget, [cap]):
                continue
            try:
                blank = Entry(sample_id, unfit, len(ids), crc, sample=sample)
                entry_now, server = await self._round(connection, source, ids, cap, entry_now or blank, server)
            except RowError as error:
                failed = Entry(
                    sample_id,
                    Outcome.FAILED,
                    len(ids),
                    crc,
                    reason=error.reason,
                    message=error.message,
                    http_status=error.http_status,
                    attempts=error.attempts,
                    sample=sample,
                )
                # A row that already has an answer keeps it: the journal prefers any answer to a failure.
                self._keep(failed, known_bad=head is not None and not of_code(head.outcome).answered)
                return entry_now or failed, server
            # A prompt that still does not fit has said so already.
            if head is None or entry_now.outcome.answered or head.outcome != entry_now.outcome:
                self._keep(entry_now)
            if not entry_now.outcome.extendable:
                break
        assert entry_now is not None
        return entry_now, server

    async def _round(
        self,
        connection: Connection,
        source: str,
        ids: Ids,
        cap: int,
        before: Entry,
        home: Server | None,
    ) -> tuple[Entry, Server | None]:
        """Ask once, for the answer or for its continuation, and return the row's outcome so far.

        `before` is the answer so far, or an entry without an answer that says what a prompt without room becomes.
        """
        asked = np.concatenate([ids, before.output_ids])
        while True:
            limits = connection.servers.limits
            assert limits is not None
            budget = limits.budget(len(asked), cap - before.budget)
            if budget < 1:
                if before.outcome.answered:
                    return dataclasses.replace(before, outcome=Outcome.LENGTH_CONTEXT), home
                room = limits.longest_prompt
                message = f"the prompt of {len(ids)} tokens leaves no room; the longest that does has {room}"
                return dataclasses.replace(before, budget=room, reason="context", message=message), None
            try:
                answer, server = await connection.client.ask(asked, budget, home, self._bodies.get(source))
                break
            except ContextLearnt:
                continue
        sent = before.budget + budget
        output = np.concatenate([before.output_ids, answer.output_ids])
        outcome = Outcome.STOP if answer.stopped else truncation(sent, cap)
        if outcome.extendable and loop_tokens(output):
            outcome = Outcome.LOOP_CAP
        entry = dataclasses.replace(before, outcome=outcome, budget=sent, rounds=before.rounds + 1)
        entry.stop_token_id, entry.output_ids = answer.stop_token_id, output
        return entry, server

    def _keep(self, entry: Entry, known_bad: bool = False) -> Entry:
        self.journal.append(entry)
        if not known_bad:
            self.failure_guard.note(entry.outcome.failed, f"{entry.reason}: {entry.message}")
        return entry

    # --- what rows need -----------------------------------------------------------------------------------------

    def caps(self, source: str) -> list[int]:
        """Return the caps a row of `source` is taken to, round by round.

        Raises:
            UsageError: the source has none.
        """
        found = self._ladders.get(source) or self._ladders.get("")
        if found is None:
            raise UsageError(f"max_new_tokens: no cap for source {source!r}; there are {', '.join(self._ladders)}")
        return found

    def continues(self, outcome: Outcome, budget: int, caps: list[int]) -> bool:
        """Whether a finished row was cut at an older cap and is to go on."""
        return self._extend and outcome.extendable and budget < caps[-1]

    @property
    def extends(self) -> bool:
        """Whether finished rows may have to go on."""
        return self._extend

    def unsendable(self, ids: Ids) -> str:
        """Return why a prompt must not be sent, or "": one id outside the vocabulary kills the whole server."""
        if not len(ids):
            return "the prompt has no tokens"
        # Seen as unsigned, a negative id is above every vocabulary too.
        if np.maximum.reduce(ids.view(np.uint32)) >= self._vocabulary_size:
            wrong = ids[(ids < 0) | (ids >= self._vocabulary_size)]
            return f"input_ids holds {int(wrong[0])}, outside the target's {self._vocabulary_size} tokens"
        return ""

    def fault(self, sample_id: str, message: str, sample: int = 0) -> Entry:
        """Keep that a prompt could not be rendered: a fault of its own, which says nothing of the servers."""
        entry = Entry(sample_id, Outcome.FAILED, 0, 0, reason="render", message=message, sample=sample)
        return self._keep(entry, known_bad=True)

    def settings_of(self, source: str) -> SourceSettings:
        """Return how a source is asked."""
        return self._sources.get(source, _PLAIN)

    def samples_of(self, source: str) -> int:
        """Return how many answers each prompt of a source gets."""
        return self.settings_of(source).samples

    def target_of(self, source: str) -> AskedTarget:
        """Return the target under the thinking switch of a source."""
        return self.settings_of(source).target or self.target

    def sampling_of(self, source: str) -> dict[str, float | int]:
        """Return every sampling parameter of a source."""
        own = self.settings_of(source).sampling
        return self.sampling if own is None else complete_sampling(own, f"sampling of {source}")


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


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


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
