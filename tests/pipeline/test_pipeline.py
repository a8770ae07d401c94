"""Whole runs through the command line, against a server whose answer is a function of the prompt."""

import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
from support.generate_server import continuation, crc_of
from support.pipeline import call, command, glaive_file, parquet_bytes, recipe, server, smollm2_folder

ROWS = 120


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2_folder(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture
def url(tokenizer: Path, tmp_path: Path) -> Iterator[str]:
    with server(tokenizer, log=tmp_path / "asked.txt") as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return glaive_file(tmp_path / "rows.jsonl", ROWS)


def asked(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "asked.txt").read_text().splitlines()]


def test_a_run_gives_records_that_load(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, holdout=5)
    out, _ = call("run", path, cwd=tmp_path)
    for name in ("records", "lengths.html", "README.md"):
        assert str(Path("runs/tried") / name) in out
    records = datasets.load_dataset(str(tmp_path / "runs" / "tried"), "B1_glaive", cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in records.items()} == {"train": ROWS - 5, "validation": 5}
    for row in datasets.concatenate_datasets(list(records.values())):
        output, stopped = continuation(row["input_ids"], 40)
        assert row["output_ids"] == output
        assert row["finish_reason"] == ("stop" if stopped else "length_cap")
        assert row["stop_token_id"] == (2 if stopped else -1)
    features = records["train"].features
    assert features["input_ids"].feature.dtype == features["output_ids"].feature.dtype == "int32"

    before, requests = parquet_bytes(tmp_path / "runs" / "tried"), len(asked(tmp_path))
    assert requests == ROWS
    call("run", path, cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs" / "tried") == before
    assert len(asked(tmp_path)) == requests, "a finished row was asked for again"

    call("check", "runs/tried", cwd=tmp_path)
    lengths, _ = call("lengths", "runs/tried", "--json", "-", cwd=tmp_path)
    assert json.loads(lengths)["whole"]["rows"] == ROWS


def test_kill_9_loses_nothing(tokenizer: Path, data: Path, tmp_path: Path) -> None:
    """Three kills at random moments, then a calm run's very bytes; no answer of the journal is asked for again."""
    moments = random.Random(os.urandom(8))
    with server(tokenizer, "--delay", "0.05", log=tmp_path / "asked.txt") as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data)
        call("prepare", path, cwd=tmp_path)
        for _ in range(3):
            journalled = journal_crcs(tmp_path / "runs" / "tried", tokenizer)
            (tmp_path / "asked.txt").write_text("")
            process = command("run", path, cwd=tmp_path)
            deadline = time.monotonic() + 60
            while not asked(tmp_path) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.3))
            process.kill()
            process.communicate()
            assert not journalled & set(asked(tmp_path))
        journalled = journal_crcs(tmp_path / "runs" / "tried", tokenizer)
        (tmp_path / "asked.txt").write_text("")
        call("run", path, cwd=tmp_path)
        assert not journalled & set(asked(tmp_path))
        call("run", path, "--runs", "calm", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs" / "tried") == parquet_bytes(tmp_path / "calm" / "tried")


def journal_crcs(folder: Path, tokenizer: Path) -> set[int]:
    """CRCs of the prompts that have an answer in a run's journal."""
    from eagle3_data.generation import Journal
    from eagle3_data.generation.journal.index import keys_of
    from eagle3_data.target import Target

    if not (folder / "journal").is_dir():
        return set()
    target = Target.from_pretrained(tokenizer)
    rows = pq.read_table(folder / "prompts" / "B1_glaive.parquet").to_pylist()
    journal = Journal(folder / "journal", readonly=True)
    try:
        positions = journal.look_up(keys_of([row["sample_id"] for row in rows]))
        done = [row for row, position in zip(rows, positions.tolist(), strict=True) if position >= 0]
        return {crc_of(target.render(row["messages"], row["tools"])) for row in done}
    finally:
        journal.close()


def test_growing_keeps_what_is_there(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    call("run", recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=30), cwd=tmp_path)
    small = [row["sample_id"] for row in pq.read_table(tmp_path / "runs/tried/records/B1_glaive").to_pylist()]
    call("run", recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=50), cwd=tmp_path)
    large = [row["sample_id"] for row in pq.read_table(tmp_path / "runs/tried/records/B1_glaive").to_pylist()]
    assert large[:30] == small and len(large) == 50
    assert len(asked(tmp_path)) == 50


def test_extend_continues_the_cut_rows_and_only_those(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, max_new_tokens=10)
    call("run", path, cwd=tmp_path)
    cut = [
        row["sample_id"]
        for row in pq.read_table(tmp_path / "runs/tried/records/B1_glaive").to_pylist()
        if row["finish_reason"] == "length_cap"
    ]
    (tmp_path / "asked.txt").write_text("")
    call("extend", path, "--max-new-tokens", "40", cwd=tmp_path)
    assert len(asked(tmp_path)) == len(cut) > 0
    for row in pq.read_table(tmp_path / "runs/tried/records/B1_glaive").to_pylist():
        assert row["output_ids"] == continuation(row["input_ids"], 40)[0]
        assert row["rounds"] == (2 if row["sample_id"] in cut else 1)
    call("extend", path, "--max-new-tokens", "20", cwd=tmp_path)
    extent = json.loads((tmp_path / "runs/tried/manifest.json").read_text())["extent"]["sources"]["B1_glaive"]
    assert (extent["caps"], extent["extended_to"]) == (10, 40), "rows are further than the last extend asked for"


