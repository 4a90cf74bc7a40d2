"""How much the generated tests try: little by default, as much as ``PYKAPRODUCER_FUZZ`` says.

By default it is the same each time. With ``PYKAPRODUCER_FUZZ`` it is not, and what fails is kept
and tried first by the next run (``conftest.py`` says where).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: How many inputs all these tests try together; None: a few each, always the same.
TOTAL = int(os.environ["PYKAPRODUCER_FUZZ"]) if os.environ.get("PYKAPRODUCER_FUZZ") else None


def tries(few: int, share: float) -> settings:
    """*few* by default, else this *share* of all."""
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
