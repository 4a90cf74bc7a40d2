"""Pickling an error together with the chain of its causes, including foreign exceptions.

``pickle`` drops an exception's ``__cause__``. Our errors pickle their causes as a list, because a
foreign exception in the middle of the chain would drop the rest of it again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable

#: The errors that pickling and unpickling a foreign exception may raise.
_NOT_PICKLABLE = (
    pickle.PickleError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)


def picklable_chain(cause: BaseException | None, own: type[BaseException]) -> list[BaseException]:
    """Return the causes, outermost first, down to the first one that pickles its own causes.

    *own* is the base class of those that do. A foreign exception that cannot be pickled or
    unpickled is replaced by an *own* with its text.
    """
    chain: list[BaseException] = []
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, own):
            chain.append(cause)
            break
        chain.append(_picklable(cause, own))
        cause = cause.__cause__
    return chain


def _picklable(cause: BaseException, own: type[BaseException]) -> BaseException:
    try:
        copy = pickle.loads(pickle.dumps(cause))
    except _NOT_PICKLABLE:
        copy = None
    if isinstance(copy, type(cause)):
        return cause
    return own(f"{type(cause).__module__}.{type(cause).__qualname__}: {cause}")


def chain_causes(error: BaseException, chain: Iterable[BaseException]) -> None:
    """Make each of *chain* the cause of the one before it, the first the cause of *error*."""
    for cause in chain:
        error.__cause__ = cause
        error = cause
