"""A recipe from the Hub decides prompts, sampling and caps; secrets and files of its reader arrive nowhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.hub_client import TestHub
from support.pipeline import call, glaive_file, recipe, server, smollm2_folder
from support.wire import Wire

from eagle3_data import cli
from eagle3_data.recipe.foreign import allowed, reduced

COMMIT = "c" * 40
TOKEN, KEY = "hf_testwriter", "canary-of-another-service"

EVIL = {
    "name": "evil",
    "target": {"model": "org/model", "trust_remote_code": True, "thinking": True},
    "engine": {"urls": ["http://stranger:1"], "api_key_env": "CANARY", "proxy": "http://stranger:2", "slots": 2},
    "sampling": {"temperature": 0.5},
    "publish": {"repo": "stranger/loot", "private": False},
    "sources": {
        "B1_glaive": {"data_files": ["rows/a.jsonl"], "max_new_tokens": 8, "num_proc": 1000},
        "pinned": {"source": "B1_glaive", "revision": "a" * 40, "max_new_tokens": 8},
        "few": {"source": "B1_glaive", "data_files": "samples", "max_new_tokens": 8},
    },
}


def test_what_is_the_readers_is_left_out_and_named() -> None:
    found = reduced(EVIL, "org/evil", COMMIT)
    assert found.values == {
        "name": "evil",
        "target": {"model": "org/model", "thinking": True},
        "engine": {"slots": 2},
        "sampling": {"temperature": 0.5},
        "sources": {
            "B1_glaive": {"data_files": [f"hf://datasets/org/evil@{COMMIT}/rows/a.jsonl"], "max_new_tokens": 8},
            "pinned": {"source": "B1_glaive", "revision": "a" * 40, "max_new_tokens": 8},
            "few": {"source": "B1_glaive", "data_files": "samples", "max_new_tokens": 8},
        },
    }
    assert not found.refused
    assert [line.partition(" is left out")[0] for line in found.left_out] == [
        "target.trust_remote_code",
        "engine.urls",
        "engine.api_key_env",
        "engine.proxy",
        "publish",
    ]
    assert [line.rpartition("give ")[2] for line in found.left_out][:2] == [
        "--trust-remote-code, or --with a file of your own",
        "--url, or --with a file of your own",
    ]


PLACES = [
    *("/etc/passwd", "../../secret.jsonl", "a/../../secret.jsonl", "~/secret.jsonl", "file:///etc/passwd"),
    *("http://192.168.0.1/a.jsonl", "https://host/a.jsonl", "s3://bucket/a", "rows/*.jsonl", "rows/[ab].jsonl"),
    *("hf://datasets/me/private/a.jsonl", "hf://datasets/me/private@main/a.jsonl", "C:\\secret.jsonl", "", 5),
    *(f"hf://datasets/me/private@{COMMIT}/*.jsonl", f"hf://datasets/me/private@{COMMIT}/../a.jsonl", None),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_stranger_names_no_file_of_the_reader(place: Any) -> None:
    entry = {"data_files": ["fine.jsonl", place], "max_new_tokens": 8}
    found = reduced({"sources": {"B1_glaive": entry}}, "org/evil", COMMIT)
    assert list(found.refused) == [("sources", "B1_glaive", "data_files")]


def _own_benchmark(given: Any) -> dict[str, Any]:
    return {"sources": {"few": {"source": "B1_glaive", "data_files": "samples", "decontaminate": given}}}


def test_files_of_the_readers_own_do_not_let_a_benchmark_pass() -> None:
    path = ("sources", "few", "decontaminate", 0, "data_files")
    assert not allowed(path, {"sources": {"few": {"data_files": "mine.jsonl"}}}, [])
    assert allowed(path, {"sources": {"few": {"decontaminate": [{"data_files": "mine.csv"}]}}}, [])


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"sources": {"B1_glaive": {"max_new_tokens": 8}}}, ("sources", "B1_glaive", "revision")),
        ({"sources": {"B1_glaive": {"revision": "main"}}}, ("sources", "B1_glaive", "revision")),
        ({"sources": {"B1_glaive": {"revision": COMMIT, "repo": "/home"}}}, ("sources", "B1_glaive", "repo")),
        ({"target": {"model": "/home/me/model"}}, ("target", "model")),
        ({"target": {"model": "../model"}}, ("target", "model")),
        ({"engine": {"embedded": "/home/me/secret.gguf"}}, ("engine", "embedded")),
        ({"decontaminate": [{"data_files": "/etc/passwd"}]}, ("decontaminate", 0, "data_files")),
        ({"decontaminate": {"data_files": "/etc/passwd"}}, ("decontaminate", 0, "data_files")),
        ({"decontaminate": [{"repo": "org/bench", "revision": "main"}]}, ("decontaminate", 0, "revision")),
        (_own_benchmark({"data_files": "/etc/passwd"}), ("sources", "few", "decontaminate", 0, "data_files")),
        (_own_benchmark([{"data_files": ["../a.csv"]}]), ("sources", "few", "decontaminate", 0, "data_files")),
        (_own_benchmark([{"repo": "/home/me", "revision": COMMIT}]), ("sources", "few", "decontaminate", 0, "repo")),
    ],
)
def test_a_stranger_names_nothing_unpinned_or_local(part: dict[str, Any], path: tuple[Any, ...]) -> None:
    assert list(reduced(part, "org/evil", COMMIT).refused) == [path]


@pytest.mark.parametrize("values", [None, [], "text", {"sources": 5}, {"engine": []}, {"sources": {"a": None}}])
def test_a_recipe_of_another_shape_is_left_to_validation(values: Any) -> None:
    reduced(values, "org/evil", COMMIT)


# -- over real sockets
@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2_folder(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestHub]:
    with TestHub(tmp_path_factory.mktemp("hub"), TOKEN) as running:
        yield running


UPLOAD = """
import sys
from huggingface_hub import HfApi
api, (repo, private, *files) = HfApi(), sys.argv[1:]
api.create_repo(repo, repo_type="dataset", private=private == "private")
for file in files:
    place, _, name = file.rpartition("=")
    sha = api.upload_file(path_or_fileobj=place, path_in_repo=name, repo_id=repo, repo_type="dataset").oid
