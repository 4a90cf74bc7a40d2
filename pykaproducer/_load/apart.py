"""Calls functions in a child process, because a damaged file can crash the library they use.

The library with which Arrow reads ORC trusts the lengths in the file. A wrong length makes it write
outside its memory, or allocate all memory. In a child process, either becomes an ordinary error.
The child process is reused for the next call. Concurrent calls use one child process each.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow

from pykaproducer._load.names import SourceError

#: Maximum address space of the process (bytes), of which its libraries reserve some.
_MEMORY = 8 << 30
#: Exceptions that a call of it may raise; others are defects of this library.
_RAISED = (OSError, ValueError, MemoryError, ImportError, pyarrow.ArrowException, SourceError)

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; import pykaproducer._load.apart as a; a.serve()"


class _Process:
    def __init__(self) -> None:
        #: Whether it has done all that it was asked for.
        self.is_idle = True
        #: The environment variables it was started with; stores read settings from them.
        self.environment = dict(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends this process, and that ends the other one
        )

    def is_usable(self) -> bool:
        """Return whether it is running, with the present environment variables."""
        return self._process.poll() is None and self.environment == os.environ

    def each(self, function: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> Any:
        self.is_idle = False
        found, error = self._exchanged((function, arguments))
        while found is not None:
            yield found
            found, error = self._exchanged()
        self.is_idle = True
        if error is not None:
            raise error

    def _exchanged(self, call: object = None) -> Any:
        """Send *call*, if there is one, and return the next result, and an exception or None."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if call is not None:
                pickle.dump(call, self._process.stdin)
                self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):  # the last: of half a result
            self._process.kill()
            status = self._process.wait()
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            text = f"it cannot be read: the library that reads it has crashed ({how})"
            raise pyarrow.ArrowInvalid(text) from None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(OSError):  # there may be something that could not be sent
            self._process.stdin.close()
        self._process.wait()


#: Processes without a call, of the process with this identifier.
_idle: list[_Process] = []
_owner = 0


def each(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """Yield what ``function(*arguments)`` yields, called in another process.

    *function* is one of a module, and what it yields is not None.

    Raises:
        ArrowInvalid: the process has crashed.
        Exception: what *function* has raised.
    """
    process = _taken()
    try:
        yield from process.each(function, arguments)
    finally:
        if process.is_idle:
            _idle.append(process)
        else:
            process.close()


def _taken() -> _Process:
    global _owner
    if _owner != os.getpid():
        _idle.clear()  # they are the parent's
        _owner = os.getpid()
    with contextlib.suppress(IndexError):
        process = _idle.pop()
        if process.is_usable():
            return process
        process.close()
    return _Process()


@atexit.register
def close_all() -> None:
    """End the processes that have no call."""
    while _idle:
        _idle.pop().close()


def serve() -> None:
    """Call functions, as the other process, until the first one ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not everywhere
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limits = [each for each in (soft, hard, _MEMORY) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        found = function(*arguments)
        while True:
            result: Any
            try:
                result = next(found, None), None
            except _RAISED as error:
                result = None, error
            try:
                pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
                results.flush()
            except BrokenPipeError:
                os._exit(1)  # the first process has ended
            if result[0] is None:
                break
