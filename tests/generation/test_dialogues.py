"""Dialogues with real targets' tokenizers and templates: each goes on or ends as it should, and replays exactly."""

import json
import random
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from support.generation import serving
from support.scripted_server import ScriptedServer
from support.shared import SHARED

from eagle3_data import schema
from eagle3_data.check.check import check
from eagle3_data.errors import DataError, IdentityError, UsageError
from eagle3_data.generation import (
    DIALOGUE_FEATURES,
    Generator,
    RetryPolicy,
    SourceCounts,
    SourceSettings,
    records,
    run_generation,
    write_records,
)
from eagle3_data.manifest import Manifest
from eagle3_data.run_folder import RunFolder
from eagle3_data.sources import Script
from eagle3_data.target import Target

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
CAP = 400
LONG = " ".join(str(number * number) for number in range(CAP))
USER = {"role": "user", "content": "What is 2+2?"}
PROFILES: dict[str, dict[str, Any]] = {"glm-4.7-flash": {"end_of_turn_ids": [154820, 154827, 154829]}}
CALLING = ("kimi-k2.5", "qwen3", "deepseek-v3.1", "deepseek-v3", "glm-4.7-flash", "llama-3.1")
QUICK = RetryPolicy(attempts=2)


@cache
def real(name: str, thinking: bool | None = None) -> Target:
    return Target.from_pretrained(SHARED / "tokenizers" / name, thinking=thinking, profile=PROFILES.get(name))


def call(name: str, number: int = 0) -> dict[str, Any]:
    return {"id": f"up{number}", "type": "function", "function": {"name": name, "arguments": '{"city":"Paris"}'}}


def script(case: str, calls: list[str], *, turns: int = 3) -> dict[str, Any]:
    """A dialogue of `turns` answers: one that calls, one that reads the results, then user turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"CASE {case}: the weather in Paris?"}]
    if turns > 1 and calls:
        messages.append({"role": "assistant", "tool_calls": [call(name, at) for at, name in enumerate(calls)]})
        messages += [
            {"role": "tool", "content": f"result {at} of {case}", "tool_call_id": f"up{at}"}
            for at in range(len(calls))
        ]
        turns -= 1
    for turn in range(turns - 1):
        messages += [{"role": "assistant"}, {"role": "user", "content": f"NEXT {turn} {case}"}]
    tools = json.dumps(TOOLS)
    made = Script(messages, tools, 0)
    return {
        "sample_id": schema.sample_id("B1", messages[:1], tools),
        "source": "B1",
        "config": "all",
        "source_revision": "r",
        "source_file": "f",
        "source_row": 0,
        "source_turn": 0,
        "origin": "",
        "license": "mit",
        "dialogue": schema.sample_id("B1", messages[:1], tools),
        "turn": 0,
        "later_turns": made.later_ids("B1"),
        "expected_tokens": 100,
        "messages": messages,
        "tools": tools,
    }


def dataset(rows: list[dict[str, Any]]) -> Dataset:
    return Dataset.from_list(
        [{**row, "source_row": at} for at, row in enumerate(rows)], features=schema.PROMPT_FEATURES
    )


def written(target: Target, message: dict[str, Any]) -> list[int]:
    """The ids that the template writes for an assistant message after its generation prompt, without the end."""
    asked = target.render([USER], TOOLS)
    whole = target.render([USER, {"role": "assistant", **message}, USER], TOOLS)
    pairs = enumerate(zip(asked, whole, strict=False))
    start = next((place for place, (one, other) in pairs if one != other), len(asked))
    stops = {*target.profile.end_of_turn_ids, *target.profile.template_only_ids}
    return whole[start : next(place for place in range(start, len(whole)) if whole[place] in stops)]


def replies(target: Target) -> Any:
    """What the scripted target writes, by the case that the prompt's text names."""
    stop = target.stop_token_ids[0]

    def reply(prompt: str) -> list[int]:
        named_case = re.findall(r"CASE (\w+)", prompt)
        if not named_case:  # a request that shows which model answers
            return [stop]
        case = named_case[-1]
        later = re.findall(r"NEXT (\d+)", prompt)
        if later or "result 0" in prompt:
            number = len(later)
            if case == "cut_later" and not number:
                return [*written(target, {"content": LONG}), stop]
            return [*written(target, {"content": f"answer {number} to {case}"}), stop]
        names = {"other": ["time"], "parallel": ["weather", "time"], "none": [], "swapped": ["time", "weather"]}
        named = names.get(case, ["weather"])
        calls = [call(name, at) for at, name in enumerate(named)]
        message = {"content": "", "tool_calls": calls} if calls else {"content": "No call is needed."}
        ids = written(target, message)
        if case == "cut":
            return [*ids[: len(ids) - 3], *written(target, {"content": LONG}), stop]
        if case == "loop":
            return [*written(target, {"content": "round and round " * CAP}), stop]
        if case == "unreadable":
            text = target.decode(ids).replace('"city"', 'city"')
            return [*target.tokenizer.encode(text, add_special_tokens=False), stop]
        return [*ids, stop]

    return reply


