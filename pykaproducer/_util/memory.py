"""The exceptions that mean that there is no memory.

An exception is lost if there is no memory for the frame object of its traceback. This goes for any
exception, also for a MemoryError. CPython (3.11 to 3.13) then raises ``SystemError: error return
without exception set`` in the calling function.
"""

from __future__ import annotations

from typing import Final

NO_MEMORY: Final = (MemoryError, SystemError)
#: The exceptions of :func:`~pykaproducer._pipeline.worker.spawn` if the system refuses a thread.
NO_THREAD: Final = (RuntimeError, *NO_MEMORY)
