"""Sharded arrays: seed 004's three strategies and its table, creation that does not depend on the mesh, the log."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.api import log
from shardwright.errors import SpecError

WORKERS = "w=4"


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    log.clear()


def collectives() -> list[str]:
    return [entry.name for entry in log.events("collective")]


def test_strategy_1_rows_split_and_b_broadcast() -> None:
    a = sw.randn(128, 64, mesh=WORKERS)
    b = sw.asarray(np.random.default_rng(0).standard_normal((64, 32)), mesh=WORKERS, spec=P())
    c = a @ b
    assert [shard.shape for shard in a.shards] == [(32, 64)] * 4
    assert [shard.shape for shard in c.shards] == [(32, 32)] * 4
    assert collectives() == [], "no all_reduce is needed"
    np.testing.assert_allclose(c.numpy(), a.numpy() @ b.numpy())
    assert len(log.events("broadcast")) == 1, "B goes out once"
    assert log.events("gather"), "results are gathered on demand"
    a @ b
    assert len(log.events("broadcast")) == 1


def test_strategy_1_with_a_host_array() -> None:
    a, b = sw.randn(128, 64, mesh=WORKERS), np.ones((64, 32))
    np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b)
    assert [entry.event for entry in log.entries if entry.event in ("broadcast", "op", "gather")][:2] == [
        "broadcast",
        "op",
    ]


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_strategy_2_reductions_on_any_axis(split: int, axis: int | None, name: str) -> None:
    a = sw.randn(128, 64, mesh=WORKERS, spec=P("w", None) if split == 0 else P(None, "w"))
    found = getattr(a, name)(axis=axis)
    expected = getattr(a.numpy(), name)(axis=axis)
    np.testing.assert_allclose(found.numpy(), expected)
    if axis is None or axis == split:
        # Every worker gets the result, by one all_reduce of sums.
        assert collectives() == ["all_reduce"]
        for shard in found.shards:
            np.testing.assert_allclose(shard, expected)
    else:
        assert collectives() == []


def test_strategy_3_inner_dim_split() -> None:
    a = sw.randn(128, 64, mesh=WORKERS, spec=P(None, "w"))
    b = sw.randn(64, 32, mesh=WORKERS, spec=P("w", None), seed=1)
    assert [shard.shape for shard in a.shards] == [(128, 16)] * 4
    assert [shard.shape for shard in b.shards] == [(16, 32)] * 4
    c = a @ b
    assert collectives() == ["all_reduce"]
    np.testing.assert_allclose(c.numpy(), a.numpy() @ b.numpy())
    assert all(shard.shape == (128, 32) for shard in c.shards)


@pytest.mark.parametrize("mesh", ["w=1", "w=2", "w=4", "w=8", "a=2, b=2"])
def test_random_numbers_do_not_depend_on_the_mesh(mesh: str) -> None:
    expected = sw.randn(16, 6, mesh="w=1", seed=5).numpy()
    np.testing.assert_array_equal(sw.randn(16, 6, mesh=mesh, seed=5).numpy(), expected)
    np.testing.assert_array_equal(sw.randn((16, 6), mesh=mesh, spec=P(), seed=5).numpy(), expected)
    assert not np.array_equal(sw.randn(16, 6, mesh=mesh, seed=6).numpy(), expected)


def test_created_on_the_first_dividing_dim() -> None:
    assert str(sw.zeros(8, 3, mesh=WORKERS).spec) == "[w, _]"
    assert str(sw.ones(3, 8, mesh=WORKERS).spec) == "[_, w]"
    assert str(sw.randn(3, 5, mesh=WORKERS).spec) == "[_, _]"
    assert str(sw.zeros(8, 8, mesh="a=2, b=2").spec) == "[a+b, _]"
    assert sw.ones(4, mesh=WORKERS, dtype=np.float32).dtype == np.float32


def test_numpy_on_sharded_arrays() -> None:
    a, b = sw.randn(8, 6, mesh=WORKERS), sw.randn(8, 6, mesh=WORKERS, spec=P(None, None), seed=2)
    x, y = a.numpy(), b.numpy()
    for found, expected in [
        (a + b, x + y),
        (2 - a, 2 - x),
        (np.exp(a) * b, np.exp(x) * y),
        (np.concatenate([a, b]), np.concatenate([x, y])),
        (a.T @ b, x.T @ y),
        (a[1:5, ::2], x[1:5, ::2]),
        (a.reshape(4, 12), x.reshape(4, 12)),
        (np.where(a > 0, a, b), np.where(x > 0, x, y)),
        (a.max(axis=0), x.max(axis=0)),
        (np.sort(a, axis=0), np.sort(x, axis=0)),
    ]:
        np.testing.assert_allclose(found.numpy(), expected)


def test_redistribute() -> None:
    a = sw.randn(8, 8, mesh=WORKERS)
    b = a.redistribute(P(None, "w"))
    assert collectives() == ["all_to_all"]
    assert str(b.spec) == "[_, w]"
    np.testing.assert_array_equal(b.numpy(), a.numpy())
    assert str(sw.with_sharding_constraint(a, P(None, "w")).spec) == "[_, w]"


def test_meshes_do_not_mix() -> None:
    with pytest.raises(SpecError, match="two meshes"):
        sw.ones(4, mesh="w=4") + sw.ones(4, mesh="w=2")


def test_the_log_is_flat_text() -> None:
    sw.ones(8, mesh=WORKERS).sum()
    lines = str(log).splitlines()
    assert [line.split()[2] for line in lines] == ["create", "op", "collective"]
    assert "all_reduce over w" in lines[-1]


def test_unknown_method() -> None:
    with pytest.raises(AttributeError, match="no 'frobnicate'"):
        sw.ones(4, mesh=WORKERS).frobnicate()
