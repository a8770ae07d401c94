"""SpecForge's and speculators' own loaders read our export and our vocabulary, in virtual environments of their own.

They need torch, so they are not among the development dependencies. To run these tests:

    python -m venv specforge && specforge/bin/pip install torch transformers datasets accelerate openai-harmony \
        psutil requests && specforge/bin/pip install --no-deps specforge==0.2.0
    python -m venv speculators && speculators/bin/pip install 'torch<=2.14.1' 'datasets<=5.1.0' \
        'transformers<=5.19.0' httpx loguru openai pydantic-settings typer psutil protobuf && \
        speculators/bin/pip install --no-deps speculators==0.9.0 hs-connectors==0.9.0
    EAGLE3_DATA_SPECFORGE=specforge EAGLE3_DATA_SPECULATORS=speculators pytest tests/publishing/training -m slow
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.hub_client import TestHub
from support.hub_server import WRITER
from support.run_folders import make_run
from support.shared import SHARED

from eagle3_data.publishing.training.exports import export
from eagle3_data.publishing.training.vocabulary import draft_vocabulary
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import RECORD_FEATURES

pytestmark = pytest.mark.slow
VOCABULARY, SIZE = 49_152, 2_000


def python_of(variable: str) -> Path:
    folder = os.environ.get(variable, "")
    python = Path(folder).expanduser() / "bin" / "python"
    if not folder or not python.is_file():
        pytest.skip(f"{variable} names no virtual environment (see the top of {Path(__file__).name})")
    return python


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    rows = {"B1_glaive": 150, "B4_mixturethoughts": 150, "B5_openthoughts": 150, "B8_sweagent": 150}
    return make_run(tmp_path_factory.mktemp("run") / "run", rows, holdout=5)


def expected(run: RunFolder) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Every training row of the run, straight from the records: ids -> mask."""
    rows = {}
    for source in run.sources():
        for row in pq.read_table(run.record_files(source)[0]).to_pylist():
            mask = [0] * len(row["input_ids"]) + [1] * len(row["output_ids"])
            rows[(*row["input_ids"], *row["output_ids"])] = tuple(mask)
    return rows


def dialogues() -> tuple[datasets.Dataset, dict[tuple[int, ...], tuple[int, ...]]]:
    """Records of 60 dialogues of one to six turns, every third with changed history; and the rows they are to give."""
    rng = np.random.default_rng(0)
    table: dict[str, list[Any]] = {name: [] for name in RECORD_FEATURES}
    rows: dict[tuple[int, ...], tuple[int, ...]] = {}
    for number in range(60):
        ids, mask = [int(token) for token in rng.integers(9, 4_000, 20)], [0] * 20
        for turn in range(int(rng.integers(1, 7))):
            if turn and number % 3 == 0:
                rows[tuple(ids)] = tuple(mask)
                ids, mask = [number + 9, *ids], [0] * (len(ids) + 1)
            extra = [int(token) for token in rng.integers(9, 4_000, 5)]
            ids, mask = [*ids, *extra], [*mask, *[0] * 5]
            output = [*(int(token) for token in rng.integers(9, 4_000, rng.integers(1, 40))), 2]
            values = {"sample_id": f"s-{number:024x}", "source": "s", "dialogue": f"s-{number:024x}", "turn": turn}
            values |= {"input_ids": ids, "output_ids": output, "finish_reason": "stop"}
            values |= {"prompt_tokens": len(ids), "completion_tokens": len(output)}
            for name, feature in RECORD_FEATURES.items():
                table[name].append(values.get(name, "" if getattr(feature, "dtype", "") == "string" else 0))
            ids, mask = [*ids, *output], [*mask, *[1] * len(output)]
        rows[tuple(ids)] = tuple(mask)
    return datasets.Dataset.from_dict(table, features=RECORD_FEATURES), rows


