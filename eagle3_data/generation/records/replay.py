"""The answered turns of a batch of prompts, read back from the journal; later prompts are rendered anew.

Goes in: a batch of prompts, their first prompts' ids, the journal and a target. Comes out: what each record is made
of, prompt by prompt, sample by sample, turn by turn. A later turn's prompt is never stored: it is the template's
rendering of the script and the earlier answers, and must have the CRC that its answer was journalled with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3_data.errors import DataError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.dialogues import Conversation, ScriptedPrompt, SourceSettings
from eagle3_data.generation.journal.entry import Entry, Ids, prompt_crc
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.prompts.rendered import RenderedPrompts
from eagle3_data.generation.prompts.standing import standing, turn_ids
from eagle3_data.generation.records.columns import Answered


@dataclass(slots=True)
class Replayed:
    """One answered turn: of which prompt of the batch, and which message of its script it answers (-1: as stored)."""

    row: int
    answered: Answered
    source_turn: int = -1


@dataclass(slots=True)
class _UnderWay:
    row: int
    talk: Conversation
    script: ScriptedPrompt
    ids: Ids
    entries: list[Entry]


def replay(
    source: str,
    batch: Any,
    start: int,
    rendered: RenderedPrompts,
    journal: Journal,
    target: AskedTarget,
    settings: SourceSettings,
) -> Iterator[Replayed]:
    """Yield every answered turn of a batch in the order of its records.

    Args:
        source: its name, for errors.
        batch: an Arrow table of prompts from row `start` of the source.
        rendered: the source's rendered prompts.
        journal, target: of the run.
        settings: how the source was asked.

    Raises:
        DataError: an answer belongs to another prompt than the one that is rendered now.
    """
    chunk = rendered.chunk(start, batch.num_rows)
    owners = batch.column("dialogue" if "dialogue" in batch.column_names else "sample_id").to_pylist()
    places = batch.column("turn").to_pylist() if "turn" in batch.column_names else [0] * batch.num_rows
    names, starts = turn_ids(batch)
    made: list[list[Replayed]] = [[] for _ in range(batch.num_rows)]
    for sample in range(settings.samples):
        stands = standing(names, starts, journal, sample)
        at = stands.counted()
        entries = dict(zip(at.tolist(), journal.read_many(stands.positions[at]), strict=True))
        under_way = []
        for row, (begin, answered) in enumerate(zip(starts[:-1].tolist(), stands.answered.tolist(), strict=True)):
            if not answered:
                continue
            own = [entry for turn in range(answered) if (entry := entries[begin + turn]) is not None]
            ids = chunk.values[chunk.offsets[row] : chunk.offsets[row + 1]]
            _check(source, names[begin], ids, int(chunk.crcs[row]), own[0])
            made[row].append(Replayed(row, Answered(ids, own[0], owners[row], places[row])))
            if answered > 1:
                script = rendered.row(start + row)[2]
                assert script is not None
                talk = Conversation(target, script, settings.tool_results)
                under_way.append(_UnderWay(row, talk, script, ids, own))
        for turn, one in _later(source, target, under_way):
            place = Answered(one.ids, one.entries[turn], owners[one.row], turn)
            made[one.row].append(Replayed(one.row, place, one.talk.answers))
    for turns in made:
        yield from turns


def _later(source: str, target: AskedTarget, under_way: list[_UnderWay]) -> Iterator[tuple[int, _UnderWay]]:
    """Yield the turns after the first, turn by turn over all dialogues: their prompts are rendered together."""
    turn = 0
    while under_way:
        turn += 1
        for one in under_way:
            before = one.entries[turn - 1]
            ended = one.talk.advance(before.outcome, before.output_ids, one.ids)
            if ended is not None:
                raise DataError(
                    f"{source}: the dialogue of {before.sample_id} went on after turn {turn - 1}, and would now end "
                    f"there ({ended.label}); tool_results or the target changed: use another run name"
                )
        chats = [list(one.talk.messages) for one in under_way]
        prompts = target.render_batch(chats, [one.talk.tools for one in under_way])
        for one, ids in zip(under_way, prompts, strict=True):
            one.ids = np.ascontiguousarray(ids, np.int32)
            name = one.script.later_turns[turn - 1]
            _check(source, name, one.ids, prompt_crc(one.ids), one.entries[turn])
            yield turn, one
        under_way = [one for one in under_way if len(one.entries) > turn + 1]


def _check(source: str, sample_id: str, ids: Ids, crc: int, entry: Entry) -> None:
    if entry.sample_id != sample_id:
        raise DataError(f"{source}: the journal holds {entry.sample_id} where {sample_id} should be")
    if entry.prompt_tokens != len(ids) or entry.prompt_crc != crc:
        raise DataError(
            f"{source}: {sample_id} was answered for a prompt of {entry.prompt_tokens} ids, and is now rendered to "
            f"{len(ids)} (or others); the template or the prompts changed: use another run name"
        )