def test_a_raised_cap_says_which_rows_wait(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, max_new_tokens=10)
    out, _ = call("generate", path, "--runs", "else where", cwd=tmp_path)
    assert "lower cap" not in out
    rows = pq.read_table(tmp_path / "else where/tried/records/B1_glaive").to_pylist()
    cut = sum(row["finish_reason"] == "length_cap" for row in rows)
    recipe(path, url, tokenizer, data, max_new_tokens=40, rows=ROWS - 1)
    (tmp_path / "asked.txt").write_text("")
    for finished in ("run", "generate"):
        out, _ = call(finished, path, "--runs", "else where", cwd=tmp_path)
        note = next(line for line in out.splitlines() if "lower cap" in line)
        waiting = int(note.rpartition(" ")[2] if finished == "run" else note.split()[0])
        assert 1 < cut - 1 <= waiting <= cut and not asked(tmp_path)
    words = shlex.split(note.partition("with: ")[2])
    assert words[0] == "eagle3-data"
    out, _ = call(*words[1:], cwd=tmp_path)
    assert len(asked(tmp_path)) == waiting
    out, _ = call("generate", path, "--runs", "else where", "--json", cwd=tmp_path)
    assert json.loads(out)["below_cap"] == {}


def test_shards_are_merged_by_whoever_reads(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data)
    _, complaint = call("generate", path, "--shard", "0/2", cwd=tmp_path, status=2)
    assert "eagle3-data prepare" in complaint
    call("prepare", path, cwd=tmp_path)
    shards = [command("generate", path, "--shard", f"{shard}/2", cwd=tmp_path) for shard in range(2)]
    assert [(shard.communicate(), shard.returncode)[1] for shard in shards] == [0, 0]
    call("check", "runs/tried", cwd=tmp_path)
    call("run", path, "--runs", "alone", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs/tried") == parquet_bytes(tmp_path / "alone/tried")


def test_ctrl_c_drains_and_says_how_to_go_on(tokenizer: Path, data: Path, tmp_path: Path) -> None:
    with server(tokenizer, "--delay", "0.3", log=tmp_path / "asked.txt") as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data)
        process = command("run", path, cwd=tmp_path)
        while not asked(tmp_path) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "run the same command again" in out + err
        drained = len(asked(tmp_path))
        assert drained < ROWS
        call("run", path, cwd=tmp_path)
        assert len(asked(tmp_path)) == ROWS, "requests in flight at Ctrl-C were lost"


def test_progress_in_json_is_json_alone(tokenizer: Path, data: Path, tmp_path: Path) -> None:
    with server(tokenizer) as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=20)
        call("generate", path, cwd=tmp_path)
        (log,) = (tmp_path / "runs/tried/journal").glob("*.log")
        damaged = bytearray(log.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        log.write_bytes(damaged)
        log.with_suffix(".idx").unlink(missing_ok=True)
        recipe(path, url, tokenizer, data, rows=21)
        process = command("generate", path, "--progress", "json", cwd=tmp_path)
        _, err = process.communicate(timeout=60)
        lines = [json.loads(line) for line in err.splitlines()]
        assert any(line.get("level") == "warning" and "damaged bytes" in line["message"] for line in lines), err
        assert lines[-1]["level"] == "error" and "`eagle3-data restore runs/tried`" in lines[-1]["message"], err
        call("restore", "runs/tried", cwd=tmp_path)
        _, err = call("generate", path, "--progress", "json", cwd=tmp_path)
        lines = [json.loads(line) for line in err.splitlines()]
        assert lines[-1]["finished"] and lines[-1]["sources"]["B1_glaive"]["done"] == 21, err
    recipe(path, url, tokenizer, data, rows=22)
    _, err = call("generate", path, "--progress", "json", cwd=tmp_path, status=3)
    complaint = json.loads(err.splitlines()[-1])
    assert (complaint["event"], complaint["level"]) == ("log", "error") and url in complaint["message"]


REFUSED = {
    "other sampling": ({"sampling": {"temperature": 0.5}}, 2, "sampling.temperature: 0.0 there, 0.5 asked for"),
    "other seed": ({"draw_seed": 1}, 2, "draw_seed: 0 there, 1 asked for"),
    "a lower cap": ({"max_new_tokens": 39}, 2, "39 is below 40"),
}


def test_another_identity_is_refused(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    call("run", recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=5), cwd=tmp_path)
    before = parquet_bytes(tmp_path / "runs/tried")
    for change, status, message in REFUSED.values():
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=5, **change)
        _, complaint = call("run", path, cwd=tmp_path, status=status)
        assert message in complaint.splitlines()[-1], complaint
    assert parquet_bytes(tmp_path / "runs/tried") == before


