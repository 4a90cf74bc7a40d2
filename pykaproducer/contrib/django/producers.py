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

#: The alias of the default producer.
DEFAULT = "default"

#: Filled with setdefault(): two threads may create a producer at once, and an unused producer costs
#: nothing. A lock could be held during a fork and remain locked in the child.
_producers: dict[str, Producer] = {}


def configured() -> dict[str, Mapping[str, Any]]:
    """Return each producer's settings, by alias.

    Raises:
        ImproperlyConfigured: the setting is missing or has a wrong form.
    """
    given = getattr(settings, SETTING, None)
    if given is None:
        raise ImproperlyConfigured(
            f"the setting {SETTING} is missing; add {SETTING} = "
            f'{{"bootstrap_servers": "host:9092"}}'
        )
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"the setting {SETTING} must be a dict of a producer's settings, or a dict of such "
            f"dicts by alias, not {type(given).__name__}"
        )
    # No producer setting is a dict, so a dict of dicts is by alias.
    if not given or not all(isinstance(value, Mapping) for value in given.values()):
        return {DEFAULT: given}
    return dict(given)


def make(alias: str, given: Mapping[str, Any]) -> Producer:
    """Return a producer with these settings, without any thread or connection yet."""
    try:
        return Producer(**given)
    except (ConfigurationError, UnsupportedFeatureError, TypeError) as error:
        raise ImproperlyConfigured(f"{SETTING}[{alias!r}]: {error}") from error


def get_producer(alias: str = DEFAULT) -> Producer:
    """Return the producer with this alias, which is the same for the whole process.

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
    """Close every producer within its ``exit_flush_timeout_ms``; the next use creates new ones."""
    while _producers:
        try:
            _, producer = _producers.popitem()
        except KeyError:
            break  # another thread closes them as well
        producer.close(producer.config.exit_flush_timeout_ms / 1000)


def forget_when_changed(*, setting: str, **_: object) -> None:
    """Close the producers when ``override_settings`` or similar has changed their setting."""
    if setting == SETTING:
        close_all()


class ProducerProxy:
    """A proxy for the producer with an alias, which creates it on first use.

    A module can therefore import it before the settings are read, and a test can change them.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # introspection must not create the producer
            raise AttributeError(name)
        return getattr(get_producer(self._alias), name)

    def __repr__(self) -> str:
        return f"<ProducerProxy {self._alias!r}>"
