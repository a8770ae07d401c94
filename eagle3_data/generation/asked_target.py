"""What generation asks of a target: `eagle3_data.Target`, or whatever else renders prompts and reads answers."""

from collections.abc import Sequence
from typing import Any, Protocol

from eagle3_data.generation.journal.entry import Ids


class AskedTarget(Protocol):
    """The model that is asked: it renders prompts to ids and reads ids of answers."""

    @property
    def vocabulary_size(self) -> int:
        """Ids from this on are never sent."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""

    def identity(self) -> dict[str, Any]:
        """Return what the ids depend on."""

    def render_batch(self, messages: Sequence[Any], tools: Sequence[Any]) -> list[Ids]:
        """Return the prompt ids of many chats."""

    def forged(self, messages: Any, tools: Any) -> int:
        """Return how many control strings the texts of a chat spell."""

    def reasoning_tokens(self, output_ids: Ids, input_ids: Ids) -> int:
        """Return the tokens of thinking in the answer to a prompt, the end token included."""

    def tool_calls(self, output_ids: Ids, input_ids: Ids) -> int:
        """Return the tool calls begun in the answer to a prompt."""

    def message(self, output_ids: Ids, input_ids: Ids, *, tools: Any, first_call: int) -> Any:
        """Return an answer as a chat message, see `eagle3_data.Target.message`."""
