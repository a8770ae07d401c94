"""What the servers of a run must have in common: the model, its weights, and a context that all of them hold.

Goes in: what servers say of themselves, before and during the run. Comes out: the limits that hold for all of them,
or an `EngineError` that names the difference.
"""

import logging

from eagle3_data.errors import EngineError
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.generation.client.facts import ServerFacts
from eagle3_data.generation.client.server import Server

logger = logging.getLogger(__name__)


class Agreement:
    """What was found to hold for all servers so far.

    Args:
        context_length: where the servers do not tell theirs (sglang-router).
    """

    def __init__(self, context_length: int | None = None) -> None:
        self.context_length = context_length
        self.facts: ServerFacts | None = None
        self.limits: ContextLimits | None = None

    def join(self, server: Server, facts: ServerFacts) -> None:
        """Take in what a server says of itself; the first one's word stands for all.

        Raises:
            EngineError: it serves something else, or does not tell its context length.
        """
        if self.facts is None:
            if facts.limits is None:
                raise EngineError(
                    f"{server.url}: does not report its context length (a router?); give engine.context_length"
                )
            self.facts, self.limits = facts, facts.limits
        self.compare(server, facts)
        if facts.limits is not None and self.limits is not None:
            self.limits &= facts.limits

    def compare(self, server: Server, facts: ServerFacts) -> None:
        """Refuse a server that does not serve what the others serve.

        Raises:
            EngineError: it names the difference.
        """
        assert self.facts is not None
        for name in ("model_path", "version", "weight_version"):
            known, here = getattr(self.facts, name), getattr(facts, name)
            if name == "model_path":  # the same model may lie in another folder of another machine
                known, here = (value.rstrip("/").rpartition("/")[2] for value in (known, here))
            if known and here and known != here:
                raise EngineError(
                    f"{server.url} serves {name} {here!r} and {self.facts.url} {known!r}: one run needs the same "
                    "everywhere; take one out of engine.urls. Finished rows are kept"
                )

    def check_weights(self, server: Server, version: str) -> None:
        """Refuse an answer that was written by other weights than the answers before it.

        Raises:
            EngineError: the versions differ.
        """
        facts = self.facts
        if facts is None or not version or version == facts.weight_version:
            return
        if not facts.weight_version:
            self.facts = ServerFacts(facts.url, facts.model_path, facts.version, version, facts.limits, facts.slots)
            return
        raise EngineError(
            f"{server.url}: the weights changed from {facts.weight_version!r} to {version!r} in mid-run; serve "
            f"{facts.weight_version!r} again, or start a run of another name. Finished rows are kept"
        )

    def learn_context(self, server: Server, tokens: int, said: str, context: int) -> None:
        """Take in that a request was refused as too long.

        Args:
            server: who refused it.
            tokens: prompt and budget of the request.
            said: the server's words.
            context: the context length in them, 0 for none.

        Raises:
            EngineError: `engine.context_length` is wrong, or the words do not tell what the server can hold.
        """
        assert self.limits is not None
        if context and not self.context_length and context < self.limits.context_length:
            logger.warning("%s: holds %d tokens, fewer than it reported: %s", server.url, context, said)
            self.limits &= ContextLimits(context)
            return
        if context and self.limits.context_length <= context and tokens > self.limits.room:
            return  # was on its way when the limit was learnt
        given = f"engine.context_length is {self.context_length}" if self.context_length else "it reported more"
        remedy = f"set it to {context}" if context else "set it to what the server can hold"
        raise EngineError(
            f"{server.url}: refuses a request of {tokens} tokens as too long ({said}), and {given}; {remedy}"
            + ("" if self.context_length else " in engine.context_length")
            + ". Finished rows are kept"
        )
