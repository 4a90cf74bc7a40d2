"""The Django application, which provides the check and the command."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed

from pykaproducer.contrib.django.checks import check_settings
from pykaproducer.contrib.django.producers import forget_when_changed


class PykaproducerConfig(AppConfig):
    """The configuration for ``"pykaproducer.contrib.django"`` in ``INSTALLED_APPS``."""

    name = "pykaproducer.contrib.django"
    label = "pykaproducer"
    verbose_name = "Kafka producer"

    def ready(self) -> None:
        """Register the check when Django has read the settings."""
        checks.register(check_settings)
        setting_changed.connect(forget_when_changed, dispatch_uid="pykaproducer")
