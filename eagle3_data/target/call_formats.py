"""The forms of tool calls that are known by name, one entry each.

Goes in: nothing. Comes out: `CALL_FORMATS`, keyed by the names that SGLang's `--tool-call-parser` has for them. A
target's form is found by rendering calls through its template; a name is only needed where the template shows none.
"""

from typing import Final

from eagle3_data.target.calls import CallFormat

# Harmony marks channels, not calls: `target.harmony` reads whole answers of it.
HARMONY: Final = "gpt-oss"

_DSML: Final = {
    "style": "pairs",
    "call_begin": '<｜DSML｜invoke name="',
    "middle": '">',
    "call_end": "</｜DSML｜invoke>",
    "pair_begin": '<｜DSML｜parameter name="',
    "key_end": '" string="true">',
    "typed_key_end": '" string="false">',
    "value_end": "</｜DSML｜parameter>",
}
_FUNCTION: Final = {
    "style": "pairs",
    "middle": ">",
    "pair_begin": "<parameter=",
    "value_end": "\n</parameter>",
    "key_end": ">\n",
}
_ARG_KEYS: Final = {
    "style": "pairs",
    "call_begin": "<tool_call>",
    "call_end": "</tool_call>",
    "pair_begin": "<arg_key>",
    "key_end": "</arg_key>\n<arg_value>",
    "value_end": "</arg_value>",
}

_ALL: Final = (
    CallFormat(
        "kimi_k2",
        "named",
        section_begin="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call_begin="<|tool_call_begin|>",
        call_end="<|tool_call_end|>",
        middle="<|tool_call_argument_begin|>",
        name_in_id=True,
    ),
    CallFormat("qwen", "json", call_begin="<tool_call>", call_end="</tool_call>"),
    CallFormat(
        "qwen3_coder",
        call_begin="<tool_call>\n<function=",
        call_end="</function>\n</tool_call>",
        **_FUNCTION,  # type: ignore[arg-type]
    ),
    CallFormat(
        "seed_oss",
        call_begin="<seed:tool_call>\n<function=",
        call_end="</function>\n</seed:tool_call>",
        **{**_FUNCTION, "key_end": ">", "value_end": "</parameter>"},  # type: ignore[arg-type]
    ),
    CallFormat(
        "deepseekv3",
        "named",
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        call_end="```<｜tool▁call▁end｜>",
        middle="\n```json\n",
    ),
    CallFormat(
        "deepseekv31",
        "named",
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>",
        call_end="<｜tool▁call▁end｜>",
        middle="<｜tool▁sep｜>",
    ),
    CallFormat(
        "deepseekv32",
        section_begin="<｜DSML｜function_calls>",
        section_end="</｜DSML｜function_calls>",
        **_DSML,  # type: ignore[arg-type]
    ),
    CallFormat(
        "deepseekv4",
        section_begin="<｜DSML｜tool_calls>",
        section_end="</｜DSML｜tool_calls>",
        **_DSML,  # type: ignore[arg-type]
    ),
    CallFormat("glm45", **_ARG_KEYS),  # type: ignore[arg-type]
    CallFormat(
        "minimax-m2",
        "pairs",
        section_begin="<minimax:tool_call>",
        section_end="</minimax:tool_call>",
        call_begin='<invoke name="',
        middle='">',
        call_end="</invoke>",
        pair_begin='<parameter name="',
        key_end='">',
        value_end="</parameter>",
    ),
    CallFormat(
        "gemma4",
        "braces",
        call_begin="<|tool_call>call:",
        call_end="<tool_call|>",
        quote='<|"|>',
        content_last=True,
    ),
    CallFormat("mistral", "named", call_begin="[TOOL_CALLS]", middle="[ARGS]", id_mark="[CALL_ID]"),
    CallFormat("mistral_list", "json", call_begin="[TOOL_CALLS]", listed=True),
    CallFormat("granite", "json", call_begin="<|tool_call|>", listed=True),
    CallFormat("llama3", "json", arguments_key="parameters", bare=True),
)

CALL_FORMATS: Final[dict[str, CallFormat]] = {form.name: form for form in _ALL}
