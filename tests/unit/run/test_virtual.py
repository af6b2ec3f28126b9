"""The virtual engine: what it counts, and what it keeps alive."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.run import Engine, NumpyEngine, VirtualEngine, assemble, scatter


def test_a_view_owns_no_bytes_and_keeps_its_base_alive() -> None:
    x = np.ones((8, 6))
    mapped = sw.shard_map(lambda x: x.T, "x=2", in_specs=(P(),))
    mapped(x)
    assert mapped.executed is not None
    assert mapped.executed.peak_bytes == x.nbytes
    copied = sw.shard_map(lambda x: x.T + 1, "x=2", in_specs=(P(),))
    copied(x)
    assert copied.executed is not None
    assert copied.executed.peak_bytes == 2 * x.nbytes + 8, "the input, the sum, and the number 1"


def test_values_are_dropped_after_their_last_use() -> None:
    def chain(x: np.ndarray) -> np.ndarray:
        for _ in range(10):
            x = np.tanh(x)
        return x

    x = np.ones(1000)
    mapped = sw.shard_map(chain, "x=4", in_specs=(P("x"),))
    mapped(x)
    assert mapped.executed is not None
    assert mapped.executed.peak_bytes <= 3 * x.nbytes // 4


def test_bytes_are_counted_from_the_arrays() -> None:
    """Uneven shards: 7 rows over 4 devices are moved as 2 each."""
    x = np.ones((7, 3), np.float32)
    mapped = sw.shard_map(lambda x: np.sort(x, axis=0), "x=4", in_specs=(P("x", None),), out_specs=P())
    mapped(x)
    assert mapped.executed is not None
    assert mapped.executed.collectives == mapped.program(x).collectives
    assert sum(c.bytes for c in mapped.executed.collectives) > 0


@pytest.mark.parametrize("text", ["[x, y]", "[y+x, _]", "[_, x:(1)2]", "[_, _]"])
def test_scatter_and_assemble_are_inverse(text: str) -> None:
    spec = sw.ShardingSpec.parse(text, sw.DeviceMesh("x=4, y=3"))
    array = np.arange(35.0).reshape(5, 7) if ":" not in text else np.arange(40.0).reshape(5, 8)
    np.testing.assert_array_equal(assemble(scatter(array, spec), spec, array.shape), array)


def test_engines_have_one_face() -> None:
    from shardwright.frontends.numpy import prepare

    assert isinstance(NumpyEngine(), Engine)
    assert isinstance(VirtualEngine(sw.DeviceMesh("x=2"), prepare), Engine)
