"""A server whose answers a function of the prompt's text writes, in a real target's own tokens."""

from collections.abc import Callable
from typing import Any

from support.generate_server import GenerateServer

from eagle3_data.target import Target


class ScriptedServer(GenerateServer):
    """Answers `reply(prompt as text)` and keeps what it was asked.

    Args:
        target: whose tokens.
        reply: the ids of the whole answer, stop token included; what exceeds the budget is cut, and a continuation
            gets the rest.
    """

    def __init__(self, target: Target, reply: Callable[[str], list[int]], **options: Any) -> None:
        super().__init__(**options)
        self._target, self._reply = target, reply
        self._answers: dict[tuple[int, ...], list[int]] = {}

    @property
    def prompts(self) -> list[list[int]]:
        """What was asked, continuations included."""
        return [body["input_ids"] for body in self.requests]

    def written(self, ids: list[int], budget: int) -> tuple[list[int], bool]:
        for prompt, answer in self._answers.items():
            done = len(ids) - len(prompt)
            if 0 < done < len(answer) and tuple(ids[: len(prompt)]) == prompt and ids[len(prompt) :] == answer[:done]:
                rest = answer[done:]
                return rest[:budget], len(rest) <= budget
        whole = self._answers.setdefault(tuple(ids), self._reply(self._target.decode(ids)))
        return whole[:budget], len(whole) <= budget
