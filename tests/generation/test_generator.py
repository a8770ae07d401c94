"""`prompts.map(step.generate)`: order, journal, failures as values, continuation, and when a run must stop."""

import asyncio
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from support.generate_server import VOCABULARY, GenerateServer, continuation, crc_of
from support.generation import PlainTarget, prompt_ids, prompts, serving

from eagle3_data import schema
from eagle3_data.errors import (
    DataError,
    EngineError,
    EngineUnavailable,
    IdentityError,
    TooManyFailures,
    UsageError,
)
from eagle3_data.generation import STEP_FEATURES, Extend, Generator, RetryPolicy, records

QUICK = RetryPolicy(attempts=6, first_wait=0.01, longest_wait=0.05)


def generator(url: str, path: Path, cap: Any = 40, **changes: Any) -> Generator:
    changes.setdefault("retries", QUICK)
    return Generator(PlainTarget(), [url], {"temperature": 0.0}, cap, path / "journal", **changes)


def faults(names: dict[int, list[str]]) -> Any:
    """Return a fault function: for prompt number n, the faults of its tries in order, the last one for ever."""
    by_crc = {crc_of(prompt_ids(number)): tries for number, tries in names.items()}
    return lambda crc, turn: by_crc[crc][min(turn, len(by_crc[crc]) - 1)] if crc in by_crc else ""


def test_map_keeps_order_and_every_id(tmp_path: Path) -> None:
    given = prompts(60)
    server = GenerateServer(delay=lambda ids: (crc_of(ids) % 7) / 200)
    with serving(server) as url:
        with generator(url, tmp_path) as step:
            out = given.map(step.generate)
        assert out["sample_id"] == given["sample_id"]
        for number, row in enumerate(out):
            output, stopped = continuation(prompt_ids(number), 40)
            assert row["input_ids"] == prompt_ids(number)
            assert row["output_ids"] == output
            assert row["finish_reason"] == ("stop" if stopped else "length_cap")
            assert row["stop_token_id"] == (2 if stopped else -1)
            assert (row["rounds"], row["max_new_tokens"], row["error"], row["http_status"]) == (1, 40, "", 0)
        made = records(out)
        assert made.features.arrow_schema.types == schema.RECORD_FEATURES.arrow_schema.types
        assert made.column_names == list(schema.RECORD_FEATURES)
        for name, column in zip(STEP_FEATURES.arrow_schema.names, STEP_FEATURES.arrow_schema.types, strict=True):
            assert out.features.arrow_schema.field(name).type == column
        assert len(server.requests) == 60
        with generator(url, tmp_path) as step:
            again = given.map(step.generate)
        assert records(again).to_list() == made.to_list()
        assert len(server.requests) == 60  # the journal answers, not the server


def test_one_generator_for_two_maps(tmp_path: Path) -> None:
    """`map` runs a new event loop each time."""
    with serving(server := GenerateServer()) as url, generator(url, tmp_path) as step:
        assert [set(prompts(4, start=at).map(step.generate)["error"]) for at in (0, 4, 8)] == [{""}] * 3
    assert len(server.requests) == 12


def test_a_stream_gives_the_same(tmp_path: Path) -> None:
    given = prompts(30)
    with serving(GenerateServer()) as url, generator(url, tmp_path) as step:
        stream = given.to_iterable_dataset().map(step.generate)
        rows = list(stream)
        assert [row["output_ids"].tolist() for row in rows] == [
            continuation(prompt_ids(number), 40)[0] for number in range(30)
        ]
        with pytest.raises(DataError, match="takes a Dataset"):
            records(stream)


def test_input_ids_of_the_user_are_sent_as_they_are(tmp_path: Path) -> None:
    given = datasets.Dataset.from_dict({"sample_id": ["a", "b"], "input_ids": [[7, 8], [9, 10, 11]]})
    with serving(server := GenerateServer()) as url, generator(url, tmp_path) as step:
        given.map(step.generate)
    assert sorted(request["input_ids"] for request in server.requests) == [[7, 8], [9, 10, 11]]


