"""The factor of ``PREMUL_SUM``: FSDP2 divides gradients by it, and dispatch modes are not told it.

A call hands its reduction to PyTorch in an options object, right before it is made; the factor is read there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .private import ReduceOp, options_of_reductions

PREMULTIPLIED: Any = ReduceOp.PREMUL_SUM
_here = threading.local()


def factor_of_sum() -> Any:
    """By what the call that this rank makes multiplies before it sums: a number, or a tensor."""
    return _here.factor


@contextmanager
def factors_of_sums() -> Iterator[None]:
    """Watch how calls say that they reduce."""
    before = [(options, options.__dict__["reduceOp"]) for options in options_of_reductions]

    def watched(of: Any) -> property:
        def put(options: Any, how: Any) -> None:
            if isinstance(how, ReduceOp) and how == PREMULTIPLIED:
                kind_and_factor: Any = how.__getstate__()
                _here.factor = kind_and_factor[1]
            of.__set__(options, how)

        return property(of.__get__, put)

    for options, of in before:
        options.reduceOp = watched(of)
    try:
        yield
    finally:
        for options, of in before:
            options.reduceOp = of
