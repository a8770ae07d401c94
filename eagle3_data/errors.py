"""Every error that this package raises on purpose, with the exit status that the command line gives it.

    Eagle3DataError
    ├── UsageError ............ 2  what was asked for cannot be done as written
    │   ├── RecipeError            a recipe's key, type or value
    │   ├── SourceError            an upstream file, column or config is not what it should be
    │   ├── TargetError            a tokenizer or template that is wrong, or cannot be read without help
    │   └── IdentityError          a run folder that belongs to another target, sampling or seed
    ├── DataError ............. 1  records that break a rule, or that are not complete
    ├── EngineError ........... 3  the inference engine refused or cannot be trusted
    │   ├── EngineUnavailable      nothing answers at the URL
    │   ├── WrongModelError        the engine serves another model than the target
    │   └── TooManyFailures        most requests fail: the run is stopped before it burns its rows
    ├── HubError .............. 3  the Hugging Face Hub refused
    │   └── HubUnreachable         no connection, offline mode, or trouble that passes (rate limits, 5xx)
    └── MachineError .......... 4  this machine: disk, permissions
        ├── DiskFull
        └── RunLocked              another process works on the same run folder

A message is one sentence that names the file, row or field, and how to fix it.
"""

from typing import ClassVar, Final

INTERRUPTED: Final = 130  # the exit status of a command that Ctrl-C ended
INTERRUPTED_TEXT: Final = "interrupted; run the same command again to go on where it stopped"


class Eagle3DataError(Exception):
    """Base of all errors raised on purpose; `exit_status` is what the command line exits with."""

    exit_status: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the message without control characters: names of files and fields in it are other people's."""
        return "".join(char for char in super().__str__() if char.isprintable() or char in "\n\t")


class UsageError(Eagle3DataError):
    """What was asked for cannot be done as it is written."""

    exit_status = 2


class RecipeError(UsageError):
    """A recipe has an unknown key, a wrong type or an impossible value."""


class SourceError(UsageError):
    """An upstream file, column or config is not what the source expects."""


class TargetError(UsageError):
    """A tokenizer or chat template is wrong, or cannot be understood without fields in the recipe."""


class IdentityError(UsageError):
    """A run folder or journal was made with another target, sampling or seed."""


class DataError(Eagle3DataError):
    """Records break a rule, are damaged, or are not complete."""

    exit_status = 1


class EngineError(Eagle3DataError):
    """The inference engine refused, or what it says cannot be trusted."""

    exit_status = 3


class EngineUnavailable(EngineError):
    """Nothing answers at the engine's URL."""


class WrongModelError(EngineError):
    """The engine serves another model than the target."""


class TooManyFailures(EngineError):
    """Most requests fail, so the run was stopped."""


class HubError(Eagle3DataError):
    """The Hugging Face Hub refused a request."""

    exit_status = 3


class HubUnreachable(HubError):
    """The Hub did not answer, or not as it does in good times: the same call may work later."""


class MachineError(Eagle3DataError):
    """This machine stands in the way: disk, permissions, locks."""

    exit_status = 4


class DiskFull(MachineError):
    """No space is left where the run folder lies."""


class RunLocked(MachineError):
    """Another process works on the same run folder."""
