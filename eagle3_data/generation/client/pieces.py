"""How much of an answer one request fetches: all of it, or pieces where something in between cuts silent requests.

Goes in: requests that were cut after equal times. Comes out: the length of a piece, and one warning with the remedy.
"""

import logging
from typing import Final

from eagle3_data.generation.client.server import Server

logger = logging.getLogger(__name__)

_ROUND_TOKENS: Final = 2048
_FEWEST_ROUND_TOKENS: Final = 64


class Pieces:
    """The length of the pieces in which answers are fetched.

    Args:
        round_tokens: the longest piece that one request fetches of an answer; None for whole answers, until requests
            are seen to be cut by a timer in between.
    """

    def __init__(self, round_tokens: int | None = None) -> None:
        self.round_tokens = round_tokens

    def cut_by_timer(self, server: Server, asked: int) -> None:
        """Take in that requests to a server end after equal times: answers are fetched in pieces from now on.

        Args:
            server: whose requests end.
            asked: tokens that the request asked for; 0 where answers cannot be fetched in pieces.
        """
        seconds, before = server.cuts.seconds, self.round_tokens
        if asked and (before is None or asked <= 2 * before):  # else it was sent before pieces were made shorter
            fits = min(_ROUND_TOKENS, asked / 2, server.tokens_per_second * seconds / 2)
            self.round_tokens = max(_FEWEST_ROUND_TOKENS, int(fits))
        if server.cuts.told:
            return
        server.cuts.told = True
        remedy = (
            f"From now on answers are fetched in pieces of {self.round_tokens} tokens (engine.round_tokens)"
            if asked
            else "With penalties or min_new_tokens an answer cannot be fetched in pieces: the rows that fail are the "
            "long ones, and what is left leans to short answers"
        )
        logger.warning(
            "%s: requests end without an answer after %.0f s each: a balancer or gateway in between ends those that "
            "are silent for so long. Raise its idle timeout, or give engine.urls the servers' own addresses. %s",
            server.url,
            seconds,
            remedy,
        )
