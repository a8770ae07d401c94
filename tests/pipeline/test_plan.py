"""`plan`: each source's prompt under its own thinking, shares that fit, and a server that is down, said last."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.pipeline import call, server, smollm2_folder
from support.shared import SHARED

from eagle3_data.pipeline.plan_prompts import fits

DOWN = "http://127.0.0.1:9"


def recipe(path: Path, tokenizer: Path, url: str = DOWN) -> Path:
    sources = {
        "B1_glaive": {"data_files": "samples", "rows": 6, "max_new_tokens": 2048},
        "B4_mixturethoughts": {
            "data_files": "samples",
            "rows": 6,
            "max_new_tokens": "auto",
            "truncation_target": 0.05,
        },
        "B8_sweagent": {"data_files": "samples", "turns": "rollout", "rows": 6, "max_new_tokens": 4096},
    }
    if tokenizer.name.startswith("qwen"):
        sources["B4_instant"] = {**sources["B4_mixturethoughts"], "source": "B4_mixturethoughts", "thinking": False}
    made = {"name": "m", "target": {"model": str(tokenizer)}, "engine": {"urls": [url]}, "sources": sources}
    path.write_text(yaml.safe_dump(made))
    return path


def test_a_server_that_is_down_is_said_last_and_on_stderr(tmp_path: Path) -> None:
    path = recipe(tmp_path / "m.yaml", smollm2_folder(tmp_path))
    out, err = call("plan", path, cwd=tmp_path)
    assert "nothing answers" not in out
    (line,) = err.splitlines()
    assert line.startswith(f"eagle3-data: budgets are not known, because no server was asked: {DOWN}")
    model = str(yaml.safe_load(path.read_text())["target"]["model"])
    assert f"--model-path {Path(model).resolve()} --port 9" in line
    assert "prompts: runs/m/prompts\nThey are kept there: `generate` and `run` go on from them." in out
    assert out.splitlines()[-1].startswith("At most ")
    for name in ("B1_glaive", "B4_mixturethoughts", "B8_sweagent"):
        assert out.count(f"One prompt of {name}, as the target sees it") == 1
    assert "The script of one dialogue, B8_sweagent-" in out
    sentences = re.findall(r"rows can show any share", out)
    assert len(sentences) == 2, "what several sources share is said once"


def test_a_server_that_answers(tmp_path: Path) -> None:
    tokenizer = smollm2_folder(tmp_path)
    with server(tokenizer) as url:
        out, err = call("plan", recipe(tmp_path / "m.yaml", tokenizer, url), cwd=tmp_path)
        found = json.loads(call("plan", tmp_path / "m.yaml", "--json", cwd=tmp_path)[0])
    assert err == "" and f"Server {url}" in out
    assert found["server"]["url"] == url and found["no_server"] == ""
    assert set(found["examples"]) == {"B1_glaive", "B4_mixturethoughts", "B8_sweagent"}
    assert found["fits"]["B1_glaive"]["2048"] == [0.0, 1.0]
    assert found["fits"]["B1_glaive"]["4096"] == [1.0, 1.0]
    assert found["fits"]["B4_mixturethoughts"]["2048"] == [None, 1.0]


@pytest.mark.skipif(not (SHARED / "tokenizers/qwen3").is_dir(), reason="needs the Qwen3 tokenizer")
def test_each_source_thinks_in_its_own_way(tmp_path: Path) -> None:
    call("plan", recipe(tmp_path / "m.yaml", SHARED / "tokenizers/qwen3"), cwd=tmp_path)
    examples = json.loads(call("plan", tmp_path / "m.yaml", "--json", cwd=tmp_path)[0])["examples"]
    assert examples["B4_instant"].rstrip().endswith("⟦</think>⟧")
    assert examples["B4_mixturethoughts"].rstrip().endswith("⟦<|im_start|>⟧assistant")


def test_fits_counts_the_whole_cap_at_least_and_the_prompt_at_most() -> None:
    tokens = np.array([1_000, 2_000, 9_000], np.int64)
    assert fits(tokens, 3_000) == {
        2_048: (0.0, 2 / 3),
        4_096: (1 / 3, 2 / 3),
        8_192: (2 / 3, 2 / 3),
        16_384: (1.0, 1.0),
    }


def test_escape_sequences_of_a_prompt_do_not_reach_the_terminal(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "\x1b[2J\x1b]0;owned\x07 hello " + "x" * 4_000}]}]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = {
        "name": "m",
        "target": {"model": str(smollm2_folder(tmp_path))},
        "engine": {"urls": [DOWN]},
        "sources": {"chat": {"data_files": "chats.jsonl", "max_new_tokens": 64}},
    }
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(made))
    out, _ = call("plan", tmp_path / "m.yaml", cwd=tmp_path)
    assert "\x1b" not in out and "\x07" not in out and "\\x1b[2J" in out
    assert re.search(r"\[… 2,\d{3} characters not shown …\]", out)
