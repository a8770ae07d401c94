"""Run folders for tests: small or large, the same bytes for the same arguments, laid out as the pipeline lays them.

Goes in: sources with their row counts and a seed. Comes out: a finished `RunFolder` with manifest, prompts, records
and (when asked) failed rows, whose token ids follow a Zipf-like law, as real text does.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3_data import schema
from eagle3_data.run_folder import RunFolder, write_parquet
from eagle3_data.sources import SOURCES as INFOS

SOURCES = {
    "B1_glaive": ("glaiveai/glaive-function-calling-v2", "default", "Apache-2.0", ""),
    "B4_mixturethoughts": ("open-r1/Mixture-of-Thoughts", "math", "unknown", "open-r1/OpenR1-Math-220k"),
    "B5_openthoughts": ("open-thoughts/OpenThoughts-114k", "openthoughts-114k", "Apache-2.0", "code"),
    "B8_sweagent": ("nebius/SWE-agent-trajectories", "nebius", "CC-BY-4.0", "octo/parser"),
}
STOP_TOKEN = 2
BLOCK = 100
CHUNK = 2_000


def manifest(rows: Mapping[str, int], *, cap: int, vocabulary: int, failed: int, **changes: Any) -> dict[str, Any]:
    """Build the manifest that a finished run over `rows` leaves, with top-level keys replaced by `changes`."""
    recipe = {
        "name": "fixture",
        "target": {"model": "example/tiny", "thinking": True},
        "engine": {"urls": ["http://user:secret@gpu-07.internal:30000"]},
        "sampling": {"temperature": 0.0},
        "sources": {name: {"rows": count, "max_new_tokens": cap} for name, count in rows.items()},
    }
    return {
        "name": "fixture",
        "versions": {"eagle3-data": "0.1.0", "datasets": "5.2.0", "transformers": "5.23.0"},
        "identity": {
            "target": {
                "model": "example/tiny",
                "revision": "0123456789abcdef0123456789abcdef01234567",
                "thinking": True,
                "tokenizer_sha256": "aa" * 32,
                "chat_template_sha256": "bb" * 32,
                "vocabulary_size": vocabulary,
            },
            "weights": {"model_path": "example/tiny", "weight_version": "default"},
            "sampling": {"temperature": 0.0, "top_p": 1.0},
            "draw_seed": 0,
        },
        "profile": {"vocabulary_size": vocabulary, "end_of_turn_ids": [STOP_TOKEN], "think_end_id": 7},
        "engine": {"kind": "sglang", "version": "0.5.23", "context_length": 8192, "deterministic": False},
        "extent": {
            "sources": {
                name: {
                    "source": name,
                    "config": SOURCES[name][1],
                    "revision": "e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
                    "turns": "first",
                    "rows": count,
                    "max_new_tokens": cap,
                    "holdout": 0,
                }
                for name, count in rows.items()
            }
        },
        "sources": {
            name: {
                "source": name,
                "builder": name,
                "config": SOURCES[name][1],
                "turns": "first",
                "upstream": SOURCES[name][0],
                "revision": "e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
                "files": [{"path": "data.jsonl", "revision": "e7f4b6456019", "rows": count + 3}],
                "read": count + 3,
                "kept": count,
                "rejected": {"empty_turn": 1},
                "duplicates": 2,
                "prompts": count,
                "drawn": count,
                "requested": count,
                "licenses": {SOURCES[name][2]: count},
                "attribution": INFOS[name].attribution(),
                "origins": {SOURCES[name][3]: count} if SOURCES[name][3] else {},
                "reject_examples": [],
            }
            for name, count in rows.items()
        },
        "generation": {
            name: {"records": count, "failed": failed if index == 0 else 0, "skipped": 0, "truncated": 0, "forged": 0}
            for index, (name, count) in enumerate(rows.items())
        },
        "throughput": {"seconds": 12.5, "completion_tokens": 1000},
        "stages": {"prepare": True, "generate": True},
        "recipe": json.dumps(recipe, indent=2),
        **changes,
    }


def _ids(rng: np.random.Generator, count: int, vocabulary: int) -> np.ndarray:
    """Draw token ids whose frequency falls as 1 / rank, skipping the stop token."""
    return (np.exp(rng.random(count) * np.log(vocabulary - 16)) + 9).astype(np.int32)


def _lists(lengths: np.ndarray, values: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def prompt_rows(source: str, first: int, last: int) -> list[dict[str, Any]]:
    """Return prompts first … last − 1 of a source, as rows of PROMPT_FEATURES."""
    rows = []
    for row in range(first, last):
        messages = [{"role": "user", "content": f"{source}: what is {row} times {row + 1}?"}]
        rows.append(
            {
                "sample_id": schema.sample_id(source, messages, "[]"),
                "source": source,
                "config": SOURCES[source][1],
                "source_revision": "e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
                "source_file": "data.jsonl",
                "source_row": row,
                "source_turn": 0,
                "origin": SOURCES[source][3],
                "license": SOURCES[source][2],
                "dialogue": schema.sample_id(source, messages, "[]"),
                "turn": 0,
                "later_turns": [],
                "expected_tokens": 0,
                "messages": messages,
                "tools": "[]",
            }
        )
    return rows


def record_table(
    source: str, first: int, last: int, *, seed: int, mean: int, cap: int, vocabulary: int, prompt: int = 24
) -> pa.Table:
    """Return the records of prompts first … last − 1; a row is the same whatever rows are asked for beside it."""
    blocks = [
        _block(source, number, seed=seed, mean=mean, cap=cap, vocabulary=vocabulary, prompt=prompt)
        for number in range(first // BLOCK, -(-last // BLOCK))
    ]
    offset = first - first // BLOCK * BLOCK
    return pa.concat_tables(blocks).slice(offset, last - first).combine_chunks()


def _block(source: str, number: int, *, seed: int, mean: int, cap: int, vocabulary: int, prompt: int) -> pa.Table:
    first, count = number * BLOCK, BLOCK
    rng = np.random.default_rng([seed, number, *source.encode()])
    wanted = np.maximum(2, rng.lognormal(np.log(mean), 0.8, count)).astype(np.int32)
    prompt_tokens = rng.integers(max(2, prompt // 2), prompt * 2, count).astype(np.int32)
    cut = wanted > cap
    completion = np.minimum(wanted, cap).astype(np.int32)
    # the whole answer is drawn before it is cut, so that a higher cap continues the very same answer
    whole = _lists(wanted, _ids(rng, int(wanted.sum()), vocabulary))
    output = np.concatenate([row.values.to_numpy()[:cap] for row in whole]) if cut.any() else whole.values.to_numpy()
    output = output.copy()
    output[(np.cumsum(completion) - 1)[~cut]] = STOP_TOKEN
    rows = prompt_rows(source, first, first + count)
    columns: dict[str, Any] = {
        name: [row[name] for row in rows] for name in schema.RECORD_FEATURES if name in schema.PROMPT_FEATURES
    }
    columns |= {
        "sample": np.zeros(count, np.int32),
        "input_ids": _lists(prompt_tokens, _ids(rng, int(prompt_tokens.sum()), vocabulary)),
        "output_ids": _lists(completion, output),
        "finish_reason": np.where(cut, "length_cap", "stop").tolist(),
        "stop_token_id": np.where(cut, -1, STOP_TOKEN).astype(np.int32),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "reasoning_tokens": completion // 2,
        "tool_calls": np.zeros(count, np.int32),
        "max_new_tokens": np.full(count, cap, np.int32),
        "rounds": np.ones(count, np.int32),
        "loop_tokens": np.zeros(count, np.int32),
    }
    target = schema.arrow_schema(schema.RECORD_FEATURES)
    return pa.table([pa.array(columns[field.name], field.type) for field in target], schema=target)


def make_run(
    path: Path,
    rows: Mapping[str, int],
    *,
    holdout: int = 0,
    failed: int = 0,
    seed: int = 0,
    mean: int = 60,
    cap: int = 200,
    vocabulary: int = 49_152,
    prompts: bool = True,
    lengths: bool = True,
    files: int = 1,
    **changes: Any,
) -> RunFolder:
    """Write a finished run.

    Args:
        path: the run folder.
        rows: number of records of each source.
        holdout: how many of them are in the validation split.
        failed: failed rows of the first source.
        mean: median number of output tokens; `cap` cuts them.
        prompts: whether the prompts are written too.
        lengths: whether `lengths.json` is measured and written.
        files: record files of each train split.
        changes: manifest keys to replace.
    """
    run = RunFolder(path)
    full = schema.arrow_schema(schema.RECORD_FEATURES)
    body = manifest(rows, cap=cap, vocabulary=vocabulary, failed=failed, **changes)
    metadata = {"eagle3_data": json.dumps(body["identity"], sort_keys=True)}
    options = {"seed": seed, "mean": mean, "cap": cap, "vocabulary": vocabulary}

    for source, count in rows.items():

        def tables(first: int, last: int, source: str = source) -> Iterator[pa.Table]:
            for start in range(first, last, CHUNK):
                yield record_table(source, start, min(start + CHUNK, last), **options)

        bounds = np.linspace(holdout, count, files + 1).astype(int)
        for index in range(files):
            name = f"train-{index:05d}-of-{files:05d}.parquet"
            write_parquet(
                run.records_path(source) / name, tables(int(bounds[index]), int(bounds[index + 1])), full, metadata
            )
        if holdout:
            name = "validation-00000-of-00001.parquet"
            write_parquet(run.records_path(source) / name, tables(0, holdout), full, metadata)
        if prompts:
            table = pa.Table.from_pylist(
                prompt_rows(source, 0, count), schema=schema.arrow_schema(schema.PROMPT_FEATURES)
            )
            write_parquet(run.prompts_path(source), [table], schema.arrow_schema(schema.PROMPT_FEATURES))
    run.write_manifest(body)
    if failed:
        source = next(iter(rows))
        table = pa.Table.from_pylist(
            [
                {
                    "sample_id": f"{source}-{index:024x}",
                    "source": source,
                    "reason": "http_400",
                    "http_status": 400,
                    "message": "too long",
                    "attempts": 1,
                }
                for index in range(failed)
            ],
            schema=schema.arrow_schema(schema.FAILURE_FEATURES),
        )
        write_parquet(run.failures_path, [table], schema.arrow_schema(schema.FAILURE_FEATURES))
    if lengths:
        write_lengths(run)
    return run


def write_lengths(run: RunFolder) -> None:
    """Measure the lengths of a run as the pipeline does."""
    from eagle3_data.lengths import measure_lengths
    from eagle3_data.run_folder import write_json

    write_json(run.lengths_path, measure_lengths(run).to_dict())
