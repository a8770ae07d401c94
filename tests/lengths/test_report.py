"""The length report: what is read, judged and written, in all its forms."""

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_data import schema
from eagle3_data.errors import DataError, UsageError
from eagle3_data.lengths import compare_lengths, measure_lengths
from eagle3_data.lengths.views import wording
from eagle3_data.lengths.views.advice import advice_line, advice_sentences
from eagle3_data.lengths.views.markdown import to_markdown
from eagle3_data.lengths.views.page import render_page, write_page
from eagle3_data.lengths.views.tables import report_tables
from eagle3_data.lengths.views.text import to_text
from eagle3_data.run_folder import RunFolder, write_parquet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def columns(source: str, rows: int, median: float, cap: int, *, sigma: float = 0.9, seed: int = 0) -> dict[str, list]:
    random = np.random.default_rng(seed)
    lengths = np.ceil(random.lognormal(np.log(median), sigma, rows)).astype(int)
    completion = np.minimum(lengths, cap)
    unfinished = (lengths > cap) & (random.random(rows) < 0.5)
    return {
        "source": [source] * rows,
        "finish_reason": np.where(lengths > cap, "length_cap", "stop").tolist(),
        "prompt_tokens": random.integers(20, 400, rows).tolist(),
        "completion_tokens": completion.tolist(),
        "reasoning_tokens": np.where(unfinished, completion, completion // 3).tolist(),
        "tool_calls": (random.random(rows) < 0.1).astype(int).tolist(),
        "max_new_tokens": [cap] * rows,
    }


def dataset(*parts: dict[str, list]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({name: [value for part in parts for value in part[name]] for name in parts[0]})


@pytest.fixture(scope="module")
def report():
    return measure_lengths(
        dataset(
            columns("B1_glaive", 1500, 471, 10_240),
            columns("B4_mixturethoughts", 1400, 3000, 4096, seed=1),
            columns("B8_sweagent", 60, 900, 16_384, seed=2),
        ),
        manifest={
            "engine": {"context_length": 32_768},
            "throughput": {"seconds": 3600, "completion_tokens": 3_600_000},
            "extent": {"sources": {"B1_glaive": {"max_new_tokens": 10_240, "truncation_target": 0.02}}},
        },
    )


def test_statistics_are_those_of_the_columns(report):
    part = columns("B4_mixturethoughts", 1400, 3000, 4096, seed=1)
    found = report.to_dict()["sources"]["B4_mixturethoughts"]
    completion, cut = np.array(part["completion_tokens"]), np.array(part["finish_reason"]) != "stop"
    lengths = found["lengths"]["completion"]
    assert lengths["count"] == 1400 and lengths["total_tokens"] == completion.sum()
    assert lengths["mean"]["value"] == pytest.approx(completion.mean()) and lengths["mean"]["high"] is None
    assert lengths["sd"] == pytest.approx(completion.std(ddof=1))
    assert (lengths["min"], lengths["max"]) == (completion.min(), completion.max())
    assert lengths["under"]["2000"]["value"] == pytest.approx((completion < 2000).mean())
    assert lengths["at_or_over"]["2000"]["value"] == pytest.approx((completion >= 2000).mean())
    assert lengths["quantiles"]["p25"]["value"] == np.quantile(completion, 0.25, method="inverted_cdf")
    assert found["truncated"] == {"rows": cut.sum(), "share": found["finish_reasons"]["length_cap"]["share"]}
    reasoning = found["lengths"]["reasoning"]
    assert reasoning["cut"] == (cut & (np.array(part["reasoning_tokens"]) == completion)).sum() > 0
    assert found["lengths"]["answer"]["lower_bounds_only"] == cut.sum()
    total = np.array(part["prompt_tokens"]) + completion
    assert found["cutoffs"]["2048"]["rows_whole"]["rows"] == (total <= 2048).sum()
    kept = found["cutoffs"]["2048"]["tokens_kept"]
    assert kept["value"] == pytest.approx(np.minimum(total, 2048).sum() / total.sum()) and kept["low"] < kept["value"]
    assert found["tool_calls"]["rows"] == sum(part["tool_calls"])


def test_whole_is_a_mixture_by_rows_and_says_what_it_is_by_tokens(report):
    values = report.to_dict()
    assert values["whole"]["rows"] == 2960 == sum(part["rows"] for part in values["sources"].values())
    glaive = values["sources"]["B1_glaive"]
    assert glaive["row_share"] == pytest.approx(1500 / 2960) and glaive["token_share"] < glaive["row_share"] / 2
    assert any("B1_glaive is 50.7 % of the rows" in remark for remark in values["remarks"])
    assert values["whole"]["lengths"]["completion"]["known_until"] == 4096
    weighted = measure_lengths(
        dataset(columns("a", 300, 100, 999), columns("b", 100, 300, 999)), weights={"a": 1, "b": 1}
    )
    both = weighted.to_dict()
    means = [both["sources"][name]["lengths"]["completion"]["mean"]["value"] for name in "ab"]
    assert both["whole"]["lengths"]["completion"]["mean"]["value"] == pytest.approx(np.mean(means))
    with pytest.raises(UsageError, match="'c' is no source of these records"):
        measure_lengths(dataset(columns("a", 3, 100, 999)), weights={"c": 1})


def test_rows_of_one_dialogue_and_sources_without_answers_are_remarked(tmp_path):
    part = columns("B8_sweagent", 300, 900, 10**6)
    part["completion_tokens"] = [part["completion_tokens"][row // 10 * 10] + row % 10 for row in range(300)]
    part["reasoning_tokens"] = [0] * 300
    alike = measure_lengths(dataset({**part, "dialogue": [f"d{row // 10}" for row in range(300)]})).to_dict()
    alone = measure_lengths(dataset({**part, "dialogue": [f"d{row}" for row in range(300)]})).to_dict()
    found = alike["sources"]["B8_sweagent"]["dependence"]
    assert found["dialogues"] == 30 and found["icc_log_length"] > 0.9 and 25 < found["effective_rows"] < 45
    assert "300 rows of 30 dialogues are worth" in alike["remarks"][0] and not alone["remarks"]
    limits = [both["whole"]["lengths"]["completion"]["quantiles"]["p50"] for both in (alike, alone)]
    assert limits[0]["high"] - limits[0]["low"] > 2 * (limits[1]["high"] - limits[1]["low"])
    run = make_run(tmp_path / "run", 40, 40)
    prompt = pa.table({"sample_id": ["x"] * 60})
    write_parquet(run.prompts_path("B5_openthoughts"), [prompt], prompt.schema)
    half = measure_lengths(run).to_dict()
    median = half["whole"]["lengths"]["completion"]["quantiles"]["p50"]
    assert median["value"] is None and median["high"] is None, "60 of 100 rows may be of any length"
    assert half["weights"] == {"B1_glaive": 0.4, "B5_openthoughts": 0.6}


def test_short_because_the_task_is_short():
    found = measure_lengths(dataset(columns("B1_glaive", 3000, 471, 10_240)))
    advice = found.to_dict()["sources"]["B1_glaive"]["advice"]
    assert (advice["verdict"], advice["typical"], advice["action"]) == ("enough", "task", "keep")
    assert advice["words"][0].startswith("B1_glaive: typical length set by the task: half of the answers end within")
    assert advice["advised"]["cap"] < 10_240 and advice["tail"] is None and advice["cost"]["extend"] is None
    few = measure_lengths(dataset(columns("B1_glaive", 20, 471, 10_240))).to_dict()["sources"]["B1_glaive"]["advice"]
    assert few["verdict"] == "cannot_tell" and few["advised"] | {"smallest": 0} == {
        "cap": None,
        "smallest": 0,
        "rows_needed": 299,
        "reason": "too_few_rows",
    }
    assert any("can prove a share of 13.9 % at best; 1 % takes 299 rows" in sentence for sentence in few["words"])


def test_thirty_five_per_cent_cut_is_not_reported_as_none():
    """speculators #835: 200 answers, 35 % of them ended by the cap of 2,048, and a count of 0."""
    part = columns("ultrachat", 200, 1000, 2048)
    order = np.argsort(part["completion_tokens"])
    for index in order[:130]:
        part["finish_reason"][index] = "stop"
        part["completion_tokens"][index] = min(part["completion_tokens"][index], 2047)
    for index in order[130:]:
        part["finish_reason"][index], part["completion_tokens"][index] = "length_cap", 2048
    part["reasoning_tokens"] = [0] * 200
    found = measure_lengths(dataset(part)).to_dict()["sources"]["ultrachat"]
    share = found["truncated"]["share"]
    assert found["truncated"]["rows"] == 70 and share["value"] == 0.35
    assert (share["low"], share["high"]) == pytest.approx((0.2872, 0.4184), abs=5e-4)
    advice = found["advice"]
    assert (advice["verdict"], advice["typical"], advice["advised"]["cap"]) == ("too_small", "task", None)
    extend = advice["cost"]["extend"]
    assert advice["next_try"] == 4096 and extend["rows"] == 70
    assert extend["at_most"] and extend["completion_tokens"] == 70 * 2048, "no tail model fits, so all may go on"
    assert found["lengths"]["completion"]["quantiles"]["p99"]["value"] is None
    assert "35.0 % (28.7–41.8 %) are longer than the cap of 2,048, target 1 %: missed" in advice["words"][1]
    assert advice["command"] == "eagle3-data extend RECIPE --max-new-tokens 4096"


def test_costs_in_tokens_and_hours_and_the_context(report):
    advice = report.to_dict()["sources"]["B4_mixturethoughts"]["advice"]
    part = columns("B4_mixturethoughts", 1400, 3000, 4096, seed=1)
    present, extend = advice["cost"]["present"], advice["cost"]["extend"]
    assert present["completion_tokens"] == sum(part["completion_tokens"])
    assert present["hours"] == pytest.approx(present["completion_tokens"] / 3_600_000, rel=1e-5)
    cut = part["finish_reason"].count("length_cap")
    assert extend["rows"] == cut and extend["completion_tokens_at_most"] == cut * (extend["cap"] - 4096)
    assert 0 < extend["completion_tokens"] < extend["completion_tokens_at_most"]
    assert advice["context"]["largest_cap_for_all_prompts"] == 32_768 - 2 - max(part["prompt_tokens"])
    truth = columns("B4_mixturethoughts", 1400, 3000, extend["cap"], seed=1)
    further = sum(truth["completion_tokens"]) - sum(part["completion_tokens"])
    assert extend["completion_tokens"] == pytest.approx(further, rel=0.2), (
        "the forecast is near what extend would cost"
    )


def test_a_full_context_is_no_reason_for_a_higher_cap():
    part = columns("long", 800, 3000, 4096)
    found = measure_lengths(dataset(part), manifest={"engine": {"context_length": 4400}})
    advice = found.to_dict()["sources"]["long"]["advice"]
    assert advice["next_try"] is None
    assert any("serve the target with a longer context" in sentence for sentence in advice["words"])


def make_run(
    path: Path, records: int, prompts: int, *, timeouts: int = 0, failed: int = 0, skipped: int = 0
) -> RunFolder:
    run = RunFolder(path)
    part = columns("B1_glaive", records, 400, 10_240)
    features = {name: part.get(name) for name in schema.RECORD_FEATURES}
    ids = {"input_ids": part["prompt_tokens"], "output_ids": part["completion_tokens"]}
    table = {
        name: values
        if values is not None
        else [[1] * n for n in ids[name]]
        if name in ids
        else [0 if "int" in str(schema.RECORD_FEATURES[name].dtype) else ""] * records
        for name, values in features.items()
    }
    arrow = schema.arrow_schema(schema.RECORD_FEATURES)
    split = records - 5
    whole = pa.table(table, schema=arrow)
    write_parquet(run.records_path("B1_glaive") / "train-00000-of-00001.parquet", [whole.slice(0, split)], arrow)
    write_parquet(run.records_path("B1_glaive") / "validation-00000-of-00001.parquet", [whole.slice(split)], arrow)
    prompt = pa.table({"sample_id": [str(n) for n in range(prompts)]})
    write_parquet(run.prompts_path("B1_glaive"), [prompt], prompt.schema)
    reasons = ["timeout"] * timeouts + ["http_400"] * failed
    for place, features, rows in (
        (run.failures_path, schema.FAILURE_FEATURES, reasons),
        (run.skipped_path, schema.SKIPPED_FEATURES, ["context"] * skipped),
    ):
        arrow = schema.arrow_schema(features)
        filled = {
            name: rows if name == "reason" else ["B1_glaive"] * len(rows) if name == "source" else [None] * len(rows)
            for name in arrow.names
        }
        write_parquet(place, [pa.table(filled, schema=arrow)], arrow)
    run.write_manifest(
        {"extent": {"sources": {"B1_glaive": {"max_new_tokens": 10_240}}}, "engine": {"context_length": 32_768}}
    )
    return run


def test_unanswered_rows_of_a_run_count_as_censored(tmp_path):
    run = make_run(tmp_path / "run", 500, 600, timeouts=7, failed=3, skipped=10)
    found = measure_lengths(run).to_dict()
    source = found["sources"]["B1_glaive"]
    assert source["rows"] == 500, "both splits are read"
    assert source["unfinished"] == {
        "waiting": 80,
        "timed_out": 7,
        "failed": 3,
        "skipped": 10,
        "expected_known": False,
    }
    assert not found["complete"] and "biased short" in found["remarks"][0]
    assert source["lengths"]["completion"]["waiting"] == 90, "skipped rows are not waited for"
    finished = measure_lengths(make_run(tmp_path / "done", 500, 500)).to_dict()
    alone = finished["sources"]["B1_glaive"]["lengths"]["completion"]
    assert finished["complete"] and not finished["remarks"]
    for name in ("p50", "p75"):
        waited, sure = source["lengths"]["completion"]["quantiles"][name], alone["quantiles"][name]
        assert waited["value"] == sure["value"] and waited["low"] <= sure["low"] and sure["high"] < waited["high"]
    assert (
        source["advice"]["verdict"] != "enough" and finished["sources"]["B1_glaive"]["advice"]["verdict"] == "enough"
    )
    assert measure_lengths(tmp_path / "run").to_dict() == found, "a run folder may be given as a path"
    files = measure_lengths(tmp_path / "run" / "records").to_dict()
    assert files["sources"]["B1_glaive"]["lengths"]["completion"]["waiting"] == 0


def test_data_sets_files_and_indices_mappings_are_read_alike(tmp_path):
    data = dataset(columns("a", 200, 300, 10**6), columns("b", 100, 500, 10**6, seed=3))
    expected = measure_lengths(data).to_dict()
    data.to_parquet(tmp_path / "x.parquet")
    assert measure_lengths(tmp_path / "x.parquet").to_dict() == expected
    assert measure_lengths(data.shuffle(seed=1)).to_dict()["whole"] == expected["whole"]
    halves = datasets.DatasetDict({"train": data.select(range(250)), "validation": data.select(range(250, 300))})
    assert measure_lengths(halves).to_dict() == expected
    assert measure_lengths(data.select(range(200))).sources == ["a"]


def test_lengths_come_from_offsets_where_the_columns_are_missing():
    part = columns("a", 50, 30, 90)
    ids = {
        "input_ids": [[1] * n for n in part["prompt_tokens"]],
        "output_ids": [[2] * n for n in part["completion_tokens"]],
    }
    data = dataset(part)
    bare = datasets.Dataset.from_dict({**ids, "finish_reason": part["finish_reason"], "source": part["source"]})
    for measure in ("prompt", "completion"):
        counted = measure_lengths(bare).to_dict()["whole"]["lengths"][measure]
        assert counted == measure_lengths(data).to_dict()["whole"]["lengths"][measure]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"error": ["", "http 500"]}, "1 of 2 rows carry an error"),
        ({"finish_reason": ["stop", "abort"]}, "'abort' is none of stop"),
        ({"reasoning_tokens": [9, 1]}, "more reasoning_tokens than completion_tokens"),
        ({"completion_tokens": [5, None]}, "completion_tokens holds nulls"),
        ({"completion_tokens": [5, -1]}, "completion_tokens: a length of -1"),
        ({"finish_reason": None}, "no column finish_reason"),
    ],
)
def test_what_is_no_record_is_refused(change, message):
    good = {name: values[:2] for name, values in columns("a", 2, 5, 8).items()}
    wrong = {name: values for name, values in {**good, **change}.items() if values is not None}
    with pytest.raises(DataError, match=message):
        measure_lengths(datasets.Dataset.from_dict(wrong))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no such thing", "neither a path that exists nor a Hub data set"),
        (Path("/nowhere"), "no such file"),
        (5, "not int"),
    ],
)
def test_what_cannot_be_read_is_named(what, message):
    with pytest.raises(UsageError, match=message):
        measure_lengths(what)


