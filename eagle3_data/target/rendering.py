"""Chats to prompt ids: template, encoding, and the guard against forged control tokens.

Goes in: chats. Comes out: int32 ids, equal to `apply_chat_template` wherever no message spells a control token;
where one does, its text is encoded as ordinary text, and only the template's own control strings become control
tokens.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from eagle3_data.errors import DataError
from eagle3_data.target.chats import Chat, ChatRules, prepare
from eagle3_data.target.controls import free_mark, without_mark
from eagle3_data.target.encoding import Codec, Ids
from eagle3_data.target.template import ChatTemplate

Forge = Literal["escape", "naive"]
Pair = tuple[Sequence[Mapping[str, Any]], Any]
CHUNK: Final = 256


@dataclass
class _Chunk:
    """Chats on their way: `ids` in order, and the `texts` still to be encoded with their `places` in it."""

    first: int
    ids: list[Ids | None]
    texts: list[str]
    places: list[int]


class Renderer:
    """Renders and encodes chats for one target."""

    def __init__(self, template: ChatTemplate, codec: Codec, rules: ChatRules, forge: Forge) -> None:
        self._template = template
        self._codec = codec
        self.rules = rules
        self._forge = forge

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> Chat:
        """Return the chat as the template is given it."""
        return prepare(messages, tools, self.rules)

    def forged(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> int:
        """Return how many control strings the texts of a chat spell."""
        chat = self.chat(messages, tools)
        shown = chat.tools if chat.tools_ts is None else chat.tools_ts
        return self._codec.controls.count([chat.messages, shown])

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
        """Return the rendered text of a chat, generation prompt included."""
        return self._template.text(self.chat(messages, tools))

    def ids(self, chats: Sequence[Pair]) -> list[Ids]:
        """Render and encode chats of messages and tools; one int32 array (n,) each.

        Raises:
            DataError: a chat is not what it should be, or the template refuses it; the text names the chat.
        """
        if len(chats) <= CHUNK:
            return self._encoded(self._rendered(chats, 0, len(chats)), len(chats))
        # Encoders let other threads run, so the next chunk is rendered while the last one is encoded.
        done: list[Ids] = []
        waiting: deque[Future[list[Ids]]] = deque()
        with ThreadPoolExecutor(max_workers=1) as pool:
            for first in range(0, len(chats), CHUNK):
                chunk = self._rendered(chats[first : first + CHUNK], first, len(chats))
                waiting.append(pool.submit(self._encoded, chunk, len(chats)))
                while len(waiting) > 2:
                    done += waiting.popleft().result()
            while waiting:
                done += waiting.popleft().result()
        return done

    def _rendered(self, chats: Sequence[Pair], first: int, count: int) -> _Chunk:
        """Render chats to texts; those whose texts spell control strings are encoded here already."""
        chunk = _Chunk(first, [None] * len(chats), [], [])
        for place, (messages, tools) in enumerate(chats):
            try:
                chat = self.chat(messages, tools)
                text, mark = (self._template.text(chat), "") if self._forge == "naive" else self._guarded(chat)
                if mark:
                    chunk.ids[place] = self._assembled(text, mark)
                else:
                    chunk.texts.append(text)
                    chunk.places.append(place)
            except DataError as error:
                raise _located(error, first + place, count) from error
            except (UnicodeEncodeError, TypeError) as error:
                raise _located(_not_text(error), first + place, count) from error
        return chunk

    def _encoded(self, chunk: _Chunk, count: int) -> list[Ids]:
        """Encode what `_rendered` left."""
        try:
            encoded = self._codec.encode(chunk.texts)
        except (UnicodeEncodeError, TypeError) as error:
            pairs = zip(chunk.places, chunk.texts, strict=True)
            bad = next((place for place, text in pairs if not _is_text(text)), 0)
            raise _located(_not_text(error), chunk.first + bad, count) from error
        check = self._forge == "escape" and self._codec.may_forge
        for place, text, ids in zip(chunk.places, chunk.texts, encoded, strict=True):
            chunk.ids[place] = self._checked(text, ids) if check else ids
        return [ids for ids in chunk.ids if ids is not None]

    def _guarded(self, chat: Chat) -> tuple[str, str]:
        """Render a chat so that every control string in the text is the template's own.

        Control strings in texts are disarmed with a mark before the template sees them. Keys are left alone, since
        templates sort by them and look them up; only where marking them takes away a control string of the rendered
        text, so that the template had completed one with a key, they are marked as well.

        Returns:
            The text, and the mark to be taken out of it, "" if there is none.

        Raises:
            DataError: a key completes a control string, and the template does not take it marked.
        """
        controls, parts = self._codec.controls, chat.parts()
        keys = controls.risky_keys(parts)
        threatens = controls.threatens(parts)
        if not keys and not threatens:
            return self._template.text(chat), ""
        mark = free_mark([parts, self._template.sources()])
        text = self._template.text(Chat(*controls.disarm(parts, mark)) if threatens else chat)
        written = controls.spelled(text)
        if any(key in control or controls.spelled(key) for control in set(written) for key in keys):
            marked = self._template.text(Chat(*controls.disarm(parts, mark, keys)))
            if controls.spelled(marked) != written:
                if without_mark(marked, mark) != without_mark(text, mark):
                    raise DataError(
                        f"a key ({', '.join(sorted(keys))[:80]}) becomes part of a control token in this template; "
                        "rename it in the tool schema and in the calls"
                    )
                return marked, mark
        return text, mark if threatens else ""

    def _assembled(self, text: str, mark: str) -> Ids:
        """Encode the text between a rendered chat's control strings without control tokens, the mark taken out."""
        pieces = self._codec.controls.cut(text)
        texts = [without_mark(piece, mark) if mark else piece for piece, _ in pieces]
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
