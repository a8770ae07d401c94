"""Small tokenizers with the control tokens and templates of model families whose real ones are not at hand.

A helper, not a test. Texts are bytes, one token each; the templates are written here, after what the families'
templates do.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

QWEN35 = (
    "{%- if tools %}<|im_start|>system\n# Tools\n{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}"
    "<|im_end|>\n"
    "{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{%- else %}<|im_start|>{{ m.role }}\n"
    "{%- if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{%- endif %}"
    "{{ m.content }}{%- for call in m.tool_calls %}\n<tool_call>\n<function={{ call.function.name }}>\n"
    "{%- for key, value in call.function.arguments | items %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n"
    "{%- endfor %}</function>\n</tool_call>{%- endfor %}<|im_end|>\n{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{%- else %}<think>\n"
    "{%- endif %}{%- endif %}"
)
KIMI_THINKING = (
    "{%- for m in messages %}"
    "{%- if m.role == 'user' %}<|im_user|>{%- elif m.role == 'assistant' %}<|im_assistant|>{%- else %}<|im_system|>"
    "{%- endif %}{{ m.name or m.role }}<|im_middle|>"
    "{%- if m.role == 'assistant' %}<think></think>{%- endif %}"
    "{%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{%- endif %}{{ m.content }}"
    "{%- if m.tool_calls %}<|tool_calls_section_begin|>{%- for call in m.tool_calls %}<|tool_call_begin|>{{ call.id }}"
    "<|tool_call_argument_begin|>{{ call.function.arguments }}<|tool_call_end|>{%- endfor %}"
    "<|tool_calls_section_end|>{%- endif %}<|im_end|>{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{%- endif %}"
)
GLM = (
    "[gMASK]<sop>{%- for m in messages %}{%- if m.role == 'tool' %}<|observation|>\n<tool_response>\n{{ m.content }}\n"
    "</tool_response>{%- else %}<|{{ m.role }}|>\n"
    "{%- if m.role == 'assistant' %}<think></think>\n{%- endif %}{{ m.content }}"
    "{%- if m.role == 'user' and enable_thinking is defined and not enable_thinking %}/nothink{%- endif %}"
    "{%- for call in m.tool_calls %}\n<tool_call>{{ call.function.name }}\n"
    "{%- for key, value in call.function.arguments | items %}<arg_key>{{ key }}</arg_key>\n<arg_value>{{ value }}"
    "</arg_value>\n{%- endfor %}</tool_call>{%- endfor %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>"
    "{%- if enable_thinking is defined and not enable_thinking %}\n<think></think>{%- endif %}{%- endif %}"
)
LLAMA31 = (
    "<|begin_of_text|>{%- for m in messages %}"
    "{%- if m.tool_calls %}{%- if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one tool-call at a time') }}{%- endif %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot_id|>{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}"
    "<|eot_id|>"
    "{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{%- endif %}"
)
R1 = (
    "<｜begin▁of▁sentence｜>{%- for m in messages %}{%- if m.role == 'user' %}<｜User｜>{{ m.content }}{%- else %}"
    "{%- if m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{%- else %}{{ m.content }}"
    "{%- endif %}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}<｜Assistant｜><think>\n{%- endif %}"
)
HARMONY = (
    "{%- for m in messages %}<|start|>{{ m.role }}{%- if m.role == 'assistant' %}<|channel|>final{%- endif %}"
    "<|message|>"
    "{{ m.content }}<|end|>{%- endfor %}{%- if add_generation_prompt %}<|start|>assistant{%- endif %}"
)
PHI = (
    "{%- for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{%- endif %}"
)
KEYS = (
    "{%- for tool in tools or [] %}{%- for key, value in tool.function.parameters.properties | items %}"
    "<{{ key }}>{{ value.description }}</{{ key }}>{%- endfor %}{%- endfor %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{%- if m.content is string %}{{ m.content }}{%- else %}"
    "{%- for part in m.content %}{{ part.text }}{%- endfor %}{%- endif %}<|im_end|>{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>{%- endif %}"
)


def make(
    folder: Path,
    template: str,
    special: Sequence[str],
    plain: Sequence[str] = (),
    *,
    eos: str | None = None,
    bos: str | None = None,
    rstrip: Sequence[str] = (),
) -> tuple[Path, dict[str, int]]:
    """Save a byte tokenizer with control tokens, `plain` ones without the special flag.

    Returns:
        The folder, and the ids of the control tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, rstrip=name in rstrip) for name in special])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in plain])
    options: dict[str, Any] = {key: value for key, value in (("eos_token", eos), ("bos_token", bos)) if value}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options)
    wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    return folder, {name: wrapped.convert_tokens_to_ids(name) for name in (*special, *plain)}
