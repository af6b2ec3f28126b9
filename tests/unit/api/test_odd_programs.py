"""Programs off the beaten track, each of a kind that once stopped with a raw error or could not be planned."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import ShardwrightError, TraceError
from shardwright.proof import check_identity
from shardwright.spec.sharding import ShardingSpec

MESHES = ("d=2", "d=3", "d=6")


def splits(arrays: Any) -> Any:
    """Every dim of every operand, split alone; then all first dims."""
    whole = ["[" + ", ".join("_" * x.ndim) + "]" for x in arrays]
    for i, x in enumerate(arrays):
        for d in range(x.ndim):
            cut = "[" + ", ".join("d" if e == d else "_" for e in range(x.ndim)) + "]"
            yield (*whole[:i], cut, *whole[i + 1 :])


def check(function: Any, *arrays: Any, meshes: Any = MESHES, rtol: float = 1e-12, proven: bool = True) -> None:
    """Split along any dim, and planned: what NumPy computes, of the same types; proven, too."""
    wanted = function(*arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mesh in meshes:
        mapped = [sw.shard_map(function, mesh, in_specs=specs) for specs in splits(arrays)]
        plan = sw.plan(function, *arrays, mesh=mesh)
        for run in (*mapped, plan):
            found = run(*arrays)
            for ours, theirs in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
                assert (np.asarray(ours).dtype, np.shape(ours)) == (np.asarray(theirs).dtype, np.shape(theirs))
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
        if proven:
            check_identity(plan.graph, plan.program)


# -- memory -------------------------------------------------------------------------------------------------

SUB_AXES = {
    "take": lambda x: (np.take(x, [3, 0], axis=1), x * 2),
    "reshape": lambda x: (x.reshape(2, 4, 8, 8).sum(1), x + 1, np.tanh(x)),
    "reshapes": lambda x: (x.reshape(4, 2, 64).sum(2), x.reshape(16, 4, 8) * 3, x.T),
}


@pytest.mark.parametrize(("program", "mesh"), list(product(SUB_AXES, ("b=4", "b=8", "a=2, b=4"))))
def test_memory_is_searched_where_parts_of_an_axis_cut(program: str, mesh: str) -> None:
    """The search takes values as they are on the way from one sharding to another, too."""
    function, x = SUB_AXES[program], np.arange(512.0).reshape(8, 8, 8)
    free = sw.plan(function, x, mesh=mesh)
    for part in (0.95, 0.9, 0.75, 0.6):
        try:
            plan = sw.plan(function, x, mesh=mesh, memory=int(free.memory * part))
        except sw.PlanInfeasible:
            continue
        assert plan.memory <= free.memory * part
        for ours, theirs in zip(plan(x), function(x), strict=True):
            np.testing.assert_allclose(ours, theirs)


# -- booleans -------------------------------------------------------------------------------------------------


def flags(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).random(shape) > 0.7


BOOLEAN = {
    "matmul": lambda a, b: a @ b,
    "counted": lambda a, b: (a @ b).astype(np.int64),
    "summed": lambda a, b: (a @ b).sum(0),
    "chained": lambda a, b: a @ b @ b.T,
    "dot": lambda a, b: np.dot(a, b) ^ (np.dot(a, b)[0] & True),
    "einsum": lambda a, b: np.einsum("mk,kn->nm", a, b),
    "tensordot": lambda a, b: np.tensordot(a, b, 1),
    "any": lambda a, b: (a.any(0), b.all(1), np.sum(a, 1)),
}


@pytest.mark.parametrize("name", BOOLEAN)
def test_parts_of_a_boolean_sum_do_not_add_up(name: str) -> None:
    """A product of booleans is an "or" of "and"s: counting the parts that are true would be another number."""
    check(BOOLEAN[name], flags(5, 6), flags(6, 7), proven=name != "any")


# -- einsum -------------------------------------------------------------------------------------------------

DIAGONALS = {
    "aab->b": [(6, 6, 4)], "aa->a": [(6, 6)], "aa->": [(6, 6)], "aba->b": [(6, 4, 6)], "aab->ba": [(6, 6, 4)],
    "aab,bc->c": [(6, 6, 4), (4, 3)], "aab,ac->bc": [(6, 6, 4), (6, 3)], "abab->ab": [(3, 6, 3, 6)],
    "...aa->...": [(4, 5, 5)], "aaa->a": [(5, 5, 5)], "ii": [(6, 6)], "AAb->b": [(6, 6, 4)],
}  # fmt: skip


@pytest.mark.parametrize("equation", DIAGONALS)
def test_diagonals_in_einsum(equation: str) -> None:
    arrays = [np.random.default_rng(i).random(shape) for i, shape in enumerate(DIAGONALS[equation])]
    check(lambda *given: np.einsum(equation, *given), *arrays)


# -- numpy.linalg -------------------------------------------------------------------------------------------

_RANDOM = np.random.default_rng(0)
SQUARE, TALL, STACK = _RANDOM.random((6, 6)), _RANDOM.random((6, 5)), _RANDOM.random((4, 6, 5))
POSITIVE = SQUARE @ SQUARE.T + 6 * np.eye(6)
LINALG = {
    "svd": (lambda a: tuple(np.linalg.svd(a)), STACK),
    "svd reduced": (lambda a: tuple(np.linalg.svd(a, full_matrices=False)), STACK),
    "svd values": (lambda a: np.linalg.svd(a, compute_uv=False), STACK),
    "svd of integers": (lambda a: np.linalg.svd(a)[1], np.arange(12).reshape(4, 3)),
    "svd, large": (lambda a: np.linalg.svd(a)[1], _RANDOM.random((40, 30))),
    "by name": (lambda a: np.linalg.svd(a).S * 2, TALL),
    "inv": (lambda a: np.linalg.inv(a) @ a + 1, SQUARE),
    "solve": (np.linalg.solve, SQUARE, TALL),
    "solve for many": (np.linalg.solve, _RANDOM.random((40, 40)), _RANDOM.random((40, 17))),
    "qr": (lambda a: tuple(np.linalg.qr(a)), TALL),
    "cholesky": (np.linalg.cholesky, POSITIVE),
    "det": (np.linalg.det, SQUARE),
    "slogdet": (lambda a: tuple(np.linalg.slogdet(a)), SQUARE),
    "eigh": (lambda a: np.linalg.eigh(a).eigenvalues, POSITIVE),
    "pinv": (np.linalg.pinv, TALL),
    "matrix_rank": (np.linalg.matrix_rank, STACK),
    "matrix_power": (lambda a: np.linalg.matrix_power(a, 3), SQUARE),
    "multi_dot": (lambda a, b: np.linalg.multi_dot([a, a, b]), SQUARE, TALL),
    "cond": (np.linalg.cond, SQUARE),
    "tensorinv": (np.linalg.tensorinv, _RANDOM.random((4, 6, 8, 3))),
}


@pytest.mark.parametrize("name", LINALG)
def test_functions_of_linalg_without_a_rule_run_replicated(name: str) -> None:
    function, *arrays = LINALG[name]
    check(function, *arrays, meshes=("d=3",), rtol=1e-8)
    if "multi" not in name and "power" not in name:
        assert "has no rule and runs replicated" in str(sw.plan(function, *arrays, mesh="d=2").notes)


def test_what_depends_on_numbers_is_refused() -> None:
    for function, instead in ((np.linalg.eig, "eigh"), (np.linalg.eigvals, "eigvalsh")):
        with pytest.raises(TraceError, match=f"(?s)depends on numbers.*{instead}"):
            sw.plan(function, SQUARE, mesh="d=2")
    with pytest.raises(TraceError, match=r"(?s)depends on numbers.*pinv"):
        sw.plan(lambda a, b: np.linalg.lstsq(a, b)[0], SQUARE, TALL, mesh="d=2")


# -- as JAX writes it ---------------------------------------------------------------------------------------


class AbstractMesh:
    """Of JAX: it has no devices, and raises its own error if it is asked for them."""

    axis_names, axis_sizes = ("x", "y"), (2, 3)

    @property
    def devices(self) -> Any:
        raise ValueError("AbstractMesh does not implement devices")


class PartitionSpec:
    """Of JAX: with axes along which something is pending, it does not let itself be compared with tuples."""

    def __init__(self, *entries: Any, unreduced: Any = frozenset(), kind: Any = None) -> None:
        self.entries, self.unreduced, self.unreduced_kind = entries, frozenset(unreduced), kind

    def __iter__(self) -> Any:
        return iter(self.entries)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple) and self.unreduced:
            raise TypeError("other cannot be of instance `tuple`")
        return isinstance(other, PartitionSpec) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]


def test_an_abstract_mesh_is_a_mesh() -> None:
    assert str(sw.DeviceMesh(AbstractMesh())) == "x=2, y=3"
    x = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(sw.plan(lambda x: x + 1, x, mesh=AbstractMesh())(x), x + 1)
    np.testing.assert_array_equal(sw.shard_map(lambda x: x + 1, AbstractMesh(), in_specs=PartitionSpec("x"))(x), x + 1)


def test_unreduced_axes_of_a_partition_spec_are_pending() -> None:
    class Kind:
        name = "MAX"

    spec = ShardingSpec.of(PartitionSpec("x", unreduced={"y"}), AbstractMesh(), 2)
    assert str(spec) == "[x, _] // y"
    assert str(ShardingSpec.of(PartitionSpec(None, unreduced={"y", "x"}), "x=2, y=2", 2)) == "[_, _] // x, y"
    assert str(ShardingSpec.of(PartitionSpec(unreduced={"y"}, kind=Kind()), "x=2, y=2", 1)) == "[_] // max(y)"
    for wrong in (PartitionSpec(unreduced={"z"}), PartitionSpec("x", unreduced={"x"}), PartitionSpec(unreduced={None})):
        with pytest.raises(ShardwrightError):
            ShardingSpec.of(wrong, "x=2, y=2", 2)
