"""Pickling an error together with the chain of its causes, whoever made them.

``pickle`` leaves an exception's ``__cause__`` behind. Ours take theirs along: as a list, because
somebody else's exception in the middle of the chain would lose the rest again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable

#: What pickling and unpickling somebody else's exception may raise.
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
    """The causes, outermost first, down to the first that pickles its own causes.

    *own*: the class of those that do. Somebody else's exception may refuse to be pickled or
    unpickled at all: then an *own* with its text takes its place.
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
