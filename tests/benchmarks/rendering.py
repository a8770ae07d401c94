"""Prompts a second: ours beside row-by-row `apply_chat_template`, which is what other tools do.

    python tests/benchmarks/rendering.py [--chats N] [--rounds N] [TOKENIZER ...]

Chats of about 1,000 tokens, drawn from the sample rows in the shared folder. Both sides run in turns in one process,
so that a busy machine slows both alike; the best round of each counts, and processor time is compared beside it. Ids
are compared in every round.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.shared import SHARED

from eagle3_data.target import Target

TOKENIZERS = ("kimi-k2.5", "qwen3", "deepseek-v3.1", "smollm2")
GOALS = {"kimi-k2.5": 8.0}


def texts() -> Iterator[str]:
    """Yield the long texts of the sample rows."""

    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from strings(item)
        elif isinstance(value, list):
            for item in value:
                yield from strings(item)

    for path in sorted((SHARED / "sample-rows").rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                yield from (text for text in strings(json.loads(line)) if len(text) > 400)
            except ValueError:
                continue


def chats(count: int, pool: list[str], seed: int = 0) -> list[list[dict[str, str]]]:
    """Return `count` chats, no two alike: a system prompt, one to three exchanges and a last question."""
    pick = random.Random(seed)

    def piece(most: int) -> str:
        text = pick.choice(pool)
        start = pick.randrange(max(1, len(text) - most))
        return text[start : start + most]

    made = []
    for _ in range(count):
        chat = [{"role": "system", "content": piece(300)}]
        for _ in range(pick.choice((1, 2, 2, 3))):
            chat += [{"role": "user", "content": piece(600)}, {"role": "assistant", "content": piece(1000)}]
        made.append([*chat, {"role": "user", "content": piece(700)}])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="*", default=TOKENIZERS)
    parser.add_argument("--chats", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    pool = list(texts())
    print("rows/s, best round of each")
    print(f"{'tokenizer':15}{'tokens/chat':>12}{'row by row':>12}{'ours':>10}{'ratio':>8}{'goal':>7}{'CPU ratio':>11}")
    for name in options.tokenizers:
        target = Target.from_pretrained(SHARED / "tokenizers" / name)
        # The other side turns control strings in texts into control tokens, so texts that spell one are left out.
        clean = [text for text in pool if not target.forged([{"role": "user", "content": text}])]
        plain = [chat for chat in chats(options.chats, clean) if not target.forged(chat)]

        def row_by_row(sample: list[Any], target: Target = target) -> list[list[int]]:
            return [
                target.tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, tokenize=True, return_dict=False
                )
                for chat in sample
            ]

        size = len(plain) // options.rounds
        slices = [plain[start : start + size] for start in range(0, size * options.rounds, size)]
        # Other chats first: a target makes its faster encoder after some million characters.
        target.render_batch(chats(2048, clean, seed=1))
        theirs, ours, tokens, spent = [], [], 0, [0.0, 0.0]
        for sample in slices:
            start, begun = time.perf_counter(), time.process_time()
            got = target.render_batch(sample)
            middle, between = time.perf_counter(), time.process_time()
            want = row_by_row(sample)
            end, done = time.perf_counter(), time.process_time()
            spent[0] += between - begun
            spent[1] += done - between
            assert [ids.tolist() for ids in got] == want, "ids differ"
            ours.append(len(sample) / (middle - start))
            theirs.append(len(sample) / (end - middle))
            tokens += sum(map(len, want))
        ratio = max(ours) / max(theirs)
        print(
            f"{name:15}{tokens / (size * options.rounds):12.0f}{max(theirs):12.0f}{max(ours):10.0f}{ratio:8.1f}"
            f"{GOALS.get(name, 2.5):7.1f}{spent[1] / spent[0]:11.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
