"""The effort of generated tests: small by default, or set with ``PYKAPRODUCER_FUZZ``.

By default the examples are the same each time. With ``PYKAPRODUCER_FUZZ`` they are random, and
failing examples are kept and tried first by the next run (``conftest.py`` documents where).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: How many inputs all these tests try together; None: a few each, always the same.
TOTAL = int(os.environ["PYKAPRODUCER_FUZZ"]) if os.environ.get("PYKAPRODUCER_FUZZ") else None


def tries(few: int, share: float) -> settings:
    """Return settings for *few* examples by default, otherwise for this *share* of all."""
    if TOTAL is None:
        return settings(
            max_examples=few,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
    return settings(
        max_examples=max(few, int(TOTAL * share)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