def test_failures_are_values_and_are_asked_again(tmp_path: Path) -> None:
    """Two failures in the middle of good rows break no column type; a second step really asks for them again."""
    server = GenerateServer(faults({20: ["400", ""], 21: ["vocabulary"]}))
    given = prompts(50)
    with serving(server) as url:
        with generator(url, tmp_path) as step:
            out = given.map(step.generate, writer_batch_size=5)
        errors = {number: error for number, error in enumerate(out["error"]) if error}
        assert errors.keys() == {20, 21}
        assert errors[20] == "http_400: made to say 400"
        assert str(VOCABULARY) in errors[21]
        assert out["http_status"][20] == 400
        assert len(records(out)) == 48
        with generator(url, tmp_path) as step:
            out = given.map(step.generate, writer_batch_size=5)
        assert [number for number, error in enumerate(out["error"]) if error] == [21]
        assert len(server.requests) == 52


@pytest.mark.parametrize(
    "tries",
    [["reset"], ["cut"], ["503"], ["429"], ["500"], ["502"], ["504"], ["408"], ["425"], ["abort"], ["queued_abort"]],
)
def test_passing_faults_are_tried_again(tmp_path: Path, tries: list[str]) -> None:
    server = GenerateServer(faults({3: [*tries * 3, ""]}))
    with serving(server) as url, generator(url, tmp_path) as step:
        out = prompts(6).map(step.generate)
    assert out["error"] == [""] * 6
    assert server.asked[crc_of(prompt_ids(3))] == 4
    assert out[3]["output_ids"] == continuation(prompt_ids(3), 40)[0]


def test_a_hanging_request_is_given_up(tmp_path: Path) -> None:
    server = GenerateServer(faults({1: ["hang", ""]}))
    with serving(server) as url, generator(url, tmp_path, request_timeout=0.3) as step:
        assert prompts(3).map(step.generate)["error"] == [""] * 3


def test_lasting_faults_fail_with_the_evidence(tmp_path: Path) -> None:
    kinds = ["500", "abort", "completion_tokens", "prompt_tail", "prompt_tokens", "clamp", "422"]
    server = GenerateServer(faults({number: [kind] for number, kind in enumerate(kinds)}))
    with serving(server) as url, generator(url, tmp_path) as step:
        out = prompts(30).map(step.generate)
        entry = step.journal.get(out["sample_id"][0])
    assert [error.partition(":")[0] for error in out["error"][:8]] == [
        "http_500",
        "abort",
        "completion_tokens",
        "prompt_tail",
        "prompt_tokens",
        "budget",
        "http_422",
        "",
    ]
    assert entry is not None and entry.attempts == QUICK.attempts


def test_retry_after_is_honoured(tmp_path: Path) -> None:
    server = GenerateServer(faults({0: ["429", ""]}), retry_after="1")
    with serving(server) as url, generator(url, tmp_path) as step:
        began = asyncio.run(_timed(step))
    assert began >= 1.0


async def _timed(step: Generator) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await step.generate(prompts(1)[0])
    return loop.time() - began


def test_ids_outside_the_vocabulary_are_never_sent(tmp_path: Path) -> None:
    rows = [[5, VOCABULARY], [-1, 5], [], [5, 6]]
    given = datasets.Dataset.from_dict({"sample_id": list("abcd"), "input_ids": rows})
    with serving(server := GenerateServer()) as url, generator(url, tmp_path, max_failure_share=1.0) as step:
        out = given.map(
            step.generate, features=datasets.Features({"sample_id": datasets.Value("string")} | STEP_FEATURES)
        )
    assert [error.partition(":")[0] for error in out["error"]] == ["vocabulary"] * 3 + [""]
    assert [request["input_ids"] for request in server.requests] == [[5, 6]]


def test_every_edge_of_the_context(tmp_path: Path) -> None:
    """The server never refuses and never clamps, whatever the length of a prompt."""
    context = 64
    server = GenerateServer(context=context, stop_every=10**9)
    lengths = range(context - 9, context + 3)
    given = datasets.Dataset.from_dict(
        {"sample_id": [str(n) for n in lengths], "input_ids": [prompt_ids(n, n) for n in lengths]}
    )
    with serving(server) as url, generator(url, tmp_path, cap=6) as step:
        out = given.map(step.generate)
        skipped = step.journal.get(str(context))
    assert out["finish_reason"][:3] == ["length_cap", "length_cap", "length_context"]
    assert out["completion_tokens"] == [6, 6, 5] + [0] * 9
    assert all(error.startswith("context:") for error in out["error"][3:])
    assert len(server.requests) == 3
    assert skipped is not None and skipped.budget == context - 7


