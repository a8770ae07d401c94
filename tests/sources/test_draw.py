"""What looks across rows: accounting, dedupe, seeded samples that grow, caches, and one result on every machine."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_data.errors import DiskFull, SourceError
from eagle3_data.schema import PROMPT_FEATURES, clean_messages, sample_id
from eagle3_data.sources import SOURCES, draw, load_source, sample_rows


def chat(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]}


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), "utf-8")
    return str(path)


def config_of(name: str, path: Path) -> str:
    return path.stem.removeprefix(f"{name}.")


SAMPLES = [(name, config_of(name, path)) for name in SOURCES for path in sample_rows(name)]


@pytest.mark.parametrize("turns", ["first", "prefix", "last"])
@pytest.mark.parametrize(("name", "config"), SAMPLES, ids=lambda value: value)
def test_samples_are_drawn_and_accounted_for(name: str, config: str, turns: str, tmp_path: Path) -> None:
    drawn = draw(name, config, "samples", turns=turns, cache_dir=tmp_path)
    report = drawn.report
    assert report.kept + sum(report.rejected.values()) + report.duplicates == report.read == report.files[0]["rows"]
    assert report.drawn == report.prompts == len(drawn.prompts) == sum(report.licenses.values())
    assert drawn.prompts.features == PROMPT_FEATURES
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    for row in drawn.prompts:
        messages = clean_messages(row["messages"])
        assert messages[-1]["role"] in ("user", "tool") and row["source_turn"] == len(messages) - 1
        assert row["sample_id"] == sample_id(name, messages, row["tools"])
        assert row["source_revision"].startswith("sha256:") and row["source_file"].startswith(name)
        assert not any(value is None for value in row.values())


def test_every_source_ships_rows_for_the_quickstart(tmp_path: Path) -> None:
    for name in ("B1_glaive", "B4_mixturethoughts", "B5_openthoughts", "B8_sweagent"):
        report = draw(name, None, "samples", cache_dir=tmp_path).report
        assert 12 <= report.read <= 20 and report.kept >= 8 and report.duplicates and report.rejected


def test_a_duplicate_is_a_row_whose_prompts_are_all_known(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        [chat("one", "x", "two"), chat("one", "y", "two"), chat("one", "x"), chat("one", "x", "three"), chat("")],
    )
    first = draw("chat", None, path, cache_dir=tmp_path).report
    assert (first.kept, first.duplicates, first.rejected, first.prompts) == (1, 3, {"empty_turn": 1}, 1)
    prefix = draw("chat", None, path, turns="prefix", cache_dir=tmp_path)
    report = prefix.report
    assert (report.kept, report.duplicates, report.prompts) == (3, 1, 4)
    by_id = {row["sample_id"]: row["source_row"] for row in prefix.prompts}
    assert sorted(by_id.values()) == [0, 0, 1, 3], "the first row that holds a prompt is the one that is named"


def test_a_larger_sample_begins_with_the_smaller(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [chat(f"question {i % 3000}") for i in range(4000)])
    small, large, other = (
        load_source("chat", None, path, rows=rows, seed=seed, cache_dir=tmp_path)["sample_id"]
        for rows, seed in ((1000, 0), (2000, 0), (1000, 1))
    )
    assert large[:1000] == small[:] and len(set(large)) == 2000
    assert len(set(small[:]) & set(other[:])) < 500
    everything = draw("chat", None, path, cache_dir=tmp_path)
    assert everything.prompts["sample_id"][:2000] == large[:]
    assert everything.report.prompts == 3000


def test_a_sample_is_uniform_and_not_the_head_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [chat(f"question {i}") for i in range(10_000)])
    rows = load_source("chat", None, path, rows=2000, cache_dir=tmp_path)["source_row"]
    tenths = Counter(row // 1000 for row in rows)
    # 200 each with a standard deviation of 12.6: five of them on either side
    assert all(137 <= tenths[tenth] <= 263 for tenth in range(10)), tenths
    assert rows[:] != sorted(rows)


def test_too_few_rows_are_said(tmp_path: Path) -> None:
    report = draw("chat", None, "samples", rows=99, cache_dir=tmp_path).report
    assert report.short and report.requested == 99 and "fewer than the 99" in report.to_text()


JOB = """
import json, sys
from eagle3_data.sources import draw
drawn = draw("B8_sweagent", "nebius", sys.argv[1] + "/*.jsonl", rows=20, turns="prefix",
             num_proc=int(sys.argv[2]), cache_dir=sys.argv[3])
