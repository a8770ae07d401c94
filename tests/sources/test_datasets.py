"""Each source is a `datasets` builder: registered by name in 5.x, a loading script in 3.6, with the same rows."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from support.shared import SUPPORT

import eagle3_data
from eagle3_data.errors import SourceError
from eagle3_data.pipeline.sources import describe_sources, sources_text
from eagle3_data.sources import SOURCES, SourceInfo, draw, register, register_installed, sample_rows
from eagle3_data.sources.description import ConfigInfo

PACKAGE = Path(eagle3_data.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_jobs(sys.executable, tmp_path_factory.mktemp("newest"))


def run_jobs(python: str, folder: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    command = [python, str(SUPPORT / "datasets_jobs.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().split("\n")[-1])


def test_load_dataset_knows_the_sources_by_name(newest: Any) -> None:
    """Streaming and num_proc give the same rows (asserted in the job), and keep_rejects shows the others."""
    assert newest["version"] == datasets.__version__
    assert len(newest["rows"]) == 3 * sum(len(sample_rows(name)) for name in SOURCES)
    assert newest["rows"]["B1_glaive/default/rejects"] == "5"
    assert newest["rows"]["B8_sweagent/nebius/rejects"] == "3"


@pytest.fixture(scope="session")
def old_python() -> str:
    """A Python with datasets 3.6.0: EAGLE3_DATA_DATASETS36, else a virtual environment made once for these tests."""
    given = os.environ.get("EAGLE3_DATA_DATASETS36")
    if given:
        return given
    folder = PACKAGE / ".pytest_cache" / "datasets36"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = ["datasets==3.6.0", "huggingface-hub>=1.31,<3", "orjson", "aiohttp", "pydantic>=2.10,<3"]
        pip = subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True)
        if pip.returncode:
            pytest.skip(f"datasets 3.6.0 cannot be installed here: {pip.stderr.strip()[-300:]}")
        (folder / "done").touch()
    return str(python)


@pytest.mark.slow
def test_the_same_files_are_loading_scripts_for_datasets_3_6(newest: Any, old_python: str, tmp_path: Path) -> None:
    oldest = run_jobs(old_python, tmp_path)
    assert oldest["version"] == "3.6.0"
    assert oldest["rows"] == newest["rows"]


def test_a_bare_load_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(sample_rows("B1_glaive")[0], tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r'type load_dataset\("B1_glaive", data_files=…\)'):
        datasets.load_dataset("B1_glaive", cache_dir=str(tmp_path / "cache"))


def load(path: Path | str, cache: Path, **options: Any) -> datasets.Dataset:
    return datasets.load_dataset("chat", data_files=str(path), split="train", cache_dir=str(cache), **options)


def test_the_cache_changes_with_code_files_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "one"}]}\n')
    first = load(path, tmp_path)
    assert load(path, tmp_path).cache_files == first.cache_files
    assert load(path, tmp_path)._fingerprint == first._fingerprint
    assert load(path, tmp_path, turns="last").cache_files != first.cache_files
    monkeypatch.setattr("eagle3_data.sources.base.code_hash", lambda: "other code")
    assert load(path, tmp_path).cache_files != first.cache_files
    monkeypatch.undo()
    path.write_text('{"messages": [{"role": "user", "content": "two"}]}\n')
    assert load(path, tmp_path)[0]["messages"][0]["content"] == "two"


def test_wrong_options_and_files_are_refused_by_load_dataset_too(tmp_path: Path) -> None:
    good = sample_rows("chat")[0]
    with pytest.raises(SourceError, match="chat: turns: 'all' is not one of"):
        load(good, tmp_path, turns="all")
    with pytest.raises(SourceError, match=r"B1_glaive: .*column 'system' is missing"):
        datasets.load_dataset("B1_glaive", data_files=str(good), cache_dir=str(tmp_path))


FIFTH = '''
"""A source of one's own: questions in a column `ask`."""

from eagle3_data.sources import Column, ConfigInfo, Dialogue, SourceBuilder, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import message

INFO = SourceInfo(
    "asked",
    "questions",
    "MIT",
    {"default": ConfigInfo("")},
    "default",
    homepage="https://example.org/asked",
    notes=("Asked by nobody.",),
    contamination="riddles",
)


class Asked(SourceBuilder):
    INFO = INFO
    BUILDER_CONFIGS = [SourceConfig(name="default")]

    @classmethod
    def columns(cls, config):
        return [Column("ask")]

    @classmethod
    def read(cls, row, config):
        return Dialogue(iter([message("user", row["ask"])]), license="MIT")
'''


def forget(name: str) -> None:
    from datasets import packaged_modules

    from eagle3_data.sources import registry

    for table in (SOURCES, registry._MODULES, packaged_modules._PACKAGED_DATASETS_MODULES):
        table.pop(name, None)
    sys.modules.pop(name, None)


def test_a_fifth_source_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked.py").write_text(FIFTH)
    monkeypatch.syspath_prepend(str(tmp_path))
    info = register("asked")
    try:
        assert isinstance(info, SourceInfo) and isinstance(info.configs["default"], ConfigInfo)
        data = tmp_path / "a.jsonl"
        data.write_text('{"ask": "why?"}\n{"ask": ""}\n{"ask": "why?"}\n')
        report = draw("asked", None, str(data), cache_dir=tmp_path).report
        assert (report.kept, report.duplicates, report.rejected) == (1, 1, {"empty_turn": 1})
        assert report.attribution == info.attribution() and report.attribution["notes"] == ["Asked by nobody."]
        loaded = datasets.load_dataset("asked", data_files=str(data), split="train", cache_dir=str(tmp_path))
        assert loaded["license"][:] == ["MIT", "MIT"]
        with pytest.raises(SourceError, match="this name belongs to"):
            spec = importlib.util.spec_from_file_location("asked_again", tmp_path / "asked.py")
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["asked_again"] = module
            spec.loader.exec_module(module)
            register(module)
    finally:
        forget("asked")


def test_a_source_of_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked.py").write_text(FIFTH)
    installed = tmp_path / "asked-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: asked\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[eagle3_data.sources]\nasked = asked\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        listed = describe_sources()  # what `eagle3-data sources` prints
        assert listed["asked"]["notes"] == ["Asked by nobody."] and "questions" in sources_text()
        assert [info.name for info in register_installed()] == ["asked"] and "asked" in SOURCES
        (installed / "entry_points.txt").write_text("[eagle3_data.sources]\nasked = absent\n")
        with pytest.raises(SourceError, match="asked: its source absent cannot be used"):
            register_installed()
    finally:
        forget("asked")
