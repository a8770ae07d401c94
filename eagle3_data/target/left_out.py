"""What a chat template leaves out of the chats it is given, said once and counted.

Goes in: the parts that probing found to be left out, and every chat that is rendered. Comes out: a warning at the
first batch that loses something, and counts for whoever reports on a run.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_log = logging.getLogger(__name__)

_ADVICE: Final = {
    "tools": "give a template that declares tools if the target was trained with them",
    "tool calls": "its prompts show results without calls",
    "tool calls after the first": "it writes one call a message",
    "tool calls beside content": "it writes calls only where the content is empty",
    "content beside tool calls": "it writes the calls alone",
    "tool results": "its prompts show calls without results",
    "system messages": "put what they say into the first user message if it matters",
    "names": "put them into the content if they matter",
}


class LeftOut:
    """Counts what one template leaves out; safe for threads.

    Attributes:
        counts: part -> messages (for `tools`: chats) so far that had it.
    """

    def __init__(self, model: str, parts: frozenset[str]) -> None:
        self._model = model
        self._parts = parts
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def note(self, chats: Sequence[tuple[Sequence[Mapping[str, Any]], Any]]) -> None:
        """Count a batch of messages and tools; warn of each part that is left out for the first time."""
        if not self._parts:
            return
        found = Counter(part for messages, tools in chats for part in _parts(messages, tools) if part in self._parts)
        with self._lock:
            fresh = [part for part in found if part not in self.counts]
            self.counts.update(found)
        for part in fresh:
            _log.warning(
                "%s: its chat template leaves out %s (%d in the first %d chat(s) that have them): %s",
                self._model,
                part,
                found[part],
                len(chats),
                _ADVICE[part],
            )


def _parts(messages: Sequence[Mapping[str, Any]], tools: Any) -> Iterator[str]:
    if tools not in (None, "[]", []):
        yield "tools"
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        role, content = message.get("role"), message.get("content")
        if message.get("tool_calls"):
            yield "tool calls"
            if len(message["tool_calls"]) > 1:
                yield "tool calls after the first"
            if content:
                yield "tool calls beside content"
                yield "content beside tool calls"
        if role == "tool":
            yield "tool results"
        elif message.get("name"):
            yield "names"
        if role == "system" and content:
            yield "system messages"
