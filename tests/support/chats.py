"""Chats for tests of rendering: random ones that reach every part of a template, and the marks of forged ones.

A helper, not a test. Everything is drawn from a seeded generator, so that a failure can be repeated.
"""

import random
from typing import Any

_ASCII = "the a of and don't can't I'LL we've it's 123 4567 3.14 1e-5 def return x=1; hello, world! -- == <= >> <a <|"
_MARKUP = "</div> <b> [x] (y) {z} \"q\" 'q' \\n // `code` **bold**"
_UNICODE = "naïve résumé café Füße मानक العربية עברית 日本語 你好， 한국어 ﬁ Å é ½ ٣ 五 🙂 👩‍👩‍👧"
WORDS = (*_ASCII.split(), *_MARKUP.split(), *_UNICODE.split())
SPACES = (" ", " ", " ", "", "\n", "\n\n", "  ", "\t", " \n", "\r\n")
RANGES = (
    *((0x20, 0x7F),) * 6, (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00),
    (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3), (0xE000, 0xF000), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), (0x10000, 0x10400), (0x1F300, 0x1FA00),
    (0x20000, 0x2A000),
)  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name"}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
        },
    },
}


class Chats:
    """Makes random chats; `forge` strings are dropped into their texts now and then."""

    def __init__(self, seed: int, forge: tuple[str, ...] = ()) -> None:
        self.random = random.Random(seed)
        self.forge = forge

    def text(self, most: int = 12) -> str:
        pick = self.random
        parts = []
        for _ in range(pick.randrange(most)):
            if self.forge and pick.random() < 0.25:
                parts.append(pick.choice(self.forge))
            elif pick.random() < 0.15:
                low, high = pick.choice(RANGES)
                parts.append("".join(chr(pick.randrange(low, high)) for _ in range(pick.choice((1, 2, 5)))))
            else:
                parts.append(pick.choice(WORDS))
            parts.append(pick.choice(SPACES))
        return "".join(parts)

    def arguments(self) -> dict[str, Any]:
        return {"city": self.text(4), "days": self.random.randrange(9), "deep": {"list": [self.text(3), None, True]}}

    def chat(self) -> tuple[list[dict[str, Any]], list[Any] | None]:
        """Return messages that end on a user or tool turn, and tools or None; calls are canonical already."""
        pick = self.random
        messages: list[dict[str, Any]] = []
        calls = 0
        if pick.random() < 0.5:
            messages.append({"role": "system", "content": self.text()})
        for _ in range(pick.choice((0, 0, 1, 2))):
            messages.append({"role": "user", "content": self.text()})
            if pick.random() < 0.4:
                count = pick.choice((1, 1, 2))
                made = [
                    {
                        "id": f"functions.get_weather:{calls + index}",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": self.arguments()},
                    }
                    for index in range(count)
                ]
                calls += count
                messages.append({"role": "assistant", "content": pick.choice(("", self.text())), "tool_calls": made})
                messages += [{"role": "tool", "tool_call_id": call["id"], "content": self.text()} for call in made]
                if pick.random() < 0.3:
                    break
            answer = {"role": "assistant", "content": self.text() or "Yes."}
            if pick.random() < 0.5:
                answer["reasoning_content"] = self.text()
            messages.append(answer)
        if messages[-1:] == [] or messages[-1]["role"] != "tool":
            messages.append({"role": "user", "content": self.text() or "Go on."})
        return messages, [TOOL] if pick.random() < 0.4 else None


def replaced(value: Any, old: str, new: str) -> Any:
    """Return nested `value` with `old` replaced by `new` in every string that is not a key."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    return value
