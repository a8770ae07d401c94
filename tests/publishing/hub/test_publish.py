"""Publishing against a Hub that speaks the real protocol: versions, refusals, broken uploads, secrets."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.hub_client import TestHub
from support.hub_server import READER, WRITER
from support.run_folders import SOURCES, make_run
from support.shared import SUPPORT

from eagle3_data.run_folder import RunFolder

ALL = dict.fromkeys(SOURCES, 30)
SMALL_PAIR = {"B1_glaive": 8, "B4_mixturethoughts": 8}
PAIR = {"B1_glaive": 12, "B4_mixturethoughts": 12}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestHub]:
    with TestHub(tmp_path_factory.mktemp("hub"), WRITER) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(hub: TestHub) -> Iterator[None]:
    hub.heal()
    hub.forget()
    yield
    hub.heal()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """One run as it grows: 30 rows a source, then 45 under a higher cap; and one with failed rows."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "small": make_run(folder / "small", ALL, holdout=3),
        "grown": make_run(folder / "grown", dict.fromkeys(SOURCES, 45), holdout=3, cap=400),
        "pair": make_run(folder / "pair", SMALL_PAIR),
        "failed": make_run(folder / "failed", {"B1_glaive": 10}, failed=2),
    }


def publish(hub: TestHub, run: RunFolder, repo: str, version: str = "1.0.0", **options: Any) -> dict[str, Any]:
    return hub.run("publish_run", folder=str(run.path), repo=repo, version=version, **options).get()