def test_continued_answers_equal_long_ones(tmp_path: Path) -> None:
    given = prompts(40)
    with serving(server := GenerateServer(stop_every=150)) as url:
        with generator(url, tmp_path / "long", 200) as step:
            long = records(given.map(step.generate))
        with generator(url, tmp_path / "short", 20) as step:
            short = records(given.map(step.generate))
        with generator(url, tmp_path / "short", 200) as step:
            unchanged = records(given.map(step.generate))
        cut = short["finish_reason"].count("length_cap")
        assert cut > 10
        assert unchanged.to_list() == short.to_list()  # a larger cap alone never touches a finished row
        asked = len(server.requests)
        with generator(url, tmp_path / "short", 200, extend=True) as step:
            extended = records(given.map(step.generate))
        assert len(server.requests) - asked == cut
        with generator(url, tmp_path / "ladder", 20, extend=Extend(200, rounds=3)) as step:
            ladder = records(given.map(step.generate))
    for made in (extended, ladder):
        for name in ("output_ids", "finish_reason", "stop_token_id", "max_new_tokens"):
            if name == "max_new_tokens":
                assert all(value <= 200 for value in made[name])
                continue
            assert made[name] == long[name]
    assert set(extended["rounds"]) == {1, 2}
    assert set(ladder["rounds"]) == {1, 2, 3, 4}
    assert {row["max_new_tokens"] for row in extended if row["rounds"] == 2} == {200}


def test_a_full_context_ends_a_continuation(tmp_path: Path) -> None:
    server = GenerateServer(context=64, stop_every=10**9)
    given = prompts(1)
    with serving(server) as url:
        with generator(url, tmp_path, 10) as step:
            assert given.map(step.generate)["finish_reason"] == ["length_cap"]
        with generator(url, tmp_path, 500, extend=True) as step:
            row = given.map(step.generate)[0]
        assert (row["finish_reason"], row["completion_tokens"], row["rounds"]) == ("length_context", 56, 2)
        assert row["max_new_tokens"] == 56
        asked = len(server.requests)
        with generator(url, tmp_path, 900, extend=True) as step:
            given.map(step.generate)
        assert len(server.requests) == asked


def test_a_failed_continuation_keeps_the_answer(tmp_path: Path) -> None:
    server = GenerateServer(stop_every=10**9)
    given = prompts(1)
    with serving(server) as url:
        with generator(url, tmp_path, 10) as step:
            before = records(given.map(step.generate)).to_list()
        server.fault = lambda crc, turn: "400"
        with generator(url, tmp_path, 20, extend=True, max_failure_share=1.0) as step:
            assert records(given.map(step.generate)).to_list() == before


def test_the_same_prompt_twice_is_asked_once(tmp_path: Path) -> None:
    given = datasets.concatenate_datasets([prompts(3), prompts(3)])
    with serving(server := GenerateServer(delay=0.05)) as url, generator(url, tmp_path) as step:
        out = given.map(step.generate)
    assert len(server.requests) == 3
    assert out["output_ids"][:3] == out["output_ids"][3:]


def test_a_template_that_fails_fails_its_row(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "no number"}]
    given = datasets.Dataset.from_list([{"sample_id": "x", "source": "B1", "messages": chat, "tools": "[]"}])
    with serving(GenerateServer()) as url, generator(url, tmp_path) as step:
        assert given.map(step.generate)["error"][0].startswith("render: ValueError")


def test_a_storm_of_failures_stops_the_run(tmp_path: Path) -> None:
    server = GenerateServer(lambda crc, turn: "400" if turn == 0 else "")
    given = prompts(200)
    with serving(server) as url:
        with generator(url, tmp_path, concurrency=4) as step, pytest.raises(TooManyFailures, match="made to say 400"):
            given.map(step.generate)
        assert len(server.requests) < 40
        server.fault = lambda crc, turn: "400" if turn < 2 else ""
        given = given.select(range(len(server.requests)))
        with generator(url, tmp_path, concurrency=4) as step:  # rows known to be bad are no storm
            given.map(step.generate)