def call(python: Path, code: str, *arguments: Any, environment: dict[str, str] | None = None) -> Any:
    given = environment if environment is not None else {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), "-c", code, *map(str, arguments)],
        env={name: value for name, value in given.items() if name != "PYTHONPATH"} | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_specforge_reads_every_row_and_its_mask(run: RunFolder, tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECFORGE")
    export(run, "specforge", tmp_path / "train.jsonl")
    rows = call(python, SPECFORGE, tmp_path / "train.jsonl")
    assert len(rows) == 145 * 4
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == expected(run)


def test_specforge_reads_dialogues_with_several_spans(tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECFORGE")
    records, wanted = dialogues()
    report = export(records, "specforge", tmp_path / "train.jsonl", per="dialogue")
    rows = call(python, SPECFORGE, tmp_path / "train.jsonl")
    assert len(rows) == report.whole.written == len(wanted) and report.whole.joined > 50
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == wanted


SPECFORGE = """
import json, sys
from specforge.data.prompt_builder import prepare_prompt_tasks
tasks = prepare_prompt_tasks(sys.argv[1], None, chat_template=None, max_length=4096, is_preformatted=False,
    train_only_last_turn=False, cache_dir=None, cache_key=None, num_proc=None)
print(json.dumps([[task["payload"]["input_ids"], task["payload"]["loss_mask"]] for task in tasks]))
"""


def test_specforge_loads_the_vocabulary(run: RunFolder, tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECFORGE")
    made = draft_vocabulary(run, SIZE, tmp_path)
    code = """
import json, sys, types, torch
from specforge.core.compact_teacher import validate_vocab_mapping_consistency
from specforge.modeling.draft.base import Eagle3DraftModel
t2d, d2t = torch.zeros(int(sys.argv[2]), dtype=torch.bool), torch.zeros(int(sys.argv[3]), dtype=torch.int64)
model = types.SimpleNamespace(t2d=t2d, d2t=d2t)
Eagle3DraftModel.load_vocab_mapping(model, sys.argv[1])
validate_vocab_mapping_consistency(model.t2d, model.d2t)
print(json.dumps([model.vocab_mapping_loaded, torch.nonzero(model.t2d).flatten().tolist()]))
"""
    loaded, ids = call(python, code, tmp_path / "vocab_mapping.pt", VOCABULARY, SIZE)
    assert loaded and ids == made.ids.tolist()


def test_specforge_would_choose_the_same_vocabulary(run: RunFolder, tmp_path: Path) -> None:
    """Same counts, same d2t, where no ids are pinned and no tie decides: compared on the share covered."""
    python = python_of("EAGLE3_DATA_SPECFORGE")
    export(run, "specforge", tmp_path / "train.jsonl")
    made = draft_vocabulary(run, SIZE)
    code = """
import collections, json, sys
from specforge.data.preprocessing import process_token_dict_to_mappings
counts = collections.Counter()
for line in open(sys.argv[1]):
    row = json.loads(line)
    counts.update(token for token, mask in zip(row["input_ids"], row["loss_mask"]) if mask)
total = sum(counts.values())
d2t, t2d = process_token_dict_to_mappings(counts, int(sys.argv[2]), int(sys.argv[3]))
print(json.dumps([total, sum(counts[token] for token, used in enumerate(t2d.tolist()) if used)]))
"""
    total, covered = call(python, code, tmp_path / "train.jsonl", SIZE, VOCABULARY)
    assert total == made.tokens
    # the two pinned control ids may push out two of the rarest ids
    assert covered / total == pytest.approx(made.coverage["whole"], abs=20 / total)


def tokenizer_folder() -> Path:
    folder = SHARED / "tokenizers" / "smollm2"
    if not folder.is_dir():
        pytest.skip(f"no tokenizer at {folder}, which prepare-data wants for showing a sample")
    return folder


SPECULATORS = """
import json, subprocess, sys, pathlib
tool = pathlib.Path(sys.executable).with_name("speculators")
done = subprocess.run([str(tool), "prepare-data", "--model", sys.argv[1], "--data", sys.argv[2],
    "--output", sys.argv[3], "--seq-length", sys.argv[4], "--num-preprocessing-workers", "1", "--no-skip-token-freq"],
    capture_output=True, text=True)
assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
from datasets import load_from_disk
rows = load_from_disk(sys.argv[3]).with_format(None)
import torch
frequencies = torch.load(sys.argv[3] + "/token_freq.pt", weights_only=True)
print(json.dumps([[[row["input_ids"], row["loss_mask"]] for row in rows], sum(frequencies.values())]))
"""


def test_speculators_prepares_every_row_with_its_mask(run: RunFolder, tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECULATORS")
    tokenizer = tokenizer_folder()
    whole = export(run, "speculators", tmp_path / "train.jsonl").whole
    rows, tokens = call(python, SPECULATORS, tokenizer, tmp_path / "train.jsonl", tmp_path / "out", whole.longest)
    assert len(rows) == whole.written == 145 * 4
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == expected(run)
    assert tokens == whole.loss_tokens


def test_speculators_prepares_dialogues_with_several_spans(tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECULATORS")
    tokenizer = tokenizer_folder()
    records, wanted = dialogues()
    whole = export(records, "speculators", tmp_path / "train.jsonl", per="dialogue").whole
    rows, tokens = call(python, SPECULATORS, tokenizer, tmp_path / "train.jsonl", tmp_path / "out", whole.longest)
    assert len(rows) == whole.written == len(wanted) and whole.joined > 50
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == wanted
    assert tokens == whole.loss_tokens


def test_speculators_prepares_a_folder_of_parquet(run: RunFolder, tmp_path: Path) -> None:
    """As the report says: `hf:FOLDER:train`, which `load_dataset` reads."""
    python = python_of("EAGLE3_DATA_SPECULATORS")
    tokenizer = tokenizer_folder()
    report = export(run, "speculators", tmp_path / "rows" / "rows.parquet", shards=3)
    assert f"--data hf:{tmp_path / 'rows'}:train --output DIR --seq-length {report.whole.longest}" in report.to_text()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    data = f"hf:{tmp_path / 'rows'}:train"
    arguments = (tokenizer, data, tmp_path / "out", report.whole.longest)
    rows, tokens = call(python, SPECULATORS, *arguments, environment=environment)
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == expected(run) and len(rows) == 145 * 4
    assert tokens == report.whole.loss_tokens


# The data set of `speculators train`, with hidden states of zeros in place of vLLM's, and its packed batches.
SPECULATORS_TRAIN = """
import json, sys, torch
from speculators.train.data import ArrowDataset, CollateFn, build_client_item
class Zeros:
    def get_cached(self, index):
        ids = torch.tensor(rows.data[index]["input_ids"].tolist())
        return {"token_ids": ids, "hidden_states": torch.zeros(len(ids), 4, 2)}
rows = ArrowDataset(max_len=int(sys.argv[2]), datapath=sys.argv[1], transfer=Zeros())
found = []
for index in range(len(rows)):
    item = rows[index]
    assert item["input_ids"].dtype == item["loss_mask"].dtype == rows.data[index]["input_ids"].dtype == torch.int64
    assert rows.approx_lengths[index] == len(item["input_ids"]) == int(item["lengths"][0])
    assert build_client_item(rows.data[index]) == {"input_ids": item["input_ids"].tolist()}
    found.append([item["input_ids"].tolist(), item["loss_mask"].tolist()])
batch = CollateFn(int(sys.argv[2]), 2)([rows[0]])
assert batch["input_ids"][0, :len(found[0][0])].tolist() == found[0][0]
assert batch["loss_mask"][0, :len(found[0][0])].tolist() == found[0][1]
sources = rows.data.with_format(None)["source"][:]
print(json.dumps([found, sources]))
"""


@pytest.mark.parametrize("shards", [1, 3])
def test_speculators_trains_on_an_exported_folder_as_on_a_prepared_one(
    run: RunFolder, tmp_path: Path, shards: int
) -> None:
    python = python_of("EAGLE3_DATA_SPECULATORS")
    report = export(run, "speculators", tmp_path / "rows", shards=shards)
    assert f"--data-path {tmp_path / 'rows'} --total-seq-len {report.whole.longest}" in report.to_text()
    rows, sources = call(python, SPECULATORS_TRAIN, tmp_path / "rows", report.whole.longest)
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == expected(run) and len(rows) == 145 * 4
    # its validation rows are the last ones, so they may not be of one source
    assert len(set(sources[-58:])) == 4


def test_speculators_trains_on_a_folder_of_dialogues(tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECULATORS")
    records, wanted = dialogues()
    whole = export(records, "speculators", tmp_path / "rows", per="dialogue").whole
    rows, _ = call(python, SPECULATORS_TRAIN, tmp_path / "rows", whole.longest)
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == wanted and len(rows) == len(wanted)


@pytest.mark.parametrize("trainer", ["specforge", "plain"])
def test_specforge_reads_a_published_config_without_our_package(run: RunFolder, tmp_path: Path, trainer: str) -> None:
    """The card's two lines: load_dataset(repo, "train_rows"), then to_json."""
    python = python_of("EAGLE3_DATA_SPECFORGE")
    code = """
import sys
from datasets import load_dataset
train = load_dataset("org/trained", "train_rows", revision="v1.0.0", split="train", cache_dir=sys.argv[1] + "/cache")
train.to_json(sys.argv[1] + "/train.jsonl")
sys.argv[1] += "/train.jsonl"
"""
    with TestHub(tmp_path / "hub", WRITER) as hub:
        hub.run("publish_run", folder=str(run.path), repo="org/trained", version="1.0.0", training=trainer).get()
        environment = hub.environment() | {"HF_HOME": str(tmp_path / "home")}
        rows = call(python, code + SPECFORGE, tmp_path, environment=environment)
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == expected(run) and len(rows) == 145 * 4


def test_speculators_prepares_a_published_config_without_our_package(run: RunFolder, tmp_path: Path) -> None:
    """`publish --training`: prepare-data reads hf:org/name:train_rows:train from the Hub as it is."""
    python = python_of("EAGLE3_DATA_SPECULATORS")
    tokenizer = tokenizer_folder()
    with TestHub(tmp_path / "hub", WRITER) as hub:
        wanted = {"repo": "org/trained", "version": "1.0.0", "training": "speculators"}
        hub.run("publish_run", folder=str(run.path), **wanted).get()
        data = "hf:org/trained:train_rows:train"
        environment = hub.environment() | {"HF_HOME": str(tmp_path / "home")}
        rows, tokens = call(python, SPECULATORS, tokenizer, data, tmp_path / "out", 4_096, environment=environment)
    assert {tuple(ids): tuple(mask) for ids, mask in rows} == expected(run) and len(rows) == 145 * 4
    assert tokens == sum(sum(mask) for mask in expected(run).values())


def test_speculators_loads_the_vocabulary_and_would_choose_it(run: RunFolder, tmp_path: Path) -> None:
    python = python_of("EAGLE3_DATA_SPECULATORS")
    export(run, "speculators", tmp_path / "train.jsonl")
    made = draft_vocabulary(run, SIZE, tmp_path)
    code = """
import collections, json, sys
from speculators.train.cli import _load_mappings
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
d2t, t2d, size = _load_mappings(sys.argv[1] + "/d2t.npy", sys.argv[1] + "/t2d.npy", int(sys.argv[2]))
counts = collections.Counter()
for line in open(sys.argv[1] + "/train.jsonl"):
    row = json.loads(line)
    counts.update(token for token, mask in zip(row["input_ids"], row["loss_mask"]) if mask)
for pinned in json.loads(sys.argv[4]):
    counts[pinned] += 10**9
theirs, selected = build_vocab_mappings_from_distribution(dict(counts), size, int(sys.argv[3]))
print(json.dumps([bool((theirs == d2t).all()), bool((selected == t2d).all()), size]))
"""
    same = call(python, code, tmp_path, SIZE, VOCABULARY, json.dumps(made.pinned))
    assert same == [True, True, SIZE]
