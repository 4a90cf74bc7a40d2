"""Shared helpers of the tests of settings that contain secrets."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer.config import Config
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

#: A password that no error may show.
SECRET = "hunter2"


def config(**settings: Any) -> Config:
    return Config.from_kwargs(settings)


def refusal(**settings: Any) -> str:
    """Return the text of the error, after checking that it shows no secret and is one line."""
    with pytest.raises((ConfigurationError, UnsupportedFeatureError)) as caught:
        config(**settings)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.__cause__ is None
    error: BaseException | None = caught.value
    while error is not None:  # debuggers show these errors, and what they contain
        for name in ("args", "object", "doc", "filename"):
            assert SECRET not in str(getattr(error, name, ""))
        error = error.__context__
    return text
