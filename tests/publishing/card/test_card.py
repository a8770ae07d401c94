"""The card: numbers that are those of the files, YAML that opens the folder, text of people that survives."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from huggingface_hub import DatasetCard
from support.run_folders import SOURCES, make_run

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.card.card import render_card, template_path, write_card
from eagle3_data.publishing.card.changes import describe_changes
from eagle3_data.publishing.card.check import check_card
from eagle3_data.publishing.card.facts import read_counts, size_category
from eagle3_data.publishing.card.merge import merge_card
from eagle3_data.publishing.version_files import public_recipe
from eagle3_data.recipe import parse_recipe
from eagle3_data.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = make_run(tmp_path_factory.mktemp("run") / "run", dict.fromkeys(SOURCES, 40), holdout=4)
    made.figures_path.mkdir()
    (made.figures_path / "completion_tokens.png").write_bytes(b"")
    write_card(made)
    return made


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("grown") / "run", dict.fromkeys(SOURCES, 60), holdout=4, cap=300)


def test_the_run_folder_opens_through_its_own_card(run: RunFolder, tmp_path: Path) -> None:
    for config, split, rows in [
        (None, "train", 36 * 4),
        (None, "validation", 4 * 4),
        ("B1_glaive", "train", 36),
        ("B8_sweagent", "validation", 4),
    ]:
        found = datasets.load_dataset(str(run.path), config, split=split, cache_dir=str(tmp_path))
        assert found.num_rows == rows
        for column in ("input_ids", "output_ids"):
            assert str(found.data.schema.field(column).type) == "list<item: int32>"


def test_the_oldest_datasets_opens_it_too(run: RunFolder, tmp_path: Path) -> None:
    """With EAGLE3_DATA_OLDEST naming a virtual environment that holds datasets 3.6."""
    folder = os.environ.get("EAGLE3_DATA_OLDEST", "")
    python = Path(folder).expanduser() / "bin" / "python"
    if not folder or not python.is_file():
        pytest.skip("EAGLE3_DATA_OLDEST names no virtual environment with datasets==3.6.0")
    code = """
