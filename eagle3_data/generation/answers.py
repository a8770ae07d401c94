"""The answers to rows: out of the journal where it has them, from a server where not, and into the journal.

Goes in: prompt ids, or the script of a dialogue. Comes out: an `Entry` for each row; a failure is one too.
"""

import asyncio
import dataclasses
from collections.abc import Callable

import numpy as np

from eagle3_data.errors import DataError
from eagle3_data.generation.asked_how import AskedHow
from eagle3_data.generation.budget import truncation
from eagle3_data.generation.client.connections import Connection, Connections
from eagle3_data.generation.client.retry_policy import ContextLearnt, RowError
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.dialogues import Conversation, ScriptedPrompt, Turn
from eagle3_data.generation.failure_guard import FailureGuard
from eagle3_data.generation.journal.entry import Entry, Head, Ids, prompt_crc
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.loops import loop_tokens
from eagle3_data.outcome import Outcome, of_code


class Answers:
    """Gives every row its outcome.

    Args:
        asked: how each source is asked.
        connections: the way to the servers.
        journal: keeps the outcomes.
        guard: stops the run where most rows fail.
    """

    def __init__(self, asked: AskedHow, connections: Connections, journal: Journal, guard: FailureGuard) -> None:
        self._asked = asked
        self._connections = connections
        self._journal = journal
        self._guard = guard
        self._vocabulary_size = asked.target.vocabulary_size
        self._under_way: dict[str, asyncio.Future[Entry]] = {}

    async def answer(self, sample_id: str, source: str, ids: Ids, home: Server | None = None) -> Entry:
        """Return a row's outcome, from the journal or from a server. Rows asked for twice at once are asked once."""
        pending = self._under_way.get(sample_id)
        if pending is not None:
            return await asyncio.shield(pending)
        future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._under_way[sample_id] = future
        try:
            entry, _ = await self.outcome(sample_id, source, ids, home, self._journal.head(sample_id))
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
        caps = self._asked.caps(source)
        known: Entry | None = None
        if head is not None and of_code(head.outcome).answered:
            known = self._journal.get(sample_id, sample)
            assert known is not None
            if known.prompt_tokens != len(ids) or known.prompt_crc != prompt_crc(ids):
                raise DataError(
                    f"{self._journal.path}: {sample_id} was answered for another prompt ({known.prompt_tokens} ids, "
                    f"now {len(ids)}); use another journal for other prompts"
                )
            if not self._asked.continues(known.outcome, known.budget, caps):
                return known, None
        fault = self.unsendable(ids)
        if fault:
            entry = Entry(sample_id, Outcome.FAILED, len(ids), prompt_crc(ids), reason="vocabulary", message=fault)
            entry.sample = sample
            return self._keep(entry, known_bad=head is not None), None
        connection = await self._connections.get()
        entry_now, server, crc = known, home, prompt_crc(ids)
        for cap in caps:
            if entry_now is not None and not self._asked.continues(entry_now.outcome, entry_now.budget, [cap]):
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
                answer, server = await connection.client.ask(asked, budget, home, self._asked.bodies.get(source))
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
        self._journal.append(entry)
        if not known_bad:
            self._guard.note(entry.outcome.failed, f"{entry.reason}: {entry.message}")
        return entry

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
        target = self._asked.target_of(source)
        talk = Conversation(target, prompt, self._asked.settings_of(source).tool_results)
        turns: list[Turn] = []
        for number, name in enumerate((sample_id, *prompt.later_turns)):
            if number or ids is None:
                try:
                    rendered = await asyncio.to_thread(target.render_batch, [list(talk.messages)], [talk.tools])
                    ids = np.asarray(rendered[0], np.int32)
                except Exception as error:
                    entry = self.fault(name, said(error), sample)
                    turns.append(Turn(name, number, np.zeros(0, np.int32), entry))
                    return turns, None, home
            head = self._journal.head(name, sample)
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
                known = self._journal.head(following, sample)
                if known is None or known.outcome != ended:
                    self._journal.append(Entry(following, ended, 0, 0, reason=ended.label, sample=sample))
                return turns, ended, home
            if stopping():
                return turns, None, home
        return turns, None, home

    def fault(self, sample_id: str, message: str, sample: int = 0) -> Entry:
        """Keep that a prompt could not be rendered: a fault of its own, which says nothing of the servers."""
        entry = Entry(sample_id, Outcome.FAILED, 0, 0, reason="render", message=message, sample=sample)
        return self._keep(entry, known_bad=True)

    def unsendable(self, ids: Ids) -> str:
        """Return why a prompt must not be sent, or "": one id outside the vocabulary kills the whole server."""
        if not len(ids):
            return "the prompt has no tokens"
        # Seen as unsigned, a negative id is above every vocabulary too.
        if np.maximum.reduce(ids.view(np.uint32)) >= self._vocabulary_size:
            wrong = ids[(ids < 0) | (ids >= self._vocabulary_size)]
            return f"input_ids holds {int(wrong[0])}, outside the target's {self._vocabulary_size} tokens"
        return ""


def said(error: Exception) -> str:
    """Return an error in one line, as a failed row keeps it."""
    return f"{type(error).__name__}: {error}"[:500]