class Run:
    def __init__(self, folder: Path, target: Target, rows: list[dict[str, Any]], **settings: Any) -> None:
        self.folder, self.target, self.prompts = RunFolder(folder), target, dataset(rows)
        self.server = ScriptedServer(target, replies(target), context=100_000)
        self.settings = {"B1": SourceSettings(**settings)}

    def generate(self, *, cap: int = CAP, temperature: float = 0.0, write: bool = True, **more: Any) -> SourceCounts:
        only = more.pop("only_truncated", False)
        with serving(self.server) as url:
            step = Generator(
                self.target,
                [url],
                {"temperature": temperature},
                {"B1": cap},
                self.folder.journal_path,
                retries=QUICK,
                sources=self.settings,
                **more,
            )
            with step:
                run_generation({"B1": self.prompts}, step, only_truncated=only, handle_signals=False)
        return self.write()

    def write(self) -> SourceCounts:
        return write_records({"B1": self.prompts}, self.folder, self.target, sources=self.settings)["B1"]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [row for path in self.folder.record_files("B1") for row in pq.read_table(path).to_pylist()]

    @property
    def bytes(self) -> list[bytes]:
        return [path.read_bytes() for path in self.folder.record_files("B1")]


def rerendered(target: Target, row: dict[str, Any], turns: list[dict[str, Any]]) -> list[list[int]]:
    """The prompts of a dialogue, rendered from its records in the plainest way."""
    made = Script(schema.clean_messages(row["messages"]), row["tools"], row["source_turn"])
    messages: list[dict[str, Any]] = [dict(message) for message in made.messages[: row["source_turn"] + 1]]
    prompts, calls = [target.render(messages, row["tools"])], 0
    for place, turn in enumerate(turns[:-1]):
        read = target.message(turn["output_ids"], turn["input_ids"], tools=row["tools"], first_call=calls)
        upstream = [known for known, _ in made.calls(made.turns[place])]
        calls += len(read.tool_calls)
        messages.append(read.to_dict())
        for message in made.messages[made.turns[place] + 2 : made.turns[place + 1] + 1]:
            if message["role"] == "tool":
                known = read.tool_calls[upstream.index(message["tool_call_id"])].id
                messages.append({**message, "tool_call_id": known})
            else:
                messages.append(dict(message))
        prompts.append(target.render(messages, row["tools"]))
    return prompts


CASES = [
    # case, upstream's calls, turns answered, why it ended
    ("match", ["weather"], 3, ""),
    ("other", ["weather"], 1, "other_call"),
    ("parallel", ["weather"], 1, "other_call"),
    ("none", ["weather"], 1, "no_call"),
    ("uncalled", [], 1, "other_call"),
    ("cut", ["weather"], 1, "cut"),
    ("loop", ["weather"], 1, "loop"),
    ("cut_later", ["weather"], 2, "cut"),
    ("unreadable", ["weather"], 1, "call_unreadable"),
]


