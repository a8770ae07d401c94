"""Licences as a card states them: those of target models in words, those of rows in the Hub's metadata.

What a source's card must say stands in the source's own INFO.
"""

from collections.abc import Iterable, Mapping
from typing import Final

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
