"""What the Hub refuses, in one clear line that never holds a token.

Goes in: a block of calls to the Hub. Comes out: the same, with every failure turned into a HubError that says what
fixes it, and passing troubles (rate limits, broken connections, 5xx) waited out.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from huggingface_hub.constants import ENDPOINT
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

from eagle3_data.errors import HubError, HubUnreachable, UsageError

Result = TypeVar("Result")
_TOKEN: Final = re.compile(r"hf_[A-Za-z0-9_]{6,}")
_PASSING: Final = (429, 500, 502, 503, 504)
_READING: Final = ("read", "load", "look for")
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
    """Return the seconds that the Hub asks to wait, None if it asks none.

    `Retry-After` says it; `RateLimit: "api";r=0;t=290` does where nothing remains (`r`) of the limit that it names.
    With some of it left, another limit was reached, such as that of commits per hour, which the header is not about.
    """
    headers = _headers(error)
    text = headers.get("Retry-After") or ""
    if not text and (found := re.search(r"\br=0\b.*?\bt=(\d+)", headers.get("RateLimit", ""))):
        text = found[1]
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _headers(error: BaseException) -> Mapping[str, str]:
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    return headers


def _is_slow_limit(error: BaseException) -> bool:
    """Whether a 429 is about a limit that no header says the end of: waiting some seconds is no use."""
    return status_of(error) == 429 and retry_after(error) is None and "RateLimit" in _headers(error)


def is_expired_upload(error: BaseException) -> bool:
    """Whether a storage, not the Hub, refused an upload: its signed addresses are good for some minutes only."""
    return status_of(error) in (400, 401, 403) and _is_storage(error)


def _is_storage(error: BaseException) -> bool:
    request = getattr(getattr(error, "response", None), "request", None)
    address = urlsplit(str(getattr(request, "url", "")))
    return bool(address.netloc) and address.netloc != urlsplit(ENDPOINT).netloc


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
    passing = status_of(error) in (0, *_PASSING, *statuses) and not _is_slow_limit(error)
    return passing and (retry_after(error) or 0) <= LONGEST_WAIT


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
        raise _told(repo, token, doing, error) from None
    except RuntimeError as error:
        # huggingface_hub wraps a failed upload of one file, and hf_xet raises bare RuntimeErrors
        cause = error.__cause__ if isinstance(error.__cause__, HTTPError | OSError) else error
        raise _told(repo, token, doing, cause) from None


def _told(repo: str, token: str | None, doing: str, error: BaseException) -> HubError:
    passing = isinstance(error, OfflineModeIsEnabled) or status_of(error) in (0, *_PASSING)
    kind = HubUnreachable if passing and not isinstance(error, LocalTokenNotFoundError) else HubError
    return kind(f"{repo}: cannot {doing} it: {redact(explain(error, token is not None, doing), token)}")


def explain(error: BaseException, has_token: bool, doing: str) -> str:
    """Say in one line what a failed call to the Hub means and what fixes it; `doing` as for `hub_errors`."""
    again = "run the same command again"
    kept = "" if doing in _READING else ", finished files are not sent twice"
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
    if is_expired_upload(error):
        return (
            f"the storage refused an upload ({status}), again and again: its address may have expired on a slow line, "
            f"or a proxy stands in between; {again}{kept}"
        )
    if status == 403:
        return f"the token has no right to do that ({said or 'forbidden'}); use one with write permission there"
    if status == 429:
        wait = retry_after(error)
        words = f" ({said})" if said else ""
        when = f"in {wait:.0f} s" if wait else "later"
        return f"rate limit reached (429){words}; try again {when}{kept}"
    if status in (409, 412):
        return f"somebody else committed to it at the same time, again and again; {again}"
    if status >= 500:
        return f"the Hub has trouble ({status}); {again}{kept}"
    if status:
        return f"the Hub answered {status}: {said or _first_line(error)}"
    return (
        f"no connection to the Hub ({type(error).__name__}: {_first_line(error)}); {again} when "
        f"the network is back{kept}"
    )


def _server_message(error: BaseException) -> str:
    if not isinstance(error, HfHubHTTPError):
        return ""
    message: Any = error.server_message or ""
    return " ".join(str(message).split())


def _first_line(error: BaseException) -> str:
    return " ".join(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).split())
