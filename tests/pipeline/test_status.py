"""`status` and `lengths` on a run that works, and after it was killed."""

import json
import time
from pathlib import Path

import pytest
from support.pipeline import call, command, glaive_file, recipe, server, smollm2_folder


@pytest.mark.slow
def test_a_run_is_seen_from_outside_while_it_works_and_when_it_died(tmp_path: Path) -> None:
    tokenizer = smollm2_folder(tmp_path / "tokenizer")
    data = glaive_file(tmp_path / "glaive.json", 300)
    with server(tokenizer, "--delay", "0.15") as url:
        written = recipe(tmp_path / "r.yaml", url, tokenizer, data, rows=300, concurrency=4)
        call("prepare", written, "--progress", "none", cwd=tmp_path)
        run = tmp_path / "runs" / "tried"
        process = command("generate", written, "--progress", "none", cwd=tmp_path)
        found: dict = {}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.3)
            if not run.joinpath("manifest.json").is_file():
                continue
            found = json.loads(call("status", run, "--json", cwd=tmp_path)[0])
            answered = found["sources"]["B1_glaive"]["outcomes"]["stop"]
            if found["running"] and answered >= 8 and found["seconds_left"] > 0:
                break
        source = found["sources"]["B1_glaive"]
        assert found["running"] and source["prompts"] == 300 and 0 < source["in_flight"] <= 4
        assert found["servers"][0]["url"] == url and found["servers"][0]["up"]
        text = call("status", run, cwd=tmp_path)[0]
        assert "running for" in text and "tokens/s over the last minute" in text and " left" in text
        lengths = call("lengths", run, cwd=tmp_path)[0]
        assert "This run is not complete" in lengths and "B1_glaive: median" in lengths
        assert not (run / "lengths.json").exists(), "a run under way is read and not written to"
        process.kill()
        process.communicate()
    left = next(run.glob(".progress/*.json"))
    values = json.loads(left.read_text())
    left.write_text(json.dumps({**values, "written": values["written"] - 60}))
    dead = json.loads(call("status", run, "--json", cwd=tmp_path)[0])
    assert not dead["running"] and dead["sources"]["B1_glaive"]["outcomes"]["stop"] > 0
    assert "not running" in call("status", run, cwd=tmp_path)[0]
    left.write_text("{")
    assert not json.loads(call("status", run, "--json", cwd=tmp_path)[0])["running"], "a broken hint says nothing"
    assert "not a run folder" in call("status", tmp_path, cwd=tmp_path, status=2)[1]
