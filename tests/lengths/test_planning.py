"""What plan and pilot say of lengths before and after a sample is generated."""

import numpy as np
import pytest
from support.pipeline import call, glaive_file, recipe, server, smollm2_folder

from eagle3_data.errors import DataError
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.lengths import (
    LengthCounts,
    choose_cap,
    count_characters,
    measure_lengths,
    prompt_report,
    worth_of_rows,
)
from eagle3_data.run_folder import RunFolder


def prompts(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    tokens = np.ceil(random.lognormal(np.log(300), 0.8, rows)).astype(int)
    return tokens, np.round(tokens * random.normal(4.2, 0.3, rows)).astype(int)


def test_exact_prompt_lengths_beside_the_guess():
    tokens, characters = prompts(2000)
    values = prompt_report("a", tokens, characters).to_dict()
    assert values["complete"] and values["budgets"] is None
    assert values["lengths"]["mean"]["value"] == pytest.approx(tokens.mean())
    guess = values["guess"]
    assert guess["mean"] == pytest.approx(characters.mean() / 3.5)
    assert guess["bias"] == pytest.approx(characters.sum() / 3.5 / tokens.sum() - 1)
    assert guess["actual"]["low"] < 4.2 < guess["actual"]["high"]
    words = " ".join(prompt_report("a", tokens, characters).sentences())
    assert "all 2,000 prompts" in words and "20 % too many in the mean" in words and "4.19 characters a token" in words


def test_budgets_are_those_that_generation_sends():
    tokens, characters = prompts(2000)
    limits = ContextLimits(1024)
    found = prompt_report("a", tokens, characters, cap=512, limits=limits).to_dict()["budgets"]
    budgets = np.array([limits.budget(int(n), 512) for n in tokens])
    assert found["too_long"]["rows"] == (budgets == 0).sum() == (tokens > 1017).sum() > 0
    assert found["shortened"]["rows"] == ((budgets > 0) & (budgets < 512)).sum() > 0
    assert found["whole_cap"]["rows"] == (budgets == 512).sum()
    assert found["smallest_budget"] == budgets[budgets > 0].min()
    share = found["too_long"]["share"]
    assert share["low"] == share["value"] == share["high"], "all prompts were counted: nothing is uncertain"


def test_a_sample_speaks_of_all_prompts_with_its_uncertainty():
    tokens, characters = prompts(400)
    report = prompt_report("a", tokens, characters, prompts=40_000, cap=512, limits=ContextLimits(1024))
    found = report.to_dict()["budgets"]["too_long"]
    assert found["estimated_rows"] == found["rows"] * 100 and found["share"]["low"] < found["share"]["value"]
    assert "a sample of 400 of 40,000 prompts" in report.sentences()[0] and "about" in report.sentences()[2]
    with pytest.raises(DataError, match="only 300"):
        prompt_report("a", tokens, characters, prompts=300)
    with pytest.raises(DataError, match="400 token counts and 399"):
        prompt_report("a", tokens, characters[:-1])
    assert prompt_report("a", np.array([], int), np.array([], int)).sentences() == ["a has no prompts."]


def test_characters_of_a_prompt():
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    messages = [
        {"role": "user", "content": "añb"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
    ]
    assert count_characters(messages) == 3 + 2 + 3 + 7
    assert count_characters(messages, "[1]") == 15 + 3


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (20, ["± 20.1 percentage points", "p25 to p75", "cannot show that a cap cuts at most 1 %", "299 rows"]),
        (200, ["± 6.9 percentage points", "p5 to p95", "cannot show"]),
        (400, ["± 4.9", "p1 to p99", "may be far too high"]),
        (2000, ["They can show a cap for a target of 1 %"]),
    ],
)
def test_what_rows_are_worth(rows, says):
    words = " ".join(worth_of_rows(rows).sentences())
    for part in says:
        assert part in words, words


def test_twenty_rows_of_mean_75_show_what_they_are_worth():
    random = np.random.default_rng(0)
    lengths = LengthCounts.from_arrays(np.ceil(random.lognormal(np.log(60), 0.7, 20)).astype(int))
    values = prompt_report("B4", np.repeat(lengths.values, lengths.recorded), np.full(20, 260)).to_dict()["lengths"]
    assert (
        values["mean"]["low"] < 0.8 * values["mean"]["value"]
        and values["mean"]["high"] > 1.2 * values["mean"]["value"]
    )
    assert values["quantiles"]["p99"]["high"] is None and values["quantiles"]["p1"]["low"] is None


