"""No finished row is lost: records outlive their journal, readers write none, and a run comes back from either."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.hub_client import TestHub
from support.hub_server import WRITER
from support.pipeline import call, glaive_file, parquet_bytes, recipe, server, smollm2_folder

ROWS = 60
READERS = (
    ("check", "runs/tried"),
    ("lengths", "runs/tried"),
    ("card", "runs/tried"),
    ("vocab", "runs/tried", "--size", "500", "-o", "vocab.npz"),
    ("export", "runs/tried", "--to", "plain", "-o", "rows.jsonl"),
    ("publish", "runs/tried", "--repo", "org/name", "--version", "1.0.0", "--dry-run"),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2_folder(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def finished(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of which some rows were cut; its server is gone."""
    folder = tmp_path_factory.mktemp("finished")
    data = glaive_file(folder / "rows.jsonl", ROWS)
    with server(tokenizer) as url:
        call("run", recipe(folder / "r.yaml", url, tokenizer, data, max_new_tokens=20, holdout=5), cwd=folder)
    return folder


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def url(tokenizer: Path, work: Path) -> Iterator[str]:
    """A server; the recipe of the work folder asks it."""
    with server(tokenizer, log=work / "asked.txt") as running:
        text = (work / "r.yaml").read_text()
        old = next(line for line in text.splitlines() if "http://" in line)
        (work / "r.yaml").write_text(text.replace(old, f"  - {running}"))
        yield running


def asked(work: Path) -> int:
    return len((work / "asked.txt").read_text().splitlines()) if (work / "asked.txt").exists() else 0


def cut_rows(work: Path) -> int:
    table = pq.read_table(work / "runs/tried/records/B1_glaive", columns=["finish_reason"])
    return table["finish_reason"].to_pylist().count("length_cap")


@pytest.mark.parametrize(
    "command", [("run", "r.yaml"), ("generate", "r.yaml"), ("extend", "r.yaml", "--max-new-tokens", "40")], ids=str
)
def test_without_its_journal_a_run_replaces_nothing(command: tuple[str, ...], work: Path, url: str) -> None:
    before = parquet_bytes(work / "runs/tried")
    shutil.rmtree(work / "runs/tried/journal")
    out, err = call(*command, cwd=work, status=1)
    assert err.count("\n") == 1 and "eagle3-data restore runs/tried" in err and f"{ROWS} answers" in err
    assert parquet_bytes(work / "runs/tried") == before and asked(work) == 0
    out, _ = call("restore", "runs/tried", cwd=work)
    assert f"B1_glaive: {ROWS} of {ROWS} answers read back" in out
    cut = cut_rows(work)
    call(*command, cwd=work)
    assert asked(work) == (cut if command[0] == "extend" else 0), "a finished row was asked for again"
    if command[0] == "extend":
        assert cut > 3 and cut_rows(work) < cut
    else:
        assert parquet_bytes(work / "runs/tried") == before


