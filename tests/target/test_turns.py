"""Where turns begin and end in templates that write them in unusual places, and what they write around calls."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support import made_tokenizers as makers

from eagle3_data.errors import TargetError
from eagle3_data.target import Target

USER = {"role": "user", "content": "Q"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "D",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    },
}
TAGS = (
    "<|user|>",
    "<|bot|>",
    "<|end|>",
    "<|eot|>",
    "<|call|>",
    "<|/call|>",
    "<|hm|>",
    "<|/hm|>",
    "<|say|>",
    "<|/say|>",
)
HEAD = "{{ '<|user|>' if m.role != 'assistant' else '<|bot|>' }}"


def loaded(where: Path, body: str, after: str = "", **options: Any) -> Target:
    template = "{%- for m in messages %}" + body + "{%- endfor %}" + (after or PROMPT)
    folder, _ = makers.make(where / "made", template, TAGS, eos="<|eot|>")
    return Target.from_pretrained(folder, **options)


def ids(target: Target, text: str) -> list[int]:
    found: list[int] = target.tokenizer.encode(text, add_special_tokens=False)
    return found


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": json.dumps(arguments)}}


PROMPT = "{%- if add_generation_prompt %}<|bot|>{%- endif %}"

# ---- the end of an answer

LATER = HEAD + "{{ m.content }}{%- if not loop.last or m.role == 'user' %}<|end|>{%- endif %}"
NEXT = (
    "{%- if m.role == 'user' %}{{ '' if loop.first else '<|end|>' }}<|user|>{{ m.content }}{%- else %}<|bot|>"
    "{{ m.content }}{%- endif %}"
)
NONE = HEAD + "{{ m.content }}"


@pytest.mark.parametrize(("body", "own"), [(LATER, "<|end|>"), (NEXT, "<|end|>"), (NONE, None)])
def test_an_end_that_is_only_written_before_the_next_turn_is_found(body: str, own: str | None, tmp_path: Path) -> None:
    folder, known = makers.make(tmp_path, "{%- for m in messages %}" + body + "{%- endfor %}" + PROMPT, TAGS)
    if own is None:
        with pytest.raises(TargetError, match="the chat template writes no end of turn"):
            Target.from_pretrained(folder)
    else:
        assert Target.from_pretrained(folder).stop_token_ids == (known[own],)


@pytest.mark.parametrize("between", ["", "\n"])
def test_an_end_of_text_where_no_answer_is_asked_for_is_no_part_of_a_prompt(between: str, tmp_path: Path) -> None:
    body = HEAD + "{{ m.content }}<|end|>" + (f"{{{{ {between!r} }}}}" if between else "")
    after = "{%- if add_generation_prompt %}<|bot|>{%- else %}{{ eos_token }}{%- endif %}"
    target = loaded(tmp_path, body, after)
    assert target.decode(target.profile.generation_prompt_ids) == "<|bot|>"
    assert target.decode(target.render([USER])) == f"<|user|>Q<|end|>{between}<|bot|>"
    assert [target.decode([one]) for one in target.stop_token_ids] == ["<|end|>", "<|eot|>"]


def test_a_prompt_that_asking_for_an_answer_changes_is_refused(tmp_path: Path) -> None:
    after = "{%- if add_generation_prompt %}<|bot|>{%- else %}no more{%- endif %}"
    with pytest.raises(TargetError, match="add_generation_prompt changes the chat"):
        loaded(tmp_path, HEAD + "{{ m.content }}<|end|>", after)


# ---- a header that is always written, thinking closed in it

ALWAYS = "<|bot|>{%- if not thinking %}<|hm|><|/hm|>{%- endif %}"
SHOWN = HEAD + "{%- if m.reasoning_content %}<|hm|>{{ m.reasoning_content }}<|/hm|>{%- endif %}{{ m.content }}<|end|>"


def test_a_header_that_is_always_written_says_how_thinking_stands(tmp_path: Path) -> None:
    for thinking, state in ((None, "closed"), (False, "closed"), (True, "model")):
        target = loaded(tmp_path / str(thinking), SHOWN, ALWAYS, thinking=thinking)
        assert (target.profile.thinking_state, target.profile.generation_prompt_ids) == (state, ())
        assert target.thinking is (thinking if thinking is not None else False)


# ---- tokens inside answers

WRAPPED = (
    HEAD + "{%- if m.role == 'user' %}{{ m.content }}{%- else %}<|say|>{{ m.content }}<|/say|>{%- endif %}<|end|>"
)
DEFAULT = "{%- if loop.first %}<|user|><|say|>Be brief.<|/say|><|end|>{%- endif %}" + WRAPPED


@pytest.mark.parametrize("body", [WRAPPED, DEFAULT])
def test_tokens_that_stand_in_answers_are_not_the_templates_alone(body: str, tmp_path: Path) -> None:
    target = loaded(tmp_path, body)
    only = [target.decode([one]) for one in target.profile.template_only_ids]
    assert only == ["<|user|>", "<|bot|>"]
    assert not target.message(ids(target, "<|say|>4<|/say|><|end|>")).unreadable
    assert target.message(ids(target, "4<|user|>5<|end|>")).unreadable


# ---- thinking that is shown without markers of its own

UNMARKED = [
    "<|say|>hm<|/say|>{{ m.reasoning_content }}<|say|>answer<|/say|>",
    "{{ m.reasoning_content }}\n[FINAL]\n",
    "<|hm|>{{ m.reasoning_content }}<|end|><|bot|>",
]


@pytest.mark.parametrize("reasoning", UNMARKED)
def test_thinking_that_nothing_marks_is_refused_until_a_recipe_says_what_it_is(reasoning: str, tmp_path: Path) -> None:
    body = HEAD + "{%- if m.reasoning_content %}" + reasoning + "{%- endif %}{{ m.content }}<|end|>"
    with pytest.raises(TargetError, match=r"^made: the chat template shows reasoning \(after .*thinking_state: none"):
        loaded(tmp_path, body)
    target = loaded(tmp_path, body, profile={"thinking_state": "none"})
    assert target.reasoning_tokens(ids(target, "a<|end|>")) == 0


PLAIN_PAIRS = ["", "<|hm|><|/hm|>", "<|hm|>\n<|/hm|>", "<|/hm|>"]


@pytest.mark.parametrize("without", PLAIN_PAIRS)
def test_markers_are_found_where_answers_without_thinking_hold_them_empty(without: str, tmp_path: Path) -> None:
    body = HEAD + (
        "{%- if m.role == 'assistant' %}{%- if m.reasoning_content %}<|hm|>{{ m.reasoning_content }}<|/hm|>"
        f"{{%- else %}}{{{{ {without!r} }}}}{{%- endif %}}{{%- endif %}}{{{{ m.content }}}}<|end|>"
    )
    target = loaded(tmp_path, body)
    profile = target.profile
    assert [target.decode([one]) for one in (profile.think_begin_id, profile.think_end_id) if one] == [
        "<|hm|>",
        "<|/hm|>",
    ]
    assert target.message(ids(target, "<|hm|>Well<|/hm|>4<|end|>")).reasoning_content == "Well"


# ---- calls whose turn ends otherwise, and what stands around their arguments

JSON_CALL = '{"tool": "{{ c.function.name }}", "with": {{ c.function.arguments }}}'
PAIRS = (
    '<f n="{{ c.function.name }}">{%- for k, v in c.function.arguments.items() %}<p k="{{ k }}">'
    "{{ '<![CDATA[' ~ v ~ ']]>' if v is string and '<' in v else v }}</p>{%- endfor %}</f>"
)
LINES = "{%- for c in m.tool_calls %}{{ '\\n' }}" + JSON_CALL + "{%- endfor %}"
CALLS = {
    "another end": "{%- for c in m.tool_calls %}<f>" + JSON_CALL + "</f>{%- endfor %}<|call|>",
    "the usual end": "<|call|>[{%- for c in m.tool_calls %}" + JSON_CALL + "{{ ', ' if not loop.last }}{%- endfor %}]"
    "<|/call|>{{ '<|end|>\\n\\n' }}",
    "lines": "<calls>" + LINES + "{{ '\\n' }}</calls><|end|>",
    "cdata": "{%- for c in m.tool_calls %}" + PAIRS + "{%- endfor %}<|end|>",
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_read_without_the_end_of_their_turn(name: str, tmp_path: Path) -> None:
    body = HEAD + ("{{ m.content }}{%- if m.tool_calls %}" + CALLS[name] + "{%- else %}{{ '<|end|>\\n' }}{%- endif %}")
    target = loaded(tmp_path, body)
    stops = [target.decode([one]) for one in target.stop_token_ids]
    assert stops == (["<|end|>", "<|call|>", "<|eot|>"] if name == "another end" else ["<|end|>", "<|eot|>"])
    assert target.profile.tool_call_format == "template"
    wanted = [{"a": "x"}, {"a": "1 < 2 & <b>\n]]", "n": 3}, {}][: 2 if name != "cdata" else 3]
    chat = [USER, {"role": "assistant", "content": "", "tool_calls": [call(one) for one in wanted]}]
    text = target._template.text(target._renderer.chat(chat, [TOOL]), generation_prompt=False)
    output = ids(target, text.partition("<|bot|>")[2].strip())
    assert output[-1] in target.stop_token_ids
    read = target.message(output, tools=[TOOL])
    assert (read.unreadable, read.content) == ("", "")
    assert [json.loads(one.arguments) for one in read.tool_calls] == wanted


VALUE = "{{ '<![CDATA[' ~ v ~ ']]>' if v is string and '<' in v else v }}"
ESCAPED = "{%- for c in m.tool_calls %}" + PAIRS.replace(VALUE, "{{ v | e }}") + "{%- endfor %}"


def test_calls_whose_texts_are_escaped_in_a_way_that_is_not_known_are_not_misread(tmp_path: Path) -> None:
    target = loaded(tmp_path, HEAD + "{{ m.content }}" + ESCAPED + "<|end|>")
    assert target.profile.tool_call_format == "unknown"
    assert target.message(ids(target, '<f n="look"><p k="a">1 &lt; 2</p></f><|end|>'), tools=[TOOL]).unreadable


def test_calls_that_only_the_source_names_are_counted_and_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = (
        "{%- if tools %}<|user|>Write <|tool_call|> and a JSON list of calls.{{ tools | tojson }}<|end|>{%- endif %}"
        "{%- for m in messages %}" + HEAD + "{{ m.content }}<|end|>{%- endfor %}" + PROMPT
    )
    folder, _ = makers.make(tmp_path, template, (*TAGS, "<|tool_call|>"), eos="<|eot|>")
    target = Target.from_pretrained(folder)
    output = ids(target, '<|tool_call|>[{"name": "look", "arguments": {"a": "x"}}]<|end|>')
    assert (target.tool_calls(output), target.message(output).tool_calls[0].name) == (1, "look")
    with caplog.at_level(logging.WARNING):
        target.render([USER, {"role": "assistant", "content": "", "tool_calls": [call({})]}, USER])
    assert "leaves out tool calls" in caplog.text


# ---- a template of its own for chats with tools

WITH_TOOLS = (
    "{%- for t in tools %}{{ t.function.name }}{%- endfor %}{%- for m in messages %}" + HEAD + "{%- if m.tool_calls %}"
    "{%- for c in m.tool_calls %}<f>" + JSON_CALL + "</f>{%- endfor %}{%- else %}{{ m.content }}{%- endif %}<|end|>"
    "{%- endfor %}" + PROMPT
)


def test_a_template_for_tools_says_what_becomes_of_calls(tmp_path: Path) -> None:
    plain = "{%- for m in messages %}" + HEAD + "{{ m.content }}<|end|>{%- endfor %}" + PROMPT
    folder, _ = makers.make(tmp_path, plain, TAGS, eos="<|eot|>")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(WITH_TOOLS, encoding="utf-8")
    target = Target.from_pretrained(folder)
    drops = target._renderer.rules.drops
    assert "content beside tool calls" in drops
    assert not {"tool calls", "tool calls after the first"} & drops
