"""Prompts that a template or a benchmark refuses: left out, counted with the reason, and replaced by the next ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.pipeline import call, recipe, smollm2_folder
from support.shared import SHARED

from eagle3_data.errors import DataError, SourceError
from eagle3_data.run_folder import RunFolder
from eagle3_data.sources import Benchmarks, TemplateScreen, draw
from eagle3_data.sources.screening import GRAM_WORDS
from eagle3_data.target import Target


def write(path: Path, rows: list[list[dict[str, str]]]) -> str:
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    return str(path)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def odd(messages: Any, tools: Any) -> str:
    """Refuse every third text, as a template with an opinion would."""
    if int(messages[-1]["content"]) % 3 == 0:
        raise DataError("the chat template refuses this chat: no multiples of three")
    return ""


def test_refused_prompts_are_replaced_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [[user(str(number))] for number in range(1000)])
    screen = TemplateScreen(odd, DataError, "odd")

    def numbers(rows: int | None, **more: Any) -> tuple[list[int], Any]:
        drawn = draw("chat", data_files=path, rows=rows, cache_dir=tmp_path, **more)
        return [int(row["messages"][0]["content"]) for row in drawn.prompts], drawn.report

    everything, _ = numbers(None)
    expected = [number for number in everything if number % 3]
    for rows in (1, 10, 500, 666, None):
        found, report = numbers(rows, screens=[screen])
        assert found == expected[:rows]  # the same order, so that a larger number appends to a smaller
        refused = report.rejected.get("template", 0)
        assert report.kept + refused + report.duplicates == report.read == 1000
        assert report.screened.get("the chat template refuses this chat: no multiples of three", 0) == refused
        last = everything.index(found[-1]) if rows else 999
        assert refused == sum(number % 3 == 0 for number in everything[: last + 1])
    found, report = numbers(900, screens=[screen])
    assert (len(found), report.short, report.rejected) == (666, True, {"template": 334})


def test_under_prefix_a_row_is_rejected_when_all_its_prompts_are(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "Yes."}
    path = write(tmp_path / "a.jsonl", [[user("3"), said, user("6")], [user("9"), said, user("4")]])
    screen = TemplateScreen(odd, DataError, "odd")
    report = draw("chat", data_files=path, turns="prefix", screens=[screen], cache_dir=tmp_path).report
    assert (report.kept, report.rejected, report.prompts, report.drawn) == (1, {"template": 1}, 1, 1)


def test_nothing_but_refused_prompts_is_an_error_with_the_templates_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [[user("3")], [user("6")]])
    with pytest.raises(SourceError, match=r"chat: every prompt is refused: .*no multiples of three \(2\)"):
        draw("chat", data_files=path, screens=[TemplateScreen(odd, DataError, "odd")], cache_dir=tmp_path)


@pytest.mark.skipif(not (SHARED / "tokenizers").is_dir(), reason="no shared tokenizers")
def test_a_real_template_that_refuses_some_chats(tmp_path: Path) -> None:
    """Llama 3.1's refuses two calls at once; its own sentence is what is counted."""
    target = Target.from_pretrained(str(SHARED / "tokenizers/llama-3.1"))
    screen = TemplateScreen(target.render_text, DataError, "llama")
    path = write(tmp_path / "a.jsonl", [[user("What is 2 + 2?")], [user("What is 3 + 3?")]])
    assert draw("chat", data_files=path, screens=[screen], cache_dir=tmp_path).report.drawn == 2
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    call_twice = {
        "role": "assistant",
        "tool_calls": [{"id": str(i), "function": {"name": "f", "arguments": "{}"}} for i in range(2)],
    }
    results = [{"role": "tool", "tool_call_id": str(i), "content": "x"} for i in range(2)]
    row = {"messages": [user("Twice."), call_twice, *results], "tools": tools}
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (row, {"messages": [user("Once.")]})))
    drawn = draw("chat", data_files=str(tmp_path / "b.jsonl"), turns="last", screens=[screen], cache_dir=tmp_path)
    assert drawn.report.rejected == {"template": 1} and drawn.report.drawn == 1
    assert "single tool-calls" in next(iter(drawn.report.screened))