def test_part_of_the_journal_lost_is_noticed_row_by_row(work: Path, url: str) -> None:
    """An answer that `extend` made longer is newer than the journal's first frame of it."""
    first = next((work / "runs/tried/journal").glob("*.log"))
    kept = {path.name: path.read_bytes() for path in (first, first.with_suffix(".idx")) if path.exists()}
    cut = cut_rows(work)
    call("extend", "r.yaml", "--max-new-tokens", "40", cwd=work)
    before = parquet_bytes(work / "runs/tried")
    for path in (work / "runs/tried/journal").glob("*-of-*"):
        path.unlink()
    for name, content in kept.items():
        (work / "runs/tried/journal" / name).write_bytes(content)
    _, err = call("generate", "r.yaml", cwd=work, status=1)
    assert f"the records hold {cut} answers that the journal does not" in err
    call("restore", "runs/tried", cwd=work)
    call("generate", "r.yaml", cwd=work)
    assert parquet_bytes(work / "runs/tried") == before


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_readers_write_no_records_and_notice_missing_ones(
    reader: tuple[str, ...], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = parquet_bytes(work / "runs/tried")
    shutil.rmtree(work / "runs/tried/journal")
    call(*reader, cwd=work)
    assert parquet_bytes(work / "runs/tried") == before
    lost = work / "runs/tried/records/B1_glaive/train-00000-of-00001.parquet"
    lost.unlink()
    out, err = call(*reader, cwd=work, status=1)
    assert "5" in out + err and f"{ROWS}" in out + err and "restore" in out + err
    assert not lost.exists()


def test_missing_record_files_are_written_again_from_the_journal(work: Path) -> None:
    before = parquet_bytes(work / "runs/tried")
    for path in (work / "runs/tried/records").rglob("train-*.parquet"):
        path.write_bytes(path.read_bytes()[:1000])
    _, err = call("export", "runs/tried", "--to", "plain", "-o", "rows.jsonl", cwd=work, status=1)
    assert "eagle3-data generate" in err and "cannot be read" in err
    call("generate", "r.yaml", cwd=work)
    assert parquet_bytes(work / "runs/tried") == before


def test_a_packed_run_is_restored(work: Path, url: str) -> None:
    before = parquet_bytes(work / "runs/tried")
    out, _ = call("restore", "runs/tried", "--pack", cwd=work)
    assert "packed" in out and not (work / "runs/tried/journal").exists()
    for reader in READERS[:5]:
        call(*reader, cwd=work)
    call("run", "r.yaml", cwd=work, status=1)
    call("restore", "runs/tried", cwd=work)
    call("run", "r.yaml", cwd=work)
    assert asked(work) == 0 and parquet_bytes(work / "runs/tried") == before


def test_packing_refuses_what_would_lose_answers(work: Path) -> None:
    files = [*(work / "runs/tried/journal").glob("*.log")]
    shutil.rmtree(work / "runs/tried/records/B1_glaive")
    _, err = call("restore", "runs/tried", "--pack", cwd=work, status=1)
    assert "the journal holds them all" in err and all(path.exists() for path in files)
    call("generate", "r.yaml", cwd=work)
    call("restore", "runs/tried", "--pack", cwd=work)


def test_damaged_bytes_cost_their_own_rows_only(work: Path, url: str) -> None:
    path = work / "runs/tried/records/B1_glaive/train-00000-of-00001.parquet"
    kept = parquet_bytes(work / "runs/tried")
    shutil.rmtree(work / "runs/tried/journal")
    path.write_bytes(b"rotten")
    _, err = call("generate", "r.yaml", cwd=work, status=1)
    assert "restore" in err and asked(work) == 0
    out, _ = call("restore", "runs/tried", cwd=work)
    assert "damaged" in out and (work / "runs/tried/damaged/B1_glaive" / path.name).read_bytes() == b"rotten"
    call("generate", "r.yaml", cwd=work)
    assert asked(work) == ROWS - 5 and parquet_bytes(work / "runs/tried") == kept


def test_a_published_version_becomes_a_run_again(work: Path, url: str, tmp_path: Path) -> None:
    """On another machine: no finished row is asked for, the cut ones go on, the files come out as they were."""
    before = parquet_bytes(work / "runs/tried")
    cut = cut_rows(work)
    with TestHub(tmp_path / "hub", WRITER) as hub:
        hub.run("publish_run", folder=str(work / "runs/tried"), repo="org/name", version="1.0.0").get()
        shutil.rmtree(work / "runs")
        found = hub.run("restore_run", folder=str(work / "runs/tried"), source="hf://datasets/org/name@v1.0.0").get()
        assert found["sources"]["B1_glaive"] == {"rows": ROWS, "restored": ROWS, "damaged_rows": 0}
        assert found["fetched_bytes"] > 0 and parquet_bytes(work / "runs/tried") == before
        again = hub.run("restore_run", folder=str(work / "runs/tried"), source="hf://datasets/org/name@v1.0.0")
        assert again.error == "UsageError", "a run that is there is not replaced"
    call("check", "runs/tried", cwd=work)
    call("generate", "r.yaml", cwd=work)
    assert asked(work) == 0
    call("extend", "r.yaml", "--max-new-tokens", "B1_glaive=40", cwd=work)
    assert asked(work) == cut > cut_rows(work)


DAMAGES = {
    "deleted": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "overwritten": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
}
WRITERS = (("generate", "r.yaml"), ("run", "r.yaml"), ("extend", "r.yaml", "--max-new-tokens", "40"))


def answers(folder: Path) -> set[tuple[str, int]]:
    """Every answer that the records or the journal of a run hold, by sample_id and its tokens."""
    from eagle3_data.generation import Journal
    from eagle3_data.generation.journal.index import keys_of

    found: set[tuple[str, int]] = set()
    for path in folder.glob("records/*/*.parquet"):
        try:
            table = pq.read_table(path, columns=["sample_id", "completion_tokens"])
        except Exception:
            continue
        found |= set(zip(table["sample_id"].to_pylist(), table["completion_tokens"].to_pylist(), strict=True))
    with Journal(folder / "journal", readonly=True) as journal:
        names = sorted(answers.names)  # type: ignore[attr-defined]
        positions = journal.look_up(keys_of(names))
        tokens = journal.index.column("tokens", positions).tolist()
        found |= {(name, count) for name, count, at in zip(names, tokens, positions, strict=True) if at >= 0}
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_file_damaged_in_turn_times_every_command(work: Path, url: str, tmp_path: Path) -> None:
    """No finished row is lost unless it stood only in the damaged bytes; every other answer is still there."""
    folder = work / "runs/tried"
    table = pq.read_table(folder / "records/B1_glaive", columns=["sample_id", "completion_tokens"])
    answers.names = set(table["sample_id"].to_pylist())  # type: ignore[attr-defined]
    shutil.copytree(work / "runs", tmp_path / "kept")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    tried = 0
    for file in files:
        for damage in DAMAGES.values():
            for command in (*READERS, *WRITERS, ("restore", "runs/tried")):
                shutil.rmtree(work / "runs")
                shutil.copytree(tmp_path / "kept", work / "runs")
                damage(folder / file)
                there = {name for name, _ in answers(folder)}
                status, err = _any_status(*command, cwd=work)
                tried += 1
                assert "Traceback" not in err, (file, command, err)
                assert status in (0, 1, 2, 3), (file, command, err)
                left = {name for name, _ in answers(folder)}
                assert left >= there, (file, command, len(there - left), err)
    print(f"{tried} cases: {len(files)} files, {len(DAMAGES)} damages, {len(READERS) + len(WRITERS) + 1} commands")


def _any_status(*arguments: str, cwd: Path) -> tuple[int, str]:
    import contextlib
    import io

    from eagle3_data import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return cli.main([*arguments]), err.getvalue()
