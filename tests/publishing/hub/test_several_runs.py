"""One version of several runs, and versions night after night: new rows, continued rows, excluded rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.hub_client import TestHub
from support.hub_server import WRITER
from support.run_folders import make_run, write_lengths

from eagle3_data.run_folder import RunFolder, write_parquet

GLAIVE, MIXTURE = "B1_glaive", "B4_mixturethoughts"
COLUMNS = ["sample_id", "sample", "input_ids", "output_ids", "finish_reason"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestHub]:
    with TestHub(tmp_path_factory.mktemp("hub"), WRITER) as running:
        yield running


def publish(hub: TestHub, run: RunFolder | list[RunFolder], repo: str, version: str, **options: Any) -> dict[str, Any]:
    folder: Any = [str(each.path) for each in run] if isinstance(run, list) else str(run.path)
    found: dict[str, Any] = hub.run("publish_run", folder=folder, repo=repo, version=version, **options).get()
    return found


def records(run: RunFolder, source: str, split: str = "train") -> list[list[Any]]:
    table = pa.concat_tables([pq.read_table(path, columns=COLUMNS) for path in run.record_files(source, split)])
    return [[row[name] for name in COLUMNS] for row in table.to_pylist()]


def published(hub: TestHub, repo: str, version: str, config: str | None = None) -> list[list[Any]]:
    rows: list[list[Any]] = hub.run("rows_of", repo=repo, config=config, revision=f"v{version}", columns=COLUMNS).get()
    return rows


def test_nightly_versions_read_back_exactly(hub: TestHub, tmp_path: Path) -> None:
    """Night 1: rows. Night 2: more rows, and cut ones continued. Night 3: a row excluded, and it stays out."""
    rows = {GLAIVE: 40, MIXTURE: 20}
    first = make_run(tmp_path / "1" / "run", rows, holdout=4, mean=150)
    assert publish(hub, first, "org/nightly", "auto")["version"] == "1.0.0"
    grown = make_run(tmp_path / "2" / "run", {GLAIVE: 60, MIXTURE: 20}, holdout=4, mean=150, cap=400)
    # what processes at work leave in a run folder is no part of a version
    for left in (grown.progress_path(), grown.journal_path / "00000.log", grown.path / "pilot" / "manifest.json"):
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_text("{}")
    (grown.records_path(GLAIVE) / ".train-00000-of-00001.parquet.tmp").write_text("half a file")
    report = publish(hub, grown, "org/nightly", "auto")
    assert report["version"] == "1.1.0"
    working = ("/.", ".progress", "journal", "pilot", ".tmp")
    assert not [file for file in report["files"] if any(part in f"/{file['path']}" for part in working)]
    both = [
        [row for split in ("train", "validation") for row in records(run, GLAIVE, split)] for run in (first, grown)
    ]
    old, new = ({row[0]: row[4] for row in rows_of} for rows_of in both)
    finished = sum(old[key] == "length_cap" and new[key] == "stop" for key in old)
    assert finished > 0
    assert f"{GLAIVE}: rows 20 added, {finished} cut short before and now finished" in report["changes"][0]

    bad = records(grown, GLAIVE)[7][0]
    (tmp_path / "bad.txt").write_text(f"# answers in the wrong language\n{bad}\n")
    planned = publish(hub, grown, "org/nightly", "auto", exclude_ids=str(tmp_path / "bad.txt"), dry_run=True)
    assert planned["version"] == "1.1.1" and planned["status"] == "dry run"
    assert publish(hub, grown, "org/nightly", "auto", exclude_ids=str(tmp_path / "bad.txt"))["version"] == "1.1.1"
    card = hub.run("read", repo="org/nightly", path="README.md").get()
    assert f"{GLAIVE}: rows 1 removed; 59 unchanged" in card and "1 excluded by id" in card

    # the next night runs the same command without the list: the row does not come back
    again = publish(hub, grown, "org/nightly", "auto")
    assert (again["status"], again["version"]) == ("nothing to do", "1.1.1")
    more = make_run(tmp_path / "3" / "run", {GLAIVE: 70, MIXTURE: 20}, holdout=4, mean=150, cap=400)
    assert publish(hub, more, "org/nightly", "auto")["version"] == "1.2.0"

    for version, run, gone in (
        ("1.0.0", first, ""),
        ("1.1.0", grown, ""),
        ("1.1.1", grown, bad),
        ("1.2.0", more, bad),
    ):
        for source in rows:
            wanted = [row for row in records(run, source) if row[0] != gone]
            assert published(hub, "org/nightly", version, source) == wanted


def rewrite(run: RunFolder, source: str, column: str, row: int, ids: list[int]) -> None:
    """Put other ids into a row; as many as before, so that none of its counts changes."""
    path = run.record_files(source)[0]
    table = pq.read_table(path)
    lists = table[column].to_pylist()
    assert len(lists[row]) == len(ids) and lists[row] != ids
    lists[row] = ids
    field = table.schema.field(column)
    changed = table.set_column(table.column_names.index(column), field, pa.array(lists, field.type))
    write_parquet(path, [changed], table.schema.remove_metadata())


def test_a_corrected_row_is_told_although_no_count_changed(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {GLAIVE: 40, MIXTURE: 20})
    publish(hub, run, "org/corrected", "1.0.0")
    before = records(run, GLAIVE)
    output = before[7][3]
    rewrite(run, GLAIVE, "output_ids", 7, [output[0] + 1, *output[1:]])
    report = publish(hub, run, "org/corrected", "auto")
    assert report["version"] == "1.0.1"
    assert report["changes"] == [f"{GLAIVE}: rows 1 with another answer; 39 unchanged"]
    prompt = before[9][2]
    rewrite(run, GLAIVE, "input_ids", 9, [*prompt[:-1], prompt[-1] + 1])
    # more rows beside the corrected one
    grown = make_run(tmp_path / "grown", {GLAIVE: 50, MIXTURE: 20})
    report = publish(hub, [grown, run], "org/corrected", "auto")
    assert report["version"] == "1.1.0"
    assert report["changes"] == [
        f"{GLAIVE}: rows 10 added, 1 with another prompt; 39 unchanged",
        *report["changes"][1:],
    ]
    assert published(hub, "org/corrected", "1.0.0", GLAIVE) == before
    assert sorted(published(hub, "org/corrected", "1.1.0", GLAIVE)) == sorted(
        [*records(run, GLAIVE), *records(grown, GLAIVE)[40:]]
    )


def test_two_runs_stand_side_by_side_in_one_version(hub: TestHub, tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {GLAIVE: 20}, holdout=2, name="one")
    other = make_run(tmp_path / "other", {MIXTURE: 10}, name="other")
    manifest = other.read_manifest().to_dict()
    manifest["identity"]["sampling"] = {"temperature": 0.7, "top_p": 1.0}
    other.write_manifest(manifest)
    report = publish(hub, [one, other], "org/side", "1.0.0")
    assert report["status"] == "published"
    assert published(hub, "org/side", "1.0.0", GLAIVE) == records(one, GLAIVE)
    assert published(hub, "org/side", "1.0.0", MIXTURE) == records(other, MIXTURE)
    stored = json.loads(hub.run("read", repo="org/side", path="manifest.json").get())
    assert [run["name"] for run in stored["runs"]] == ["one", "other"]
    assert all(run["recipe"] for run in stored["runs"])
    assert stored["extent"]["sources"][GLAIVE]["sampling"]["temperature"] == 0.0
    assert "sampling" not in stored["extent"]["sources"][MIXTURE]
    card = hub.run("read", repo="org/side", path="README.md").get()
    assert "temperature 0.0" in card and "temperature 0.7" in card
    recipe = hub.run("fetch_recipe", url="hf://datasets/org/side@v1.0.0").get()
    assert GLAIVE in recipe and MIXTURE in recipe


def test_runs_of_one_source_are_joined_and_every_answer_stands_once(hub: TestHub, tmp_path: Path) -> None:
    """The second run holds rows 10 … 29; those of both stand once, the finished one where one of them was cut."""
    one = make_run(tmp_path / "one", {GLAIVE: 20}, holdout=2, mean=150)
    other = make_run(tmp_path / "other", {GLAIVE: 30}, mean=150, cap=400)
    report = publish(hub, [one, other], "org/joined", "1.0.0")
    assert report["status"] == "published"
    rows = published(hub, "org/joined", "1.0.0", GLAIVE)
    keys = [(row[0], row[1]) for row in rows]
    assert len(keys) == len(set(keys)) == 28
    held = {row[0] for row in records(one, GLAIVE, "validation")}
    assert not held & {row[0] for row in rows} and len(held) == 2
    wanted = {row[0]: row for row in records(other, GLAIVE) if row[0] not in held}
    old = {row[0]: row for row in records(one, GLAIVE)}
    for row in rows:
        assert row == wanted[row[0]] or (old[row[0]][4] == "stop" and wanted[row[0]][4] != "stop")


def test_a_run_is_published_onto_a_version(hub: TestHub, tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {GLAIVE: 20}, holdout=2)
    publish(hub, one, "org/onto", "1.0.0")
    other = make_run(tmp_path / "other", {MIXTURE: 10}, seed=5)
    hub.forget()
    assert publish(hub, other, "org/onto", "auto", onto="v1.0.0")["version"] == "1.1.0"
    sent = [entry["path"] for entry in hub.requests("PUT /_lfs/")]
    assert len(sent) == 1, "files that the version had are not sent again"
    assert published(hub, "org/onto", "1.1.0", GLAIVE) == records(one, GLAIVE)
    assert published(hub, "org/onto", "1.1.0", MIXTURE) == records(other, MIXTURE)
    assert hub.run("load", repo="org/onto", revision="v1.1.0", split="validation").get()["rows"] == 2
    outcome = hub.run("publish_run", folder=str(other.path), repo="org/onto", version="2.0.0", onto="v9.0.0")
    assert outcome.error == "HubError" and "no version or branch 'v9.0.0'" in outcome.message


def test_what_cannot_be_one_version_is_refused(hub: TestHub, tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {GLAIVE: 10})
    other = make_run(tmp_path / "other", {MIXTURE: 10})
    manifest = other.read_manifest().to_dict()
    for key, value, says in (
        ("model", "example/large", "one version holds one target"),
        ("tokenizer_sha256", "cc" * 32, "differ in tokenizer_sha256"),
    ):
        target = {**manifest["identity"]["target"], key: value}
        other.write_manifest({**manifest, "identity": {**manifest["identity"], "target": target}})
        outcome = hub.run(
            "publish_run", folder=[str(one.path), str(other.path)], repo="org/no", version="1.0.0", dry_run=True
        )
        assert outcome.error == "UsageError" and says in outcome.message
    for options, says in (
        ({"exclude_ids": ["B1_glaive-nowhere"]}, "1 of 1 ids are in none of the records"),
        ({"drop": ["long"]}, "'long' is none of loop, cut"),
        ({"drop_sources": [GLAIVE]}, "all of its sources would be dropped"),
    ):
        outcome = hub.run("publish_run", folder=str(one.path), repo="org/no", version="1.0.0", dry_run=True, **options)
        assert outcome.error == "UsageError" and says in outcome.message, outcome


def test_cut_answers_are_left_out_on_request_and_the_card_says_so(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {GLAIVE: 40, MIXTURE: 40}, mean=150)
    publish(hub, run, "org/finished", "1.0.0", drop=["cut"])
    for source in (GLAIVE, MIXTURE):
        wanted = [row for row in records(run, source) if row[4] == "stop"]
        assert published(hub, "org/finished", "1.0.0", source) == wanted
        card = hub.run("read", repo="org/finished", path="README.md").get()
        assert f"{40 - len(wanted)} cut" in card[card.index("## What was left out") :]


def test_rows_for_trainers_stand_beside_the_records(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {GLAIVE: 40, MIXTURE: 20}, holdout=4)
    report = publish(hub, run, "org/trained", "1.0.0", training="speculators")
    assert any(file["path"].startswith(f"train_rows/{GLAIVE}/train-") for file in report["files"])
    columns = ["sample_id", "source", "input_ids", "loss_mask"]
    rows = hub.run("rows_of", repo="org/trained", config="train_rows", revision="v1.0.0", columns=columns).get()
    wanted = [
        [row[0], source, row[2] + row[3], [0] * len(row[2]) + [1] * len(row[3])]
        for source in (GLAIVE, MIXTURE)
        for row in records(run, source)
    ]
    assert rows == wanted
    assert hub.run("load", repo="org/trained", config="train_rows", split="validation").error == "KeyError"
    assert hub.run("load", repo="org/trained", revision="v1.0.0").get()["rows"] == 36 + 16
    card = hub.run("read", repo="org/trained", path="README.md").get()
    assert "hf:org/trained:train_rows:train" in card
    stored = json.loads(hub.run("read", repo="org/trained", path="manifest.json").get())["training"]
    assert 0 < stored["mask_bytes"] < stored["bytes"] / 10
    longest = max(len(ids) for _, _, ids, _ in rows)
    assert stored["longest"] == longest and f"--output DIR --seq-length {longest}\n" in card
    hub.forget()
    assert publish(hub, run, "org/trained", "1.0.0", training="speculators")["status"] == "nothing to do"
    # without it, the next version has none, and says so
    changes = publish(hub, run, "org/trained", "1.0.1")["changes"]
    assert changes == ["the config `train_rows` is gone: this version was published without `--training`"]
    assert hub.run("load", repo="org/trained", config="train_rows", revision="v1.0.1").error == "ValueError"


def test_selected_rows_of_a_version_keep_its_identity_and_splits(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {GLAIVE: 40, MIXTURE: 20}, holdout=4)
    publish(hub, run, "org/whole", "1.0.0")
    job = {"source": "org/whole@v1.0.0", "repo": "org/whole", "version": "1.0.1", "most_tokens": 80}
    refused = hub.run("publish_selected", **job, splits=["train"])
    assert refused.error == "UsageError" and "has validation rows too" in refused.message
    report = hub.run("publish_selected", **job, splits=["train", "validation"]).get()
    assert report["status"] == "published"
    assert all("→ none" not in line for line in report["changes"])
    for source in (GLAIVE, MIXTURE):
        table = pq.read_table(run.record_files(source)[0])
        wanted = table.filter(pc.less_equal(table["completion_tokens"], 80))["sample_id"].to_pylist()
        assert [row[0] for row in published(hub, "org/whole", "1.0.1", source)] == wanted
    card = hub.run("read", repo="org/whole", path="README.md").get()
    assert "EAGLE-3 data for example/tiny" in card and "unnamed" not in card
    assert "selected by hand from v1.0.0" in card and "the very same prompts" not in card
    held = hub.run("load", repo="org/whole", revision="v1.0.1", split="validation").get()["rows"]
    assert held > 0
    doubled = hub.run("publish_selected", **job | {"version": "1.0.2"}, splits=["train", "validation"], twice=True)
    assert doubled.error == "DataError" and "nothing was sent" in doubled.message


def test_records_without_a_target_are_refused(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {GLAIVE: 10})
    folder = str(run.record_files(GLAIVE)[0].parent)
    outcome = hub.run("publish_records", folder=folder, repo="org/unnamed", version="1.0.0")
    assert outcome.error == "UsageError" and "load_version, or give target=" in outcome.message
    assert hub.run("state", repo="org/unnamed").error


def test_a_row_twice_in_one_run_is_refused(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {GLAIVE: 10})
    path = run.record_files(GLAIVE)[0]
    table = pq.read_table(path)
    write_parquet(path, [pa.concat_tables([table, table.slice(0, 1)])], table.schema.remove_metadata())
    write_lengths(run)
    outcome = hub.run("publish_run", folder=str(run.path), repo="org/twice", version="1.0.0", drop=["context"])
    assert outcome.error == "DataError" and "same sample_id and sample" in outcome.message
