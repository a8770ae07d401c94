"""What the Hub refuses, in one clear line that never holds a token.

Goes in: a block of calls to the Hub. Comes out: the same, with every failure turned into a HubError that says what
mends it, and passing troubles (rate limits, broken connections, 5xx) waited out.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from eagle3_data.errors import HubError, UsageError

Result = TypeVar("Result")
_TOKEN: Final = re.compile(r"hf_[A-Za-z0-9_]{6,}")
_PASSING: Final = (429, 500, 502, 503, 504)
TRIES: Final = 5
LONGEST_WAIT: Final = 60.0  # seconds

# A name of its own, so that tests can watch the waiting instead of waiting.
sleep = time.sleep


def redact(text: str, *secrets: str | None) -> str:
    """Replace tokens in a text: those given, and everything that looks like one of the Hub's."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "<token>")
    return _TOKEN.sub("<token>", text)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error, 0 when there was no answer."""
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", 0) or 0)


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that the Hub asks to wait (`Retry-After`, or `t` of `RateLimit`), None if it asks none."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    found = re.search(r"\bt=(\d+)", headers.get("RateLimit", ""))
    text = headers.get("Retry-After") or (found[1] if found else "")
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def patiently(call: Callable[[], Result]) -> Result:
    """Make a call that may be repeated, waiting out rate limits, 5xx and broken connections a few times."""
    for attempt in range(TRIES):
        try:
            return call()
        except OfflineModeIsEnabled:
            raise
        except (HTTPError, ConnectionError, TimeoutError) as error:
            if attempt == TRIES - 1 or not is_passing(error):
                raise
            wait_for(error, attempt)
    raise AssertionError("unreachable")


def is_passing(error: BaseException, *statuses: int) -> bool:
    """Tell whether a failed call may work in a while: no answer, 429, 5xx, or one of `statuses`."""
    return status_of(error) in (0, *_PASSING, *statuses) and (retry_after(error) or 0) <= LONGEST_WAIT


def wait_for(error: BaseException, attempt: int) -> None:
    """Wait as long as the Hub asks, else a time that doubles with each attempt (0, 1, …)."""
    wait = retry_after(error)
    sleep(wait if wait is not None else min(2.0**attempt, 8.0))


@contextlib.contextmanager
def hub_errors(repo: str, token: str | None, doing: str) -> Iterator[None]:
    """Turn what the Hub and the network raise in the block into one HubError.

    Args:
        repo: the data set that is spoken of.
        token: removed from every message.
        doing: what was tried, as in "publish to".

    Raises:
        HubError: always with one line; the original error is not chained, because it may carry headers.
        UsageError: `repo` is no repository name.
    """
    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"{repo!r} is no repository name: {redact(_first_line(error), token)}") from None
    except (HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled, ConnectionError, TimeoutError) as error:
        raise HubError(f"{repo}: cannot {doing} it: {redact(explain(error, token is not None), token)}") from None
    except RuntimeError as error:
        # huggingface_hub wraps a failed upload of one file, and hf_xet raises bare RuntimeErrors
        cause = error.__cause__ if isinstance(error.__cause__, HTTPError | OSError) else error
        raise HubError(f"{repo}: cannot {doing} it: {redact(explain(cause, token is not None), token)}") from None


def explain(error: BaseException, has_token: bool) -> str:
    """Say in one line what a failed call to the Hub means and what mends it."""
    status = status_of(error)
    said = _server_message(error)
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it to reach the Hub"
    if isinstance(error, LocalTokenNotFoundError):
        return "no token; log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, GatedRepoError):
        return "it is gated; ask for access on its page, and use a token of the account that has it"
    if status == 401 and (has_token and "credentials" in said.lower()):
        return "the Hub does not accept the token; log in again with `hf auth login`, or set a valid HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        why = "or this token may not see it" if has_token else "or it is private and there is no token (HF_TOKEN)"
        return f"there is no such data set, {why}"
    if isinstance(error, RevisionNotFoundError):
        return "it has no such version or branch"
    if status == 403:
        return f"the token has no right to do that ({said or 'forbidden'}); use one with write permission there"
    if status == 429:
        wait = retry_after(error)
        return (
            f"rate limit reached (429); try again {f'in {wait:.0f} s' if wait else 'later'}, finished files are kept"
        )
    if status in (409, 412):
        return "somebody else committed to it at the same time, again and again; run the same command again"
    if status >= 500:
        return f"the Hub has trouble ({status}); run the same command again, finished files are not sent twice"
    if status:
        return f"the Hub answered {status}: {said or _first_line(error)}"
    return (
        f"no connection to the Hub ({type(error).__name__}: {_first_line(error)}); run the same command again when "
        "the network is back, finished files are not sent twice"
    )


def _server_message(error: BaseException) -> str:
    if not isinstance(error, HfHubHTTPError):
        return ""
    message: Any = error.server_message or ""
    return " ".join(str(message).split())


def _first_line(error: BaseException) -> str:
    return " ".join(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).split())
