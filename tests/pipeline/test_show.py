"""`show`: the records asked for, decoded, with nothing in them that a terminal would obey."""

from pathlib import Path

import pytest
from support.run_folders import make_run
from support.shared import SHARED

from eagle3_data import cli
from eagle3_data.errors import DataError, UsageError
from eagle3_data.foreign_text import visible
from eagle3_data.pipeline.show import Wanted, show
from eagle3_data.run_folder import RunFolder

TOKENIZER = SHARED / "tokenizers" / "smollm2"

pytestmark = pytest.mark.skipif(not TOKENIZER.is_dir(), reason=f"no tokenizer at {TOKENIZER}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("shown") / "run", {"B1_glaive": 40, "B8_sweagent": 30}, holdout=5)


def shown(run: RunFolder, **wanted: object) -> list[str]:
    return list(show(str(run.path), Wanted(**wanted), tokenizer=str(TOKENIZER)))  # type: ignore[arg-type]


def test_three_records_with_prompt_output_and_facts(run: RunFolder) -> None:
    texts = shown(run)
    assert len(texts) == 3
    for text in texts:
        assert text.startswith("B1_glaive-") and "--- prompt (" in text and "--- output (" in text
        assert "finish_reason=" in text and "max_new_tokens=" in text


@pytest.mark.parametrize("finish", ["stop", "length_cap"])
def test_by_source_and_finish_reason(run: RunFolder, finish: str) -> None:
    texts = shown(run, source="B8_sweagent", finish=finish, count=2)
    assert texts and all(text.startswith("B8_sweagent-") and f"finish_reason={finish}" in text for text in texts)


def test_by_sample_id(run: RunFolder) -> None:
    name = shown(run, count=20)[-1].split()[0]
    assert [text.split()[0] for text in shown(run, sample_id=name)] == [name]
    assert len(shown(run, count=1000)) == 70, "both splits of both sources"


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({"source": "B2"}, UsageError, "no source 'B2'"),
        ({"finish": "cut"}, UsageError, "the reasons are stop, length_cap"),
        ({"sample_id": "B9-"}, DataError, "no record matches --id B9-"),
    ],
)
def test_what_is_not_there(run: RunFolder, wanted: dict[str, str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        shown(run, **wanted)


def test_a_tokenizer_that_is_not_at_hand(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match="--tokenizer"):
        list(show(str(run.path), Wanted()))


def test_a_terminal_finds_nothing_to_obey() -> None:
    assert visible("a\x1b[2Jb\r\x07\u202e\n\tüç") == "a\\x1b[2Jb\\r\\x07\\u202e\n\tüç"


def test_the_command(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["show", str(run.path), "--n", "1", "--source", "B8_sweagent", "--tokenizer", str(TOKENIZER)]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.count("--- output (") == 1
    before = {path: path.stat().st_mtime_ns for path in Path(run.path).rglob("*")}
    assert cli.main([*arguments, "--finish", "length_cap"]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path(run.path).rglob("*")} == before, "a reading command writes"
