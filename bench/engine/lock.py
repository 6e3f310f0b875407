"""At most one process per run: a lock file beside the record, which the kernel holds while the process lives.

A process that dies releases its lock, however it dies. So no lock is ever stale and none must be removed by hand.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.records import CannotWrite


@contextmanager
def lock(folder: Path, run: str) -> Iterator[str | None]:
    """Yields None if we have the lock, else its owner. Removes files that a killed process left half written."""
    path = folder / f".{run}.lock"
    handle, owner = _take(path)
    if handle is None:
        yield owner
        return
    try:
        for unfinished in folder.glob(f".{run}.*"):
            if unfinished != path:
                unfinished.unlink(missing_ok=True)
        yield None
    finally:
        path.unlink(missing_ok=True)  # while we still hold it: others that have opened it see that it is gone
        os.close(handle)


def _take(path: Path) -> tuple[int | None, str]:
    """An open handle that holds the lock, or None and the owner."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 200).decode(errors="replace")
            os.close(handle)
            return None, owner or "another process"
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                os.truncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return handle, ""
        os.close(handle)  # its owner removed it after we opened it: try again