print(sha)
"""


def command(hub: TestHub, cwd: Path, *arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**hub.environment(), "CANARY": KEY, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "400"}
    start = ["-c", code] if code else ["-m", "eagle3_data"]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )


def uploaded(hub: TestHub, cwd: Path, repo: str, *files: str, private: bool = False) -> str:
    done = command(hub, cwd, repo, "private" if private else "public", *files, code=UPLOAD)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_strangers_recipe_reaches_only_what_its_reader_names(hub: TestHub, tokenizer: Path, tmp_path: Path) -> None:
    stranger = Wire()
    evil = {
        **EVIL,
        "target": {"model": "org/model", "trust_remote_code": True},
        "engine": {"urls": [stranger.url], "api_key_env": "CANARY", "proxy": stranger.url},
        "sources": {"B1_glaive": {"data_files": "rows.jsonl", "rows": 5, "max_new_tokens": 8}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(evil))
    glaive_file(tmp_path / "rows.jsonl", 20)
    files = [f"{tmp_path / name}={name}" for name in ("recipe.yaml", "rows.jsonl")]
    uploaded(hub, tmp_path, "org/evil", *files)
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"target": {"model": str(tokenizer)}}))
    hub.forget()
    name = "hf://datasets/org/evil@main"

    unasked = command(hub, tmp_path, "run", name, "--with", str(mine), "--url", "http://127.0.0.1:9")
    assert unasked.returncode == 2 and "give --yes" in unasked.stderr and "sends the prompts to" in unasked.stderr
    nowhere = command(hub, tmp_path, "run", name, "--yes", "--with", str(mine))
    assert nowhere.returncode == 2 and "engine: give either urls" in nowhere.stderr

    with server(tokenizer) as url:
        own = Wire(int(url.rpartition(":")[2]))
        done = command(hub, tmp_path, "run", name, "--yes", "--with", str(mine), "--url", own.url)
    assert done.returncode == 0, done.stderr
    assert b"/generate" in own.received and KEY.encode() not in own.received and TOKEN.encode() not in own.received
    assert not stranger.received
    for line in ("engine.urls is left out", "engine.api_key_env is left out", "publish is left out"):
        assert done.stderr.count(line) == 1
    asked = hub.requests()
    data = [entry for entry in asked if "rows.jsonl" in entry["path"]]
    assert data and not any(entry["authorized"] for entry in data)
    assert not any("loot" in entry["path"] for entry in asked)
    assert {entry["method"] for entry in asked} <= {"GET", "HEAD", "POST"}
    kept = (tmp_path / "runs/evil/manifest.json").read_text()
    assert stranger.url not in kept and "CANARY" not in kept and KEY not in kept and "loot" not in kept
    assert json.loads(kept)["generation"]["B1_glaive"]["records"] == 5


def test_a_private_data_set_is_read_with_the_token_only_when_allowed(hub: TestHub, tmp_path: Path) -> None:
    glaive_file(tmp_path / "secret.jsonl", 20)
    commit = uploaded(hub, tmp_path, "org/private", f"{tmp_path / 'secret.jsonl'}=secret.jsonl", private=True)
    recipe = {
        "name": "curious",
        "engine": {"embedded": "smollm2-135m"},
        "sources": {
            "B1_glaive": {"data_files": f"hf://datasets/org/private@{commit}/secret.jsonl", "max_new_tokens": 8}
        },
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    uploaded(hub, tmp_path, "org/curious", f"{tmp_path / 'recipe.yaml'}=recipe.yaml")
    name = "hf://datasets/org/curious@main"
    refused = command(hub, tmp_path, "prepare", name, "--yes")
    assert refused.returncode in (2, 3), refused.stderr
    assert not (tmp_path / "runs/curious/prompts/B1_glaive.parquet").exists()
    assert command(hub, tmp_path, "prepare", name, "--yes", "--use-token").returncode == 0


def test_without_a_connection_that_is_what_is_said(hub: TestHub, tmp_path: Path) -> None:
    environment = {**hub.environment(), "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "eagle3_data", "run", "hf://datasets/org/evil@v1.0.0"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 3 and "HF_HUB_OFFLINE is set" in done.stderr and "recipe.yaml" not in done.stderr


REMOTE = """
from pathlib import Path
Path({place!r}).write_text("run")
from transformers import PreTrainedTokenizerFast
class Remote(PreTrainedTokenizerFast):
    pass