QUESTION = "Natalia sold clips to 48 of her friends in April and then she sold half as many clips in May"
SHORT = "What is the capital of France?"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (QUESTION, True),
        (f"Please answer: {QUESTION.upper()}!", True),
        (" ".join(QUESTION.split()[2 : 2 + GRAM_WORDS]), True),
        (" ".join(QUESTION.split()[2 : 1 + GRAM_WORDS]), False),  # twelve words of it
        (f"{QUESTION[:40]} some other words in between {QUESTION[40:80]}", False),
        ("what is the capital of france", True),
        (f"Tell me: {SHORT}", False),  # a short question is compared as a whole
        ("Something else.", False),
        ("…", False),
    ],
)
def test_passages_of_a_benchmark(text: str, found: bool, tmp_path: Path) -> None:
    bench = tmp_path / "bench.jsonl"
    bench.write_text("".join(json.dumps({"question": q, "answer": "24", "id": 3}) + "\n" for q in (QUESTION, SHORT)))
    screen = Benchmarks()
    screen.add(data_files=[str(bench)], column="question")
    path = write(tmp_path / "a.jsonl", [[user("Something of its own.")], [user(text)]])
    drawn = draw("chat", data_files=path, screens=[screen], cache_dir=tmp_path)
    assert drawn.report.rejected == ({"benchmark": 1} if found else {})
    (searched,) = drawn.report.benchmarks
    assert (searched["name"], searched["columns"], searched["rows"]) == ("bench.jsonl", ["question"], 2)
    for column, words in (
        ("id", "no column of text 'id'; there are question, answer"),
        ("x", "no column of text 'x'"),
    ):
        with pytest.raises(SourceError, match=words):
            Benchmarks().add(data_files=[str(bench)], column=column)
    with pytest.raises(SourceError, match="cannot be read"):
        Benchmarks().add(data_files=[str(tmp_path / "none.jsonl")])


def test_a_run_rejects_what_its_target_refuses_and_says_which_benchmarks_it_searched(tmp_path: Path) -> None:
    """`prepare` with a real tokenizer whose template wants the system message first, as Qwen3.5's does."""
    folder = smollm2_folder(tmp_path / "target")
    template = folder / "chat_template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
        + template.read_text()
    )
    late = {"role": "system", "content": "Be brief."}
    rows = [[user(f"What is {n} plus {n}?")] for n in range(30)] + [[user(f"{n}?"), late, user("!")] for n in range(9)]
    data = write(tmp_path / "a.jsonl", [*rows, [user(QUESTION)]])
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"question": QUESTION}) + "\n")
    path = recipe(
        tmp_path / "r.yaml",
        "http://127.0.0.1:1",
        folder,
        Path(data),
        source="chat",
        turns="last",
        decontaminate=[{"data_files": "bench.jsonl", "column": "question"}],
    )
    out, _ = call("prepare", path, "--runs", tmp_path / "runs", cwd=tmp_path)
    assert "9 left out when drawn" in out and "System message must be at the beginning." in out
    report = RunFolder(tmp_path / "runs/tried").read_manifest().reports["B1_glaive"]
    assert (report.read, report.drawn, report.rejected) == (40, 30, {"benchmark": 1, "template": 9})
    assert report.benchmarks[0]["name"] == "bench.jsonl"


def test_a_seeded_choice_of_files(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"part-{number}.jsonl", [[user(f"{number} {row}")] for row in range(5)])

    def files(share: Any, seed: int = 0) -> list[str]:
        drawn = draw(
            "chat", data_files=str(tmp_path / "*.jsonl"), files=share, seed=seed, cache_dir=tmp_path / "cache"
        )
        assert drawn.report.files_of == (10 if len(drawn.report.files) < 10 else 0)
        assert ("cluster sample" in drawn.report.to_text()) == bool(drawn.report.files_of)
        return [file["path"] for file in drawn.report.files]

    assert [len(files(share)) for share in (0.01, 0.1, 0.25, 0.5, 3, 10, 99)] == [1, 1, 2, 5, 3, 10, 10]
    assert set(files(0.1)) < set(files(3)) < set(files(0.5))  # a larger choice contains the smaller
    assert len({tuple(files(2, seed)) for seed in range(8)}) > 3
    for wrong in (0, -1, True, "all"):
        with pytest.raises(SourceError, match="files must be a share below 1, or a number of files"):
            files(wrong)