@pytest.mark.parametrize("name", CALLING)
def test_each_dialogue_goes_on_or_ends_by_what_the_target_wrote(name: str, tmp_path: Path) -> None:
    target = real(name)
    cases = [case for case in CASES if not (name == "llama-3.1" and case[0] == "parallel")]
    if name in ("llama-3.1", "glm-4.7-flash"):  # no JSON that could be wrong, or none that would be a call then
        cases = [case for case in cases if case[0] != "unreadable"]
    rows = [script(case, calls) for case, calls, _, _ in cases]
    run = Run(tmp_path, target, rows)
    counts = run.generate()
    wanted: dict[str, int] = {}
    for _, _, _, why in cases:
        if why:
            wanted[why] = wanted.get(why, 0) + 1
    by_dialogue: dict[str, list[dict[str, Any]]] = {}
    for record in run.records:
        by_dialogue.setdefault(record["dialogue"], []).append(record)
    for row, (case, _, answered, _) in zip(rows, cases, strict=True):
        turns = by_dialogue[row["sample_id"]]
        assert [turn["turn"] for turn in turns] == list(range(answered)), case
        assert [turn["sample_id"] for turn in turns] == [row["sample_id"], *row["later_turns"]][:answered]
        assert [turn["input_ids"] for turn in turns] == rerendered(target, row, turns), case
    assert counts.ended == dict(sorted(wanted.items()))
    assert (counts.complete, counts.dialogues, counts.missing) == (1, len(cases), 0)
    assert (counts.records, counts.turns_scripted) == (sum(case[2] for case in cases), 3 * len(cases))
    assert len(run.server.prompts) == counts.records  # nothing was asked twice


def test_tool_results_by_place_or_for_nobody(tmp_path: Path) -> None:
    rows = [script("swapped", ["weather", "time"]), script("other", ["weather"]), script("none", [])]
    by_place = Run(tmp_path / "any", real("kimi-k2.5"), rows, tool_results="any")
    assert by_place.generate().complete == 3
    alone = Run(tmp_path / "stop", real("kimi-k2.5"), rows, tool_results="stop")
    assert alone.generate().ended == {"call": 2}


@pytest.mark.parametrize("name", ["kimi-k2.5", "qwen3"])
def test_a_run_killed_anywhere_writes_the_same_bytes_and_asks_nothing_twice(name: str, tmp_path: Path) -> None:
    rows = [script(f"{case}x{at}" if case == "match" else case, calls) for at, (case, calls, _, _) in enumerate(CASES)]
    calm = Run(tmp_path / "calm", real(name), rows)
    calm.generate()
    log = next(calm.folder.journal_path.glob("*.log")).read_bytes()
    pick = random.Random(3)
    for number in range(8):
        killed = Run(tmp_path / f"killed{number}", real(name), rows)
        killed.folder.journal_path.mkdir(parents=True)
        shutil.copy(calm.folder.journal_path / "identity.json", killed.folder.journal_path)
        (killed.folder.journal_path / "00000-of-00001.000000.log").write_bytes(log[: pick.randrange(len(log))])
        before = killed.write().records
        counts = killed.generate()
        assert killed.bytes == calm.bytes
        assert len(killed.server.prompts) == counts.records - before
        assert killed.generate() == counts and len(killed.server.prompts) == counts.records - before


def test_extend_goes_on_with_the_answer_and_then_the_dialogue(tmp_path: Path) -> None:
    run = Run(tmp_path, real("qwen3"), [script("cut_later", ["weather"]), script("match", ["weather"])])
    assert run.generate().ended == {"cut": 1}
    asked = len(run.server.prompts)
    counts = run.generate(cap=4000, extend=True, only_truncated=True)
    assert (counts.complete, counts.ended) == (2, {})
    assert len(run.server.prompts) == asked + 2  # the rest of one answer, and one more turn
    assert [row["rounds"] for row in run.records] == [1, 2, 1, 1, 1, 1]


def test_first_becomes_rollout_and_more_turns_keep_what_is_there(tmp_path: Path) -> None:
    target, whole = real("qwen3"), script("match", ["weather"], turns=4)
    first = {**whole, "messages": whole["messages"][:1], "later_turns": []}
    short = {**whole, "messages": whole["messages"][:5], "later_turns": whole["later_turns"][:2]}
    run = Run(tmp_path, target, [first])
    for row, records_now in ((first, 1), (short, 3), (whole, 4)):
        run.prompts = dataset([row])
        assert run.generate().records == records_now
        assert len(run.server.prompts) == records_now