def test_wrong_input_is_one_line_and_the_right_status(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    with server(tokenizer, "--shift", "1") as other:
        wrong = tmp_path / "wrong.jsonl"
        wrong.write_text('{"text": "not what it should be"}\n')
        cases = [
            (recipe(tmp_path / "a.yaml", url, tokenizer, wrong), 2, "wrong.jsonl"),
            (recipe(tmp_path / "b.yaml", "http://127.0.0.1:9", tokenizer, data), 3, "http://127.0.0.1:9"),
            (recipe(tmp_path / "c.yaml", other, tokenizer, data), 3, "engine.urls"),
            (recipe(tmp_path / "d.yaml", url, tmp_path / "no-model", data), 2, "no-model"),
            (tmp_path / "absent.yaml", 2, "absent.yaml"),
            (
                recipe(tmp_path / "e.yaml", url, tokenizer, data, filter={"origin": "nobody"}),
                2,
                "the filter leaves out origin",
            ),
        ]
        for path, status, message in cases:
            _, complaint = call("run", path, cwd=tmp_path, status=status)
            assert complaint.startswith("eagle3-data: ") and message in complaint, complaint
            assert len(complaint.splitlines()) == 1, complaint


def test_a_router_is_told_the_context_length(tokenizer: Path, data: Path, tmp_path: Path) -> None:
    with server(tokenizer, "--router") as hiding:
        _, complaint = call("run", recipe(tmp_path / "a.yaml", hiding, tokenizer, data), cwd=tmp_path, status=3)
        assert "engine.context_length" in complaint
        told = recipe(tmp_path / "a.yaml", hiding, tokenizer, data, engine={"context_length": 8192}, rows=20)
        call("run", told, cwd=tmp_path)
    (written,) = (tmp_path / "runs/tried/records").rglob("train-*.parquet")
    assert pq.read_metadata(written).num_rows == 20


@pytest.mark.parametrize(("value", "fault"), [(None, "is not set"), ("", "is empty")])
def test_a_key_that_is_not_there_is_named_before_anything_is_sent(
    value: str | None,
    fault: str,
    url: str,
    tokenizer: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("A_KEY", value)
    path = recipe(tmp_path / "r.yaml", "http://127.0.0.1:9", tokenizer, data, rows=3)
    path.write_text(path.read_text().replace("engine:", "engine:\n  api_key_env: A_KEY"))
    for arguments in (["run", path], ["plan", path], ["serve", "--api-key-env", "A_KEY"]):
        _, complaint = call(*arguments, cwd=tmp_path, status=2)  # 3 would say that port 9 was asked
        assert "api" in complaint and f"A_KEY {fault}" in complaint, complaint
        assert len(complaint.splitlines()) == 1
    path.write_text(path.read_text().replace("http://127.0.0.1:9", url))
    monkeypatch.setenv("A_KEY", "some key")
    call("run", path, cwd=tmp_path)


def test_a_second_process_is_told_who_works_there(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    from eagle3_data.run_folder import RunFolder

    with RunFolder(tmp_path / "runs" / "tried").lock():
        _, complaint = call("run", recipe(tmp_path / "r.yaml", url, tokenizer, data), cwd=tmp_path, status=4)
    assert f"pid {os.getpid()}" in complaint


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_loses_nothing(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", small], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data)
        _, complaint = call("run", path, "--runs", small, cwd=tmp_path, status=4)
        assert "no space left" in complaint.splitlines()[-1], complaint
        subprocess.run(["mount", "-o", "remount,size=50m", small], check=True)
        call("run", path, "--runs", small, cwd=tmp_path)
        call("run", path, "--runs", "calm", cwd=tmp_path)
        assert parquet_bytes(small / "tried") == parquet_bytes(tmp_path / "calm" / "tried")
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_finished_run_needs_no_engine(tokenizer: Path, data: Path, tmp_path: Path) -> None:
    with server(tokenizer) as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=5)
        call("run", path, cwd=tmp_path)
    before = parquet_bytes(tmp_path / "runs/tried")
    call("run", path, cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs/tried") == before
    recipe(path, url, tokenizer, data, rows=6)
    _, complaint = call("run", path, cwd=tmp_path, status=3)
    assert url in complaint.splitlines()[-1]


def test_record_files_tell_no_url_and_leave_with_their_source(
    url: str, tokenizer: Path, data: Path, tmp_path: Path
) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=3)
    text = path.read_text()
    path.write_text(
        text.replace(
            "sources:\n",
            f"sources:\n  second: {{source: B1_glaive, data_files: [{data}], rows: 2, max_new_tokens: 9}}\n",
        )
    )
    call("run", path, cwd=tmp_path)
    folder = tmp_path / "runs/tried"
    both = parquet_bytes(folder)
    assert len(both) == 2
    for name in both:
        stored = pq.read_metadata(folder / name).metadata
        assert not any(url.encode() in value or str(tmp_path).encode() in value for value in stored.values())
        assert json.loads(stored[b"eagle3_data"])["sampling"]["temperature"] == 0.0
    path.write_text(text)
    call("run", path, cwd=tmp_path)
    assert parquet_bytes(folder) == {name: value for name, value in both.items() if "B1_glaive/" in name}
