"""Undelivered lines: counted by reason, and optionally kept in a file."""

from __future__ import annotations

import os
import stat
import threading
from typing import BinaryIO

from pykaproducer._process.closing import GIVEN_UP
from pykaproducer.cli.common import UserError
from pykaproducer.errors import DeliveryError, Status


class RejectsFile:
    """``--rejects FILE``, opened for appending so that the rejects of earlier runs are kept.

    *delimiter* ends a line.
    """

    def __init__(self, name: str, delimiter: bytes = b"\n") -> None:
        self.name = name
        self._delimiter = delimiter
        #: The error that made the file incomplete.
        self.error: OSError | None = None
        try:
            self._file: BinaryIO = open(name, "ab")  # noqa: SIM115 (closed by close())
            self._begins_a_line = _ends_with(name, delimiter)
        except OSError as error:
            raise UserError(f"--rejects {name}: {error.strerror}") from None

    def is_same_file(self, other: os.stat_result) -> bool:
        """Return whether *other* is this file; reading it while appending would never end."""
        ours = os.fstat(self._file.fileno())
        return stat.S_ISREG(ours.st_mode) and os.path.samestat(ours, other)

    def write(self, data: bytes, *, continued: bool = False) -> None:
        """Append *data*, unless an earlier write failed. *continued*: it is not a new line."""
        if self.error is not None or not data:
            return
        try:
            if not self._begins_a_line and not continued:
                self._file.write(self._delimiter)
            self._file.write(data)
        except OSError as error:
            self.error = error
        self._begins_a_line = data.endswith(self._delimiter)

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error


def _ends_with(name: str, delimiter: bytes) -> bool:
    """Return false if the file ends with an unterminated line, left by an earlier run."""
    if not os.path.isfile(name) or not os.path.getsize(name):
        return True
    with open(name, "rb") as file:
        file.seek(-min(len(delimiter), os.path.getsize(name)), os.SEEK_END)
        return file.read() == delimiter


class FailureCounts:
    """Counts of failures by kind, with the text of the first error of each kind."""

    def __init__(self) -> None:
        self.total = 0
        #: Number of failures that may nevertheless be in the log.
        self.ambiguous = 0
        self._kinds: dict[tuple[str, Status | None], tuple[str, int]] = {}
        self._lock = threading.Lock()

    def add(self, error: BaseException | str, count: int = 1, first: str | None = None) -> None:
        """Count *count* failures with the same reason. Thread-safe.

        *first* describes the first of them.
        """
        status = error.status if isinstance(error, DeliveryError) else None
        kind = error if isinstance(error, str) else type(error).__name__
        # The message was abandoned by the command's own close(), after the user's signal.
        text = str(error).replace(GIVEN_UP, "abandoned after the interrupt")
        if first is not None:
            text = f"{text}; the first: {first}"
        with self._lock:
            self.total += count
            if status is Status.POSSIBLY_PERSISTED:
                self.ambiguous += count
            text, before = self._kinds.get((kind, status), (text, 0))
            self._kinds[kind, status] = (text, before + count)

    def by_kind(self) -> list[tuple[str, int]]:
        """Return (text, count) of each kind, the most frequent first."""
        return sorted(self._kinds.values(), key=lambda entry: -entry[1])
