"""The way in: the script `eagle3-data` and `python -m eagle3_data`.

Goes in: the process's arguments. Comes out: the exit status of `cli.main`; after Ctrl-C at any moment one line and
130, within two seconds where no request is in flight. Imports little at the top, because an interrupt before `entry`
has its handler ends in Python's own traceback.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final, NoReturn

from eagle3_data.errors import INTERRUPTED, INTERRUPTED_TEXT

_PATIENCE_SECONDS: Final = 1.5

_said = False


def entry() -> NoReturn:
    """Run the command line and leave the process with its exit status."""
    global _said
    signal.signal(signal.SIGINT, _interrupt)
    try:
        from eagle3_data.cli import main

        status = main()
        _said = True  # by `main`, in the form that its arguments ask for
    except KeyboardInterrupt:
        status = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if status == INTERRUPTED:
        _say()
    # An interrupt that passed through exec() (dataclasses and named tuples are made with it) leaves a mark by which
    # CPython ends the process with the signal and not with this status. Running any text takes the mark away.
    exec("")
    sys.exit(status)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    # Imports and destructors may swallow the exception, and C code may not look for it in time.
    signal.signal(signal.SIGINT, _leave)
    watchdog = threading.Timer(_PATIENCE_SECONDS, _leave)
    watchdog.daemon = True
    watchdog.start()
    raise KeyboardInterrupt


def _leave(*_: object) -> NoReturn:
    _say()
    os._exit(INTERRUPTED)


def _say() -> None:
    """Print the line of an interrupt, unless it stands there."""
    global _said
    if not _said:
        _said = True
        os.write(2, f"eagle3-data: {INTERRUPTED_TEXT}\n".encode())


if __name__ == "__main__":
    entry()
