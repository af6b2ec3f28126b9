"""Reshapes cut mesh axes of 6, 12 and 36 devices in ways that exclude each other; programs must not mix them.

Random programs of reshapes, transposes, sums and broadcast products on such meshes give the same numbers as NumPy, by
hand (`shard_map`) and by the planner; and every sharding that was made on the way can be.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.errors import SpecError
from shardwright.plans import Complete
from shardwright.spec.factors import FactorSharding
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

MESHES = ["a=6", "a=12", "a=36", "a=6, b=2", "b=3, a=12"]
PARTS = {
    "a=6": ["a", "a:(1)2", "a:(1)3", "a:(2)3", "a:(3)2"],
    "a=12": ["a", "a:(1)4", "a:(1)6", "a:(2)3", "a:(3)4", "a:(4)3"],
    "a=36": ["a", "a:(1)4", "a:(1)6", "a:(2)9", "a:(3)4", "a:(9)4"],
    "a=6, b=2": ["a", "a:(1)2", ("b", "a:(1)3"), ("a:(3)2", "b")],
    "b=3, a=12": ["a", ("b", "a:(1)6"), ("a:(3)4", "b"), "a:(1)4"],
}
"""What arguments may be cut by."""


class Reshapes:
    """A random program over two or three arrays of 36 or 72 elements; each choice is made when it is drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sizes = [self.random.choice([36, 72]) for _ in range(self.random.choice([2, 3]))]
        self.seed, self.steps = seed, self.random.randint(4, 9)

    def __call__(self, *arguments: Any) -> Any:
        draw = random.Random(self.seed)
        pool = list(arguments)
        for _ in range(self.steps):
            pool.append(self.step(draw, pool))
        return pool[-1], pool[-2] * 2.0

    def step(self, draw: random.Random, pool: list[Any]) -> Any:
        x = draw.choice(pool)
        size = int(np.prod(x.shape))
        kind = draw.choice(["reshape", "reshape", "transpose", "sum", "sum", "outer", "outer", "add"])
        if kind == "sum" and x.ndim > 1:
            return x.sum(axis=draw.randrange(x.ndim))
        if kind == "transpose" and x.ndim > 1:
            return x.transpose(draw.sample(range(x.ndim), x.ndim))
        if kind == "outer" and size <= 72:
            y = draw.choice([y for y in pool if int(np.prod(y.shape)) <= 72])
            return x[(..., *[None] * y.ndim)] * y[(*[None] * x.ndim, ...)]
        if kind == "add":
            y = draw.choice([y for y in pool if int(np.prod(y.shape)) == size])
            return x + y.reshape(x.shape)
        shape: list[int] = []
        for _ in range(draw.choice([1, 2, 2])):
            rest = size // int(np.prod(shape, dtype=int))
            shape.append(draw.choice([n for n in (2, 3, 4, 6, 9, 12) if rest % n == 0] or [1]))
        return x.reshape(*shape, -1)

    def arguments(self) -> list[Any]:
        rng = np.random.default_rng(self.seed)
        return [rng.standard_normal(size) for size in self.sizes]


def assert_made_of_parts_that_coexist(complete: Complete) -> None:
    specs = [*complete.inputs, *complete.outputs]
    for decision in complete.decisions:
        specs += [*decision.operands, *decision.results, *decision.homes]
        used = [axis for axes in decision.axes for axis in axes]
        assert not any(one.excludes(other) for one, other in combinations(used, 2))
    for spec in specs:
        assert ShardingSpec(spec.mesh, spec.dims, spec.partial) == spec  # looked at, which the engine's are not


@pytest.mark.parametrize("batch", range(10))
def test_random_reshapes_give_the_same_numbers(batch: int) -> None:
    for seed in range(batch * 20, batch * 20 + 20):
        program = Reshapes(seed)
        args = program.arguments()
        mesh = MESHES[seed % len(MESHES)]
        mapped = sw.shard_map(
            program, mesh, in_specs=tuple(P(random.Random(seed + i).choice(PARTS[mesh])) for i in range(len(args)))
        )
        what = f"seed {seed} on {mesh}"
        for found, expected in zip(mapped(*args), program(*args)):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=what)
        assert_made_of_parts_that_coexist(mapped.plan(*args).complete)


@pytest.mark.parametrize("seed", range(200, 212))
def test_the_planner_too(seed: int) -> None:
    program = Reshapes(seed)
    args = program.arguments()
    mesh = ["a=6", "a=12", "a=6, b=2"][seed % 3]
    plan = sw.plan(program, *args, mesh=mesh, in_specs=(P("a"),) * len(args), hardware="virtual")
    for found, expected in zip(plan(*args), program(*args)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert_made_of_parts_that_coexist(plan.complete)


@pytest.mark.parametrize("how", ["by hand", "simple", "auto"])
@pytest.mark.parametrize(
    ("size", "one", "other"), [(6, (2, 3), (3, 2)), (12, (4, 3), (6, 2)), (12, (2, 6), (3, 4)), (36, (4, 9), (6, 6))]
)
def test_two_reshapes_of_one_axis_meet(how: str, size: int, one: tuple[int, int], other: tuple[int, int]) -> None:
    def function(x: Any, y: Any) -> Any:
        return x.reshape(one).sum(1)[:, None] * y.reshape(other).sum(0)[None, :]

    x, y = np.arange(float(size)), np.arange(float(size)) + 2
    mesh, specs = f"a={size}", (P("a"), P("a"))
    if how == "by hand":
        found = sw.shard_map(function, mesh, in_specs=specs)(x, y)
    else:
        found = sw.plan(function, x, y, mesh=mesh, in_specs=specs, solver=how, hardware="virtual")(x, y)
    np.testing.assert_allclose(found, function(x, y))


MIXED = [
    "[a:(1)2, a:(3)2]", "[a:(1)2+a:(3)2, _]", "[a:(1)2, _] // a:(3)2", "[a:(1)2, _] ~ a:(3)2",
    "[_, _] // a:(1)2, max(a:(3)2)",
]  # fmt: skip


@pytest.mark.parametrize("text", MIXED)
def test_a_sharding_of_parts_that_cannot_coexist_is_refused(text: str) -> None:
    mesh = DeviceMesh("a=6")
    with pytest.raises(SpecError, match="cannot coexist"):
        ShardingSpec.parse(text, mesh)
    x = np.ones((6, 6))
    with pytest.raises(SpecError, match="cannot coexist"):
        sw.plan(lambda x: x * 2.0, x, mesh=mesh, constraints={"x": text})
    with pytest.raises(SpecError, match="cannot coexist"):
        sw.shard_map(lambda x: sw.with_sharding_constraint(x * 2.0, text) + 1.0, mesh)(x)


def test_other_doors() -> None:
    mesh = DeviceMesh("a=6")
    with pytest.raises(SpecError, match="cannot coexist"):
        P("a:(1)2", "a:(3)2").bind(mesh, 2)
    with pytest.raises(SpecError, match="cannot coexist"):
        FactorSharding.of(OpShardingRule.parse("i j -> i j | i=6 j=6"), mesh, {"i": "a:(1)2", "j": "a:(3)2"})
