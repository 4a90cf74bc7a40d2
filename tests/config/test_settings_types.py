"""``ProducerSettings`` has exactly the settings that there are."""

from __future__ import annotations

from pykaproducer.config import SETTINGS
from pykaproducer.settings import ProducerSettings


def test_the_type_has_every_setting_in_their_order() -> None:
    assert list(ProducerSettings.__annotations__) == [setting.name for setting in SETTINGS]
    assert not ProducerSettings.__required_keys__
