"""The error function, one element at a time: NumPy has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..define import op
from ..samples import FLOATS


@op(
    "erf",
    rule="... -> ... ; P(max) -> P(max) ; P(min) -> P(min)",
    meaning=lambda a, x: a.rising("erf", x),
    results=lambda x: (x.shape, np.result_type(x.dtype, 1.0)),
    samples=["n m"],
    dtypes=(*FLOATS, "i8"),
    cost="pointwise",
)
def erf(x: Any) -> Any:
    """The error function, of arrays and of traced values.

    >>> erf(np.zeros(2))
    array([0., 0.])
    """
    made = np.array([math.erf(item) for item in x.ravel().tolist()], np.float64)
    return made.reshape(x.shape).astype(np.result_type(x.dtype, 1.0), copy=False)
