"""Random NumPy programs: forks, diamonds, reshapes, reductions, matmuls, lookups; with random shardings and meshes.

A program is a list of steps over a growing pool of values; running it on arrays or on traced values gives the same
program, since every choice was made when it was drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import P

SIZES = [2, 3, 4, 5, 6, 7, 8, 12]
MESHES = ["x=2", "x=3", "x=4", "x=2, y=2", "x=2, y=3", "x=3, y=2", "x=2, y=4", "x=2, y=2, z=2", "x=6", "x=1, y=4"]
Step = Callable[[list[Any]], Any]


@dataclass
class RandomProgram:
    """Arguments with their shapes, the steps, and which values are returned."""

    shapes: list[tuple[int, ...]]
    index_of: dict[int, int]
    """Arguments that are indices, with the number of rows they may point to."""
    steps: list[tuple[str, Step]] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)

    def __call__(self, *arguments: Any) -> Any:
        pool = list(arguments)
        for _, step in self.steps:
            pool.append(step(pool))
        return [pool[i] for i in self.returned]

    def arguments(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [
            rng.integers(-self.index_of[i], self.index_of[i], shape)
            if i in self.index_of
            else rng.standard_normal(shape)
            for i, shape in enumerate(self.shapes)
        ]

    def __str__(self) -> str:
        return ", ".join(name for name, _ in self.steps)


def draw_program(seed: int) -> RandomProgram:
    """A program of 4 to 10 steps."""
    return _Draw(seed).program()


class _Draw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made = RandomProgram([], {})
        self.pool: list[tuple[int, ...]] = []

    def program(self) -> RandomProgram:
        count = self.random.randint(2, 4)
        for _ in range(count):
            self.argument(tuple(self.random.choices(SIZES, k=self.random.choice([1, 2, 2, 2, 3]))))
        if self.random.random() < 0.3:
            self.made.index_of[len(self.pool)] = self.pool[0][0]
            self.argument(tuple(self.random.choices([2, 3, 4], k=self.random.choice([1, 2]))))
        for _ in range(self.random.randint(4, 10)):
            self.step()
        unread = list(range(len(self.made.shapes), len(self.pool)))
        self.made.returned = [
            *self.random.sample(unread, k=min(len(unread), self.random.choice([1, 1, 2]))),
            unread[-1],
        ]
        return self.made

    def argument(self, shape: tuple[int, ...]) -> None:
        self.made.shapes.append(shape)
        self.pool.append(shape)

    def values(self) -> list[int]:
        return [i for i in range(len(self.pool)) if i not in self.made.index_of]

    def add(self, name: str, step: Step, shape: tuple[int, ...]) -> None:
        self.made.steps.append((name, step))
        self.pool.append(shape)

    def step(self) -> None:
        while True:
            kind = self.random.choice(
                ["unary", "binary", "binary", "matmul", "matmul", "transpose", "reshape", "reshape", "reduce",
                 "softmax", "slice", "concat", "flip", "cumsum", "take", "where", "sort", "broadcast", "tril", "argmax"]
            )  # fmt: skip
            i = self.random.choice(self.values())
            if getattr(self, kind)(i, self.pool[i]):
                return

    # Each draws one step on value i, or says that it does not fit.

    def unary(self, i: int, shape: tuple[int, ...]) -> bool:
        fn = self.random.choice([np.tanh, np.negative, np.abs, np.sin, np.square])
        self.add(fn.__name__, lambda pool: fn(np.tanh(pool[i])), shape)
        return True

    def binary(self, i: int, shape: tuple[int, ...]) -> bool:
        fits = [j for j in self.values() if _broadcasts(shape, self.pool[j])]
        j = self.random.choice(fits)
        fn = self.random.choice([np.add, np.subtract, np.multiply, np.maximum])
        self.add(fn.__name__, lambda pool: fn(pool[i], pool[j]), np.broadcast_shapes(shape, self.pool[j]))
        return True

    def matmul(self, i: int, shape: tuple[int, ...]) -> bool:
        fits = [j for j in self.values() if len(self.pool[j]) == 2 and len(shape) >= 2 and shape[-1] in self.pool[j]]
        if not fits:
            return False
        j = self.random.choice(fits)
        other = self.pool[j]
        if other[0] == shape[-1]:
            self.add("matmul", lambda pool: np.tanh(pool[i] @ pool[j]), (*shape[:-1], other[1]))
        else:
            self.add("matmul.T", lambda pool: pool[i] @ pool[j].T, (*shape[:-1], other[0]))
        return True

    def transpose(self, i: int, shape: tuple[int, ...]) -> bool:
        order = self.random.sample(range(len(shape)), len(shape))
        self.add("transpose", lambda pool: np.transpose(pool[i], order), tuple(shape[d] for d in order))
        return True

    def reshape(self, i: int, shape: tuple[int, ...]) -> bool:
        if len(shape) > 1 and self.random.random() < 0.5:
            d = self.random.randrange(len(shape) - 1)
            new = (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
        else:
            d = self.random.randrange(len(shape)) if shape else 0
            parts = [p for p in (2, 3, 4) if shape and shape[d] % p == 0 and shape[d] > p]
            if not parts:
                return False
            p = self.random.choice(parts)
            new = (*shape[:d], p, shape[d] // p, *shape[d + 1 :])
        self.add("reshape", lambda pool: pool[i].reshape(new), new)
        return True

    def reduce(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        d = self.random.randrange(len(shape))
        keep = self.random.random() < 0.5
        fn = self.random.choice([np.sum, np.mean, np.max, np.min, np.var])
        new = (*shape[:d], *([1] if keep else []), *shape[d + 1 :])
        self.add(fn.__name__, lambda pool: fn(pool[i], axis=d, keepdims=keep), new)
        return True

    def softmax(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        d = self.random.randrange(len(shape))

        def step(pool: list[Any]) -> Any:
            e = np.exp(pool[i] - np.max(pool[i], axis=d, keepdims=True))
            return e / np.sum(e, axis=d, keepdims=True)

        self.add("softmax", step, shape)
        return True

    def slice(self, i: int, shape: tuple[int, ...]) -> bool:
        d = self.random.randrange(len(shape)) if shape else 0
        if not shape or shape[d] < 3:
            return False
        start, step = self.random.choice([0, 1]), self.random.choice([1, 2])
        key = (*[slice(None)] * d, slice(start, None, step))
        self.add("slice", lambda pool: pool[i][key], np.zeros(shape)[key].shape)
        return True

    def concat(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        d = self.random.randrange(len(shape))
        new = (*shape[:d], 2 * shape[d], *shape[d + 1 :])
        self.add("concat", lambda pool: np.concatenate([pool[i], -pool[i]], axis=d), new)
        return True

    def flip(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        d = self.random.randrange(len(shape))
        self.add("flip", lambda pool: np.flip(np.roll(pool[i], 1, axis=d), axis=d), shape)
        return True

    def cumsum(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        d = self.random.randrange(len(shape))
        self.add("cumsum", lambda pool: np.cumsum(pool[i], axis=d), shape)
        return True

    def take(self, i: int, shape: tuple[int, ...]) -> bool:
        if not self.made.index_of:
            return False
        (j, rows), *_ = self.made.index_of.items()
        if not shape or shape[0] != rows:
            return False
        self.add("take", lambda pool: np.take(pool[i], pool[j], axis=0), (*self.pool[j], *shape[1:]))
        return True

    def where(self, i: int, shape: tuple[int, ...]) -> bool:
        self.add("where", lambda pool: np.where(pool[i] > 0, pool[i], 0.1 * pool[i]), shape)
        return True

    def sort(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        d = self.random.randrange(len(shape))
        self.add("sort", lambda pool: np.sort(pool[i], axis=d), shape)
        return True

    def broadcast(self, i: int, shape: tuple[int, ...]) -> bool:
        if len(shape) > 2:
            return False
        self.add("broadcast", lambda pool: np.broadcast_to(pool[i], (3, *shape)), (3, *shape))
        return True

    def tril(self, i: int, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2:
            return False
        self.add("tril", lambda pool: np.tril(pool[i]), shape)
        return True

    def argmax(self, i: int, shape: tuple[int, ...]) -> bool:
        if not shape:
            return False
        self.add("argmax", lambda pool: np.argmax(pool[i], axis=0) * 0.5, shape[1:])
        return True


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(a, b)) <= 4
    except ValueError:
        return False


def draw_specs(program: RandomProgram, mesh: DeviceMesh, seed: int) -> tuple[P | None, ...]:
    """For each argument: nothing, or its axes dealt out to dims."""
    chance = random.Random(seed)
    specs: list[P | None] = []
    for shape in program.shapes:
        if chance.random() < 0.2:
            specs.append(None)
            continue
        dims: list[list[str]] = [[] for _ in shape]
        for axis in chance.sample(mesh.axis_names, len(mesh.axis_names)):
            where = chance.randrange(-1, len(shape))
            if where >= 0:
                dims[where].append(axis)
        specs.append(P(*(tuple(dim) or None for dim in dims)))
    return tuple(specs)
