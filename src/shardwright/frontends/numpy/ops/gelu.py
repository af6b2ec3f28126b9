"""The exact GELU: ``x`` times the normal distribution up to ``x``."""

from __future__ import annotations

import math
from typing import Any

from ..define import op
from ..samples import FLOATS
from .erf import erf


@op(
    "gelu",
    rule="... -> ...",
    meaning=lambda a, x: a.multiply(x, a.multiply(a.add(1, a.rising(erf, a.multiply(x, math.sqrt(0.5)))), 0.5)),
    samples=["n m"],
    dtypes=FLOATS,
    cost="pointwise",
)
def gelu(x: Any) -> Any:
    """As one op; `shardwright.numpy.gelu` is made of several."""
    return x * (1 + erf(x * math.sqrt(0.5))) / 2
