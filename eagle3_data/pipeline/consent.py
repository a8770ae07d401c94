"""What a run of a stranger's recipe will touch, said and agreed to before anything is read.

Goes in: a recipe from the Hub, as its reader settled it. Comes out: lines on stderr, and the reader's consent; and a
block in which data are read without the reader's token.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from eagle3_data.errors import UsageError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.recipe import Recipe

_VARIABLE: Final = "HF_HUB_DISABLE_IMPLICIT_TOKEN"


def contacts(recipe: Recipe) -> list[str]:
    """Return a line for everything that a run of a recipe reads, asks or sends to."""
    token = "without your token" if recipe.anonymous else "with your token"
    lines = []
    if recipe.target is not None:
        code = " and runs the code in it" if recipe.target.trust_remote_code else ""
        lines.append(f"reads the tokenizer of {recipe.target.model}{code}")
    for spec in recipe.sources:
        files = recipe.data_files(spec)
        if isinstance(files, list):
            lines += [f"{spec.name}: reads {file}{f' {token}' if '://' in file else ''}" for file in files]
        elif files is None:
            upstream = spec.options.get("repo") or spec.source
            lines.append(f"{spec.name}: reads the data set {upstream} at {spec.revision}, {token}")
    key = f", with the key in {recipe.engine.api_key_env}" if recipe.engine.api_key_env else ""
    lines += [f"sends the prompts to {url}{key}" for url in recipe.engine.urls]
    if recipe.publish:
        lines.append(f"publishes the records to {recipe.publish.repo}")
    return [foreign_text(line) for line in lines]


def ask_consent(recipe: Recipe, *, yes: bool) -> None:
    """Say what a stranger's recipe will touch and ask whether to go on; other recipes need no consent.

    Raises:
        UsageError: the answer is no, or there is no terminal to ask on and `yes` is not given.
    """
    if not recipe.is_foreign:
        return
    for line in recipe.left_out:
        print(f"eagle3-data: {line}", file=sys.stderr)
    print(f"{recipe.file} is a recipe from the Hub. With what you gave, it", file=sys.stderr)
    for line in contacts(recipe):
        print(f"  {line}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{recipe.file}: there is no terminal to ask on; give --yes if you agree to these lines")
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"{recipe.file}: not agreed to; nothing was read or sent")


@contextlib.contextmanager
def without_token(anonymous: bool) -> Iterator[None]:
    """Keep the Hub's token out of every request of the block, in this process and in those that it starts."""
    if not anonymous:
        yield
        return
    from huggingface_hub import constants

    before, variable = constants.HF_HUB_DISABLE_IMPLICIT_TOKEN, os.environ.get(_VARIABLE)
    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = before
        if variable is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = variable
