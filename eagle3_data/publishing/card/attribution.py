"""What a card owes to those whose work is in the data: licences, attributions, and the benchmarks that leak.

Goes in: the name of a source builder, or of a target model. Comes out: facts for the card, as plain values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Attribution:
    """What has to be said about one upstream data set.

    Attributes:
        title: its name for people.
        url: where it lies.
        license: what its licence is, in words.
        notes: attributions and obligations, one sentence each.
        contamination: benchmarks whose problems, or close relatives of them, are in it.
    """

    title: str
    url: str
    license: str
    notes: tuple[str, ...] = ()
    contamination: str = ""


ATTRIBUTIONS: Final[Mapping[str, Attribution]] = {
    "B1_glaive": Attribution(
        "Glaive function calling v2",
        "https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2",
        "Apache-2.0, stated in the metadata of its card only",
        (
            "Changed here: the functions in the system text became tool schemas, and only prompts are kept.",
            "Its text is synthetic; the model that wrote it is not named upstream.",
        ),
        "function calls of the same kind as BFCL's simple and multiple categories",
    ),
    "B4_mixturethoughts": Attribution(
        "Mixture-of-Thoughts",
        "https://huggingface.co/datasets/open-r1/Mixture-of-Thoughts",
        "none stated for the collection itself",
        (
            "The collection carries no licence of its own; its parts do, and are to be credited.",
            "Mathematics: open-r1/OpenR1-Math-220k, Apache-2.0.",
            "Code: open-r1/codeforces-cots, CC-BY-4.0.",
            "Science: nvidia/Llama-Nemotron-Post-Training-Dataset, CC-BY-4.0.",
        ),
        "competition mathematics (about 1.6 % of its mathematics are AMC and AIME problems) and Codeforces problems",
    ),
    "B5_openthoughts": Attribution(
        "OpenThoughts",
        "https://huggingface.co/open-thoughts",
        "Apache-2.0 for the collection; its prompts come from sources with licences of their own",
        (
            "Science prompts out of CAMEL are CC-BY-NC-4.0, which is **non-commercial**: leave them out by `origin` "
            "where that matters.",
            "Code prompts come from code_contests (CC-BY-4.0), TACO (Apache-2.0) and APPS (MIT); "
            "the terms of riddle_sense are unclear.",
        ),
        "mathematics and code competitions; upstream removed close matches of known benchmarks by fuzzy matching only",
    ),
    "B8_sweagent": Attribution(
        "SWE-agent trajectories",
        "https://huggingface.co/datasets/nebius/SWE-agent-trajectories",
        "CC-BY-4.0 (nebius); the SWE-smith configs are MIT",
        (
            "Issue texts belong to their repositories, under their licences, listed in nebius/SWE-bench-extra.",
            "Where upstream agent turns are kept in a prompt (`turns: prefix` or `last`), the terms of the models "
            "that wrote them apply as well: Llama 3.1 for nebius, Claude and GPT-4o for SWE-smith.",
        ),
        "GitHub issues of the same kind as SWE-bench's; nebius names SWE-bench-extra as their origin",
    ),
}

# Licences of the models that people are likely to name as a target; others are pointed to by their model page.
_MODEL_LICENSES: Final[Mapping[str, str]] = {
    "moonshotai/kimi-k2": "Modified MIT",
    "qwen/qwen3": "Apache-2.0",
    "deepseek-ai/deepseek-v3": "MIT for the newer releases, the DeepSeek licence for the first",
    "deepseek-ai/deepseek-r1": "MIT",
    "openai/gpt-oss": "Apache-2.0",
    "zai-org/glm-4": "MIT",
    "huggingfacetb/smollm2": "Apache-2.0",
    "smollm2-135m": "Apache-2.0",
    "meta-llama/llama-3.1": "the Llama 3.1 Community License, with its naming and attribution rules",
}

# SPDX ids (lower case) that the Hub's metadata knows by the same name.
_HUB_LICENSES: Final = frozenset(
    {"apache-2.0", "bsd-3-clause", "cc-by-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-sa-4.0", "cc0-1.0"}
    | {"gpl-3.0", "llama3.1", "mit", "odc-by"}
)


def model_license(model: str) -> str:
    """Return the licence of a target model in words, "" when it is not among the known ones."""
    name = model.lower()
    return next((text for start, text in _MODEL_LICENSES.items() if name.startswith(start)), "")


def hub_licenses(spdx: Iterable[str]) -> list[str]:
    """Translate SPDX ids into the Hub's `license` metadata; what the Hub does not know becomes `unknown`."""
    names = {name.lower() if name.lower() in _HUB_LICENSES else "unknown" for name in spdx}
    return sorted(names) or ["unknown"]
