"""One open journal a process and folder, however many Generators use it.

Goes in: a folder. Comes out: a journal whose `close` only closes it when its last user has closed it. Two Generators
over one run in one notebook share the lock and the look-ups; two processes do not get that far (RunLocked).
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_data.errors import UsageError
from eagle3_data.generation.journal.journal import Journal

_guard = threading.Lock()
_open: dict[tuple[int, Path], "_Shared"] = {}


class _Shared(Journal):
    """A journal that counts its users."""

    users = 0
    place: tuple[int, Path]

    def close(self) -> None:
        """Sync; close when nobody else uses it."""
        with _guard:
            if self.users == 0:
                return
            self.users -= 1
            last = self.users == 0
            if last:
                _open.pop(self.place, None)
        if last:
            super().close()
        else:
            self.flush()


def shared_journal(path: Path, identity: Mapping[str, Any], shard: tuple[int, int], vocabulary_size: int) -> Journal:
    """Return the open journal of `path`, opened if this process has none yet.

    Raises:
        UsageError: it is open here for another shard.
        IdentityError, RunLocked, MachineError: as `Journal`.
    """
    place = (os.getpid(), path.resolve())
    with _guard:
        journal = _open.get(place)
        if journal is None:
            journal = _Shared(path, identity, shard=shard, vocabulary_size=vocabulary_size)
            journal.place = place
            _open[place] = journal
        elif journal.shard != shard:
            raise UsageError(f"{path}: open in this process for shard {journal.shard}; close that Generator first")
        else:
            journal.check_identity(identity)
        journal.users += 1
        return journal
