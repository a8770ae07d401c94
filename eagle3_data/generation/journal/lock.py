"""Who may write a journal: one process a shard, and all of them agreed on how many shards there are.

Goes in: the journal's folder, a shard's index and count. Comes out: a lock that the system frees when its process
dies, or RunLocked with the owner's process id.
"""

import contextlib
from pathlib import Path

from eagle3_data.errors import RunLocked
from eagle3_data.run_folder import RunLock, lock_file, machine_errors, open_append


class ShardLock:
    """The lock of shard `index` of `count` on the journal at `path`."""

    def __init__(self, path: Path, index: int, count: int) -> None:
        self._path = path
        self._count = count
        self._name = f".{index:05d}-of-{count:05d}.lock"
        self._lock: RunLock | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            RunLocked: a process holds this shard, or a shard of another count (the same rows would be asked twice).
        """
        gate = self._path / ".gate.lock"
        with machine_errors(gate):
            file = open_append(gate)
        with file:
            lock_file(file, wait=True)
            for other in self._path.glob(".*-of-*.lock"):
                if not other.name.endswith(f"-of-{self._count:05d}.lock") and _held(other):
                    raise RunLocked(
                        f"{self._path}: a process works on shard {other.name[1:-5]} of this run; wait for it, or use "
                        "its number of shards"
                    )
            lock = RunLock(self._path / self._name)
            lock.__enter__()
            self._lock = lock

    def release(self) -> None:
        """Free the lock. Idempotent."""
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None


def _held(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), open_append(path) as file:
        return not lock_file(file)
    return False
