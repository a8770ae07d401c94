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
from support.hub_client import TestHub
from support.hub_server import WRITER
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


class Slurm:
    """A folder with a recipe of 40 rows and stand-ins for Slurm's own commands; servers, run and signals are real."""

    ROWS = 40

    def __init__(self, folder: Path, nodes: list[str], **environment: str) -> None:
        self.folder, self.nodes, self.log = folder, nodes, folder / "asked.txt"
        tokenizer = smollm2_folder(folder / "smollm2")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        data = glaive_file(folder / "rows.jsonl", self.ROWS)
        self.recipe = recipe(folder / "r.yaml", "http://127.0.0.1:9", tokenizer, data)
        tools = folder / "bin"
        tools.mkdir()
        listed = "".join(f"echo {node}; " for node in nodes)
        scripts = {
            # a task on each node, and the signal that ends srun ends its tasks
            "srun": f'#!/bin/sh\nfor node in {" ".join(nodes)}; do "$@" --host $node & done\nwait\n',
            "scontrol": f'#!/bin/sh\necho "$@" >> {folder}/scontrol.txt\n[ "$1" = show ] && {{ {listed}}} || true\n',
            "eagle3-data": f'#!/bin/sh\nexec {sys.executable} -m eagle3_data "$@"\n',
        }
        for name, text in scripts.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        server = Path(__file__).parents[1] / "support" / "generate_server.py"
        options = f"--tokenizer {tokenizer} --port {self.port} --delay 0.3 --log {self.log}"
        self.environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            **environment,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SERVE": f"{sys.executable} {server} {options}",
            "PORT": str(self.port),
            "POLL": "0.2",
            "RUNS": str(folder / "runs"),
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = ["bash", str(_shipped_folder() / "slurm" / "run.sbatch"), str(self.recipe), *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def asked(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def wait_until_asked(self, job: "subprocess.Popen[str]", rows: int = 1) -> None:
        deadline = time.monotonic() + 120
        while self.asked() < rows and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def servers_answer(self) -> bool:
        for node in self.nodes:
            try:
                socket.create_connection((node, self.port), timeout=5).close()
                return True
            except OSError:
                continue
        return False


def kill_session(leader: int) -> None:
    """End every process of a session at once, as a node that fails does."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(stat.read_text().rpartition(")")[2].split()[3])
        except (OSError, IndexError):
            continue  # ended meanwhile
        if session == leader:
            os.kill(int(stat.parent.name), signal.SIGKILL)


def test_the_slurm_job_goes_back_into_the_queue_and_goes_on(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, ["127.0.0.1"])
    first = slurm.start()
    slurm.wait_until_asked(first)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert "requeue 7" in (tmp_path / "scontrol.txt").read_text()
    assert 0 < slurm.asked() < slurm.ROWS
    assert not slurm.servers_answer()

    second = slurm.start()
    _, said = second.communicate(timeout=200)
    assert second.returncode == 0, said
    assert slurm.asked() == slurm.ROWS, "a prompt was asked twice, or never"
    assert (tmp_path / "runs/tried/README.md").is_file()


def test_the_slurm_job_survives_kill_9_and_publishes(tmp_path: Path) -> None:
    """Two nodes fail at once with everything on them; the job that comes after finishes the run and publishes it."""
    with TestHub(tmp_path / "hub", WRITER) as hub:
        # no tokenizer is looked for on the Hub, and the version goes there
        slurm = Slurm(tmp_path, ["127.0.0.1", "127.0.0.2"], **hub.environment(), HF_HUB_OFFLINE="0")
        first = slurm.start("org/slurm@1.0.0")
        slurm.wait_until_asked(first, 10)
        kill_session(first.pid)
        first.communicate(timeout=60)
        assert first.returncode == -signal.SIGKILL and 0 < slurm.asked() < slurm.ROWS
        assert not slurm.servers_answer()
        assert hub.run("state", repo="org/slurm").error, "nothing was published"

        second = slurm.start("org/slurm@1.0.0")
        out, said = second.communicate(timeout=240)
        assert second.returncode == 0, said
        # what was in flight may be asked again: eight requests
        assert slurm.ROWS <= slurm.asked() <= slurm.ROWS + 8
        assert "org/slurm v1.0.0" in out and not slurm.servers_answer()
        found = hub.run("load", repo="org/slurm", config="B1_glaive", revision="v1.0.0").get()
        assert found["rows"] == slurm.ROWS


@pytest.mark.parametrize("name", ["slurm/run.sbatch", "ray/run.sh"])
def test_a_launcher_is_a_script_that_bash_reads(name: str) -> None:
    script = _shipped_folder() / name
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    text = script.read_text()
    lines = [line.strip().removeprefix("exec ") for line in text.splitlines()]
    called = {line.split()[1] for line in lines if line.startswith("eagle3-data ")}
    assert called and called <= {"prepare", "generate", "run"}