"""


def test_a_strangers_run_folder_runs_no_code(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its manifest says; and with the caller's word the same code runs, so this test can fail."""
    data, canary = glaive_file(tmp_path / "rows.jsonl", 20), tmp_path / "canary"
    with server(tokenizer) as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=3)
        call("run", path, cwd=tmp_path)
    (tokenizer / "remote.py").write_text(REMOTE.format(place=str(canary)))
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    config.pop("tokenizer_class", None)
    config["auto_map"] = {"AutoTokenizer": [None, "remote.Remote"]}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    manifest = tmp_path / "runs/tried/manifest.json"
    told = json.loads(manifest.read_text())
    told["recipe"] = told["recipe"].replace("target:\n", "target:\n  trust_remote_code: true\n")
    assert "trust_remote_code" in told["recipe"]
    manifest.write_text(json.dumps(told))
    (log,) = (tmp_path / "runs/tried/journal").glob("*.log")
    reading = {
        "check": ["runs/tried"],
        "lengths": ["runs/tried"],
        "card": ["runs/tried"],
        "vocab": ["runs/tried", "--size", "500", "-o", "vocab"],
        "export": ["runs/tried", "--to", "specforge", "-o", "train.jsonl"],
        "publish": ["runs/tried", "--repo", "a/b", "--version", "1.0.0", "--dry-run"],
    }
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)

    def called(verb: str, *more: str) -> None:
        log.touch()  # as if a shard had just added to it
        cli.main([verb, *reading[verb], *more])

    for verb in reading:
        called(verb)
        assert not canary.exists(), verb
    called("card", "--trust-remote-code")
    assert canary.exists()
