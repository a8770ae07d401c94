"""Sources by Hub id: the commit is resolved, recorded and pinned; a changed data set is not read from a cache."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.hub_client import TestHub

import eagle3_data

JOB = """
import json, sys, tempfile
from pathlib import Path
import datasets
import huggingface_hub
from huggingface_hub import HfApi
from eagle3_data.errors import Eagle3DataError
from eagle3_data.sources import draw
from eagle3_data.sources.upstream import hub_commit

datasets.disable_progress_bars()
cache, repo, api = sys.argv[1], "org/thoughts", HfApi()


def rows(*texts):
    made = [{"messages": [{"role": "user", "content": text}], "num_tokens": 9, "source": "s"} for text in texts]
    return "".join(json.dumps(row) + "\\n" for row in made).encode()


CARD = "---\\nconfigs:\\n" + "".join(
    f"- config_name: {name}\\n  data_files:\\n  - split: train\\n    path: {name}/*.jsonl\\n"
    for name in ("all", "math")
) + "---\\n"


def upload(**files):
    for path, data in files.items():
        path = path.replace("__", "/") + (".md" if path == "README" else ".jsonl")
        api.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id=repo, repo_type="dataset")
    hub_commit.cache_clear()
    return api.dataset_info(repo).sha


def load(url, **options):
    return datasets.load_dataset("B4_mixturethoughts", "math", data_files=url, split="train", **options)


def error(**arguments):
    try:
        draw("B4_mixturethoughts", **{"config": "math", "repo": repo, "cache_dir": cache, **arguments})
    except Eagle3DataError as caught:
        return f"{type(caught).__name__}: {caught}"


api.create_repo(repo, repo_type="dataset")
first = upload(README=CARD.encode(), all__a=rows("x", "y"), math__a=rows("one", "two"), math__b=rows("three"))
drawn = draw("B4_mixturethoughts", "math", repo=repo, cache_dir=cache)
url = f"hf://datasets/{repo}/math/*.jsonl"
before = load(url, cache_dir=cache)
streamed = list(load(url, streaming=True))
by_url = draw("B4_mixturethoughts", "math", url, cache_dir=cache)
second = upload(math__a=rows("four", "two"))
after = load(url, cache_dir=cache)
newer = draw("B4_mixturethoughts", "math", repo=repo, cache_dir=cache)
pinned = draw("B4_mixturethoughts", "math", repo=repo, revision=first, cache_dir=cache)
fetched = []
download = huggingface_hub.hf_hub_download
huggingface_hub.hf_hub_download = lambda repo, path, **more: (fetched.append(path), download(repo, path, **more))[1]
part = draw("B4_mixturethoughts", "math", repo=repo, files=0.5, cache_dir=cache + "/part")
text = lambda data: sorted(row["messages"][0]["content"] for row in data)
print(json.dumps({
    "first": first, "second": second, "report": drawn.report.to_dict(),
    "texts": [text(data) for data in (drawn.prompts, before, streamed, by_url.prompts)],
    "places": sorted({(row["source_file"], row["source_row"], row["source_revision"]) for row in drawn.prompts}),
    "equal": sorted(map(str, streamed)) == sorted(map(str, drawn.prompts)) == sorted(map(str, before)),
    "after": [text(after), text(newer.prompts), newer.report.revision],
    "part": [fetched, [file["path"] for file in part.report.files], part.report.files_of],
    "pinned": [text(pinned.prompts), pinned.report.revision, pinned.path == drawn.path],
    "errors": [error(repo="org/none"), error(split="test"), error(revision="v9"), error(upstream="poems"),
               error(repo="", data_files=f"hf://datasets/{repo}/nothing/*.jsonl")],
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hub")
    with TestHub(folder, "hf_testwriter") as hub:
        environment = {**hub.environment(), "PYTHONPATH": str(Path(eagle3_data.__file__).parent.parent)}
        command = [sys.executable, "-c", JOB, str(folder / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().split("\n")[-1])


def test_a_hub_data_set_is_read_at_one_commit(seen: Any) -> None:
    assert seen["texts"] == [["one", "three", "two"]] * 4 and seen["equal"]
    report = seen["report"]
    assert (report["upstream"], report["revision"]) == ("org/thoughts", seen["first"])
    assert [file["path"] for file in report["files"]] == ["math/a.jsonl", "math/b.jsonl"]
    assert seen["places"] == [[f"math/{f}.jsonl", row, seen["first"]] for f, row in (("a", 0), ("a", 1), ("b", 0))]


def test_a_new_commit_is_read_and_the_old_one_stays_pinned(seen: Any) -> None:
    assert seen["after"] == [["four", "three", "two"], ["four", "three", "two"], seen["second"]]
    assert seen["pinned"] == [["one", "three", "two"], seen["first"], True]


def test_a_choice_of_files_fetches_no_others(seen: Any) -> None:
    fetched, files, files_of = seen["part"]
    assert fetched == files and len(files) == 1 and files_of == 2


def test_what_the_hub_refuses_is_one_line(seen: Any) -> None:
    none, split, revision, upstream, nothing = seen["errors"]
    assert none.startswith("HubError: org/none: the Hub does not give this data set (RepositoryNotFoundError")
    assert split == "SourceError: B4_mixturethoughts: org/thoughts has no split 'test'; there are train"
    assert revision.startswith("HubError: org/thoughts at revision v9: ")
    assert "BuilderConfig 'poems' not found. Available: ['all', 'math']" in upstream
    assert nothing.startswith("SourceError: ") and "nothing/*.jsonl" in nothing
    assert not any("\n" in error or "hf_test" in error for error in seen["errors"])
