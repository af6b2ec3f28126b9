"""For test suites: `assert_parallel_equal`, which fails where a parallel program is not proven equal to the single one.

def test_tensor_parallel():
    swt.testing.assert_parallel_equal(tensor_parallel, like=Model(), mesh="tp=2", inputs=(x,))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import front
from ..proof.foreign.result import ParallelCertificate
from .proving import prove


@front
def assert_parallel_equal(
    parallel: Callable[..., Any],
    *,
    like: Any,
    mesh: Any,
    inputs: Any,
    placements: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
) -> ParallelCertificate:
    """The certificate; an `AssertionError` that says what differs, where it begins and what mends it, if there is none.

    The arguments are those of `prove`.
    """
    proof = prove(parallel, like=like, mesh=mesh, inputs=inputs, placements=placements, loss=loss)
    if proof.certificate is None:
        raise AssertionError(str(proof))
    return proof.certificate