print(json.dumps([[row for row in drawn.prompts], drawn.report.to_dict()], sort_keys=True))
"""


def test_the_same_draw_on_every_machine(tmp_path: Path) -> None:
    """Other hash seeds, other process counts, another folder: the same rows and the same report."""
    rows = [line for line in sample_rows("B8_sweagent")[0].read_text("utf-8").split("\n") if line]
    jobs = []
    for seed, processes in (("0", 1), ("1", 2), ("77", 3)):
        folder = tmp_path / f"upstream-{seed}"
        folder.mkdir()
        for part in range(5):
            write(folder / f"part-{part}.jsonl", rows[part::5])
        command = [sys.executable, "-c", JOB, str(folder), str(processes), str(tmp_path / f"cache-{seed}")]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        jobs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    results = [job.communicate(timeout=200)[0] for job in jobs]
    assert not any(job.returncode for job in jobs)
    assert results[0] == results[1] == results[2]
    prompts, report = json.loads(results[0])
    assert len(prompts) == 20 and report["files"][0]["path"] == "part-0.jsonl"


def test_dedupe_across_sources(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [chat("one"), chat("two"), chat("three")])
    b = write(tmp_path / "b.jsonl", [chat("two"), chat("four"), chat("four"), chat("three")])
    first = draw("chat", None, a, rows=1, entry="a", cache_dir=tmp_path)
    second = draw("chat", None, b, entry="b", dedupe_against=[first], cache_dir=tmp_path)
    report = second.report
    assert (report.kept, report.duplicates, report.duplicates_elsewhere) == (1, 3, 2)
    grown = draw("chat", None, a, rows=3, entry="a", cache_dir=tmp_path)
    assert draw("chat", None, b, entry="b", dedupe_against=grown, cache_dir=tmp_path).prompts[:] == second.prompts[:]
    by_rows = draw("chat", None, b, entry="b", dedupe_against=grown.prompts, cache_dir=tmp_path)
    by_ids = draw("chat", None, b, entry="b", dedupe_against=list(grown.prompts["sample_id"]), cache_dir=tmp_path)
    assert by_rows.prompts[:] == by_ids.prompts[:] == second.prompts[:]
    assert second.prompts[0]["sample_id"].startswith("b-") and second.prompts[0]["source"] == "b"
    with pytest.raises(SourceError, match="dedupe_against"):
        draw("chat", None, b, dedupe_against=["b-nothex"], cache_dir=tmp_path)


def test_filter_keeps_or_leaves_out_parts(tmp_path: Path) -> None:
    def origins(**filter: Any) -> dict[str, int]:
        drawn = draw("B5_openthoughts", "openthoughts3-1.2m", "samples", filter=filter, cache_dir=tmp_path)
        report = drawn.report
        assert report.kept + report.rejected.get("filter", 0) + report.duplicates == report.read == 13
        return report.origins

    assert set(origins(origin="math")) == {"math:ai2-adapt-dev/openmath-2-math"}
    assert len(origins(origin=["math", "code"])) == 2
    assert len(origins(not_origin="camel-ai/*")) == 3
    assert "science:camel-ai/chemistry" not in origins(not_license=["CC-BY-NC-4.0"])
    assert set(origins(license="CC-BY-NC-4.0", origin="science")) == {"science:camel-ai/chemistry"}


def test_a_draw_is_made_once_and_again_when_its_input_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, [chat("one"), chat("two")])
    first = draw("chat", None, str(path), cache_dir=tmp_path)
    stamp = (first.path / "prompts.arrow").stat().st_mtime_ns
    again = draw("chat", None, str(path), cache_dir=tmp_path, num_proc=2)
    assert again.path == first.path and (again.path / "prompts.arrow").stat().st_mtime_ns == stamp
    assert again.prompts._fingerprint == first.prompts._fingerprint
    assert draw("chat", None, str(path), cache_dir=tmp_path, turns="last").path != first.path
    assert draw("chat", None, str(path), cache_dir=tmp_path, spdx="MIT").path != first.path
    write(path, [chat("one"), chat("two"), chat("three")])
    assert len(draw("chat", None, str(path), cache_dir=tmp_path).prompts) == 3
    assert [p.name for p in first.path.parent.iterdir() if p.name.startswith(".")] == [], "no half-made draw is left"


def test_prompts_lie_on_disk(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    path = write(tmp_path / "a.jsonl", [chat(f"{i} " + "long " * 4000) for i in range(500)])
    prompts = load_source("chat", None, path, cache_dir=tmp_path)
    assert prompts.cache_files and sum(len(row["content"]) for row in prompts[0]["messages"]) > 20_000
    assert pa.total_allocated_bytes() - before < 2_000_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "B1_glave"}, "did you mean 'B1_glaive'"),
        ({"name": "B4_mixturethoughts", "config": "maths"}, "did you mean 'math'"),
        ({"name": "B1_glaive", "tool_in_system": True}, "did you mean 'tools_in_system'"),
        ({"name": "B1_glaive", "tools_in_system": "yes"}, "option tools_in_system must be bool, not 'yes'"),
        ({"name": "B1_glaive", "turns": "all"}, "'all' is not one of first, prefix, last"),
        ({"name": "B1_glaive", "filter": {"orign": "x"}}, "unknown key 'orign'"),
        ({"name": "B1_glaive", "filter": {"origin": 3}}, "origin must be a text or a list of texts"),
        ({"name": "B1_glaive", "filter": ["origin"]}, "filter must map origin, .* to texts"),
        ({"name": "B1_glaive", "seed": "a"}, "seed must be a whole number, not 'a'"),
        ({"name": "B1_glaive", "rows": -1}, "rows must be a number of prompts, not -1"),
        ({"name": "B1_glaive", "rows": "many"}, "rows must be a number of prompts, not 'many'"),
        ({"name": "B4_mixturethoughts", "config": "math"}, "no samples of config math"),
        ({"name": "chat", "data_files": None}, "name a Hub data set with repo:"),
        ({"name": "chat", "data_files": 7}, "data_files must be a path"),
        ({"name": "chat", "data_files": "/nowhere/*.jsonl"}, "/nowhere/\\*.jsonl: no such file"),
        ({"name": "chat", "data_files": {"a": "x", "b": "y"}}, "2 splits; choose one with split:"),
        ({"name": "chat", "data_files": {"a": "x"}, "split": "c"}, "no split 'c'"),
    ],
)
def test_wrong_arguments_are_met_with_one_clear_error(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        draw(**{"data_files": "samples", "cache_dir": tmp_path, **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "config"), SAMPLES, ids=lambda value: value)
def test_parquet_gives_the_same_prompts_as_json(name: str, config: str, tmp_path: Path) -> None:
    path = next(path for path in sample_rows(name) if config_of(name, path) == config)
    rows = []
    for line in [path.read_text("utf-8")] if path.suffix == ".json" else path.read_text("utf-8").split("\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    rows = rows[0] if path.suffix == ".json" else rows
    columns = {key: None for row in rows for key in row}  # Arrow takes the columns from the first row
    pq.write_table(pa.Table.from_pylist([columns | row for row in rows]), tmp_path / "a.parquet", row_group_size=4)
    for turns in ("first", "prefix"):
        arguments: dict[str, Any] = {"turns": turns, "rows": 7, "cache_dir": tmp_path}
        found = draw(name, config, str(tmp_path / "a.parquet"), **arguments).prompts
        assert found["sample_id"][:] == draw(name, config, "samples", **arguments).prompts["sample_id"][:]


def test_nulls_that_arrow_fills_in_do_not_reach_tools_or_arguments(tmp_path: Path) -> None:
    def row(name: str) -> dict[str, Any]:
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": {name: 1}}}
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
        tool = {"name": name, "parameters": {"type": "object", "properties": {name: {"type": "integer"}}}}
        return {"messages": [*turns, {"role": "tool", "content": "1"}], "tools": [tool]}

    pq.write_table(pa.Table.from_pylist([row("a"), row("b")]), tmp_path / "a.parquet")
    for prompt in draw("chat", None, str(tmp_path / "a.parquet"), turns="last", cache_dir=tmp_path).prompts:
        (tool,) = json.loads(prompt["tools"])
        name = tool["function"]["name"]
        assert list(tool["function"]["parameters"]["properties"]) == [name]
        assert json.loads(prompt["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {name: 1}
        assert prompt["messages"][2]["tool_call_id"] == f"functions.{name}:0"


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pa.OSFile
    monkeypatch.setattr("eagle3_data.sources.passes.pa.OSFile", lambda *_: real("/dev/full", "wb"))
    with pytest.raises(DiskFull, match="no space left on this disk"):
        draw("chat", None, "samples", cache_dir=tmp_path)
    assert list((tmp_path / "eagle3_data" / "chat").iterdir()) == []
    monkeypatch.undo()
    assert draw("chat", None, "samples", cache_dir=tmp_path).report.drawn == 3


def test_a_file_that_changes_between_the_passes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, [chat("one"), chat("two")])

    def swap(stage: str, rows: int) -> None:
        if stage == "read":
            write(path, [chat("one"), chat("2")])

    with pytest.raises(SourceError, match=r"a\.jsonl: changed while it was read"):
        draw("chat", None, str(path), cache_dir=tmp_path, progress=swap)


def test_progress_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [chat(f"question {i}") for i in range(2500)])
    seen: list[tuple[str, int]] = []
    draw("chat", None, path, rows=1500, cache_dir=tmp_path, progress=lambda *step: seen.append(step))
    assert seen == [("read", 1000), ("read", 2000), ("read", 2500), ("write", 1024), ("write", 1500)]