import json, sys, datasets
rows = datasets.load_dataset(sys.argv[1], "B1_glaive", split="train", cache_dir=sys.argv[2])
print(json.dumps([datasets.__version__, rows.num_rows, str(rows.data.schema.field("output_ids").type)]))
"""
    command = [str(python), "-c", code, str(run.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    version, rows, kind = json.loads(done.stdout.splitlines()[-1])
    assert version.startswith("3.6") and (rows, kind) == (36, "list<item: int32>")


def test_its_numbers_are_those_of_lengths_json(run: RunFolder) -> None:
    text = run.card_path.read_text()
    lengths = json.loads(run.lengths_path.read_text())
    for source in SOURCES:
        completion = lengths["sources"][source]["lengths"]["completion"]
        rows = [line for line in text.splitlines() if line.startswith(f"| {source} | ")]
        counts = [int(line.split("|")[3].replace(",", "")) for line in rows[:2]]
        tokens = [int(line.split("|")[5].replace(",", "")) for line in rows[:2]]
        assert (sum(counts), sum(tokens)) == (lengths["sources"][source]["rows"], completion["total_tokens"])
    section = text[text.index("## Lengths") : text.index("## One record")]
    column = list(lengths["sources"]).index("B4_mixturethoughts") + 2
    table = section[section.index("### Completion tokens") :]
    median = next(line for line in table.splitlines() if line.startswith("| median"))
    wanted = lengths["sources"]["B4_mixturethoughts"]["lengths"]["completion"]["quantiles"]["p50"]["value"]
    assert median.split("|")[column].split()[0] == f"{wanted:,}"


@pytest.mark.parametrize(
    "text",
    [
        "> **`input_ids` is the prompt alone",
        "Mixture-of-Thoughts",
        "none stated for the collection itself",
        "CC-BY-NC-4.0, which is **non-commercial**",
        "Issue texts belong to their repositories",
        "BFCL",
        "| thinking | on |",
        "`" + "aa" * 32 + "`",
        "1 (empty\\_turn 1)",
        "![completion tokens](figures/completion_tokens.png)",
        "glaiveai/glaive-function-calling-v2 @ `e7f4b6456019`",
        "what is 25 times 26?",
    ],
)
def test_what_a_card_has_to_say(run: RunFolder, text: str) -> None:
    assert text.replace("\\_", "_") in run.card_path.read_text().replace("\\_", "_")


def test_the_example_is_decoded_where_the_target_is_at_hand(run: RunFolder) -> None:
    class Speaker:
        def describe(self, record: dict[str, Any]) -> str:
            return f"<|user|>```{record['sample_id']}```<|end|>"

    text = render_card(run, target=Speaker())  # type: ignore[arg-type]
    assert re.search(r"````text\n<\|user\|>```B\d_\w+-[0-9a-f]{24}```<\|end\|>\n````", text)
    assert "decoded with its control tokens" in text


def test_rendering_again_changes_nothing(run: RunFolder) -> None:
    text = run.card_path.read_text()
    assert render_card(run, existing=text) == text == render_card(run)


EDITS = [
    ("a paragraph in a section", "## Limits\n", "## Limits\n\nMind the gap.\n", "## Limits\n\nMind the gap.\n"),
    ("a list item", "- Prompts are taken", "- Ours: see below.\n- Prompts are taken", "- Ours: see below."),
    (
        "a code block",
        "## Limits\n",
        "## Limits\n\n```python\nprint(1)  # ours\n```\n",
        "```python\nprint(1)  # ours\n```",
    ),
    ("a section of its own", "## Limits\n", "## Ours\n\nText.\n\n## Limits\n", "## Ours\n\nText.\n"),
    ("behind a table", "\nMedian and p95", "\nOurs.\n\nMedian and p95", "\nOurs.\n"),
    ("an edited line", "Plain Parquet, so", "Parquet (we checked), so", "Parquet (we checked), so"),
    ("a tag", "tags:\n- eagle3\n", "tags:\n- eagle3\n- ours\n", "- ours\n"),
    ("a licence", "pretty_name: EAGLE-3 data for example/tiny", "pretty_name: Ours", "pretty_name: Ours"),
    ("a key", "pretty_name:", "language: en\npretty_name:", "language: en"),
]


@pytest.mark.parametrize(("old", "new", "kept"), [edit[1:] for edit in EDITS], ids=[edit[0] for edit in EDITS])
def test_text_that_people_add_survives_two_new_versions(
    run: RunFolder, grown: RunFolder, old: str, new: str, kept: str
) -> None:
    text = run.card_path.read_text()
    assert old in text and kept not in text
    edited = text.replace(old, new, 1)
    for version in ("1.1.0", "1.2.0"):
        edited = render_card(grown, version=version, existing=edited)
        assert edited.count(kept) == 1
        assert f"version: {version}" in edited and "| 56 |" in edited
    fences = [line for line in edited.splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0
    check_card(edited)


def test_a_card_written_by_hand_is_kept_whole(run: RunFolder) -> None:
    merged = merge_card(render_card(run), "---\nlicense: other\nlicense_name: ours\n---\n# Ours\n\nAll of it.\n")
    assert "# Ours\n\nAll of it." in merged and "license_name: ours" in merged
    assert DatasetCard(merged).data.license == "other"


def test_templates_can_be_changed_and_faults_are_named(run: RunFolder, tmp_path: Path) -> None:
    own = tmp_path / "own.md.j2"
    own.write_text(template_path().read_text().replace("## Limits", "## Our limits"))
    assert "## Our limits" in render_card(run, own)
    own.write_text("---\n{{ card_data }}\n---\n{% for x in %}\n")
    with pytest.raises(UsageError, match=r"own\.md\.j2:4: the card template is wrong"):
        render_card(run, own)
    with pytest.raises(UsageError, match="cannot be read"):
        render_card(run, tmp_path / "none.j2")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("size_categories:\n- n<1K", "size_categories:\n- tiny", "size_categories"),
        ("license:\n- apache-2.0", "license:\n- Apache 2", "license"),
        ("default: true\n", "default: true\n- config_name: B1_glaive\n  default: true\n", "several default configs"),
        ("config_name: default", "config_name: all", "default config"),
        ("config_name: B8_sweagent", "config_name: B8", "B8_sweagent is missing"),
        ("  - split: validation\n    path: records/B8_sweagent/validation-*\n", "", "splits of B8_sweagent"),
        ("configs:\n", "configs: [\n", "does not parse"),
    ],
)
def test_bad_metadata_is_found_without_the_hub(run: RunFolder, old: str, new: str, says: str) -> None:
    text = run.card_path.read_text()
    assert old in text
    with pytest.raises(DataError, match=says):
        check_card(text.replace(old, new, 1), read_counts(run, list(SOURCES)))


def test_faults_of_a_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no records"):
        render_card(RunFolder(tmp_path / "nothing"))
    run = make_run(tmp_path / "run", {"B1_glaive": 10})
    run.lengths_path.unlink()
    with pytest.raises(DataError, match=r"lengths\.json: missing"):
        render_card(run)
    file = run.record_files("B1_glaive")[0]
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(DataError, match=rf"{file.name}: not a whole Parquet file"):
        render_card(run)


def test_lengths_of_other_records_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"B1_glaive": 10})
    other = make_run(tmp_path / "other", {"B1_glaive": 12})
    run.lengths_path.write_bytes(other.lengths_path.read_bytes())
    with pytest.raises(DataError, match="measured on 12 records of B1_glaive, and there are 10"):
        render_card(run)


def test_size_categories_are_the_hubs() -> None:
    assert [size_category(rows) for rows in (0, 999, 1_000, 99_999, 10_000_000)] == [
        "n<1K",
        "n<1K",
        "1K<n<10K",
        "10K<n<100K",
        "10M<n<100M",
    ]


def test_caps_are_those_that_were_sent(tmp_path: Path) -> None:
    """A cap that a pilot found is a number in the card and the published recipe, and an extension is told."""
    run = make_run(tmp_path / "run", {"B1_glaive": 60}, mean=150)
    manifest = run.read_manifest().to_dict()
    before = json.loads(json.dumps(manifest))
    extent = manifest["extent"]["sources"]["B1_glaive"]
    extent |= {"max_new_tokens": "auto", "caps": 200, "extended_to": 400}
    recipe = yaml.safe_load(manifest["recipe"])
    recipe["sources"]["B1_glaive"] |= {"max_new_tokens": "auto", "truncation_target": 0.01}
    manifest["recipe"] = yaml.safe_dump(recipe)
    run.write_manifest(manifest)
    assert "200, cut rows continued up to 400 |" in render_card(run)
    # the recipe's cap grew for new rows, and the rows that were cut at the old one were not continued
    run.write_manifest(
        {**manifest, "extent": {"sources": {"B1_glaive": extent | {"caps": 1_000, "extended_to": None}}}}
    )
    cut = read_counts(run, ["B1_glaive"])["B1_glaive"]["train"].cut_at
    assert set(cut) == {200} and cut[200] > 1
    assert f"| 1,000; {cut[200]} rows were cut at 200 |" in render_card(run)
    published = parse_recipe(public_recipe(manifest, ["B1_glaive"]), "published")
    assert published.sources[0].max_new_tokens == 200 and published.extend and published.extend.up_to == 400
    lines = describe_changes(before, manifest, {}, ({}, {}))
    assert lines == ["B1_glaive: cut rows continued up to none → 400"]


def test_a_source_of_another_package_brings_its_own_attribution(tmp_path: Path) -> None:
    """A card is written from the run folder alone, also where the package of the source is not installed."""
    folder = make_run(tmp_path / "run", {"B1_glaive": 4})
    manifest = folder.read_manifest().to_dict()
    manifest["sources"]["B1_glaive"]["attribution"] = {
        "title": "Asked",
        "url": "https://example.org/asked",
        "license": "MIT",
        "notes": ["Asked by nobody."],
        "contamination": "riddles of RiddleBench",
    }
    folder.write_manifest(manifest)
    text = render_card(folder)
    assert "from [Asked](https://example.org/asked): MIT." in text and "  - Asked by nobody." in text
    assert "- B1_glaive: riddles of RiddleBench." in text


def test_it_says_which_benchmarks_were_searched_for_and_what_is_a_cluster_sample(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", {"B1_glaive": 4})
    plain = render_card(folder)
    assert "No benchmark was searched for" in plain and "cluster sample" not in plain
    manifest = folder.read_manifest().to_dict()
    found = [{"name": "openai/gsm8k", "revision": "abc", "columns": ["question"], "rows": 1319}]
    manifest["sources"]["B1_glaive"].update(benchmarks=found, files_of=30)
    manifest["sources"]["B1_glaive"]["rejected"]["benchmark"] = 17
    folder.write_manifest(manifest)
    text = render_card(folder)
    assert "openai/gsm8k (revision abc, 1,319 questions) were left out: 17." in text
    assert "B1_glaive is a cluster sample: 1 of 30 upstream files" in text


def test_length_tables_end_where_every_row_is_counted(run: RunFolder) -> None:
    """Thresholds and cut-offs stop at the first that holds all rows; one that cut rows leave unknown is the last."""
    text = run.card_path.read_text()
    lengths = json.loads(run.lengths_path.read_text())
    prompts = text[text.index("### Prompt tokens") : text.index("### Completion tokens")]
    longest = lengths["whole"]["lengths"]["prompt"]["max"]
    assert longest < 100 and re.findall(r"^\| under ([\d,]+) ", prompts, re.M) == ["100"]
    completions = text[text.index("### Completion tokens") :].split("\n### ")[0]
    shown = [int(limit.replace(",", "")) for limit in re.findall(r"^\| under ([\d,]+) ", completions, re.M)]
    under = {int(limit): cell["value"] for limit, cell in lengths["whole"]["lengths"]["completion"]["under"].items()}
    needed = [limit for limit in sorted(under) if under[limit] is not None and under[limit] < 1]
    assert shown[:-1] == needed and len(shown) == len(needed) + 1 < len(under)
    kept = text[text.index("### What a training cut-off keeps") : text.index("</details>")]
    assert re.findall(r"^\| ([\d,]+): rows whole", kept, re.M) == ["2,048"]


def test_a_card_states_only_what_holds_for_its_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", {"B1_glaive": 10})
    manifest = folder.read_manifest().to_dict()
    manifest["sources"]["B1_glaive"]["rejected"] = {"empty_turn": 1, "not_json": 2}
    manifest["profile"]["thinking_state"] = "none"
    manifest["sources"]["B1_glaive"]["attribution"] = {**manifest["sources"]["B1_glaive"]["attribution"]}
    manifest["sources"]["B1_glaive"]["attribution"]["contamination"] = ""
    folder.write_manifest(manifest)
    text = render_card(folder)
    assert re.search(r"3 \(empty\\?_turn 1, not\\?_json 2\)", text)
    assert "both splits" not in text and "loses reasoning" not in text
    leaks = text[text.index("## Benchmarks that leak") : text.index("## Limits")]
    assert "has seen problems" not in leaks and "No overlap with a benchmark is known" in leaks
    thinking = make_run(tmp_path / "thinking", {"B1_glaive": 10}, holdout=2)
    text = render_card(thinking)
    assert "a record, over both splits." in text and "loses reasoning" in text
    leaks = text[text.index("## Benchmarks that leak") : text.index("## Limits")]
    assert "has seen problems" in leaks and "No overlap" not in leaks


def test_the_example_card_is_of_the_template_as_it_is(run: RunFolder) -> None:
    """cards/example.md is README.md of a quickstart run: another template means that it is written again."""
    example = (template_path().parent / "example.md").read_text()
    mine, theirs = (
        re.findall(r"^##? .*|^\|.*\|\n\|[-:| ]+\|$", text, re.M)[1:] for text in (run.card_path.read_text(), example)
    )
    fixed = [line for line in theirs if not re.search(r"B\d_", line)]
    assert [line for line in mine if not re.search(r"B\d_", line)] == fixed and len(fixed) > 12
    for keys in (yaml.safe_load(text.split("---\n")[1]) for text in (example, run.card_path.read_text())):
        assert "dataset_info" not in keys and {"language", "license", "configs", "eagle3"} <= set(keys)
    for block in re.findall(r"^```(?:python|bash)\n(.*?)^```", example, re.M | re.S):
        assert all(len(line) < 120 for line in block.splitlines())
