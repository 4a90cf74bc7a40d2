"""The producers of this process, by alias, from the setting ``PYKAPRODUCER``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError
from pykaproducer.producer import Producer

#: The name of the setting.
SETTING = "PYKAPRODUCER"

#: The alias of the producer that is meant when none is named.
DEFAULT = "default"

#: Filled with setdefault(): two threads may come first at once, and a producer that nobody has
#: used costs nothing. No lock, which a fork might find held.
_producers: dict[str, Producer] = {}


def configured() -> dict[str, Mapping[str, Any]]:
    """What the setting says: each producer's settings, by alias.

    Raises:
        ImproperlyConfigured: it is missing, or not of this form.
    """
    given = getattr(settings, SETTING, None)
    if given is None:
        raise ImproperlyConfigured(
            f"the setting {SETTING} is missing; write {SETTING} = "
            f'{{"bootstrap_servers": "host:9092"}}'
        )
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"the setting {SETTING} must be a dict of a producer's settings, or of several such "
            f"dicts by alias, not {type(given).__name__}"
        )
    # No setting of a producer is a dict.
    if not given or not all(isinstance(value, Mapping) for value in given.values()):
        return {DEFAULT: given}
    return dict(given)


def make(alias: str, given: Mapping[str, Any]) -> Producer:
    """A producer with these settings; it has no thread yet and no connection."""
    try:
        return Producer(**given)
    except (ConfigurationError, UnsupportedFeatureError, TypeError) as error:
        raise ImproperlyConfigured(f"{SETTING}[{alias!r}]: {error}") from error


def get_producer(alias: str = DEFAULT) -> Producer:
    """The producer with this alias: the same one each time, for the whole process.

    Raises:
        ImproperlyConfigured: the setting ``PYKAPRODUCER`` is wrong, or has no such alias.
    """
    found = _producers.get(alias)
    if found is not None:
        return found
    known = configured()
    if alias not in known:
        raise ImproperlyConfigured(
            f"{SETTING} has no producer {alias!r}; it has {', '.join(map(repr, known))}"
        )
    return _producers.setdefault(alias, make(alias, known[alias]))


def close_all() -> None:
    """Close every producer, within its ``exit_flush_timeout_ms``; the next use makes new ones."""
    while _producers:
        _, producer = _producers.popitem()
        producer.close(producer.config.exit_flush_timeout_ms / 1000)


def forget_when_changed(*, setting: str, **_: object) -> None:
    """``override_settings``, and the like, have changed a setting."""
    if setting == SETTING:
        close_all()


class ProducerProxy:
    """Stands for the producer with an alias, and makes it at the first use.

    So a module can import it before the settings are read, and a test can change them.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # somebody looks what this is, and uses nothing
            raise AttributeError(name)
        return getattr(get_producer(self._alias), name)

    def __repr__(self) -> str:
        return f"<ProducerProxy {self._alias!r}>"
