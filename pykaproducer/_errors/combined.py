"""Classes of errors that are also kafka-python's class for an error code."""

from __future__ import annotations

from typing import Any, TypeVar

from pykaproducer._errors.base import PykaproducerError
from pykaproducer._errors.formatting import kafka_class
from pykaproducer._errors.kafka_python import errors as kafka_errors

E = TypeVar("E", bound=PykaproducerError)

#: ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID, for which kafka-python raises CommitFailedError.
_LOST_PARTITIONS = frozenset({22, 25})
#: Filled by combined(). If two threads make the same class at once, setdefault() keeps the first
#: one for both.
_MADE: dict[tuple[type[PykaproducerError], int], type[Any]] = {}


def combined(base: type[E], code: int, *, named_by_code: bool = False) -> type[E]:
    """Return the class that is both *base* and kafka-python's class for *code*.

    Its name is that of *base*, or with *named_by_code* that of kafka-python's class. Its attribute
    ``made_of`` has the arguments with which a pickled error finds it again.
    """
    kind = kafka_class(code)
    if issubclass(base, kind):
        return base
    made = _MADE.get((base, code))
    if made is None:
        body = {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            "errno": code,
            "made_of": (base, code, named_by_code),
        }
        name = kind.__name__ if named_by_code else base.__name__
        bases: tuple[type[Any], ...] = (base, kind)
        if code in _LOST_PARTITIONS:
            bases += (kafka_errors.CommitFailedError,)
        made = _MADE.setdefault((base, code), type(name, bases, body))
    return made


def combined_again(base: type[E], code: int, named_by_code: bool) -> type[E]:
    """Find the class of a pickled error."""
    return combined(base, code, named_by_code=named_by_code)
