"""The lines that were not delivered: counted by the reason, and kept in a file if there is one."""

from __future__ import annotations

import os
import stat
import threading
from typing import BinaryIO

from pykaproducer._closing import GIVEN_UP
from pykaproducer.cli.common import UserError
from pykaproducer.errors import DeliveryError, Status


class RejectsFile:
    """``--rejects FILE``: appended to, so that the rejects of an earlier run are kept as well.

    Written by callbacks and by the main thread: each write is whole.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: Why not all that should be in it is.
        self.error: OSError | None = None
        try:
            self._file: BinaryIO = open(name, "ab")  # noqa: SIM115 (closed by close())
            self._begins_a_line = _ends_with_a_line(name)
        except OSError as error:
            raise UserError(f"--rejects {name}: {error.strerror}") from None
        self._lock = threading.Lock()

    def is_same_file(self, other: os.stat_result) -> bool:
        """Whether *other* is this very file: reading it while we write to it would never end."""
        ours = os.fstat(self._file.fileno())
        return stat.S_ISREG(ours.st_mode) and os.path.samestat(ours, other)

    def write(self, data: bytes) -> None:
        """Keep *data*."""
        with self._lock:
            if self.error is not None:
                return
            try:
                if not self._begins_a_line:
                    self._file.write(b"\n")
                    self._begins_a_line = True
                self._file.write(data)
            except OSError as error:
                self.error = error

    def close(self) -> None:
        """Nothing more comes."""
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or error


def _ends_with_a_line(name: str) -> bool:
    """False if an earlier run has left a last line without terminator in it."""
    if not os.path.isfile(name) or not os.path.getsize(name):
        return True
    with open(name, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class Failures:
    """How many lines failed, by kind, with the first error of each kind to tell of it."""

    def __init__(self) -> None:
        self.total = 0
        #: How many of them may be in the log all the same.
        self.doubtful = 0
        self._kinds: dict[tuple[str, Status | None], tuple[str, int]] = {}
        self._lock = threading.Lock()

    def add(self, error: BaseException | str, count: int = 1) -> None:
        """*count* lines failed for one reason. From any thread."""
        status = error.status if isinstance(error, DeliveryError) else None
        kind = error if isinstance(error, str) else type(error).__name__
        # It was our call that gave it up, for the user's signal.
        text = str(error).replace(GIVEN_UP, "given up")
        with self._lock:
            self.total += count
            if status is Status.POSSIBLY_PERSISTED:
                self.doubtful += count
            text, before = self._kinds.get((kind, status), (text, 0))
            self._kinds[kind, status] = (text, before + count)

    def by_kind(self) -> list[tuple[str, int]]:
        """(text, count) of each kind, the most frequent first."""
        return sorted(self._kinds.values(), key=lambda entry: -entry[1])
