"""Files of a run folder are written without following links, under names that nobody can guess."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.errors import MachineError
from eagle3_data.run_folder import RunFolder, atomic_file, open_new, write_json

LOCKS: dict[str, Callable[[Path], Any]] = {
    ".run.lock": lambda folder: RunFolder(folder).lock().__enter__(),
    ".records.lock": lambda folder: RunFolder(folder).lock("records").__enter__(),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_is_a_link_is_refused_and_its_aim_is_left_alone(name: str, tmp_path: Path) -> None:
    aim, folder = tmp_path / "aim", tmp_path / "run"
    folder.mkdir()
    aim.write_text("kept")
    (folder / name).symlink_to(aim)
    with pytest.raises(MachineError, match=r"a symbolic link, which is not followed; remove it"):
        LOCKS[name](folder)
    assert aim.read_text() == "kept"


def test_a_lock_whose_link_leads_nowhere_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / ".run.lock").symlink_to(tmp_path / "made-by-link")
    with pytest.raises(MachineError, match="symbolic link"):
        RunFolder(tmp_path).lock().__enter__()
    assert not (tmp_path / "made-by-link").exists()


def test_temporary_names_are_new_each_time_and_long_ones_fit(tmp_path: Path) -> None:
    names = set()
    for name in ("a.json", "ü" * 120 + ".json", "x" * 250):
        for _ in range(20):
            path, file = open_new(tmp_path / name)
            file.close()
            names.add(path.name)
    assert len(names) == 60
    assert max(len(name.encode()) for name in names) < 255


def test_a_name_that_is_taken_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the random name guessed, a link or a file there would still not be opened."""
    monkeypatch.setattr("eagle3_data.run_folder.secrets.token_hex", lambda size: "guessed")
    aim = tmp_path / "aim"
    aim.write_text("kept")
    (tmp_path / ".a.json.guessed.tmp").symlink_to(aim)
    with pytest.raises(FileExistsError):
        write_json(tmp_path / "a.json", {})
    assert aim.read_text() == "kept"
    assert (tmp_path / ".a.json.guessed.tmp").is_symlink()  # what is not ours is not removed either


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.write_text("kept")
    (tmp_path / "a.json").symlink_to(aim)
    write_json(tmp_path / "a.json", {"b": 1})
    assert aim.read_text() == "kept"
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": 1}
    assert not (tmp_path / "a.json").is_symlink()


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="half"), atomic_file(tmp_path / "a"):
        raise ValueError("half")
    assert not list(tmp_path.iterdir())
