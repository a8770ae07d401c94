"""The chat template of a tokenizer, as text goes.

Goes in: a transformers tokenizer and a prepared chat. Comes out: the rendered text, before it is encoded. The
rendering is transformers' own (its sandbox, filters and variables), so that the text is what `apply_chat_template`
makes.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from eagle3_data.errors import DataError, TargetError
from eagle3_data.target.chats import Chat

_TYPESCRIPT_VARIABLE: Final = "tools_ts_str"
_PROBE_SECONDS: Final = 5.0  # of processor time; a probe takes milliseconds
_CHAT_SECONDS: Final = 60.0  # of processor time; the longest real dialogues take less than one
_SHORT: Final = 2_000  # characters and messages, of which even three nested loops come to an end
_LONGEST_PROBE: Final = 4_000_000  # characters


class ChatTemplate:
    """The template of one tokenizer, with the template variables that are always passed (the thinking switch)."""

    def __init__(self, tokenizer: Any, variables: Mapping[str, Any] | None = None) -> None:
        from transformers import PreTrainedTokenizerBase

        if not tokenizer.chat_template:
            raise TargetError(f"{tokenizer.name_or_path}: the tokenizer has no chat template; add chat_template.jinja")
        self._tokenizer = tokenizer
        self.variables = dict(variables or {})
        self.takes_typescript = any(_TYPESCRIPT_VARIABLE in source for source in self.sources())
        own_class = type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
        # Kimi's class overrides apply_chat_template only to add the TypeScript declaration, which we make ourselves.
        self._by_class = own_class and not self.takes_typescript
        self._special = dict(tokenizer.special_tokens_map)
        self._source = {tools: tokenizer.get_chat_template(None, [{}] if tools else None) for tools in (False, True)}

    def sources(self) -> list[str]:
        """Return the Jinja source, or all of them where there are several by name."""
        template = self._tokenizer.chat_template
        return list(template.values()) if isinstance(template, dict) else [template]

    def with_variables(self, variables: Mapping[str, Any]) -> "ChatTemplate":
        """Return the same template with other variables."""
        return ChatTemplate(self._tokenizer, variables)

    def text(self, chat: Chat, *, generation_prompt: bool = True) -> str:
        """Render a chat.

        Raises:
            DataError: the template refuses this chat, or does not come to an end; the text holds the reason.
        """
        size = sum(1 + len(message.get("content") or "") for message in chat.messages)
        if size < _SHORT and len(chat.messages) < 20:
            return self._text(chat, generation_prompt)
        try:
            return bounded(lambda: self._text(chat, generation_prompt), _CHAT_SECONDS)
        except TargetError as error:
            raise DataError(
                f"the chat template takes more than {_CHAT_SECONDS:.0f} s for this chat; look at its loops"
            ) from error

    def _text(self, chat: Chat, generation_prompt: bool) -> str:
        variables = dict(self.variables)
        if chat.tools_ts is not None:
            variables[_TYPESCRIPT_VARIABLE] = chat.tools_ts
        try:
            return self._render(chat, generation_prompt, variables)
        except Exception as error:
            # Whatever a template raises (Jinja errors, TypeErrors of its expressions) is about this chat.
            raise DataError(f"the chat template refuses this chat: {type(error).__name__}: {error}") from error

    def probe(self, chat: Chat, *, generation_prompt: bool) -> str:
        """Render a chat of a few words, within bounds on time and length that any usable template keeps far below.

        Raises:
            DataError: the template refuses this chat.
            TargetError: it does not come to an end, or writes without end.
        """
        text = bounded(lambda: self._text(chat, generation_prompt))
        if len(text) > _LONGEST_PROBE:
            raise TargetError(f"the chat template makes {len(text):,} characters of a chat of a few words")
        return text

    def _render(self, chat: Chat, generation_prompt: bool, variables: dict[str, Any]) -> str:
        if self._by_class:
            text: str = self._tokenizer.apply_chat_template(
                chat.messages,
                tools=chat.tools,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **variables,
            )
            return text
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered: Any = render_jinja_template(
            conversations=[chat.messages],
            tools=chat.tools,
            documents=None,
            chat_template=self._source[chat.tools is not None],
            add_generation_prompt=generation_prompt,
            **{**self._special, **variables},
        )
        text = rendered[0][0]
        return text


def bounded(render: Callable[[], str], seconds: float = _PROBE_SECONDS) -> str:
    """Return what `render` returns, unless it takes more than `seconds` of processor time.

    It runs in a thread, in which an exception is raised when its time is over: a template is Python code after all,
    so that loops in it end there.

    Raises:
        TargetError: the time is over.
    """
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["text"] = render()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.2)
    while thread.is_alive() and _processor_time(thread) < seconds:
        thread.join(0.2)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join(1.0)
        raise TargetError(
            f"the chat template does not come to an end: a chat of a few words takes more than {seconds:.0f} s "
            "to render; look at its loops"
        )
    if "error" in outcome:
        raise outcome["error"]
    text: str = outcome["text"]
    return text


def _processor_time(thread: threading.Thread) -> float:
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    except OSError:  # it has ended
        return 0.0
