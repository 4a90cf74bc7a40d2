"""The base class of all errors of this library, and how they are pickled."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from pykaproducer._errors.kafka_python import errors as kafka_errors
from pykaproducer._errors.pickling import chain_causes, picklable_chain
from pykaproducer._errors.tracebacks import bare_copy


class PykaproducerError(kafka_errors.KafkaError):
    """The base class of all errors of this library."""

    __module__ = "pykaproducer.errors"  # where users find it

    __cause__: BaseException | None

    def __str__(self) -> str:
        # kafka-python puts the class name in front, although tracebacks show it anyway.
        return Exception.__str__(self)

    # Equality is by value, as in kafka-python, because each access to a message's error creates a
    # new object. Unlike kafka-python's, these errors are hashable.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self.args != other.args:
            return False
        return _without_notes(self) == _without_notes(other)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))

    def __copy__(self) -> Self:
        found = bare_copy(self)
        found.__cause__ = self.__cause__
        found.__suppress_context__ = self.__suppress_context__
        return found

    def _recipe(self) -> tuple[Any, ...]:
        """Return a function and its arguments, with which :func:`_rebuild` finds the class."""
        return (_class, type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        chain = picklable_chain(self.__cause__, PykaproducerError)
        return (_rebuild, (self._recipe(), self.args, dict(self.__dict__), chain))


T = TypeVar("T", bound=TimeoutError)


def new_timeout(kind: type[T], *args: object) -> T:
    """Make a :class:`TimeoutError` that is also an error of kafka-python."""
    # The errors of kafka-python 2 are RuntimeErrors, whose __new__ comes first in the order of the
    # classes, and cannot make a TimeoutError.
    return TimeoutError.__new__(kind, *args)


def _class(kind: type[PykaproducerError]) -> type[PykaproducerError]:
    return kind


def _without_notes(error: PykaproducerError) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if name != "__notes__"}


def _rebuild(
    recipe: tuple[Any, ...],
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    chain: list[BaseException],
) -> PykaproducerError:
    """Rebuild a pickled error with its class, text, attributes and causes."""
    find, *given = recipe
    kind = find(*given)
    error: PykaproducerError = kind.__new__(kind, *args)
    error.args = args  # __new__ does not set them for an OSError, of which TimeoutError is one
    error.__dict__.update(attributes)
    chain_causes(error, chain)
    return error
