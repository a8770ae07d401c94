"""Whether the model behind a URL is still the one that the run began with.

Goes in: a server, once at the start of a run and again on each return. Comes out: nothing, or a `WrongModelError`.
Names do not show it: another model may lie in a folder of the same name, with the weight version "default". So one
short greedy answer is recorded at the start and asked for again. Numbers differ a little with the batch and the
kernels, so an answer that only ends otherwise is no proof; one that begins otherwise, twice, is.
"""

import logging
from typing import Final

import aiohttp
import numpy as np
import orjson

from eagle3_data.errors import WrongModelError
from eagle3_data.generation.client.facts import ServerFacts
from eagle3_data.generation.client.http import read_body
from eagle3_data.generation.client.protocol import body_limit

logger = logging.getLogger(__name__)

# Ids that every vocabulary in wide use has: one outside it would kill the server.
PROMPT: Final = tuple(range(310, 1110, 100))
_TOKENS: Final = 16
_SAME_TOKENS: Final = 4
_PATIENCE: Final = aiohttp.ClientTimeout(total=120)


class ModelCanary:
    """Keeps each server's greedy answer."""

    def __init__(self) -> None:
        self._answers: dict[str, list[int]] = {}

    async def record(self, session: aiohttp.ClientSession, facts: ServerFacts) -> None:
        """Keep what the server answers now, if nothing is kept yet."""
        if facts.url in self._answers:
            return
        first, second = [await greedy_answer(session, facts.url) for _ in range(2)]
        if not first or not second:
            logger.info("%s: gives no short greedy answer; only names will show if its model is changed", facts.url)
            return
        if first != second:
            logger.info(
                "%s: the same greedy request was answered in two ways (from token %d on), so this engine is not "
                "deterministic: two runs differ even at temperature 0",
                facts.url,
                _same(first, second),
            )
        self._answers[facts.url] = first

    async def check(self, session: aiohttp.ClientSession, facts: ServerFacts) -> None:
        """Compare what a server that came back answers with what it answered at the start.

        Raises:
            WrongModelError: it begins otherwise, twice.
        """
        known = self._answers.get(facts.url)
        if known is None:
            await self.record(session, facts)
            return
        for _ in range(2):
            now = await greedy_answer(session, facts.url)
            if now is None or now == known:
                return
            same = _same(known, now)
            if same >= _SAME_TOKENS:
                logger.warning(
                    "%s: is back, and its greedy answer differs from that of the start from token %d on: the engine "
                    "is not deterministic, or was started with other options",
                    facts.url,
                    same,
                )
                return
        raise WrongModelError(
            f"{facts.url}: another model answers there now: a short greedy request gave {known[:8]} at the start of "
            f"the run and gives {now[:8] if now else []} since it returned; start the run's model there, or take the "
            "URL out of engine.urls. Finished rows are kept"
        )


async def greedy_answer(session: aiohttp.ClientSession, url: str) -> list[int] | None:
    """Return a short answer at temperature 0, None where the server gives none."""
    sampling = {"max_new_tokens": _TOKENS, "temperature": 0.0, "ignore_eos": True}
    body = orjson.dumps({"input_ids": PROMPT, "sampling_params": sampling})
    try:
        async with session.post(url + "/generate", data=body, timeout=_PATIENCE) as reply:
            data = await read_body(reply, body_limit(_TOKENS))
            ids = orjson.loads(data)["output_ids"] if reply.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
        return None
    return ids if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else None


def _same(one: list[int], other: list[int]) -> int:
    """Return how many first tokens are equal."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.array(one[:size]) != np.array(other[:size]))
    return int(differ[0]) if differ.size else size
