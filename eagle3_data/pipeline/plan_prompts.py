"""The prompts of a run, as its plan shows them: measured, one of each source decoded, and the script of a dialogue.

Goes in: a source's prompts file and its target. Comes out: token counts, and text in which control tokens are visible
and nothing is left that a terminal would obey.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from eagle3_data.foreign_text import foreign_text, visible
from eagle3_data.lengths import count_characters
from eagle3_data.lengths.views import wording
from eagle3_data.schema import clean_messages
from eagle3_data.sources import Script
from eagle3_data.target import Target

Ints = npt.NDArray[np.int64]
TRAINER_LENGTHS: Final = (2_048, 4_096, 8_192, 16_384)
_BATCH: Final = 1_000
_SHOWN: Final = 1_600  # characters of a prompt, its middle left out where it is longer


def measured(path: Path, target: Target, most: int) -> tuple[Ints, Ints]:
    """Return token and character counts of the first prompts in draw order, which are a random sample of all."""
    tokens: list[int] = []
    characters: list[int] = []
    for messages, tools in _chats(path, most):
        tokens += [len(ids) for ids in target.render_batch(messages, tools)]
        characters += [count_characters(*chat) for chat in zip(messages, tools, strict=True)]
    return np.array(tokens, np.int64), np.array(characters, np.int64)


def _chats(path: Path, most: int) -> Iterator[tuple[list[Any], list[Any]]]:
    left = most
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH, columns=["messages", "tools", "source_turn"]):
        taken = batch.slice(0, left)
        chats = zip(taken["messages"].to_pylist(), taken["source_turn"].to_pylist(), strict=True)
        # what follows the message that is answered first is the script of later turns
        yield [clean_messages(chat[: turn + 1]) for chat, turn in chats], taken["tools"].to_pylist()
        left -= taken.num_rows
        if left <= 0:
            return


def turns(path: Path) -> tuple[int, int]:
    """Return the turns to be answered in all prompts, and the row that has most of them."""
    turns, longest, most, start = 0, 0, -1, 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["later_turns"]):
        later = batch["later_turns"].value_lengths().to_numpy(zero_copy_only=False)
        turns += batch.num_rows + int(later.sum())
        if len(later) and later.max() > most:
            longest, most = start + int(later.argmax()), int(later.max())
        start += batch.num_rows
    return turns, longest


def script(path: Path, row: int, source: str) -> str:
    """Show what one dialogue will be made of: upstream's turns, and the places of the target's answers."""
    columns = ["sample_id", "messages", "tools", "source_turn", "later_turns"]
    (found,) = pds.dataset(path, format="parquet").take([row], columns=columns).to_pylist()
    dialogue = Script(clean_messages(found["messages"]), found["tools"], found["source_turn"])
    lines = [f"{found['sample_id']} of {source}, {len(dialogue.turns)} answers:"]
    for index, message in enumerate(dialogue.messages):
        if index > dialogue.source_turn and message["role"] == "assistant":
            calls = ", ".join(name for _, name in dialogue.calls(index - 1))
            lines.append("  assistant: the target's answer" + (f" (upstream called {calls})" if calls else ""))
        else:
            lines.append(f"  {message['role']}: {foreign_text(message['content'], 80)}")
    return "\n".join([*lines, "  assistant: the target's answer"])


def example(path: Path, target: Target) -> str:
    """Return the first prompt as the target sees it, its middle left out where it is long."""
    messages, tools = next(_chats(path, 1))
    ids = target.render(messages[0], tools[0])
    text = visible(target.show(ids))
    if len(text) > _SHOWN:
        head, tail = text[: _SHOWN * 3 // 4], text[-(_SHOWN // 4) :]
        text = f"{head}\n[… {wording.count(len(text) - len(head) - len(tail), 'character')} not shown …]\n{tail}"
    return f"{wording.count(len(ids), 'token')}:\n{text}"


def fits(tokens: Ints, cap: int | None) -> dict[int, tuple[float | None, float]]:
    """Return, by trainer length, which share of rows fits at least and at most.

    Args:
        tokens: int64 (n,), prompt lengths.
        cap: the longest answer, None while it is not known; there is no least share then.
    """
    return {
        length: (
            None if cap is None else float((tokens + cap <= length).mean()),
            float((tokens < length).mean()),
        )
        for length in TRAINER_LENGTHS
    }