def test_versions_stand_side_by_side(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    first = publish(hub, runs["small"], "org/two")
    assert first["status"] == "published"
    again = publish(hub, runs["small"], "org/two")
    assert again["status"] == "nothing to do"
    second = publish(hub, runs["grown"], "org/two", "1.1.0", drop_sources=["B8_sweagent"])

    state = hub.run("state", repo="org/two").get()
    assert state["commits"] == ["Release v1.1.0", "Release v1.0.0", "initial commit"]
    assert state["tags"] == {"v1.0.0": first["commit"], "v1.1.0": second["commit"]}
    assert not [path for path in state["main"] if "B8_sweagent" in path]
    for config, revision, split, rows in [
        (None, "v1.0.0", "train", 27 * 4),
        (None, None, "validation", 3 * 3),
        ("B1_glaive", "v1.1.0", "train", 42),
    ]:
        found = hub.run("load", repo="org/two", config=config, revision=revision, split=split).get()
        assert (found["rows"], found["input_ids"]) == (rows, "list<item: int32>")
    assert hub.run("load", repo="org/two", config="B8_sweagent").error == "ValueError"

    lengths = json.loads(hub.run("read", repo="org/two", path="lengths.json").get())
    kept = ["B1_glaive", "B4_mixturethoughts", "B5_openthoughts"]
    assert sorted(lengths["sources"]) == kept and lengths["whole"]["rows"] == 45 * 3
    card = hub.run("read", repo="org/two", path="README.md").get()
    assert "source B8_sweagent dropped, 30 rows" in card
    assert "B1_glaive: rows 15 added" in card and "cap on new tokens 200 → 400" in card
    assert "### 1.0.0" in card
    past = hub.run("read", repo="org/two", path="README.md", revision="v1.0.0").get()
    assert "### 1.1.0" not in past and 'revision="v1.0.0"' in past


def test_the_load_helper_names_what_is_missing(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    publish(hub, runs["pair"], "org/helper")
    assert hub.run("load_version", repo="org/helper").get() == 16
    assert hub.run("load_version", repo="org/helper@v1.0.0", source="B1_glaive").get() == 8
    outcome = hub.run("load_version", repo="org/helper", version="3.0.0")
    assert outcome.error == "HubError" and "no version 3.0.0; it has v1.0.0" in outcome.message
    outcome = hub.run("load_version", repo="org/helper", source="B9")
    assert outcome.error == "UsageError" and "B9" in outcome.message
    outcome = hub.run("load_version", repo="org/nowhere")
    assert outcome.error == "HubError" and "no such data set" in outcome.message


@pytest.mark.slow
def test_the_oldest_datasets_loads_versions(hub: TestHub, runs: dict[str, RunFolder], tmp_path: Path) -> None:
    """With EAGLE3_DATA_OLDEST naming a virtual environment that holds datasets 3.6."""
    folder = os.environ.get("EAGLE3_DATA_OLDEST", "")
    python = Path(folder).expanduser() / "bin" / "python"
    if not folder or not python.is_file():
        pytest.skip("EAGLE3_DATA_OLDEST names no virtual environment with datasets==3.6.0")
    publish(hub, runs["small"], "org/old")
    publish(hub, runs["grown"], "org/old", "1.1.0")
    code = """
import json, sys, datasets
at = [("v1.0.0", "B1_glaive"), ("v1.1.0", "B1_glaive"), ("v1.1.0", None)]
rows = [datasets.load_dataset("org/old", name, revision=tag, split="train", cache_dir=sys.argv[1]) for tag, name in at]
first = next(iter(datasets.load_dataset("org/old", "B1_glaive", revision="v1.0.0", split="train", streaming=True)))
kind = str(rows[0].data.schema.field("output_ids").type)
print(json.dumps([datasets.__version__, [len(part) for part in rows], kind, first == rows[0][0]]))
"""
    command = [str(python), "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=hub.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    version, counts, kind, same = json.loads(done.stdout.splitlines()[-1])
    assert version.startswith("3.6") and counts == [27, 42, 42 * 4] and kind == "list<item: int32>" and same


@pytest.mark.slow
def test_published_rows_are_those_of_the_run(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    import pyarrow.parquet as pq

    publish(hub, runs["small"], "org/exact")
    local = pq.read_table(runs["small"].record_files("B5_openthoughts")[0]).to_pylist()
    assert hub.run("stream", repo="org/exact", config="B5_openthoughts", revision="v1.0.0", rows=27).get() == local


def test_a_version_is_never_overwritten(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    publish(hub, runs["small"], "org/once")
    outcome = hub.run("publish_run", folder=str(runs["grown"].path), repo="org/once", version="1.0.0")
    assert outcome.error == "HubError" and "never overwritten" in outcome.message
    outcome = hub.run("publish_run", folder=str(runs["grown"].path), repo="org/once", version="0.9.0")
    assert outcome.error == "UsageError" and "newer than v0.9.0" in outcome.message
    assert list(hub.run("state", repo="org/once").get()["tags"]) == ["v1.0.0"]


def test_row_groups_are_small_whatever_the_rows_hold_and_however_they_came(tmp_path: Path) -> None:
    """Who streams the first rows reads whole groups; the same rows give the same bytes."""
    import pyarrow.parquet as pq
    from support.run_folders import record_table

    from eagle3_data.run_folder import write_parquet

    for mean, groups in ((10, [1_000, 200]), (1_400, [250] * 4 + [200])):
        table = record_table("B1_glaive", 0, 1_200, seed=0, mean=mean, cap=8_000, vocabulary=49_152)
        pieces = ([table], [table.slice(0, 1_000), table.slice(1_000)])
        paths = [tmp_path / f"{mean}-{len(piece)}.parquet" for piece in pieces]
        for path, piece in zip(paths, pieces, strict=True):
            assert write_parquet(path, piece, table.schema) == 1_200
        written = pq.read_metadata(paths[0])
        assert [written.row_group(index).num_rows for index in range(written.num_row_groups)] == groups
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert pq.read_table(paths[0]).equals(table)


def test_a_source_that_the_recipe_lost_is_not_published_and_metadata_tell_no_secret(
    hub: TestHub, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    run = make_run(tmp_path / "run", SMALL_PAIR)
    manifest = run.read_manifest().to_dict()
    del manifest["extent"]["sources"]["B4_mixturethoughts"]
    run.write_manifest(manifest)
    planned = publish(hub, run, "org/lost-source", dry_run=True)
    assert {file["path"].split("/")[1] for file in planned["files"] if "records/" in file["path"]} == {"B1_glaive"}

    path = run.record_files("B1_glaive")[0]
    told = {"eagle3_data": json.dumps({"recipe": "urls: [http://me:secret@gpu-07:30000]"})}
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata(told), path)
    outcome = hub.run("publish_run", folder=str(run.path), repo="org/lost-source", version="1.0.0", dry_run=True)
    assert outcome.error == "DataError" and "address with a password" in outcome.message
    assert "secret" not in outcome.message and path.name in outcome.message


def test_links_are_never_followed(hub: TestHub, tmp_path: Path) -> None:
    """A link in a run folder could publish any file of the machine."""
    secret = tmp_path / "id_rsa"
    secret.write_text("PRIVATE KEY")
    for number, place in enumerate(
        ("lengths.html", "figures/key.png", "records/B1_glaive/validation-00000-of-00001.parquet", "prompts/x.parquet")
    ):
        run = make_run(tmp_path / str(number), {"B1_glaive": 8})
        (run.path / place).parent.mkdir(exist_ok=True)
        (run.path / place).symlink_to(secret)
        for options in ({}, {"drop": ["cut"]}):
            wanted = {"folder": str(run.path), "repo": "org/links", "version": "1.0.0", **options}
            outcome = hub.run("publish_run", **wanted)
            assert outcome.error == "DataError" and f"{place}: a link" in outcome.message, outcome
    run = make_run(tmp_path / "folder", {"B1_glaive": 8})
    (run.path / "records" / "B4_mixturethoughts").symlink_to(run.path / "records" / "B1_glaive")
    outcome = hub.run("publish_run", folder=str(run.path), repo="org/links", version="1.0.0")
    assert outcome.error == "DataError" and "B4_mixturethoughts: a link" in outcome.message
    assert hub.run("state", repo="org/links").error


@pytest.mark.parametrize("form", ["as it is", "in a URL", "in Parquet"])
def test_a_key_that_the_recipe_names_is_not_published(tmp_path: Path, form: str, monkeypatch: Any) -> None:
    """The recipe names the variable; the value stands in a file, as a server said it."""
    import pyarrow.parquet as pq

    key = "engine/key+with=signs"
    monkeypatch.setenv("MY_ENGINE_KEY", key)
    run = make_run(tmp_path / "run", {"B1_glaive": 8})
    manifest = run.read_manifest().to_dict()
    recipe = json.loads(manifest["recipe"])
    recipe["engine"]["api_key_env"] = "MY_ENGINE_KEY"
    told = {"as it is": f"key {key}", "in a URL": f"?key={quote(key, safe='')}", "in Parquet": "fine"}[form]
    engine = {**manifest["engine"], "version": told}
    run.write_manifest({**manifest, "recipe": json.dumps(recipe), "engine": engine})
    if form == "in Parquet":
        path = run.record_files("B1_glaive")[0]
        table = pq.read_table(path)
        field = table.schema.field("source").with_metadata({"note": key})
        schema = table.schema.set(table.schema.get_field_index("source"), field)
        pq.write_table(table.cast(schema), path)
    with TestHub(tmp_path / "hub", WRITER) as hub:
        outcome = hub.run("publish_run", folder=str(run.path), repo="org/key", version="1.0.0", dry_run=True)
    assert outcome.error == "DataError" and "it holds" in outcome.message, outcome
    assert key not in outcome.message + outcome.output and quote(key, safe="") not in outcome.output


CUTS = {
    "create": ("POST /api/repos/create", "kill", 0),
    "created": ("POST /api/repos/create", "kill_after", 0),
    "preupload": ("POST .*/preupload/", "kill", 0),
    "batch": ("POST .*/lfs/objects/batch", "kill", 0),
    "first file, half sent": ("PUT /_lfs/", "half", 0),
    "after the first file": ("PUT /_lfs/", "kill_after", 0),
    "before the last file": ("PUT /_lfs/", "kill", 1),
    "verify": ("POST /_lfs/.*/verify", "kill", 1),
    "commit": ("POST .*/commit/main", "kill", 0),
    "commit arrived": ("POST .*/commit/main", "kill_after", 0),
    "tag": ("POST .*/tag/", "kill", 0),
    "tag arrived": ("POST .*/tag/", "kill_after", 0),
}


FAST_CUTS = ("commit arrived",)


@pytest.mark.parametrize(
    "cut", [name if name in FAST_CUTS else pytest.param(name, marks=pytest.mark.slow) for name in CUTS]
)
def test_a_publish_cut_anywhere_is_completed_by_running_it_again(
    hub: TestHub, runs: dict[str, RunFolder], tmp_path: Path, cut: str
) -> None:
    match, action, after = CUTS[cut]
    number = list(CUTS).index(cut)
    repo = f"org/cut-{number}"
    # rows of its own, so that no file is known from an earlier case
    new = make_run(tmp_path / "run", PAIR, cap=300, seed=100 + number)
    fresh = cut.startswith("create")
    if not fresh:
        publish(hub, runs["pair"], repo)
    before = {} if fresh else hub.run("state", repo=repo).get()
    hub.forget()
    plant = {"match": match, "action": action, "after": after}
    if action == "half":
        hub.fail(match, "half")
        plant |= {"action": "kill"}
    outcome = hub.run("publish_run", folder=str(new.path), repo=repo, version="1.1.0", plant=plant)
    assert outcome.signal == 9, outcome
    hub.heal()

    landed = cut in ("commit arrived", "tag", "tag arrived")
    if not fresh:
        between = hub.run("state", repo=repo).get()
        assert (between["main"] == before["main"]) != landed
        assert hub.run("load", repo=repo).get()["rows"] == sum((PAIR if landed else SMALL_PAIR).values())
    kept = {entry["path"] for entry in hub.requests("PUT /_lfs/") if entry["status"] == 200}

    hub.forget()
    report = publish(hub, new, repo, "1.1.0")
    assert not {entry["path"] for entry in hub.requests("PUT /_lfs/")} & kept
    assert report["status"] == ("nothing to do" if cut == "tag arrived" else "completed" if landed else "published")
    state = hub.run("state", repo=repo).get()
    assert state["tags"]["v1.1.0"] == state["sha"]
    assert state["commits"].count("Release v1.1.0") == 1
    assert hub.run("load", repo=repo, revision="v1.1.0").get()["rows"] == sum(PAIR.values())


@pytest.mark.parametrize("action", ["lose", "drop"])
def test_lost_answers_are_survived_without_a_second_run(hub: TestHub, runs: dict[str, RunFolder], action: str) -> None:
    for match in ("POST .*/commit/main", "POST .*/tag/", "PUT /_lfs/", "GET .*/refs"):
        hub.fail(match, action)
    report = publish(hub, runs["small"], f"org/lost-{action}", patient=False)
    assert report["status"] == "published"
    state = hub.run("state", repo=f"org/lost-{action}").get()
    assert state["tags"]["v1.0.0"] == state["sha"] == report["commit"]
    assert state["commits"] == ["Release v1.0.0", "initial commit"]


def test_a_commit_of_somebody_else_in_between_is_built_upon(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    hub.run("create", repo="org/busy").get()
    hub.fail("POST .*/commit/main", "status", status=412, message="A commit has happened since.")
    assert publish(hub, runs["small"], "org/busy")["status"] == "published"


def test_a_commit_whose_answer_is_lost_is_found_where_the_version_deletes_files(
    hub: TestHub, runs: dict[str, RunFolder]
) -> None:
    publish(hub, runs["small"], "org/lost-deletion")
    hub.fail("POST .*/commit/main", "lose")
    report = publish(hub, runs["grown"], "org/lost-deletion", "1.1.0", drop_sources=["B8_sweagent"], patient=False)
    assert report["status"] == "published"
    deleted = {file["path"] for file in report["files"] if file["action"] == "deleted"}
    assert {path.split("/")[1] for path in deleted} == {"B8_sweagent"}
    state = hub.run("state", repo="org/lost-deletion").get()
    assert state["tags"]["v1.1.0"] == state["sha"] == report["commit"]


def test_equal_content_under_a_new_number_is_tagged(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    """A release candidate is promoted: its commit gets the second tag, and nothing is sent."""
    first = publish(hub, runs["pair"], "org/candidate", "1.2.0-rc1")
    hub.forget()
    planned = publish(hub, runs["pair"], "org/candidate", "1.2.0", dry_run=True)
    assert planned["status"] == "dry run" and "v1.2.0-rc1" in planned["note"]
    promoted = publish(hub, runs["pair"], "org/candidate", "1.2.0")
    assert (promoted["status"], promoted["commit"]) == ("tagged", first["commit"])
    assert not hub.requests("PUT /_lfs/") and not hub.requests("/commit/main")
    state = hub.run("state", repo="org/candidate").get()
    assert state["tags"] == dict.fromkeys(["v1.2.0-rc1", "v1.2.0"], first["commit"])
    assert publish(hub, runs["pair"], "org/candidate", "1.2.0")["status"] == "nothing to do"
    assert hub.run("load", repo="org/candidate", revision="v1.2.0").get()["rows"] == 16
    for options in ({}, {"dry_run": True}):
        older = hub.run("publish_run", folder=str(runs["pair"].path), repo="org/candidate", version="1.1.0", **options)
        assert older.error == "UsageError" and "holds v1.2.0, which is newer" in older.message


def test_an_expired_upload_address_is_asked_for_anew(hub: TestHub, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", PAIR, seed=77)
    hub.fail("PUT /_lfs/", "expired", times=2)
    assert publish(hub, run, "org/expired", patient=False)["status"] == "published"
    other = make_run(tmp_path / "other", PAIR, seed=78)
    hub.fail("PUT /_lfs/", "expired", times=99)
    outcome = hub.run("publish_run", folder=str(other.path), repo="org/expired", version="1.1.0", patient=False)
    assert outcome.error == "HubError" and "the storage refused an upload (403)" in outcome.message
    assert "no right" not in outcome.message


def test_the_limit_of_commits_an_hour_is_quoted(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    """The header that comes with it speaks of another limit, of which much is left."""
    says = "You have exceeded the rate limit for repository commits (128 per hour). Retry in about 1 hour."
    headers = {"RateLimit": '"api";r=2487;t=290'}
    hub.fail("POST .*/commit/main", status=429, headers=headers, message=says, times=9)
    outcome = hub.run("publish_run", folder=str(runs["pair"].path), repo="org/hour", version="1.0.0", patient=False)
    assert outcome.error == "HubUnreachable" and says in outcome.message and "290" not in outcome.message
    assert len(hub.requests("POST /api/datasets/org/hour/commit")) < 4


@pytest.mark.slow
def test_rate_limits_are_waited_out_as_long_as_the_hub_says(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    hub.fail("GET .*/refs", status=429, headers={"RateLimit": '"api";r=0;t=7'})
    report = publish(hub, runs["small"], "org/limited", patient=False)
    assert report["status"] == "published" and 7 in report["waits"]
    hub.fail("GET .*/refs", status=429, headers={"RateLimit": '"api";r=0;t=290'}, times=9)
    outcome = hub.run("publish_run", folder=str(runs["grown"].path), repo="org/limited", version="1.1.0")
    assert outcome.error == "HubUnreachable" and "try again in 290 s" in outcome.message


REFUSALS = [
    ("no repository name", {"repo": "name-alone"}, "UsageError", "write org/name"),
    ("a model by its address", {"repo": "models/org/name"}, "UsageError", "a model repository"),
    ("no version", {"version": "first"}, "UsageError", "three numbers"),
    ("not a source", {"drop_sources": ["B9"]}, "UsageError", "no source 'B9'"),
    ("wrong token", {"token": "hf_wrongwrongwrong"}, "HubError", "does not accept the token"),
    ("token without rights", {"token": READER}, "HubError", "no right"),
    ("namespace of others", {"repo": "strangers/x"}, "HubError", "no right"),
]


@pytest.mark.parametrize(("options", "kind", "says"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_refusals_are_one_clear_line(
    hub: TestHub, runs: dict[str, RunFolder], options: dict[str, Any], kind: str, says: str
) -> None:
    wanted = {"folder": str(runs["small"].path), "repo": "org/refused", "version": "1.0.0", **options}
    outcome = hub.run("publish_run", **wanted)
    assert (outcome.error, says in outcome.message) == (kind, True), outcome.message
    assert "\n" not in outcome.message and "hf_wrong" not in outcome.message + outcome.output


def test_repositories_of_another_kind_or_with_other_data_are_left_alone(
    hub: TestHub, runs: dict[str, RunFolder]
) -> None:
    hub.run("create", repo="org/a-model", kind="model").get()
    outcome = hub.run("publish_run", folder=str(runs["small"].path), repo="org/a-model", version="1.0.0")
    assert outcome.error == "HubError" and "that is a model repository" in outcome.message
    hub.run("create", repo="org/theirs").get()
    hub.run("write", repo="org/theirs", path="data.csv", text="a,b\n").get()
    outcome = hub.run("publish_run", folder=str(runs["small"].path), repo="org/theirs", version="1.0.0")
    assert outcome.error == "HubError" and "holds other data (data.csv" in outcome.message
    hub.run("create", repo="org/open").get()
    outcome = hub.run("publish_run", folder=str(runs["small"].path), repo="org/open", version="1.0.0", private=True)
    assert outcome.error == "HubError" and "public" in outcome.message


@pytest.mark.slow
def test_no_network_and_offline_are_told_apart(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:2]; from support import hub_jobs\n"
        "hub_jobs.hub_errors.sleep = lambda seconds: None\n"
        "from eagle3_data.publishing.hub.client import publish\n"
        "publish(sys.argv[2], 'org/x', '1.0.0')"
    )
    command = [sys.executable, "-c", code, str(SUPPORT.parent), str(runs["small"].path)]
    for change, says in [
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "no connection to the Hub"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_TOKEN": ""}, "no token to publish with"),
    ]:
        done = subprocess.run(command, env=hub.environment() | change, capture_output=True, text=True, timeout=120)
        assert says in done.stderr.splitlines()[-1], done.stderr


def test_failed_rows_stop_a_publish_unless_allowed(hub: TestHub, runs: dict[str, RunFolder], tmp_path: Path) -> None:
    wanted = {"folder": str(runs["failed"].path), "repo": "org/failed", "version": "1.0.0"}
    outcome = hub.run("publish_run", **wanted)
    assert outcome.error == "DataError" and "2 rows failed" in outcome.message and "--allow-failed" in outcome.message
    hub.run("publish_run", **wanted, allow_failed=True).get()
    assert (
        "**2 rows failed and are not in this version**" in hub.run("read", repo="org/failed", path="README.md").get()
    )
    unfinished = make_run(tmp_path / "run", {"B1_glaive": 10}, stages={"prepare": True})
    outcome = hub.run("publish_run", folder=str(unfinished.path), repo="org/unfinished", version="1.0.0")
    assert outcome.error == "DataError" and "not finished" in outcome.message
    assert hub.run("state", repo="org/unfinished").error


@pytest.mark.slow
def test_pull_request_branch_private_and_gated(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    publish(hub, runs["small"], "org/reviewed", private=True, gated="manual")
    state = hub.run("state", repo="org/reviewed").get()
    assert (state["private"], state["gated"]) == (True, "manual")
    asked = publish(hub, runs["grown"], "org/reviewed", "1.1.0", create_pr=True)
    assert asked["status"] == "pull request" and asked["pull_request"].endswith("/discussions/1")
    assert list(hub.run("state", repo="org/reviewed").get()["tags"]) == ["v1.0.0"]
    hub.control("POST", "merge", {"kind": "dataset", "repo": "org/reviewed", "ref": "refs/pr/1"})
    assert publish(hub, runs["grown"], "org/reviewed", "1.1.0")["status"] == "completed"

    planned = publish(hub, runs["small"], "org/reviewed", "2.0.0", branch="next", dry_run=True)
    assert planned["status"] == "dry run"
    publish(hub, runs["small"], "org/reviewed", "2.0.0", branch="next")
    state = hub.run("state", repo="org/reviewed").get()
    assert state["tags"]["v2.0.0"] != state["sha"] == state["tags"]["v1.1.0"]
    assert state["branches"] == ["main", "next"]


def test_dry_run_sends_nothing(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    outcome = hub.run("publish_run", folder=str(runs["small"].path), repo="org/dry", version="1.0.0", dry_run=True)
    report = outcome.get()
    assert report["status"] == "dry run" and len(report["files"]) == 12
    assert "records/B1_glaive/train-00000-of-00001.parquet" in outcome.output and "# EAGLE-3 data" in outcome.output
    assert {entry["method"] for entry in hub.requests()} == {"GET"}


def test_a_dry_run_says_first_what_keeps_it_from_the_hub(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    wanted = {"folder": str(runs["small"].path), "repo": "org/dry", "version": "1.0.0", "dry_run": True}
    outcome = hub.run("publish_run", **wanted, token="hf_wrongwrongwrong")
    assert outcome.error == "HubError" and "does not accept the token" in outcome.message
    hub.fail("GET ", status=503, times=99)
    outcome = hub.run("publish_run", **wanted, patient=False)
    assert outcome.get()["status"] == "dry run"
    assert outcome.output.splitlines()[0].startswith("not compared with the Hub: org/dry")


def test_text_that_people_add_to_the_card_is_kept(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    publish(hub, runs["small"], "org/edited")
    card = hub.run("read", repo="org/edited", path="README.md").get()
    card = card.replace("## Limits\n", "## Limits\n\n- Not for medical use.\n", 1).replace(
        "- eagle3\n", "- eagle3\n- ours\n"
    )
    hub.run("write", repo="org/edited", path="README.md", text=card).get()
    publish(hub, runs["grown"], "org/edited", "1.1.0")
    after = hub.run("read", repo="org/edited", path="README.md").get()
    limits = after[after.index("## Limits") :]
    assert limits.index("- Not for medical use.") < limits.index("## Make it again")
    assert "- ours\n" in after and "| 42 |" in after


def test_history_of_a_row(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    import pyarrow.parquet as pq

    publish(hub, runs["small"], "org/history")
    publish(hub, runs["grown"], "org/history", "1.1.0")
    tables = {name: pq.read_table(runs[name].record_files("B4_mixturethoughts")[0]) for name in ("small", "grown")}
    cut = next(row for row in tables["small"].to_pylist() if row["finish_reason"] == "length_cap")
    new = tables["grown"]["sample_id"][40].as_py()
    hub.forget()
    rows = hub.run("history", repo="org/history", sample_id=cut["sample_id"]).get()
    later = next(row for row in tables["grown"].to_pylist() if row["sample_id"] == cut["sample_id"])
    assert [row["version"] for row in rows] == ["1.0.0", "1.1.0"]
    assert [dict(row["values"])["completion_tokens"] for row in rows] == [200, later["completion_tokens"]]
    assert later["completion_tokens"] > 200
    assert [row["split"] for row in hub.run("history", repo="org/history", sample_id=new).get()] == ["", "train"]
    outcome = hub.run("history", repo="org/history", sample_id="B1_glaive-nowhere")
    assert outcome.error == "UsageError" and "B1_glaive-nowhere" in outcome.message


def test_the_published_recipe_is_pinned_and_tells_nothing_of_the_maker(
    hub: TestHub, runs: dict[str, RunFolder]
) -> None:
    publish(hub, runs["small"], "org/recipe")
    text = hub.run("fetch_recipe", url="hf://datasets/org/recipe@v1.0.0").get()
    assert text == hub.run("fetch_recipe", url="hf://datasets/org/recipe").get()
    assert "revision: e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac" in text
    manifest = hub.run("read", repo="org/recipe", path="manifest.json").get()
    assert "gpu-07" not in text + manifest and "secret" not in text + manifest
    assert json.loads(manifest)["version"] == "1.0.0"
    assert set(
        hub.run("missing_prompts", folder=str(runs["small"].path), repo="org/recipe@v1.0.0").get().values()
    ) == {0}
    outcome = hub.run("fetch_recipe", url="hf://datasets/org/recipe@v9.9.9")
    assert outcome.error == "HubError" and "no version or branch 'v9.9.9'" in outcome.message


@pytest.mark.slow
def test_a_data_set_of_records_is_published_too(hub: TestHub, runs: dict[str, RunFolder]) -> None:
    folder = str(runs["small"].record_files("B1_glaive")[0].parent)
    job = {"folder": folder, "repo": "org/records", "version": "1.0.0", "model": "example/tiny"}
    assert hub.run("publish_records", **job).get()["status"] == "published"
    card = hub.run("read", repo="org/records", path="README.md").get()
    assert "EAGLE-3 data for example/tiny" in card and "were not made by a recipe" in card
    assert hub.run("fetch_recipe", url="hf://datasets/org/records@v1.0.0").error == "HubError"
    assert hub.run("load", repo="org/records", config="B1_glaive", revision="v1.0.0").get()["rows"] == 27


@pytest.mark.slow
def test_the_token_is_found_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary token, debug logs on, through a publish that works and through every kind of failure."""
    from support import hub_server

    canary = "hf_CANARY0123456789abcdefghijklmnopq"
    monkeypatch.setenv("EAGLE3_TEST_TOKENS", json.dumps({canary: "write"}))
    run = make_run(tmp_path / "run", {"B1_glaive": 12})
    other = make_run(tmp_path / "other", {"B1_glaive": 20})
    told: list[str] = []
    with TestHub(tmp_path / "hub", canary) as hub:
        wanted = {"folder": str(run.path), "repo": "org/canary", "version": "1.0.0", "debug": True, "patient": False}
        faults = [("GET .*/refs", 401), ("POST .*/preupload", 403), ("PUT /_lfs", 400), ("POST .*/commit", 422)]
        for match, status in [*faults, ("GET .*/refs", 500), ("POST .*/tag", 429)]:
            # a server that says the token back, without debug logs: in those httpx itself shows every header that came
            hub.fail(match, status=status, times=99, message=f"you sent Bearer {canary}")
            outcome = hub.run("publish_run", **wanted | {"debug": False})
            assert outcome.error in ("HubError", "HubUnreachable"), outcome
            told += [outcome.message, outcome.output]
            hub.heal()
        outcome = hub.run("publish_run", **wanted)
        told += [json.dumps(outcome.get()), outcome.output]
        assert any(entry["authorized"] for entry in hub.requests())
        assert not [entry for entry in hub.requests("/_cdn/") if entry["authorized"]]
        manifest = json.loads(other.manifest_path.read_text())
        other.write_manifest({**manifest, "note": f"token {canary}"})
        outcome = hub.run("publish_run", **wanted | {"folder": str(other.path), "version": "1.1.0"})
        told += [outcome.message, outcome.output]
        other.manifest_path.write_text("{}")
    told_all = "\n".join(told)
    assert canary not in told_all
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes(), path
    assert hub_server.TOKENS


@pytest.mark.slow
def test_200_megabytes_in_four_configs(tmp_path: Path) -> None:
    """Publish, load by version in a fresh cache, stream first rows while few bytes are read, publish 1.1.0."""
    run = make_run(tmp_path / "run", dict.fromkeys(SOURCES, 14_000), mean=1_500, cap=8_000, holdout=500, files=3)
    size = sum(path.stat().st_size for path in run.path.rglob("records/**/*.parquet"))
    assert size > 200e6
    with TestHub(tmp_path / "hub", WRITER) as hub:
        publish(hub, run, "org/large")
        read = {}
        for name, job in (
            ("load_dataset", {"function": "stream", "config": "B1_glaive", "revision": "v1.0.0"}),
            ("load_version", {"function": "stream_version", "source": "B1_glaive", "version": "1.0.0"}),
        ):
            hub.forget()
            assert len(hub.run(repo="org/large", rows=5, **job).get()) == 5
            read[name] = sum(entry["sent"] for entry in hub.requests("/_cdn/")) / 1e6
        print(f"{size / 1e6:.0f} MB published; MB read for the first five rows: {read}")
        # Arrow joins neighbouring reads up to 32 MB, whatever the size of a row group; our helper asks for less
        assert 0 < read["load_version"] < 4 < read["load_dataset"] < 36
        assert hub.run("load", repo="org/large", revision="v1.0.0").get()["rows"] == 13_500 * 4
        grown = make_run(
            tmp_path / "run2", dict.fromkeys(SOURCES, 15_000), mean=1_500, cap=8_000, holdout=500, files=3
        )
        publish(hub, grown, "org/large", "1.1.0")
        for version, count in (("v1.0.0", 13_500), ("v1.1.0", 14_500)):
            assert hub.run("load", repo="org/large", config="B8_sweagent", revision=version).get()["rows"] == count
