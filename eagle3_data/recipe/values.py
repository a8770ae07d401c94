"""The kinds of values that a recipe holds: text, lists of text, numbers or `auto`, URLs, names of variables.

Goes in: plain values. Comes out: types that pydantic checks, with their forms in the JSON Schema.
"""

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from eagle3_data.validation import Like, Within, shortened, wrong

AUTO: Final = "auto"

Text = Annotated[str, Like(r"(?s:.*\S.*)", "is empty")]
Revision = Annotated[Text, WithJsonSchema({"type": "string"})]
RepoName = Annotated[str, Like(r"[\w.-]+/[\w.-]+", "is not a Hub repository; write organisation/name")]
VersionNumber = Annotated[
    str, Like(r"auto|\d+\.\d+\.\d+", "is not a version; write three numbers, such as 1.0.0, or auto")
]
RunName = Annotated[
    str,
    Like(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        "cannot name a folder; use letters, digits, '.', '_' and '-', at most 100 in all",
    ),
]
WholeOrAuto = Annotated[int, Within(1)] | Literal["auto"]


class OneOrMore:
    """A list that is not empty, or its only item by itself."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        return {"anyOf": [found["items"], {**found, "minItems": 1}]}

    @staticmethod
    def _listed(value: Any) -> Any:
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not values:
            raise wrong("the list is empty")
        return values


TextOrList = Annotated[tuple[Text, ...], OneOrMore()]


class TokenCount:
    """A number of tokens, or one with a unit: 200M, 1.5B."""

    _UNITS: ClassVar[dict[str, int]] = {"k": 10**3, "M": 10**6, "B": 10**9}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._counted, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"^\d+(\.\d+)?[kMB]$"}]}

    @classmethod
    def _counted(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([kMB])", value)
        if match is None:
            raise wrong(f"expected a number of tokens, such as 200M or 200000000, found {shortened(value)}")
        return round(float(match[1]) * cls._UNITS[match[2]])


ServerUrl = Annotated[
    str,
    Like(
        r"https?://[^\s/?#@]+(/[^\s?#]*)?",
        "is not a server's URL; write http://host:port, keys go through api_key_env",
        private=True,
    ),
    AfterValidator(lambda url: url.rstrip("/")),
]

# Variables that hold the credentials of other services: sent to a server as its key, they would be given away.
_CREDENTIALS: Final = re.compile(
    r"(HF_|HUGGING_?FACE|AWS_|AZURE_|GOOGLE_|GCP_|GCLOUD_|GITHUB_|GH_|GITLAB_|CI_|SSH_|KUBE|DOCKER_|NPM_|PYPI_|TWINE_"
    r"|WANDB_|OPENAI_|ANTHROPIC_|SLACK_|COMET_|MLFLOW_|DATABRICKS_|VAULT_|STRIPE_).*|.*_?(PASSWORD|PASSWD|PRIVATE_KEY)",
    re.IGNORECASE,
)


def check_key_variable(name: str) -> str:
    """Return the name of a variable that may hold a server's key.

    Raises:
        PydanticCustomError: it is no variable's name, or that of another service's credentials.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        # whoever writes the key itself here must not find it in a log
        raise wrong("is not the name of an environment variable; the key itself does not belong into a recipe")
    if _CREDENTIALS.fullmatch(name):
        raise wrong(
            f"{name} holds the credentials of another service, which the server would receive; put the server's own "
            "key into a variable of its own, such as SGLANG_API_KEY"
        )
    return name


KeyVariable = Annotated[str, AfterValidator(check_key_variable)]


def _check_files(value: float) -> float:
    if not (0 < value < 1 or (value >= 1 and value == int(value))):
        raise wrong(f"{value:g} is impossible; give a share between 0 and 1, or a number of files")
    return value


FileShare = Annotated[int | float, AfterValidator(_check_files)]
