"""A run folder that is not there is called that, with those that are, before the Hub is asked anything."""

from pathlib import Path

import pytest

from eagle3_data.cli import main
from eagle3_data.errors import UsageError
from eagle3_data.run_names import no_run_folder, refuse_missing

READERS = (
    ["check"],
    ["show"],
    ["lengths"],
    ["export", "--to", "specforge", "-o", "rows.jsonl"],
    ["vocab", "--size", "100", "-o", "draft"],
    ["diff", "org/name"],
    ["status"],
    ["card"],
    ["publish", "--repo", "org/name", "--version", "1.0.0"],
    ["restore"],
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # nothing listens there: whatever asks the Hub fails with other words
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("q1", "q2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_a_reader_names_the_run_folders_that_are_there(
    command: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], "runs/q3", *command[1:]]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("eagle3-data: runs/q3: there is no such folder here; run folders in runs: q")
    assert "q1" in said and "q2" in said and "\n" not in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("q1", "there is no such folder here; did you mean runs/q1?"),
        ("runs", "not a run folder (no manifest.json), nor any run folder"),
        ("other/q1", "there is no such folder here, nor any run folder"),
    ],
)
def test_the_error_leads_to_a_run_folder(name: str, words: str, here: Path) -> None:
    assert words in str(no_run_folder(name))


@pytest.mark.parametrize("name", ["org/name", "org/name@v1.0.0", "hf://datasets/runs/q3", "runs/q1", "runs"])
def test_names_of_the_hub_and_folders_that_are_there_pass(name: str, here: Path) -> None:
    refuse_missing(name)


def test_a_folder_with_many_runs_names_some(here: Path) -> None:
    for number in range(30):
        (here / "runs" / f"r{number}").mkdir()
        (here / "runs" / f"r{number}" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError) as error:
        refuse_missing("runs/absent")
    assert str(error.value).count(", ") == 8 and str(error.value).endswith("…")


def test_without_runs_the_user_is_sent_to_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="nor any run folder; change to the folder in which the run was started"):
        refuse_missing("runs/q3")
