"""``manage.py check``: whether producers can be created from the setting ``PYKAPRODUCER``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from pykaproducer.config import canonical_name
from pykaproducer.contrib.django.producers import DEFAULT, SETTING, configured, make


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Return all problems of the setting, without connecting to a cluster."""
    try:
        known = configured()
    except ImproperlyConfigured as error:
        return [
            checks.Error(
                str(error),
                hint=f"Write the settings of a producer, or such dicts by alias, in {SETTING}.",
                id="pykaproducer.E001",
            )
        ]
    found: list[checks.CheckMessage] = []
    if DEFAULT not in known:
        found.append(
            checks.Warning(
                f"{SETTING} has no producer {DEFAULT!r}: it has {', '.join(map(repr, known))}.",
                hint="Code that does not name an alias will fail when it uses the producer.",
                id="pykaproducer.W002",
            )
        )
    for alias, given in known.items():
        found += _check_one(alias, given)
    return found


def _check_one(alias: str, given: Mapping[str, Any]) -> list[checks.CheckMessage]:
    try:
        make(alias, given)
    except ImproperlyConfigured as error:
        hint = "See docs/settings.rst for the names and the values of all settings."
        return [checks.Error(str(error), hint=hint, id="pykaproducer.E002")]
    if not any(canonical_name(name) == "bootstrap_servers" for name in given):
        return [
            checks.Warning(
                f"{SETTING}[{alias!r}] does not set bootstrap_servers: localhost:9092 is used.",
                hint='Write "bootstrap_servers": "host:9092".',
                id="pykaproducer.W001",
            )
        ]
    return []