def test_more_samples_ask_only_for_those_that_are_missing(tmp_path: Path) -> None:
    rows = [script("match", ["weather"]), script("none", [], turns=1)]
    two = Run(tmp_path, real("qwen3"), rows, samples=2)
    assert two.generate(temperature=1.0).records == 8
    four = Run(tmp_path, real("qwen3"), rows, samples=4)
    counts = four.generate(temperature=1.0)
    assert (counts.records, counts.dialogues, len(four.server.prompts)) == (16, 8, 8)
    keys = [(row["sample_id"], row["sample"]) for row in four.records]
    assert len(set(keys)) == 16 and {sample for _, sample in keys} == {0, 1, 2, 3}
    with pytest.raises(UsageError, match=r"samples 4 at temperature 0"):
        four.generate()


def test_every_source_has_its_own_sampling_and_thinking(tmp_path: Path) -> None:
    target, silent = real("qwen3"), real("qwen3", False)
    row = script("none", [], turns=1)
    other = {**row, "source": "B2", "sample_id": row["sample_id"].replace("B1", "B2")}
    server = ScriptedServer(target, replies(target), context=100_000)
    settings = {"B2": SourceSettings(sampling={"temperature": 0.5}, target=silent)}
    given = {"B1": dataset([row]), "B2": dataset([other])}
    run = RunFolder(tmp_path)
    with serving(server) as url:

        def made(sources: dict[str, SourceSettings]) -> Generator:
            caps = {"B1": CAP, "B2": CAP}
            return Generator(target, [url], {"temperature": 0.0}, caps, run.journal_path, sources=sources)

        with made(settings) as step:
            run_generation(given, step, handle_signals=False)
        with pytest.raises(IdentityError, match=r"source B2.*temperature"):
            made({"B2": SourceSettings(sampling={"temperature": 0.6}, target=silent)})
        with pytest.raises(IdentityError, match=r"source B2.*thinking"):
            made({"B2": SourceSettings(sampling={"temperature": 0.5})})
    write_records(given, run, target, sources=settings)
    sent = {body["sampling_params"]["temperature"]: body["input_ids"] for body in server.requests}
    chat, tools = schema.clean_messages(row["messages"]), row["tools"]
    assert sent[0.0] == target.render(chat, tools) != silent.render(chat, tools) == sent[0.5]
    for source, ids in (("B1", sent[0.0]), ("B2", sent[0.5])):
        assert pq.read_table(run.record_files(source)[0])["input_ids"].to_pylist() == [ids]


def test_map_has_one_dialogue_in_and_its_records_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", real("qwen3"), [script(case, calls) for case, calls, _, _ in CASES])
    run.generate()
    with serving(run.server) as url:
        step = Generator(run.target, [url], {"temperature": 0.0}, CAP, tmp_path / "map", retries=QUICK)
        with step:
            out = run.prompts.map(
                step.generate_dialogues,
                batched=True,
                batch_size=1,
                remove_columns=run.prompts.column_names,
                features=DIALOGUE_FEATURES,
            )
            with pytest.raises((DataError, RuntimeError), match="generate_dialogues"):
                run.prompts.map(step.generate)
    assert records(out).to_list() == run.records


def test_check_knows_dialogues(tmp_path: Path) -> None:
    run = Run(tmp_path, real("qwen3"), [script(case, calls) for case, calls, _, _ in CASES])
    run.generate()
    profile = run.target.profile.to_dict()
    run.folder.write_manifest(Manifest.model_validate({"extent": {"sources": {"B1": {"turns": "rollout"}}}}))
    assert check(run.folder, profile=profile).ok
    path = run.folder.record_files("B1")[0]
    table = pq.read_table(path)
    later = np.flatnonzero(table["turn"].to_numpy() == 1)[0]
    pq.write_table(table.take([row for row in range(table.num_rows) if row != later]), path)
    found = check(run.folder, profile=profile).violations
    assert set(found) == {"turns"} and found["turns"].count == 1
