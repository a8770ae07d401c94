"""Chats to prompt ids: template, encoding, and the guard against forged control tokens.

Goes in: chats. Comes out: int32 ids, equal to `apply_chat_template` wherever no message spells a control token;
where one does, its text is encoded as ordinary text, and only the template's own control strings become control
tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from eagle3_data.errors import DataError
from eagle3_data.target.chats import Chat, ChatRules, prepare
from eagle3_data.target.controls import free_mark
from eagle3_data.target.encoding import Codec, Ids
from eagle3_data.target.template import ChatTemplate

Forge = Literal["escape", "naive"]


class Renderer:
    """Renders and encodes chats for one target."""

    def __init__(self, template: ChatTemplate, codec: Codec, rules: ChatRules, forge: Forge) -> None:
        self._template = template
        self._codec = codec
        self._rules = rules
        self._forge = forge

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> Chat:
        """Return the chat as the template is given it."""
        return prepare(messages, tools, self._rules)

    def forged(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> int:
        """Return how many control strings the texts of a chat spell."""
        chat = self.chat(messages, tools)
        shown = chat.tools if chat.tools_ts is None else chat.tools_ts
        return self._codec.controls.count([chat.messages, shown])

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
        """Return the rendered text of a chat, generation prompt included."""
        return self._template.text(self.chat(messages, tools))

    def ids(self, chats: Sequence[tuple[Sequence[Mapping[str, Any]], Any]]) -> list[Ids]:
        """Render and encode chats of messages and tools; one int32 array (n,) each.

        Raises:
            DataError: a chat is not what it should be, or the template refuses it; the text names the chat.
        """
        results: list[Ids | None] = [None] * len(chats)
        texts: list[str] = []
        places: list[int] = []
        for place, (messages, tools) in enumerate(chats):
            try:
                chat = self.chat(messages, tools)
                if self._forge == "escape" and self._codec.controls.threatens(chat.parts()):
                    results[place] = self._guarded(chat)
                else:
                    texts.append(self._template.text(chat))
                    places.append(place)
            except DataError as error:
                raise self._located(error, place, len(chats)) from error
            except (UnicodeEncodeError, TypeError) as error:
                raise self._located(_not_text(error), place, len(chats)) from error
        try:
            encoded = self._codec.encode(texts)
        except (UnicodeEncodeError, TypeError) as error:
            bad = next(place for place, text in zip(places, texts, strict=True) if not _is_text(text))
            raise self._located(_not_text(error), bad, len(chats)) from error
        for place, text, ids in zip(places, texts, encoded, strict=True):
            results[place] = self._checked(text, ids) if self._forge == "escape" and self._codec.may_forge else ids
        return [ids for ids in results if ids is not None]

    def _guarded(self, chat: Chat) -> Ids:
        """Encode a chat whose texts spell control strings.

        The strings are disarmed with a mark before the template sees them, so every control string in the rendered
        text is the template's own; the text between those is encoded without control tokens, marks taken out.
        """
        parts = chat.parts()
        mark = free_mark(parts)
        messages, tools, tools_ts = self._codec.controls.disarm(parts, mark)
        return self._assembled(self._template.text(Chat(messages, tools, tools_ts)), mark)

    def _assembled(self, text: str, mark: str) -> Ids:
        pieces = self._codec.controls.cut(text)
        texts = [piece.replace(mark, "") if mark else piece for piece, _ in pieces]
        filled = [index for index, piece in enumerate(texts) if piece]
        encoded = dict(
            zip(
                [index for index in filled if index > 0],
                self._codec.encode_plain([texts[index] for index in filled if index > 0]),
                strict=True,
            )
        )
        if filled and filled[0] == 0:
            encoded[0] = self._codec.encode_plain([texts[0]], first=True)[0]
        arrays: list[Ids] = []
        for index, (_, control) in enumerate(pieces):
            if index in encoded:
                arrays.append(encoded[index])
            if control >= 0:
                arrays.append(np.array([control], dtype=np.int32))
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)

    def _checked(self, text: str, ids: Ids) -> Ids:
        """Encode again, piece by piece, where normalising the text made control tokens that it does not spell."""
        meant = [index for _, index in self._codec.controls.cut(text) if index >= 0]
        found = ids[self._codec.controls.is_in(ids)]
        return ids if found.tolist() == meant else self._assembled(text, "")

    @staticmethod
    def _located(error: Exception, place: int, count: int) -> DataError:
        return DataError(f"chat {place}: {error}" if count > 1 else str(error))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_text(error: Exception) -> DataError:
    return DataError(f"a text cannot be encoded as UTF-8 ({error}); leave out rows with lone surrogates")
