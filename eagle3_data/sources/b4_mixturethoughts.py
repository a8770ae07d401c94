"""B4: Mixture-of-Thoughts, one question and one reasoned answer a row, from three component data sets.

Goes in: rows of `messages`, `num_tokens` and `source`. Comes out: the question, labelled with the component data set
it came from and that component's licence (the collection itself states none). Also a loading script for datasets 3.6.
"""

from collections.abc import Sequence
from typing import Any

from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.chat import turns
from eagle3_data.sources.columns import Column
from eagle3_data.sources.description import ConfigInfo, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import Dialogue

_REPO = "open-r1/Mixture-of-Thoughts"
_LICENSES = {
    "open-r1/OpenR1-Math-220k": "Apache-2.0",
    "open-r1/codeforces-cots": "CC-BY-4.0",
    "nvidia/Llama-Nemotron-Post-Training-Dataset": "CC-BY-4.0",
}

INFO = SourceInfo(
    name="B4_mixturethoughts",
    title="Mixture-of-Thoughts: mathematics, code and science",
    license="unknown",
    configs={
        "all": ConfigInfo(_REPO, "all", 349_317),
        "code": ConfigInfo(_REPO, "code", 83_070, license="CC-BY-4.0"),
        "math": ConfigInfo(_REPO, "math", 93_733, license="Apache-2.0"),
        "science": ConfigInfo(_REPO, "science", 172_514, license="CC-BY-4.0"),
    },
    default_config="all",
    quirks=(
        "no licence on the card: each row carries that of its component data set",
        "the answer's own token count orders the work",
        "mathematics prompts carry exam numbering, and some name figures that are not there",
    ),
    homepage=f"https://huggingface.co/datasets/{_REPO}",
    terms="none stated for the collection itself",
    notes=(
        "The collection carries no licence of its own; its parts do, and are to be credited.",
        "Mathematics: open-r1/OpenR1-Math-220k, Apache-2.0.",
        "Code: open-r1/codeforces-cots, CC-BY-4.0.",
        "Science: nvidia/Llama-Nemotron-Post-Training-Dataset, CC-BY-4.0.",
    ),
    contamination="competition mathematics (about 1.6 % of its mathematics are AMC and AIME problems) and Codeforces "
    "problems",
    languages=("en",),
)


class B4MixtureThoughts(SourceBuilder):
    """Prompts of Mixture-of-Thoughts."""

    INFO = INFO
    BUILDER_CONFIGS = [SourceConfig(name=name) for name in INFO.configs]  # noqa: RUF012
    DEFAULT_CONFIG_NAME = "all"

    @classmethod
    def columns(cls, config: Any) -> Sequence[Column]:
        """The component carries the licence, so it may be null but not gone; the count only orders the work."""
        return (
            Column("messages", "list"),
            Column("num_tokens", "integer", False),
            Column("source", nullable=True),
        )

    @classmethod
    def read(cls, row: dict[str, Any], config: Any) -> Dialogue:
        """Understand one upstream row."""
        source = row.get("source")
        source = source if isinstance(source, str) else ""
        return Dialogue(
            messages=turns(row["messages"], keep_unclosed=True),  # single answers are in no history
            origin=source,
            license=_LICENSES.get(source, "unknown"),
            answer_tokens=token_count(row.get("num_tokens")),
        )


def token_count(value: Any) -> int:
    """Return upstream's token count, or 0 where it is no count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else 0
