"""The ten lines at the end of a run: what was made, what is wrong, and commands that do what the lengths advise."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from eagle3_data import arguments
from eagle3_data.check.report import CheckReport, Example
from eagle3_data.generation.records.writer import SourceCounts
from eagle3_data.pipeline.ending import ending
from eagle3_data.pipeline.generated import Generated
from eagle3_data.pipeline.prepare import Prepared

NAMES = ("B1_glaive", "B4_mixturethoughts", "B5_openthoughts", "B8_sweagent")


def section(verdict: str = "enough", action: str = "keep", aim: int | None = None) -> dict[str, Any]:
    return {
        "advice": {
            "verdict": verdict,
            "action": action,
            "aim": aim,
            "cap": 128,
            "above_cap": {"value": 0.25, "low": 0.1, "high": 0.4},
            "command": "eagle3-data pilot mine.yaml --rows 474" if action == "more_rows" else "",
        }
    }


def last_words(
    tmp_path: Path,
    counts: dict[str, SourceCounts],
    sections: dict[str, Any] | None = None,
    checked: CheckReport | None = None,
    **generated: Any,
) -> list[str]:
    folder = Path("runs/mine")
    text = ending(
        Prepared(folder, {}),
        Generated(folder, counts, **generated),
        checked or CheckReport(str(folder)),
        sections or {name: section() for name in counts},
        folder / "README.md",
        None,
        "mine.yaml",
    )
    return text.splitlines()


def test_nothing_wrong(tmp_path: Path) -> None:
    assert last_words(tmp_path, {"B1_glaive": SourceCounts(records=20)}, tokens=4_000, seconds=80.0) == [
        "made   20 records in runs/mine/records: B1_glaive 20; 4,000 new tokens in 80 s (50 tokens/s)",
        "       the data set card runs/mine/README.md, the lengths runs/mine/lengths.html",
        "wrong  nothing found",
        "next   eagle3-data lengths runs/mine   # lengths, what the caps cut, every advice",
    ]


def test_cut_rows_of_several_sources_are_one_command(tmp_path: Path) -> None:
    sections = {
        "B1_glaive": section("too_small", "extend", 256),
        "B5_openthoughts": section("too_small", "extend", 8192),
        "B8_sweagent": section("cannot_tell", "more_rows"),
    }
    counts = {name: SourceCounts(records=9) for name in sections}
    counts["B5_openthoughts"] = SourceCounts(records=9, looping=3, looping_tokens=384, completion_tokens=1000)
    lines = last_words(tmp_path, counts, sections)
    assert lines[2:] == [
        "wrong  cut by the cap, more than the target allows: B1_glaive 25.0 % at 128, B5_openthoughts 25.0 % at 128",
        "       answers that repeat themselves until they are cut: B5_openthoughts 3 with 384 of its 1,000 output "
        "tokens (38.4 %); --drop loop leaves them out",
        "next   eagle3-data extend mine.yaml --max-new-tokens B1_glaive=256 --max-new-tokens B5_openthoughts=8192",
        "       eagle3-data pilot mine.yaml --rows 474",
        "       eagle3-data lengths runs/mine   # lengths, what the caps cut, every advice",
    ]


@pytest.mark.parametrize(
    ("counts", "generated", "said", "command"),
    [
        (SourceCounts(records=8, failed=2), {}, "rows without an answer: B1_glaive 2; why: runs/mine/failures", "run"),
        (SourceCounts(records=8, missing=2), {"interrupted": True}, "interrupted: run the same command", "run"),
        (SourceCounts(records=8, missing=2), {}, "prompts not asked yet: B1_glaive 2", "lengths"),
        (SourceCounts(records=8, skipped=2), {}, "prompts that do not fit the context: B1_glaive 2", "lengths"),
        (
            SourceCounts(records=8, looping=2, looping_tokens=256, completion_tokens=1024),
            {},
            "until they are cut: B1_glaive 2 with 256 of its 1,024 output tokens (25.0 %)",
            "lengths",
        ),
        (SourceCounts(records=8, forged=1), {}, "spells a control token of the target", "lengths"),
        (
            SourceCounts(records=8, dialogues=5, complete=3),
            {},
            "dialogues that ended early: B1_glaive 2 of 5",
            "lengths",
        ),
        (SourceCounts(records=8), {"warnings": ("two versions",)}, "two versions", "lengths"),
        (
            SourceCounts(records=8),
            {"below_cap": {"B1_glaive": 4}, "go_on": "eagle3-data extend mine.yaml --max-new-tokens 99"},
            "rows that an earlier, lower cap cut: B1_glaive 4",
            "extend",
        ),
    ],
)
def test_each_kind_of_trouble(
    counts: SourceCounts, generated: dict[str, Any], said: str, command: str, tmp_path: Path
) -> None:
    lines = last_words(tmp_path, {"B1_glaive": counts}, **generated)
    wrong = next(line for line in lines if line.startswith("wrong"))
    assert said in wrong
    following = next(line for line in lines if line.startswith("next"))[7:].partition("   #")[0]
    assert arguments.parser().parse_args(shlex.split(following)[1:]).command == command


def test_everything_wrong_is_ten_lines(tmp_path: Path) -> None:
    checked = CheckReport("runs/mine")
    checked.add("prompt_tokens", 2, [Example("a", 1, "x", "3 is not 4")])
    counts = {
        name: SourceCounts(records=8, failed=2, skipped=1, missing=2, forged=1, dialogues=3, complete=1)
        for name in NAMES
    }
    sections = {name: section("too_small", "extend", 256) for name in NAMES}
    lines = last_words(tmp_path, counts, sections, checked, warnings=("one", "two"))
    assert len(lines) <= 10
    assert lines[2].startswith("wrong  records break the rules of `check`")
    assert "more kinds" in lines[5]
    assert [shlex.split(line[7:])[1] for line in lines[6:]] == ["run", "check", "extend", "lengths"]