def test_a_pilot_chooses_the_cap_for_auto():
    random = np.random.default_rng(1)
    lengths = np.ceil(random.lognormal(np.log(1500), 1.0, 1200)).astype(int)
    # Rounds of a pilot: everyone gets 4,096 tokens, the cut ones go on to 32,768.
    final = LengthCounts.from_arrays(np.minimum(lengths, 32_768), lengths > 32_768)
    choice = choose_cap(final, 0.01)
    assert choice.reason == "measured" and choice.cap % 64 == 0
    assert choice.smallest.low < 1500 * np.exp(2.326) < choice.smallest.high and choice.smallest.value < choice.cap
    first = choose_cap(LengthCounts.from_arrays(np.minimum(lengths, 4096), lengths > 4096), 0.01)
    assert first.cap is None and first.reason == "beyond_caps"
    few = choose_cap(LengthCounts.from_arrays(lengths[:200]), 0.01)
    assert few.to_dict()["reason"] == "too_few_rows" and few.rows_needed == 299
    assert choose_cap(final, 0.2).cap < choice.cap


@pytest.mark.parametrize(
    ("cut", "waiting", "reason"),
    [
        (0, 0, "too_few_rows"),  # 200 rows that all ended
        (20, 0, "beyond_caps"),
        (0, 300, "unanswered"),  # the rows of an unfinished run would do
        (0, 50, "too_few_rows"),  # and these would not
    ],
)
def test_why_there_is_no_cap(cut, waiting, reason):
    ends = LengthCounts.from_arrays(np.arange(1, 201), np.arange(200) >= 200 - cut, waiting=waiting)
    assert choose_cap(ends, 0.01).reason == reason


def test_many_rows_near_the_target_are_not_called_too_few():
    lengths = np.concatenate((np.arange(1, 2977), np.full(24, 2977)))  # 0.8 % cut: the upper limit is above 1 %
    choice = choose_cap(LengthCounts.from_arrays(lengths, lengths == 2977), 0.01)
    assert (choice.cap, choice.reason) == (None, "beyond_caps") and choice.rows > choice.rows_needed


@pytest.mark.slow
def test_a_pilot_by_command_finds_the_cap_that_auto_takes(tmp_path):
    tokenizer = smollm2_folder(tmp_path / "tokenizer")
    data = glaive_file(tmp_path / "glaive.json", 120)
    with server(tokenizer) as url:
        written = recipe(
            tmp_path / "r.yaml", url, tokenizer, data, rows=80, max_new_tokens="auto", truncation_target=0.05
        )
        refused = call("run", written, "--progress", "none", cwd=tmp_path, status=2)[1]
        assert "run `eagle3-data pilot" in refused
        text = call("pilot", written, "--high-cap", 256, "--progress", "none", cwd=tmp_path)[0]
        assert "max_new_tokens: auto in the recipe takes these caps" in text and "the cap of 256" in text
        assert "--high-cap 100" in call("pilot", written, "--high-cap", 100, cwd=tmp_path, status=2)[1]
        pilot = RunFolder(tmp_path / "runs" / "tried" / "pilot")
        found = measure_lengths(pilot).to_dict()["sources"]["B1_glaive"]
        assert found["rows"] == 93 and found["advice"]["cap"] == 256 and found["truncated"]["rows"] == 0
        call("run", written, "--progress", "none", cwd=tmp_path)
        run = RunFolder(tmp_path / "runs" / "tried")
        cap = run.read_manifest().pilot["B1_glaive"].max_new_tokens
        measured = measure_lengths(run).to_dict()["sources"]["B1_glaive"]
        assert run.read_manifest().pilot["B1_glaive"].to_dict() | {"interval": 0, "max_new_tokens": 0} == {
            "max_new_tokens": 0,
            "truncation_target": 0.05,
            "rows": 93,
            "prompts": 120,
            "rows_needed": 59,
            "rows_good": 93,
            "reason": "measured",
            "interval": 0,
        }
        assert cap == found["advice"]["advised"]["cap"] == measured["budgets"]["max"] == measured["advice"]["cap"]
