"""Templates of kinds that no shipped tokenizer shows: each is read off rightly, or refused with the true cause."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support import made_tokenizers as makers
from support.shared import SHARED

from eagle3_data.errors import DataError, TargetError
from eagle3_data.target import Target
from eagle3_data.target.controls import AddedToken, is_control

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")
USER = {"role": "user", "content": "Q"}
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
ENDS = {"eos": "<|im_end|>"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "D", "parameters": {"type": "object", "properties": {}}},
}


def call(arguments: Any, name: str = "look", identity: str = "call00000") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def chatml(assistant: str, *, before: str = "", prompt: str = "{{ '<|im_start|>assistant\\n' }}") -> str:
    """A ChatML template with a body for assistant messages of its own."""
    return (
        before
        + "{%- for m in messages %}{%- if m.role == 'assistant' %}<|im_start|>assistant\n"
        + assistant
        + "<|im_end|>"
        "{%- else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}" + prompt + "{%- endif %}"
    )


def ids_of(target: Target, text: str) -> list[int]:
    ids: list[int] = target.tokenizer.encode(text, add_special_tokens=False)
    return ids


# ---- empty generation prompts

CUES = {
    "mistral": "{{ bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{%- else %}{{ m.content }}</s>{%- endif %}{%- endfor %}",
    "cue in the user's turn": "{%- for m in messages %}{%- if m.role == 'user' %}[INST]{{ m.content }}</s>[/INST]"
    "{%- else %}{{ m.content }}</s>{%- endif %}{%- endfor %}",
    "only without an answer": "{%- for m in messages %}{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{%- elif m.content %}{{ m.content }}</s>{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{%- endif %}",
}


@pytest.mark.parametrize("name", CUES)
def test_a_template_may_add_no_generation_prompt(name: str, tmp_path: Path) -> None:
    folder, ids = makers.make(tmp_path, CUES[name], ("<s>", "</s>", "[INST]", "[/INST]"), bos="<s>", eos="</s>")
    for profile in (None, {"generation_prompt_ids": []}):
        target = Target.from_pretrained(folder, profile=profile)
        assert (target.profile.generation_prompt_ids, target.stop_token_ids) == ((), (ids["</s>"],))
        assert target.render([USER])[-1] == ids["[/INST]"]
        assert target.message(ids_of(target, "4</s>")).content == "4"


# ---- what a template leaves out

NULL_ONLY = (
    "{%- if m.content is none %}{%- for c in m.tool_calls %}<call>{{ c.function.name }}:{{ c.function.arguments }}"
    "</call>{%- endfor %}{%- else %}{{ m.content }}{%- endif %}"
)
CALLS_ALONE = (
    "{%- if m.tool_calls %}{%- for c in m.tool_calls %}<call>{{ c.function.name }}:{{ c.function.arguments | tojson }}"
    "</call>{%- endfor %}{%- else %}{{ m.content }}{%- endif %}"
)
FIRST_CALL = (
    "{{ m.content }}{%- if m.tool_calls %}<call>{{ m.tool_calls[0].function.name }}:"
    "{{ m.tool_calls[0].function.arguments | tojson }}</call>{%- endif %}"
)
CALLS = "<call>{{ c.function.name }}:{{ c.function.arguments | tojson }}</call>"
BOTH = "{{ m.content }}{%- for c in m.tool_calls %}" + CALLS + "{%- endfor %}"
OTHERS = "{%- else %}<|im_start|>{{ m.role }}"
NO_RESULTS, NO_SYSTEM = (
    chatml(BOTH).replace(OTHERS, "{%- elif m.role != '" + role + "' %}<|im_start|>{{ m.role }}")
    for role in ("tool", "system")
)
ASKED = {"role": "assistant", "content": "Hm", "tool_calls": [call({"a": 1}), call({"a": 2}, identity="call00001")]}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "R"}
LEFT_OUT = [
    (chatml(NULL_ONLY), [USER, ASKED, USER], "tool calls beside content"),
    (chatml(CALLS_ALONE), [USER, ASKED, USER], "content beside tool calls"),
    (chatml(FIRST_CALL), [USER, ASKED, USER], "tool calls after the first"),
    (chatml("{{ m.content }}"), [USER, ASKED, USER], "tool calls"),
    (NO_RESULTS, [USER, ASKED, RESULT, USER], "tool results"),
    (NO_SYSTEM, [{"role": "system", "content": "S"}, USER], "system messages"),
    (chatml(BOTH), [{**USER, "name": "Ann"}], "names"),
]


@pytest.mark.parametrize(("template", "messages", "part"), LEFT_OUT, ids=[part for _, _, part in LEFT_OUT])
def test_what_is_left_out_is_said_once_and_counted(
    template: str, messages: Any, part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target.from_pretrained(makers.make(tmp_path, template, CHATML, ("<call>", "</call>"), **ENDS)[0])
    target.render([USER])
    assert not caplog.text
    target.render_batch([messages, messages])
    target.render(messages)
    assert target.left_out == {part: 3}
    assert caplog.text.count(f"leaves out {part} (2 in the first 2 chat(s)") == 1
    assert len(caplog.records) == 1


def test_calls_with_null_content_only_are_given_null(tmp_path: Path) -> None:
    target = Target.from_pretrained(makers.make(tmp_path, chatml(NULL_ONLY), CHATML, (), **ENDS)[0])
    for content in ({}, {"content": ""}, {"content": None}):
        text = target.render_text([USER, {"role": "assistant", "tool_calls": [call('{"a": 1}')], **content}, USER])
        assert '<call>look:{"a": 1}</call>' in text


# ---- calls, declarations and results are told apart

MARKED = chatml(
    "{{ m.content }}{%- if m.tool_calls %}<|calls|>{%- for c in m.tool_calls %}<|tool|>{{ c.function.name }}<|args|>"
    "{{ c.function.arguments | tojson }}<|/tool|>{%- endfor %}<|/calls|>{%- endif %}",
    before="{%- for t in tools or [] %}<|tool|>{{ t | tojson }}<|/tool|>{%- endfor %}",
)
PAIRS = chatml(
    "{{ m.content }}{%- for c in m.tool_calls %}\n<call name='{{ c.function.name }}'>"
    "{%- for k, v in c.function.arguments | items %}<arg name='{{ k }}'>{{ v if v is string else v | tojson }}</arg>"
    "{%- endfor %}</call>{%- endfor %}"
)
JSON_LIST = chatml(
    "{{ m.content }}{%- if m.tool_calls %}<|calls|>[{%- for c in m.tool_calls %}"
    '{"fn": {{ c.function.name | tojson }}, "args": {{ c.function.arguments | tojson }}}{{ ", " if not loop.last }}'
    "{%- endfor %}]<|/calls|>{%- endif %}"
)
IDS_FIRST = chatml(
    "{{ m.content }}{%- for c in m.tool_calls %}<|tool|>{{ c.id }}<|args|>{{ c.function.name }}<|calls|>"
    "{{ c.function.arguments | tojson }}<|/tool|>{%- endfor %}"
)
MARKS = ("<|calls|>", "<|/calls|>", "<|tool|>", "<|args|>", "<|/tool|>")
UNKNOWN = [
    (MARKED, ("<|calls|>", "<|tool|>", "<|args|>", "<|/tool|>", "<|/calls|>")),
    (PAIRS, (None, None, None, None, None)),
    (JSON_LIST, (None, "<|calls|>", None, "<|/calls|>", None)),
    (IDS_FIRST, (None, "<|tool|>", "<|calls|>", "<|/tool|>", None)),
]


@pytest.mark.parametrize(("template", "tokens"), UNKNOWN)
def test_forms_of_calls_that_no_one_named(template: str, tokens: tuple[str | None, ...], tmp_path: Path) -> None:
    target = Target.from_pretrained(makers.make(tmp_path, template, CHATML, MARKS, **ENDS)[0])
    profile, strings = target.profile, target._codec.controls.strings
    found = (
        profile.tool_section_begin_id,
        profile.tool_call_begin_id,
        profile.tool_separator_id,
        profile.tool_call_end_id,
        profile.tool_section_end_id,
    )
    assert tuple(strings.get(index) if index is not None else None for index in found) == tokens
    assert profile.tool_call_format == "template"
    assert profile.end_of_turn_ids == (target._codec.controls.ids["<|im_end|>"],)
    wanted = [("look", {"a": "x <y> \n", "b": "{"}), ("see", {})]
    made = [call(values, name, f"call0000{place}") for place, (name, values) in enumerate(wanted)]
    head = target.render([USER])
    whole = target.render([USER, {"role": "assistant", "content": "Hm", "tool_calls": made}, USER])
    output = whole[len(head) : whole.index(profile.end_of_turn_ids[0], len(head)) + 1]
    read = target.message(output)
    assert (read.content, read.unreadable) == ("Hm", "")
    assert [(one.name, json.loads(one.arguments)) for one in read.tool_calls] == wanted
    assert target.message(output[: len(output) // 2 + 2]).unreadable


def test_a_tag_that_closes_parts_of_an_answer_ends_none(tmp_path: Path) -> None:
    body = (
        "{%- if m.reasoning_content %}<|open|>think<|sep|>{{ m.reasoning_content }}<|close|>think<|sep|>{%- endif %}"
        "<|open|>say<|sep|>{{ m.content }}<|close|>say<|sep|>"
    )
    folder, ids = makers.make(
        tmp_path, chatml(body), (*CHATML, "<|open|>", "<|close|>", "<|sep|>"), eos="<|endoftext|>"
    )
    with pytest.raises(TargetError, match=r"shows reasoning \(after .*<\|sep\|>'\).*thinking_state: none"):
        Target.from_pretrained(folder)
    target = Target.from_pretrained(folder, profile={"thinking_state": "none"})
    assert target.stop_token_ids == (ids["<|im_end|>"], ids["<|endoftext|>"])


# ---- thinking whose markers have no known name

CHANNELS = chatml(
    "{%- if m.reasoning_content and loop.last %}<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{%- endif %}"
    "{{ m.content }}",
    prompt="{{ '<|im_start|>assistant\\n' }}{%- if not enable_thinking %}<|channel>thought\n<channel|>{%- endif %}",
)


@pytest.mark.parametrize("names", [("<|channel>", "<channel|>"), ("<|musing|>", "<|/musing|>"), ("⟪", "⟫")])
def test_markers_around_reasoning_are_found_by_rendering(names: tuple[str, str], tmp_path: Path) -> None:
    template = CHANNELS.replace("<|channel>", names[0]).replace("<channel|>", names[1])
    folder, ids = makers.make(tmp_path, template, (*CHATML, *names), **ENDS)
    off, on = (Target.from_pretrained(folder, thinking=thinking) for thinking in (False, True))
    assert (off.profile.thinking_state, on.profile.thinking_state) == ("closed", "model")
    assert (on.profile.think_begin_id, on.profile.think_end_id) == tuple(ids[name] for name in names)
    output = ids_of(on, f"{names[0]}thought\nHm\n{names[1]}4<|im_end|>")
    assert on.reasoning_tokens(output) == output.index(ids[names[1]]) + 1
    read = on.message(output)
    assert (read.reasoning_content, read.content) == ("Hm", "4")
    assert not set(names) & {on._codec.controls.strings[index] for index in on.profile.template_only_ids}


# ---- arguments as an object, printed once

BRACES = (
    "{%- if c.function.arguments is mapping %}{{ c.function.arguments | tojson }}{%- else %}"
    "{{ '{' ~ c.function.arguments ~ '}' }}{%- endif %}"
)
QUOTED = "({{ c.function.arguments | tojson }})"
PLAIN = "({{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }})"


@pytest.mark.parametrize(("form", "mapping"), [(BRACES, True), (QUOTED, True), (PLAIN, False)])
def test_arguments_are_printed_as_one_object(form: str, mapping: bool, tmp_path: Path) -> None:
    calls = "{%- for c in m.tool_calls %}<call>call:{{ c.function.name }}" + form + "</call>{%- endfor %}"
    body = "{{ m.content }}" + calls
    folder, _ = makers.make(tmp_path, chatml(body), CHATML, ("<call>", "</call>"), **ENDS)
    target = Target.from_pretrained(folder)
    for arguments in ('{"a": 1}', {"a": 1}):
        text = target.render_text([USER, {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}, USER])
        assert text.count('{"a": 1}') == 1
        assert "{{" not in text
        assert '\\"' not in text
    assert target._renderer.rules.mapping_arguments is mapping


# ---- the guard leaves no mark

PRINTED = {
    "string": "{{ t.function.parameters | string }}",
    "tojson": "{{ t | tojson }}",
    "escaped": "{{ t | tojson(ensure_ascii=True) }}",
    "sorted": "{%- for k, v in t.function.parameters.properties | dictsort %}{{ k }}={{ v.description }};"
    "{%- endfor %}",
    "looked up": "{%- for k, v in t.function.parameters.properties | items %}{{ k }}"
    "{{ '' if k in t.function.parameters.required else '?' }};{%- endfor %}",
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_guarded_chat_differs_from_an_innocent_one_in_nothing_else(name: str, tmp_path: Path) -> None:
    before = "{%- for t in tools or [] %}" + PRINTED[name] + "\n{%- endfor %}"
    folder, ids = makers.make(tmp_path, chatml("{{ m.content }}", before=before), (*CHATML, "<q>"), **ENDS)
    target = Target.from_pretrained(folder)
    properties = {key: {"type": "string", "description": f"is {key}"} for key in ("q", "qa", "im", "e", "Z", "a")}
    properties["e"]["description"] = "say <|im_end|> or <|im_"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties, "required": ["q"]}}}
    spelled = json.loads(json.dumps([tool]).replace("<|im_end|>", "<|XX_end|>").replace("<|im_", "<|XX_"))
    usual = target.tokenizer.apply_chat_template(
        [USER], tools=spelled, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    found = target.render([USER], [tool])
    assert target.decode(found) == target.decode(usual).replace("<|XX_", "<|im_")
    assert found.count(ids["<|im_end|>"]) == usual.count(ids["<|im_end|>"])


def test_a_key_that_completes_a_control_token_is_kept_from_it_or_refused(tmp_path: Path) -> None:
    before = (
        "{%- for t in tools or [] %}{%- for k in t.function.parameters.properties %}<{{ k }}>{%- endfor %}"
        "{%- endfor %}"
    )
    folder, ids = makers.make(tmp_path / "a", chatml("{{ m.content }}", before=before), (*CHATML, "<q>"), **ENDS)
    tool = {"function": {"name": "f", "parameters": {"properties": {"q": {}, "ab": {}}}}}
    target = Target.from_pretrained(folder)
    found = target.render([USER], [tool])
    assert ids["<q>"] not in found
    assert target.decode(found).startswith("<q><ab>")
    sorting = before.replace(".properties %}", ".properties | dictsort | map('first') %}")
    folder, ids = makers.make(tmp_path / "b", chatml("{{ m.content }}", before=sorting), (*CHATML, "<q>"), **ENDS)
    with pytest.raises(DataError, match=r"a key \(q\) becomes part of a control token"):
        Target.from_pretrained(folder).render([USER], [json.loads(json.dumps(tool).replace('"ab"', '"z"'))])


# ---- tokens that are text

SPACES = [("▁▁", False), ("▁▁▁▁▁▁▁▁", True), ("\n\n", True), ("  ", False), ("\t", True)]


@pytest.mark.parametrize(("content", "special"), SPACES)
def test_runs_of_white_space_are_no_control_tokens(content: str, special: bool) -> None:
    assert not is_control(AddedToken(7, content, special))
    assert is_control(AddedToken(7, f"<|{content}|>", special))


def test_added_tokens_keep_their_ids_in_guarded_text(tmp_path: Path) -> None:
    folder, ids = makers.make(tmp_path, chatml("{{ m.content }}"), CHATML, ("  ", "word"), **ENDS)
    target = Target.from_pretrained(folder)
    plain, guarded = (target.render([{"role": "user", "content": f"a  b word {end}"}]) for end in ("!", "<|im_end|>"))
    for token in ("  ", "word"):
        assert plain.count(ids[token]) == guarded.count(ids[token]) == 1


# ---- refusals

LOOPS = {
    "nested": "{%- for a in range(99999) %}{%- for b in range(99999) %}{%- endfor %}{%- endfor %}",
    "writing": "{%- for a in range(99999) %}{%- for b in range(999) %}x{%- endfor %}{%- endfor %}",
    "a long macro": "{%- macro f(n) %}{%- for b in range(99999) %}{%- if n %}{{ f(n - 1) }}{%- endif %}{%- endfor %}"
    "{%- endmacro %}{{ f(3) }}",
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_template_without_end_is_refused_in_time(name: str, tmp_path: Path) -> None:
    folder, _ = makers.make(tmp_path / "endless", LOOPS[name] + chatml("{{ m.content }}"), CHATML, **ENDS)
    began = time.monotonic()
    with pytest.raises(TargetError, match=r"^endless: the chat template (does not come to an end|makes [\d,]+ char)"):
        Target.from_pretrained(folder)
    assert time.monotonic() - began < 60


_TEXT = "messages[0].content"
SLOW = {
    name: f"{{%- for a in {first} %}}{{%- for b in {second} %}}{{%- for c in {third} %}}{'{%- endfor %}' * 3}"
    for name, first, second, third in [
        ("over messages", "messages", "messages", "messages"),
        ("over characters", _TEXT, _TEXT, "[1]"),
        ("over words", f"{_TEXT}.split()", f"{_TEXT}.split()", "messages"),
    ]
}


@pytest.mark.parametrize("name", SLOW)
def test_a_template_whose_loops_grow_with_the_chat_refuses_that_chat_in_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3_data.target.template._CHAT_SECONDS", 0.3)
    folder, _ = makers.make(tmp_path / "slow", SLOW[name] + chatml("{{ m.content }}"), CHATML, **ENDS)
    target = Target.from_pretrained(folder)
    assert target.render([{"role": "user", "content": "a short one"}])
    chat = [{"role": role, "content": "a " * 10_000} for _ in range(500) for role in ("user", "assistant")][:-1]
    with pytest.raises(DataError, match="the chat template takes more than"):
        target.render(chat)


REFUSING = {
    "no tools": "{%- for t in tools %}{%- endfor %}" + chatml("{{ m.content }}"),
    "an error": "{{ raise_exception('not today') }}" + chatml("{{ m.content }}"),
    "no syntax": "{%- for %}",
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_refusal_names_the_target_and_is_an_error_of_use(name: str, tmp_path: Path) -> None:
    folder, _ = makers.make(tmp_path / "odd", REFUSING[name], CHATML, **ENDS)
    with pytest.raises(TargetError, match=r"^odd: the chat template refuses this chat") as refused:
        Target.from_pretrained(folder)
    assert refused.value.exit_status == 2


def copied(name: str, where: Path) -> Path:
    folder = where / name
    shutil.copytree(SHARED / "tokenizers" / name, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    return folder


@needs_shared
def test_a_model_that_shares_a_vocabulary_is_not_that_family(tmp_path: Path) -> None:
    folder = copied("deepseek-v3.1", tmp_path)
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    names = {128798: "<|place_a|>", 128799: "<|place_b|>", 128796: "<think>", 128797: "</think>"}
    for token in description["added_tokens"]:
        token["content"] = names.get(token["id"], token["content"])
    path.write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(TargetError, match=r"DeepSeek-V3.*'<think>' is 128796.*`family: other` under target\.profile"):
        Target.from_pretrained(folder)
    given = Target.from_pretrained(folder, profile={"family": "other"})
    assert (given.profile.family, given.profile.think_begin_id) == ("other", 128796)
    with pytest.raises(TargetError, match="'DeepSeek' is not one of"):
        Target.from_pretrained(folder, profile={"family": "DeepSeek"})
    (folder / "config.json").write_text(json.dumps({"model_type": "deepseek_v4"}))
    assert Target.from_pretrained(folder).profile.family == "other"
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(
        "{%- for m in messages %}<｜User｜>{{ m.content }}{%- endfor %}<｜end▁of▁sentence｜>"
        "{%- if add_generation_prompt %}<｜Assistant｜></think>{%- endif %}"
    )
    assert Target.from_pretrained(folder).profile.family == "other"


@needs_shared
@pytest.mark.parametrize("model_type", ["qwen3_5", "olmo"])
def test_a_class_that_encodes_otherwise_than_the_file_is_refused(model_type: str, tmp_path: Path) -> None:
    folder = copied("smollm2", tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("tokenizer_class", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TargetError, match=r"tokenizer\.json encodes .* to \[.*\], but as transformers .* to \["):
        Target.from_pretrained(folder)
