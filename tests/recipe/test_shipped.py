"""Every shipped recipe can be planned with the tokenizer of its target, and the launchers do what they say."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support.pipeline import call, glaive_file, recipe, smollm2_folder
from support.shared import SHARED

from eagle3_data.recipe import load_recipe, shipped_recipes
from eagle3_data.recipe.reading import _shipped_folder

# The tokenizer at hand for the target of each recipe, and what has to be said because only half of it is at hand.
TOKENIZERS = {
    "deepseek-v3.1": ("deepseek-v3.1", {}),
    "glm-4.7": ("glm-4.7-flash", {"end_of_turn_ids": ["<|endoftext|>", "<|user|>", "<|observation|>"]}),
    "gpt-oss-120b": ("gpt-oss", {}),
    "kimi-k2.5": ("kimi-k2.5", {}),
    "llama-3.1-8b": ("llama-3.1", {}),
    "qwen3-8b": ("qwen3", {}),
}
SAMPLES = {
    "B1_glaive": "default",
    "B4_mixturethoughts": "all",
    "B5_openthoughts": "openthoughts-114k",
    "B8_sweagent": "nebius",
}


def test_recipes_are_there_for_what_people_serve() -> None:
    names = shipped_recipes()
    assert {"quickstart", "qwen3.6-35b-a3b", *TOKENIZERS} <= set(names)
    for name in names:
        found = load_recipe(name)
        assert found.name == name.rpartition("/")[2]
        if found.engine.urls:
            text = (_shipped_folder() / f"{name}.yaml").read_text()
            assert "sglang.launch_server" in text and "# Caps: " in text and "--skip-tokenizer-init" in text
            assert found.target and f"--model-path {found.target.model}" in text


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_shipped_recipe_can_be_planned(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, profile = TOKENIZERS[name]
    place = SHARED / "tokenizers" / folder
    tokenizer = AutoTokenizer.from_pretrained(place) if profile else None
    ids = {key: tokenizer.convert_tokens_to_ids(tokens) for key, tokens in profile.items()} if tokenizer else {}
    shipped = load_recipe(name)
    mine = {
        "target": {"model": str(place), "profile": ids},
        "sources": {
            spec.name: {"data_files": "samples", "config": SAMPLES[spec.source], "rows": 3, "holdout": 1}
            for spec in shipped.sources
        },
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nothing answers there
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        out, _ = call("plan", name, "--with", tmp_path / "mine.yaml", "--url", url, cwd=tmp_path)
    for spec in shipped.sources:
        assert spec.name in out
    assert "does not know of them" not in out, "the template drops the tools of a source"


def test_the_slurm_job_goes_back_into_the_queue_and_goes_on(tmp_path: Path) -> None:
    """With stand-ins for Slurm's own two commands; servers, run and signals are real."""
    tokenizer, rows = smollm2_folder(tmp_path / "smollm2"), 40
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = recipe(tmp_path / "r.yaml", "http://127.0.0.1:9", tokenizer, glaive_file(tmp_path / "rows.jsonl", rows))
    tools = tmp_path / "bin"
    tools.mkdir()
    scripts = {
        "srun": '#!/bin/sh\nexec "$@"\n',
        "scontrol": f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.txt\n[ "$1" = show ] && echo 127.0.0.1 || true\n',
        "eagle3-data": f'#!/bin/sh\nexec {sys.executable} -m eagle3_data "$@"\n',
    }
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    log = tmp_path / "asked.txt"
    generate_server = Path(__file__).parents[1] / "support" / "generate_server.py"
    serve = f"{sys.executable} {generate_server} --tokenizer {tokenizer} --port {port} --delay 0.3 --log {log}"
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_HUB_OFFLINE": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-1]",
        "SERVE": serve,
        "PORT": str(port),
        "POLL": "0.2",
        "RUNS": str(tmp_path / "runs"),
    }
    script = _shipped_folder() / "slurm" / "run.sbatch"

    def job() -> "subprocess.Popen[str]":
        command = ["bash", str(script), str(path)]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    first = job()
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text()) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert "requeue 7" in (tmp_path / "scontrol.txt").read_text()
    answered = len(log.read_text().splitlines())
    assert 0 < answered < rows
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)  # the servers were stopped

    second = job()
    _, said = second.communicate(timeout=200)
    assert second.returncode == 0, said
    assert len(log.read_text().splitlines()) == rows, "a prompt was asked twice, or never"
    assert (tmp_path / "runs/tried/README.md").is_file()


@pytest.mark.parametrize("name", ["slurm/run.sbatch", "ray/run.sh"])
def test_a_launcher_is_a_script_that_bash_reads(name: str) -> None:
    script = _shipped_folder() / name
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    text = script.read_text()
    lines = [line.strip().removeprefix("exec ") for line in text.splitlines()]
    called = {line.split()[1] for line in lines if line.startswith("eagle3-data ")}
    assert called and called <= {"prepare", "generate", "run"}
