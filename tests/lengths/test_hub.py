"""Lengths of a data set on the Hub, read by ranges: the scalar columns only."""

import json
import subprocess
import sys

from support import run_folders as run_folders
from support.hub_client import TestHub
from support.hub_server import WRITER

from eagle3_data.lengths import measure_lengths

JOB = """
import json, sys
import datasets
from huggingface_hub import HfApi
from eagle3_data.errors import UsageError
from eagle3_data.lengths import measure_lengths
api = HfApi()
api.create_repo("org/lengths", repo_type="dataset")
wanted = ["records/**", "manifest.json"]
api.upload_folder(repo_id="org/lengths", repo_type="dataset", folder_path=sys.argv[1], allow_patterns=wanted)
api.create_tag("org/lengths", tag="v1.0.0", repo_type="dataset")
found = measure_lengths("org/lengths@v1.0.0").to_dict()
assert measure_lengths("hf://datasets/org/lengths").to_dict() == found
errors = []
for name in ("org/nothing", "org/lengths@v9"):
    try:
        measure_lengths(name)
    except UsageError as error:
        errors.append(str(error))
print(json.dumps([found, errors]))
"""


def test_a_published_version_measures_like_its_run_folder(tmp_path):
    run = run_folders.make_run(tmp_path / "run", {"B1_glaive": 300, "B5_openthoughts": 200})
    with TestHub(tmp_path / "hub", WRITER) as hub:
        done = subprocess.run(
            [sys.executable, "-c", JOB, str(run.path)],
            env=hub.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    found, errors = json.loads(done.stdout.splitlines()[-1])
    assert found == measure_lengths(run).to_dict()
    assert len(errors) == 2 and all(name in error for name, error in zip(("org/nothing", "v9"), errors, strict=True))
