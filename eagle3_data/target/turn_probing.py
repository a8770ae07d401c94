"""Reads off a chat template where turns begin and end, by rendering sentinel words through it.

Goes in: a template and the control tokens of its tokenizer. Comes out: what stands after a question, what ends an
answer, and which control tokens only a template writes.
"""

import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any, Final

from eagle3_data.errors import DataError, TargetError
from eagle3_data.target.call_probing import CONTENT, PROBE_TOOLS
from eagle3_data.target.chats import Chat, prepare_tools
from eagle3_data.target.controls import ControlTokens
from eagle3_data.target.template import ChatTemplate

QUESTION: Final = "Zquestion"
REASON: Final = "Zreason"
REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")

Piece = tuple[str, int]


def user() -> dict[str, Any]:
    """Return a question."""
    return {"role": "user", "content": QUESTION}


def assistant() -> dict[str, Any]:
    """Return an answer of content alone."""
    return {"role": "assistant", "content": CONTENT}


def shared(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


class TurnProber:
    """Renders sentinel chats through one template."""

    def __init__(self, template: ChatTemplate, controls: ControlTokens) -> None:
        self._template = template
        self._controls = controls
        self._rendered: dict[str, str | None] = {}

    # ---- rendering

    def _text(
        self, messages: list[dict[str, Any]], tools: bool = False, prompt: bool = False, **variables: Any
    ) -> str:
        template = (
            self._template.with_variables({**self._template.variables, **variables}) if variables else self._template
        )
        schemas, declaration = prepare_tools(PROBE_TOOLS, template.takes_typescript) if tools else (None, None)
        return template.probe(Chat(messages, schemas, declaration), generation_prompt=prompt)

    def _try(self, messages: list[dict[str, Any]], tools: bool = False, prompt: bool = False) -> str | None:
        """Render a chat, None where the template refuses it; one that was rendered before is not rendered again."""
        key = json.dumps([messages, tools, prompt])
        if key not in self._rendered:
            try:
                self._rendered[key] = self._text(messages, tools, prompt)
            except DataError:
                self._rendered[key] = None
        return self._rendered[key]

    def _ids(self, text: str) -> list[int]:
        return [index for _, index in self._controls.cut(text) if index >= 0]

    # ---- what stands after a question

    @functools.cached_property
    def _asked(self) -> tuple[str, str]:
        """A chat of one question, and the same chat up to the answer that it asks for."""
        try:
            return self._text([user()]), self._text([user()], prompt=True)
        except DataError as error:
            raise TargetError(f"{error}; it must take a chat of one user message") from error

    def generation_prompt(self) -> str:
        """Return the text that the template adds after a final user message, "" if it adds nothing.

        Some templates end a user's turn with the cue to answer (Mistral's `[/INST]`, Command-R). Others end a chat
        that asks for no answer with the end of text (Phi), which is no part of a prompt.

        Raises:
            TargetError: the template refuses a single user message, or asking for a generation prompt changes the
                chat before it.
        """
        return self._asked[1][len(self._question()) :]

    def _question(self) -> str:
        """Return what a chat of one question begins with, whether an answer is asked for or follows."""
        without, asked = self._asked
        if asked.startswith(without):
            return without
        same = self._controls.before(without, shared(without, asked))
        rest = self._controls.cut(without[same:])
        if QUESTION in without[:same] and not any(piece.strip() for piece, _ in rest):
            return without[:same]
        raise TargetError(
            "add_generation_prompt changes the chat before the generation prompt, so that prompts cannot be told "
            "from answers; fix chat_template.jinja"
        )

    def _answered(self, answer: dict[str, Any], tools: bool = False) -> str:
        """Return an answer to a question with its header and end, "" if it cannot be rendered or lacks its content.

        A header that the template writes always, whether an answer is asked for or not, is no part of it.
        """
        text = self._try([user(), answer], tools) or ""
        question = (self._try([user()], tools) or "") if tools else self._question()
        if not text.startswith(question):
            plain = self._try([user(), assistant()], tools) or ""
            same = self._controls.before(question, min(shared(question, text), shared(question, plain)))
            question, always = question[:same], question[same:]
            text = text.removesuffix(always) if QUESTION in question else ""
        return text[len(question) :] if CONTENT in text[len(question) :] else ""

    def before_answer(self) -> str:
        """Return the generation prompt, or what else stands between a question and its answer.

        A template that adds no generation prompt may write it always (some of Command-R).
        """
        _, asked = self._asked
        return self.generation_prompt() or asked[asked.rfind(QUESTION) + len(QUESTION) :]

    # ---- the end of a turn

    def _after_answer(self) -> list[Piece]:
        """Return what is written after an answer, as texts with the control token after each.

        Some templates write the end of text as well at the end of a chat (Phi), or the next header (Command-R): only
        what stands before another question too counts. Others leave the end out there (Apertus, Apriel): then it is
        taken from before another question, without what begins each question.
        """
        last = self._pieces([user(), assistant()])
        between = self._pieces([user(), assistant(), user()], QUESTION)
        if not last:
            header = self._ids((self._try([user()]) or "").rpartition(QUESTION)[0])
            pairs = zip(reversed(between), reversed(header), strict=False)
            begins = sum(1 for _ in itertools.takewhile(lambda pair: pair[0][1] == pair[1], pairs))
            return between[: len(between) - begins]
        both = zip(last, between, strict=False)
        count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0][1] == pair[1][1], both))
        return last[:count] or last

    def _pieces(self, messages: list[dict[str, Any]], before: str = "") -> list[Piece]:
        """Return the control tokens after the last answer, each with the text before it; up to the word `before`."""
        text = (self._try(messages) or "").rpartition(CONTENT)[2]
        if before:
            text = text.rpartition(before)[0]
        return self._controls.cut(text)[:-1] if CONTENT in (self._try(messages) or "") else []

    def end_of_turn(self, known: Sequence[int]) -> int | None:
        """Return the control token that ends an answer, None if the template puts none.

        It is one of the `known` end ids if the template writes one. Else, of what is written nowhere else in the turn
        (a tag that closes parts of an answer is), what ends a question too, then what follows the answer directly;
        else what is written last.
        """
        pieces = self._after_answer()
        if not pieces:
            return None
        tail = [index for _, index in pieces]
        listed = [index for index in tail if index in known]
        if listed:
            return listed[0]
        inside = self._ids(self._reasoned().rpartition(CONTENT)[0])
        once = [index for index in tail if tail.count(index) == 1 and index not in inside]
        asked = self._ids(self._asked[0].rpartition(QUESTION)[2])
        ending = [index for index in once if index in asked]
        if ending:
            return ending[0]
        return tail[0] if tail[0] in once and not pieces[0][0].strip() else tail[-1]

    def _reasoned(self) -> str:
        """Return an answer with reasoning before its content, "" if the template shows none."""
        for key in REASONING_KEYS:
            text = self._answered({**assistant(), key: REASON})
            if REASON in text:
                return text
        return ""

    # ---- what only a template writes

    def openers(self, ends: Sequence[int]) -> set[int]:
        """Return the control tokens around a system text, a question and in the generation prompt, but no answer's.

        Args:
            ends: ids that end an answer; what is written after one is no part of it.
        """
        system = {"role": "system", "content": CONTENT}
        texts = (self._try([system, user()], prompt=True), self._try([user()], prompt=True))
        return {index for text in texts if text for index in self._ids(text)} - self._inside_answers(ends)

    def _inside_answers(self, ends: Sequence[int]) -> set[int]:
        """Return the control tokens that stand in an answer, its header apart (`<|START_RESPONSE|>` of Command-R)."""
        prompt = self.before_answer()
        found: set[int] = set()
        for text in (self._answered(assistant()), self._reasoned()):
            written = text[self._controls.before(text, shared(text, prompt)) :]
            if CONTENT in written:
                found.update(itertools.takewhile(lambda index: index not in ends, self._ids(written)))
        return found