def test_other_prompts_are_not_joined_to_old_answers(tmp_path: Path) -> None:
    def rows(ids: list[int]) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"sample_id": ["a"], "input_ids": [ids]})

    with serving(GenerateServer()) as url, generator(url, tmp_path) as step:
        rows([5, 6]).map(step.generate)
        with pytest.raises(DataError, match="answered for another prompt"):
            rows([5, 7]).map(step.generate)


def test_another_identity_is_refused(tmp_path: Path) -> None:
    with serving(GenerateServer()) as url:
        with generator(url, tmp_path) as step:
            prompts(1).map(step.generate)
        with pytest.raises(IdentityError, match="temperature"):
            Generator(PlainTarget(), [url], {"temperature": 1.0}, 40, tmp_path / "journal")
        with pytest.raises(IdentityError, match="'plain' there, 'other' now"):
            Generator(PlainTarget("other"), [url], {"temperature": 0.0}, 40, tmp_path / "journal")
    other = GenerateServer(weight_version="2")
    with serving(other) as url, generator(url, tmp_path) as step, pytest.raises(IdentityError, match="weight_version"):
        prompts(3).map(step.generate)


def test_two_steps_share_a_journal(tmp_path: Path) -> None:
    with serving(server := GenerateServer()) as url:
        first, second = generator(url, tmp_path), generator(url, tmp_path)
        prompts(5).map(first.generate)
        prompts(5).map(second.generate)
        first.close()
        prompts(6).map(second.generate)
        second.close()
    assert len(server.requests) == 6


def test_several_processes_are_refused(tmp_path: Path) -> None:
    with generator("http://127.0.0.1:9", tmp_path) as step, pytest.raises(UsageError, match="leave num_proc out"):
        prompts(4).map(step.generate, num_proc=2)


def test_no_server_is_one_clear_error(tmp_path: Path) -> None:
    with generator("http://127.0.0.1:9", tmp_path) as step, pytest.raises(EngineUnavailable, match="nothing answers"):
        prompts(2).map(step.generate)


def test_a_key_is_sent_and_never_stored(tmp_path: Path) -> None:
    with serving(server := GenerateServer(key="s3cret")) as url:
        with generator(url, tmp_path / "a", api_key="s3cret") as step:
            assert prompts(2).map(step.generate)["error"] == ["", ""]
        with generator(url, tmp_path / "b", api_key="wrong") as step, pytest.raises(EngineError, match="api_key_env"):
            prompts(2).map(step.generate)
        server.fault = lambda crc, turn: "400"
        with generator(url, tmp_path / "c", api_key="s3cret") as step:
            assert prompts(1).map(step.generate)["error"] == ["http_400: made to say 400 to Bearer (a secret)"]
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    assert not any(b"s3cret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"cap": 0}, "max_new_tokens"),
        ({"cap": {"B1": 4.5}}, "max_new_tokens of B1"),
        ({"concurrency": 0}, "concurrency"),
        ({"extend": Extend(10)}, "below max_new_tokens"),
    ],
)
def test_wrong_arguments(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        generator("http://127.0.0.1:9", tmp_path, **changes)


def test_a_source_without_a_cap_is_named(tmp_path: Path) -> None:
    caps = {"B4": 10}
    with generator("http://127.0.0.1:9", tmp_path, caps) as step, pytest.raises(UsageError, match="no cap for source"):
        prompts(1).map(step.generate)


def test_columns_are_int32_even_when_nothing_came(tmp_path: Path) -> None:
    server = GenerateServer(lambda crc, turn: "400")
    with serving(server) as url, generator(url, tmp_path, max_failure_share=1.0) as step:
        row = asyncio.run(_row(step))
    assert row["output_ids"].dtype == row["input_ids"].dtype == np.int32


async def _row(step: Generator) -> dict[str, Any]:
    row = await step.generate(prompts(1)[0])
    await step.connections.close()
    return row
