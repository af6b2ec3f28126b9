"""The collectives, and the bytes that one device sends in each.  This is the one place that says so.

``n`` is the size of the group, ``local_bytes`` what one device puts in, padding included.  A ring moves
exactly these amounts; where a share is not a whole number of bytes it is rounded up.

==================== ============================
all_gather            (n-1) x local input
reduce_scatter        (n-1)/n x local input
all_to_all            (n-1)/n x local input
all_reduce            2(n-1)/n x local input
collective_permute    1 x local input
slice                 0 (a local operation)
==================== ============================
"""

from __future__ import annotations

from ..errors import SpecError, near_misses

COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce", "collective_permute")
REDUCTIONS = ("sum", "max", "min", "prod", "avg")
"""How pending (partial) values are combined."""


def collective_bytes(kind: str, n: int, local_bytes: int) -> int:
    """Bytes that one device sends.

    >>> collective_bytes("all_gather", 4, 100), collective_bytes("all_reduce", 4, 100)
    (300, 150)
    """
    if kind == "slice" or n == 1:
        return 0
    if kind == "all_gather":
        return (n - 1) * local_bytes
    if kind in ("reduce_scatter", "all_to_all"):
        return -(-(n - 1) * local_bytes // n)
    if kind == "all_reduce":
        return -(-2 * (n - 1) * local_bytes // n)
    if kind == "collective_permute":
        return local_bytes
    raise SpecError(f"no collective is called {kind!r}", help=near_misses(kind, COLLECTIVES))


def check_reduction(kind: str) -> str:
    if kind not in REDUCTIONS:
        raise SpecError(
            f"no pending reduction is called {kind!r}",
            rows=[("known", ", ".join(REDUCTIONS))],
            help=near_misses(kind, REDUCTIONS),
        )
    return kind
