"""How much the generated tests try: little by default, as much as ``PYKAPRODUCER_FUZZ`` says."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: How many inputs all these tests try together; None: a few each, always the same.
TOTAL = int(os.environ["PYKAPRODUCER_FUZZ"]) if os.environ.get("PYKAPRODUCER_FUZZ") else None


def tries(few: int, share: float) -> settings:
    """*few* by default, else this *share* of all."""
    return settings(
        max_examples=few if TOTAL is None else max(few, int(TOTAL * share)),
        derandomize=TOTAL is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
