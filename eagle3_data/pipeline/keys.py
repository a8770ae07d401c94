"""Keys of servers, which live in the environment and nowhere else.

Goes in: the name of a variable. Comes out: the key that it holds.
"""

import os

from eagle3_data.errors import UsageError


def key_of(variable: str, asked_by: str) -> str:
    """Return the key that a variable holds.

    Args:
        variable: the name of the variable.
        asked_by: the recipe's field or the option that names it.

    Raises:
        UsageError: it is not set, or empty.
    """
    key = os.environ.get(variable)
    if key is None or not key.strip():
        fault = "not set" if key is None else "empty"
        raise UsageError(
            f"{asked_by}: the environment variable {variable} is {fault}; put the key into it, or leave {asked_by} "
            "out where no key is wanted"
        )
    return key
