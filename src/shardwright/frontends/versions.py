"""The versions of frameworks that are tested; this file imports none of them."""

from __future__ import annotations

TESTED = ((2, 11), (2, 15))
"""PyTorch, from this one on, and below that."""


def outside_tested(version: str) -> str | None:
    """What is to be said of a version of PyTorch; None if it is tested.

    >>> outside_tested("2.13.0+cpu"), outside_tested("2.9.1")
    (None, 'PyTorch 2.9.1 is not among the tested versions (2.11 to below 2.15): capture or sharded steps may fail')
    """
    parts = version.split("+")[0].split(".")[:2]
    found = tuple(int(part) for part in parts if part.isdigit())
    if len(found) == 2 and TESTED[0] <= found < TESTED[1]:
        return None
    least, below = (".".join(map(str, bound)) for bound in TESTED)
    return (
        f"PyTorch {version} is not among the tested versions ({least} to below {below}): "
        "capture or sharded steps may fail"
    )
