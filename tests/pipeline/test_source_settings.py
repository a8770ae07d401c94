"""Sources of one run that are asked in their own ways: sampling and thinking, from the recipe to the wire and back."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from support.pipeline import call, glaive_file, server
from support.shared import SHARED
from support.wire import Wire

from eagle3_data.target import Target

TOKENIZER = SHARED / "tokenizers" / "qwen3"
ROWS = 6

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")


@pytest.fixture
def wire() -> Iterator[Wire]:
    with server(TOKENIZER) as url:
        yield Wire(int(url.rpartition(":")[2]))


def recipe(folder: Path, url: str, **instant: object) -> Path:
    data = glaive_file(folder / "rows.jsonl", ROWS)
    entry = {"source": "B1_glaive", "data_files": [data.name], "max_new_tokens": 30}
    values = {
        "name": "mixed",
        # the test server ends answers with token 2
        "target": {"model": str(TOKENIZER), "thinking": True, "profile": {"end_of_turn_ids": [2, 151645]}},
        "engine": {"urls": [url], "concurrency": 4},
        "sampling": {"temperature": 1.0, "top_p": 0.95},
        "sources": {"thinking": entry, "instant": {**entry, **instant}},
    }
    path = folder / "r.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_each_source_is_asked_in_its_own_way(wire: Wire, tmp_path: Path) -> None:
    own = {"thinking": False, "sampling": {"temperature": 0.6, "min_new_tokens": 2}}
    path = recipe(tmp_path, wire.url, **own)
    call("run", path, cwd=tmp_path)
    folder = tmp_path / "runs" / "mixed"
    prompts = {
        name: {tuple(row) for row in pq.read_table(folder / "records" / name)["input_ids"].to_pylist()}
        for name in ("thinking", "instant")
    }
    target = {name: Target.from_pretrained(TOKENIZER, thinking=name == "thinking") for name in prompts}
    asked = wire.bodies()
    sent = {name: [body for body in asked if tuple(body["input_ids"]) in prompts[name]] for name in prompts}
    assert len(sent["thinking"]) == len(sent["instant"]) == ROWS and not prompts["thinking"] & prompts["instant"]
    seen = {name: {(body["sampling_params"]["temperature"], body["sampling_params"]["top_p"]) for body in bodies}
            for name, bodies in sent.items()}  # fmt: skip
    assert seen == {"thinking": {(1.0, 0.95)}, "instant": {(0.6, 0.95)}}
    assert {body["sampling_params"]["min_new_tokens"] for body in sent["instant"]} == {2}
    for name, switched in target.items():
        rows = pq.read_table(folder / "prompts" / f"{name}.parquet").to_pylist()
        assert prompts[name] == {tuple(switched.render(row["messages"], row["tools"])) for row in rows}

    manifest = json.loads((folder / "manifest.json").read_text())
    told = manifest["identity"]["sources"]
    assert (told["thinking"]["thinking"], told["instant"]["thinking"]) == (True, False)
    assert (told["thinking"]["sampling"]["temperature"], told["instant"]["sampling"]["temperature"]) == (1.0, 0.6)
    card = (folder / "README.md").read_text()
    (row,) = (line for line in card.splitlines() if line.startswith("| instant |") and "temperature" in line)
    assert "temperature 0.6" in row and "thinking off" in row

    assert "no violations" in call("check", folder, cwd=tmp_path)[0]
    call("generate", path, cwd=tmp_path)
    assert len(wire.bodies()) == len(asked), "a finished run asks nothing"
    for changed, message in [
        ({**own, "sampling": {"temperature": 0.7}}, "sources.instant.sampling.temperature: 0.6 there, 0.7 asked for"),
        ({**own, "thinking": True}, "sources.instant.thinking: False there, True asked for"),
    ]:
        _, said = call("generate", recipe(tmp_path, wire.url, **changed), cwd=tmp_path, status=2)
        assert message in said
    assert len(wire.bodies()) == len(asked)