def test_files_that_are_no_parquet(tmp_path):
    with pytest.raises(UsageError, match="holds no Parquet files"):
        measure_lengths(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match="not a Parquet file"):
        measure_lengths(tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no column finish_reason"):
        measure_lengths(tmp_path)


class Page(html.parser.HTMLParser):
    """Cells of every table, the data block, and what the page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.data, self.images, self.fetched = "", [], []
        self._table: list[list[str]] | None = None
        self._cell = self._script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.fetched += [v for k, v in given.items() if k in ("src", "href") and not (v or "").startswith("data:")]
        if tag == "img":
            self.images.append(given["src"])
        if tag == "table":
            self._table = self.tables.setdefault(given["id"].removeprefix("table-"), [])
        if tag == "tr" and self._table is not None:
            self._table.append([])
        if tag in ("th", "td") and self._table is not None:
            self._table[-1].append("")
            self._cell = True
        self._script = tag == "script"

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self._cell = False
        if tag == "script":
            self._script = False

    def handle_data(self, data):
        if self._script:
            self.data += data
        elif self._cell and self._table:
            self._table[-1][-1] += data


def test_card_page_and_json_state_the_same_numbers(report, tmp_path):
    report.write(tmp_path / "lengths.json")
    stored = json.loads((tmp_path / "lengths.json").read_text())
    assert stored == report.to_dict()
    page = Page(render_page(report, "A <title> & more"))
    assert json.loads(page.data) == stored and not page.fetched
    card = report.to_markdown()
    assert to_markdown(stored) == card, "the card is printed from the file"
    assert to_text(stored, 120) == report.to_text(120)
    blocks = re.findall(r"^### (.+)\n\n(?:[^|#].*\n\n)?((?:\|.*\n)+)", card, flags=re.M)
    tables = report_tables(stored)
    assert len(blocks) == len(tables) == len(page.tables) - 2, "the page shows the two of the terminal as well"
    for table, (title, lines) in zip(tables, blocks, strict=True):
        in_card = [[c.strip().replace("**", "") for c in line.strip("|").split("|")] for line in lines.splitlines()]
        del in_card[1]
        assert title == table.title and in_card == page.tables[table.name]
    rows = {row[0]: row for row in page.tables["completion"][1:]}
    for index, name in enumerate(stored["sources"], start=1):
        completion = stored["sources"][name]["lengths"]["completion"]
        assert rows["max"][index] == ("≥" if completion["cut"] else "") + wording.tokens(completion["max"])
        low, high = (completion["quantiles"]["p50"][side] for side in ("low", "high"))
        assert rows["median"][index] == f"{completion['quantiles']['p50']['value']:,} ({low:,}–{high:,})"
        for sentence in stored["sources"][name]["advice"]["words"]:
            assert sentence in card and sentence in " ".join(report.to_text(100_000, full=True).split())


def test_terminal_view_is_compact_and_complete(report):
    text = report.to_text(100)
    assert max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) <= 35
    for name in ("B1_glaive", "whole", "thinking", ">4,096", "median", "fit 4,096", "≥"):
        assert name in text
    assert text.index("eagle3-data extend") < text.index("Output tokens"), "what to do comes first"
    plain = measure_lengths(dataset({**columns("a", 30, 90, 100), "reasoning_tokens": [0] * 30}))
    assert "thinking" not in plain.to_text(), "nothing is said of what is not there"
    assert "Reasoning" not in plain.to_text(full=True) and "Answer" not in plain.to_text(full=True)
    assert plain.to_dict()["sources"]["a"]["advice"]["cost"]["extend"]["at_most"], "too few rows for a tail model"
    assert "p99.9" in report.to_text(120, full=True) and "p99.9" not in text


def test_tables_are_never_cut_and_names_wrap_only_where_they_must(report, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "a_source_with_quite_a_long_name_indeed"
    named = measure_lengths(dataset(columns(long, 300, 300_000, 10**6), columns("b", 300, 90_000, 10**6)))
    assert named.to_text().count(f" {long} ") >= 2, "to a file or a pipe tables are as wide as they need be"
    narrow = named.to_text(80)
    assert f"\n {long} " not in narrow and f"\n {long[:24]}" in narrow
    row = next(line for line in narrow.splitlines() if line.startswith(" whole"))
    assert wording.share(named.to_dict()["whole"]["truncated"]["share"]["value"]) in row
    assert max(map(len, report.to_text(full=True).split("Rows and truncation")[0].splitlines())) <= 120


def test_rows_cut_by_lower_caps_are_not_called_short_by_task():
    found = measure_lengths(dataset(columns("a", 1500, 400, 300), columns("a", 1500, 400, 10_240, seed=1))).to_dict()
    advice = found["sources"]["a"]["advice"]
    assert advice["cap"] == 10_240 and advice["verdict"] == "enough" and advice["typical"] == "cap"
    assert "were cut by a lower cap and not extended" in advice["words"][1]
    long = measure_lengths(dataset(columns("a", 3000, 4000, 10**6))).to_dict()["sources"]["a"]["advice"]
    assert long["typical"] == "task"
    full = columns("a", 400, 4000, 3000)
    full |= {"finish_reason": [reason.replace("cap", "context") for reason in full["finish_reason"]]}
    stated = {"engine": {"context_length": 3400}, "extent": {"sources": {"a": {"max_new_tokens": 9000}}}}
    context = measure_lengths(dataset(full), manifest=stated).to_dict()["sources"]["a"]["advice"]
    assert context["typical"] == context["action"] == "context" and context["next_try"] is None
    assert "cut by the context length" in context["words"][0] and context["cost"]["extend"] is None
    extended = {"extent": {"sources": {"a": {"max_new_tokens": 100, "extended_to": 5000}}}}
    after = measure_lengths(dataset(columns("a", 300, 400, 300)), manifest=extended).to_dict()
    assert after["sources"]["a"]["advice"]["cap"] == 5000


def test_no_answers_yet_is_said_and_not_a_crash(tmp_path):
    run = make_run(tmp_path / "run", 40, 40)
    shutil.rmtree(run.path / "records")
    found = measure_lengths(run)
    assert found.to_dict()["sources"]["B1_glaive"]["unfinished"]["waiting"] == 40
    assert "no answers yet" in found.to_text() and "–" in found.to_markdown()
    page = render_page(found)
    assert "has no answers yet" in page and "<img" not in page, "there is nothing to draw"
    assert found.to_dict()["sources"]["B1_glaive"]["lengths"]["completion"]["mean"]["value"] is None


@pytest.mark.filterwarnings("error::UserWarning")
def test_names_are_written_as_they_are():
    found = measure_lengths(dataset(columns("<b> $x$ | </script>", 30, 50, 10**6)))
    page = render_page(found, "<i>")
    assert page.count("</script>") == 1 and "<b>" not in page and "<i>" not in page
    assert json.loads(Page(page).data) == found.to_dict()
    assert "| <b> $x$ \\| </script> |" in found.to_markdown()


def test_figures_are_written_whole_and_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    from eagle3_data.lengths.views.figures import write_figures

    small = measure_lengths(dataset(columns("B4_mixturethoughts", 300, 3000, 4096)))
    first, second = (write_figures(small, tmp_path / folder) for folder in "ab")
    assert [path.name for path in first][:4] == [
        "completion_histogram.png",
        "prompt_histogram.png",
        "survival.png",
        "mixture.png",
    ]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes() and one.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_page_renders_in_a_browser_without_errors_or_overflow(report, tmp_path, width, height):
    pytest.importorskip("matplotlib")
    write_page(report, tmp_path / "page.html", "lengths")
    text = (tmp_path / "page.html").read_text()
    # The page has no script of its own; the probe writes what the browser made of it into the title.
    probe = (
        "<script>addEventListener('error', e => document.title += ' ERROR ' + e.message);"
        "addEventListener('load', () => { const shown = [...document.images].every(i => i.complete && i.naturalWidth);"
        "const fits = document.documentElement.scrollWidth <= innerWidth;"
        "document.title = JSON.stringify([shown, document.images.length, fits, innerWidth,"
        "JSON.parse(document.getElementById('lengths').textContent).whole.rows]); });</script>"
    )
    (tmp_path / "probe.html").write_text(text.replace("</head>", probe + "</head>"))
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},{height}",
            "--dump-dom",
            (tmp_path / "probe.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout)[1]
    assert "ERROR" not in title
    shown, images, fits, inner, rows = json.loads(title)
    assert shown and images == 5 and fits and rows == 2960, title
    assert abs(inner - width) <= 120, "headless windows have a least width"


def test_comparison_tells_a_change_from_noise(monkeypatch):
    monkeypatch.setattr("eagle3_data.lengths.views.figures.svg_uris", lambda report: {})  # drawn in other tests
    one = measure_lengths(dataset(columns("a", 800, 500, 2048), columns("b", 800, 500, 2048, seed=1)))
    two = measure_lengths(dataset(columns("a", 800, 500, 4096, seed=2), columns("b", 800, 700, 2048, seed=3)))
    found = compare_lengths(one, two, ("v1", "v2"))
    distances = {name: found.to_dict()["sources"][name]["completion"]["distance"] for name in "ab"}
    assert not distances["a"]["differs"] and distances["a"]["until"] == 2048, "a higher cap alone is no change"
    assert (
        distances["b"]["differs"] and distances["b"]["wasserstein_tokens"] > distances["b"]["wasserstein_noise_tokens"]
    )
    text = found.to_text(120)
    assert "v1" in text and "a: no length differs" in text and "b: completion tokens" in text
    assert found.to_dict() == compare_lengths(one, two, ("v1", "v2")).to_dict()
    other = measure_lengths(dataset(columns("c", 300, 500, 2048)))
    with pytest.raises(UsageError, match="no source in common"):
        compare_lengths(one, other)
    alone = measure_lengths(dataset(columns("a", 800, 500, 2048)))
    pair = compare_lengths(alone, other, ("x", "y"))
    assert list(pair.to_dict()["sources"]) == ["a / c"], "two sources may be compared"
    assert " a (x) " in pair.to_text() and " c (y) " in pair.to_text()
    page = Page(render_page(one, "v1", found))
    shown = {name: rows for name, rows in page.tables.items() if name.startswith("compared_")}
    assert [row[0] for row in shown["compared_completion"][1:]] == ["a (v1)", "a (v2)", "b (v1)", "b (v2)"]


@pytest.mark.parametrize("rows", [1, 6])
def test_the_chance_of_a_distance_is_that_of_all_deals(rows):
    from scipy import stats

    one = {name: values[:rows] for name, values in columns("a", 100, 4000, 10**6).items()}
    two = columns("a", 20, 500, 10**6, seed=5)
    found = compare_lengths(measure_lengths(dataset(one)), measure_lengths(dataset(two))).to_dict()
    exact = stats.ks_2samp(one["completion_tokens"], two["completion_tokens"], method="exact").pvalue
    assert found["sources"]["a"]["completion"]["distance"]["p_value"] == pytest.approx(exact, abs=0.05)
    assert not found["sources"]["a"]["completion"]["distance"]["differs"] or rows > 1


def test_uncensored_distance_is_scipys():
    from scipy import stats

    one, two = columns("a", 700, 500, 10**6), columns("a", 500, 600, 10**6, seed=5)
    apart = compare_lengths(measure_lengths(dataset(one)), measure_lengths(dataset(two))).to_dict()
    found = apart["sources"]["a"]["completion"]["distance"]
    assert found["ks"] == pytest.approx(stats.ks_2samp(one["completion_tokens"], two["completion_tokens"]).statistic)
    expected = stats.wasserstein_distance(one["completion_tokens"], two["completion_tokens"])
    assert found["wasserstein_tokens"] == pytest.approx(expected)


def test_words_are_made_of_the_numbers_alone(report):
    for name, section in report.to_dict()["sources"].items():
        advice = dict(section["advice"])
        assert advice.pop("words") == advice_sentences(name, json.loads(json.dumps(advice)))
        assert advice.pop("line") == advice_line(advice)
