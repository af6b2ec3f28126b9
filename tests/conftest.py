"""Shared by all tests: where helpers are found, and how Hypothesis searches.

The default profile draws the same examples on every machine.  To look for new ones:
``HYPOTHESIS_PROFILE=explore python -m pytest tests``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Under --import-mode=importlib a test's folder is not importable; helpers stand here.
sys.path.insert(0, str(Path(__file__).parent))

# A busy machine makes examples slow; that says nothing about the code.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def kept_book() -> Iterator[None]:
    """The rule book is as before afterwards: a rule that a test writes anew would be one from outside to others."""
    from shardwright.rules import registry

    registry.lookup("add")  # what is read once is read
    kept = dict(registry._records)
    yield
    registry._records.clear()
    registry._records.update(kept)
    registry.forget("a test's rule")  # and what was made of its rules goes
