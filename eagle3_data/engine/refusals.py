"""Refusals of the embedded engine, and the checks of single values that end in one, in SGLang's own sentences.

Goes in: a value of a request's body. Comes out: the value, or `Refused` with the status and body that SGLang gives.
"""

from typing import Any


class Refused(Exception):
    """A request that is answered with an error: its HTTP status and JSON body."""

    def __init__(self, body: dict[str, Any], status: int = 400) -> None:
        super().__init__(str(body))
        self.body, self.status = body, status

    @classmethod
    def saying(cls, message: str) -> "Refused":
        """Return the refusal in the shape that SGLang gives most of its own."""
        return cls({"error": {"message": message}})


def bad_request(detail: dict[str, Any]) -> Refused:
    """Return the refusal of a body that SGLang's HTTP layer does not take."""
    # the shape of the validation errors of SGLang's HTTP layer
    text = f"1 validation error:\n  {detail}"
    return Refused({"object": "error", "message": text, "type": "Bad Request", "param": None, "code": 400})


def invalid(location: tuple[str, ...], message: str, given: Any) -> Refused:
    """Return the refusal of a value at `location` of the body."""
    return bad_request({"type": "value_error", "loc": location, "msg": message, "input": given})


def number(params: dict[str, Any], name: str, default: float, *, whole: bool = False) -> Any:
    """Return a number of `params`, or refuse another type."""
    value = params.get(name)
    if value is None:
        return default
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise Refused(
            {"error": f"Expected `{'int' if whole else 'float'}`, got `{type(value).__name__}` - at `$.{name}`"}
        )
    return value


def flag(params: dict[str, Any], name: str, default: bool) -> bool:
    """Return a flag of `params`, or refuse another type."""
    value = params.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Refused({"error": f"Expected `bool`, got `{type(value).__name__}` - at `$.{name}`"})
    return value


def check_range(valid: bool, name: str, rule: str, value: Any) -> None:
    """Refuse a value outside its range."""
    if not valid:
        raise Refused.saying(f"{name} must be {rule}, got {value}.")
