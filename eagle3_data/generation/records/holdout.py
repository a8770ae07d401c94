"""Which prompts are held out for validation: whole dialogues, the first of the draw order (which is a hash order).

Goes in: dialogue numbers in draw order. Comes out: True for held-out prompts. A prompt's split never changes when a
run grows, because a larger draw appends to a smaller one; and no dialogue lies on both sides. Where dialogues give one
prompt each, exactly as many are held out as asked for.
"""

import numpy as np
import numpy.typing as npt


class Holdout:
    """Chooses in one pass over a source.

    Args:
        rows: prompts to hold out.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._chosen: set[int] = set()
        self._count = 0

    def choose(self, dialogues: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which of the next prompts are held out, shape (rows,)."""
        held = np.zeros(len(dialogues), bool)
        if not self._rows:
            return held
        for at, dialogue in enumerate(dialogues.tolist()):
            if dialogue in self._chosen:
                held[at] = True
            elif self._count < self._rows:
                self._chosen.add(dialogue)
                held[at] = True
            self._count += int(held[at])
        return held
