"""``manage.py check``: whether the setting ``PYKAPRODUCER`` makes producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from pykaproducer.config import own_name
from pykaproducer.contrib.django.producers import DEFAULT, SETTING, configured, make


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Everything that is wrong with the setting, without a connection to anything."""
    try:
        known = configured()
    except ImproperlyConfigured as error:
        return [
            checks.Error(
                str(error),
                hint=f"The settings of a producer, or several such dicts by alias, in {SETTING}.",
                id="pykaproducer.E001",
            )
        ]
    found: list[checks.CheckMessage] = []
    if DEFAULT not in known:
        found.append(
            checks.Warning(
                f"{SETTING} has no producer {DEFAULT!r}: it has {', '.join(map(repr, known))}.",
                hint="What does not name an alias will fail when it is used.",
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
        hint = "The names are those of kafka-python's KafkaProducer; the README lists them all."
        return [checks.Error(str(error), hint=hint, id="pykaproducer.E002")]
    if not any(own_name(name) == "bootstrap_servers" for name in given):
        return [
            checks.Warning(
                f"{SETTING}[{alias!r}] does not say bootstrap_servers: localhost:9092 is asked.",
                hint='Write "bootstrap_servers": "host:9092".',
                id="pykaproducer.W001",
            )
        ]
    return []
