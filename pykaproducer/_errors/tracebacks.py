"""Removal of tracebacks from stored errors, and copies of errors for callers.

A traceback refers to frames, and a frame to all local variables of a function: request objects,
connections, handles. The outcome of a message is kept for as long as a handle of it exists, in
objects that the garbage collector does not track. Therefore:

1. An exception is stripped of its tracebacks before it becomes part of an outcome.
2. A caller gets a copy of the outcome's exception. When the caller raises the copy, Python stores
   the traceback (and the context and notes) in it, where it affects neither the outcome nor other
   callers.
"""

from __future__ import annotations

import copy
import functools
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

#: ``Py_TPFLAGS_HEAPTYPE``: the class was created by a class statement.
_MADE_IN_PYTHON = 1 << 9


def without_frames(error: E) -> E:
    """Remove the tracebacks from *error* and from every exception it is chained to."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        found.__traceback__ = None
        pending += (found.__cause__, found.__context__)
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions
    return error


def copied(error: E) -> E:
    """Return a copy of *error* and of the exceptions it is chained to, without tracebacks.

    An exception that cannot be copied is returned itself, stripped of its tracebacks. This runs
    for each failed message with a callback; the usual outcomes have at most one cause.
    """
    cause = error.__cause__
    if error.__context__ is None and (cause is None or _chained_to(cause) == (None, None)):
        found = _copied_alone(error)
        if cause is not None and found is not error:
            found.__cause__ = _copied_alone(cause)
        return found
    return _copied_chain(error)


def _copied_chain(error: E) -> E:
    made: dict[int, BaseException] = {}
    originals: list[BaseException] = [error]
    for original in originals:  # the list grows in the loop
        if id(original) in made:
            continue
        made[id(original)] = _copied_alone(original)
        originals += [each for each in _chained_to(original) if each is not None]
    for original in originals:
        found = made[id(original)]
        if found is not original:
            cause, context = _chained_to(original)
            found.__cause__ = None if cause is None else made[id(cause)]
            found.__context__ = None if context is None else made[id(context)]
            found.__suppress_context__ = original.__suppress_context__
    return made[id(error)]  # type: ignore[return-value]


def _chained_to(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    return error.__cause__, error.__context__


def bare_copy(error: E) -> E:
    """Return a copy of *error* alone, made without its constructor.

    It has the same class, arguments and attributes.
    """
    kind = type(error)
    found = kind.__new__(kind, *error.args)
    found.args = error.args
    attributes = found.__dict__
    attributes.update(error.__dict__)
    if "__notes__" in attributes:
        attributes["__notes__"] = [*attributes["__notes__"]]
    return found


def _copied_alone(error: E) -> E:
    kind = type(error)
    try:
        # A built-in exception such as OSError may have state outside of its attributes; `copy`
        # runs its constructor.
        is_plain = _has_no_hidden_state(kind)  # type: ignore[arg-type]  # a class is hashable
        found = bare_copy(error) if is_plain else copy.copy(error)
    except Exception:  # from its __new__(), __init__() or __reduce__(), possibly user code (P9)
        return without_frames(error)
    return found if type(found) is kind else without_frames(error)


@functools.lru_cache
def _has_no_hidden_state(kind: type[BaseException]) -> bool:
    """Return whether exceptions of *kind* consist of class, arguments and attributes only."""
    built_in = next(base for base in kind.__mro__ if not base.__flags__ & _MADE_IN_PYTHON)
    return built_in.__basicsize__ == BaseException.__basicsize__
