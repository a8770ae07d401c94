"""What each trainer reads, and what to type once its rows are written.

Goes in: a trainer, a format, and the files that were written. Comes out: the next command, with the length of the
longest row: trainers cut longer rows, at a length of their own unless they are told.

SpecForge 0.2 reads one file of JSON lines (`data.prompts_path`). speculators 0.9 reads JSON lines and whatever
`load_dataset` reads with `prepare-data`; its training reads the folder that `prepare-data` writes, which is a saved
data set with `seq_len` and torch's format, in a random order (the last rows are its validation rows).
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from eagle3_data.errors import UsageError
from eagle3_data.publishing.training.writers import Format

Trainer = Literal["specforge", "speculators", "plain"]

FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "specforge": ("jsonl",),
    "speculators": get_args(Format),
    "plain": get_args(Format),
}
# Where a trainer cuts rows when it is not told a length.
OWN_LENGTH: Final[Mapping[str, int]] = {"specforge": 2_048, "speculators": 8_192}


def check_trainer(to: str, path: Path, kind: Format, shards: int) -> None:
    """Refuse what the trainer does not read.

    Raises:
        UsageError: its format, or the number of files.
    """
    if kind not in FORMATS[to]:
        raise UsageError(
            f"{path}: {to} reads JSON lines only; name the output something.jsonl, or export --to plain for {kind}"
        )
    if to == "specforge" and shards > 1:
        raise UsageError(f"shards: {shards}; SpecForge reads one file (data.prompts_path), so leave out --shards")


def is_prepared(to: str, kind: Format) -> bool:
    """Tell whether the rows are written as speculators' own `prepare-data` would write them."""
    return to == "speculators" and kind == "arrow"


def next_step(to: str, kind: str, path: str, files: Sequence[str], longest: int) -> str:
    """Return a line that says what to type next."""
    if to == "plain":
        return f"rows of input_ids (prompt + output) and loss_mask; the longest has {longest} tokens"
    if to == "specforge":
        where = f"set data.prompts_path to {shlex.quote(files[0])}"
        return f"next: in SpecForge, {where} and data.max_length to {longest} or more (it is 2048 unless set)"
    if kind == "arrow":
        train = f"speculators train --data-path {shlex.quote(path)} --total-seq-len {longest}"
        return f"next: {train} (these rows need no prepare-data; they are in a random order)"
    data = " ".join(f"--data {shlex.quote(file)}" for file in files)
    alone = ""
    if kind == "parquet":
        folder = Path(files[0]).parent
        data = f"--data {shlex.quote(f'hf:{folder}:train')}"
        alone = f" (where {shlex.quote(str(folder))} holds nothing else)"
    return f"next: speculators prepare-data --model MODEL {data} --output DIR --seq-length {longest}{alone}"
