"""Small random programs under random shardings: whatever planning makes of them must pass both checks."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod

from planned import Case, plan

from shardwright.ir.graph import GraphBuilder, TensorType
from shardwright.spec.mesh import DeviceMesh

MESHES = ("x=2", "x=3", "dp=2, tp=4", "x=2, y=3", "x=4, y=2", "a=2, b=2, c=2")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12)
UNARY = ("exp", "negative", "sin", "tanh", "abs", "square", "reciprocal", "sqrt", "conj", "floor", "gelu", "copy")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "hypot")
COMPARE = ("less", "greater_equal", "equal")
REDUCE = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all")

MOVING = (
    "transpose", "reshape", "broadcast_to", "concatenate", "slice", "update_slice", "flip", "roll", "pad", "take",
    "take_along_axis", "scatter", "sort", "tril", "triu",
)  # fmt: skip
"""Ops whose result has the type of their operand."""


class Writer:
    """Adds random nodes to a graph."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.builder = GraphBuilder(f"random{seed}")
        self.pool: list[int] = []

    def shape(self, value: int) -> tuple[int, ...]:
        return self.builder.values[value].shape

    def rank(self, value: int) -> int:
        return len(self.shape(value))

    def input(self, shape: tuple[int, ...], dtype: str = "f32") -> int:
        value = self.builder.input(shape, dtype)
        self.pool.append(value)
        return value

    def add(
        self, op: str, operands: list[int | list[int]], shape: tuple[int, ...], dtype: str = "f32", **attrs: object
    ) -> int:
        if op in MOVING and operands:
            first = operands[0]
            dtype = self.builder.values[first[0] if isinstance(first, list) else first].type.dtype
        made: int = self.builder.op(op, operands, [TensorType(shape, dtype)], attrs=attrs)
        self.pool.append(made)
        return made

    def value(self, least: int = 0) -> int:
        """Some value with at least so many dims, later ones more often."""
        known = [value for value in self.pool if self.rank(value) >= least and prod(self.shape(value)) <= 2000]
        if not known:
            return self.input(tuple(self.random.choice(SIZES) for _ in range(least)))
        return known[max(self.random.randrange(len(known)), self.random.randrange(len(known)))]

    def like(self, value: int) -> int:
        """A value of the same shape, or one that is stretched to it."""
        shape = self.shape(value)
        same = [other for other in self.pool if self.shape(other) == shape]
        if same and self.random.random() < 0.7:
            return self.random.choice(same)
        thin = tuple(1 if self.random.random() < 0.3 else size for size in shape)
        return self.input(thin[self.random.randrange(len(thin)) :] if thin and self.random.random() < 0.3 else thin)

    # -- nodes ------------------------------------------------------------------------------------------

    def unary(self) -> None:
        x = self.value()
        self.add(self.random.choice(UNARY), [x], self.shape(x))

    def binary(self) -> None:
        x = self.value()
        pair: list[int | list[int]] = [x, self.like(x)]
        self.random.shuffle(pair)
        self.add(self.random.choice(BINARY), pair, self.shape(x))

    def choice(self) -> None:
        x = self.value()
        shape = self.shape(x)
        mask = self.add(self.random.choice(COMPARE), [x, self.like(x)], shape, "bool")
        self.add("where", [mask, x, self.like(x)], shape)

    def reduce(self) -> None:
        x = self.value(1)
        shape, rank = self.shape(x), self.rank(x)
        axes = tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))
        keep = self.random.random() < 0.5
        kept = tuple(1 if d in axes else size for d, size in enumerate(shape) if keep or d not in axes)
        op = self.random.choice(REDUCE)
        dtype = "bool" if op in ("reduce_any", "reduce_all") else "f32"
        self.add(op, [x], kept, dtype, axis=axes, keepdims=keep)

    def matmul(self) -> None:
        x = self.value(2)
        *batch, m, k = self.shape(x)
        n = self.random.choice(SIZES)
        w = self.input((k, n) if self.random.random() < 0.6 else (*batch, k, n))
        self.add("matmul", [x, w], (*batch, m, n))

    def einsum(self) -> None:
        x = self.value(2)
        letters = "abcdef"[: self.rank(x)]
        inner = self.random.choice(letters)
        size = self.random.choice(SIZES)
        w = self.input((size, self.shape(x)[letters.index(inner)]))
        output = letters.replace(inner, "z")
        shape = tuple(size if d == inner else n for d, n in zip(letters, self.shape(x)))
        self.add("einsum", [x, w], shape, equation=f"{letters},z{inner}->{output}")

    def transpose(self) -> None:
        x = self.value(1)
        order = list(range(self.rank(x)))
        self.random.shuffle(order)
        self.add("transpose", [x], tuple(self.shape(x)[d] for d in order), permutation=tuple(order))

    def reshape(self) -> None:
        x = self.value()
        rest, shape = prod(self.shape(x)), []
        while rest > 1 and len(shape) < 3:
            shape.append(self.random.choice([d for d in range(1, rest + 1) if rest % d == 0]))
            rest //= shape[-1]
        self.add("reshape", [x], (*shape, rest))

    def stretch(self) -> None:
        x = self.value()
        shape = tuple(4 if size == 1 and self.random.random() < 0.5 else size for size in self.shape(x))
        self.add("broadcast_to", [x], (self.random.choice(SIZES), *shape))

    def join(self) -> None:
        x = self.value(1)
        axis = self.random.randrange(self.rank(x))
        other = self.input(self.shape(x))
        shape = tuple(2 * size if d == axis else size for d, size in enumerate(self.shape(x)))
        self.add("concatenate", [[x, other]], shape, axis=axis)

    def window(self) -> None:
        x = self.value(1)
        shape, axis = self.shape(x), self.random.randrange(self.rank(x))
        size = shape[axis]
        start = self.random.randrange(size)
        stop = self.random.randint(start + 1, size)
        bounds = {
            name: tuple(entry if d == axis else None for d in range(len(shape)))
            for name, entry in (("start", start), ("stop", stop), ("step", 1))
        }
        part = tuple(stop - start if d == axis else n for d, n in enumerate(shape))
        if self.random.random() < 0.5:
            self.add("slice", [x], part, **bounds)
        else:
            self.add("update_slice", [x, self.input(part)], shape, **bounds)

    def shift(self) -> None:
        x = self.value(1)
        shape, axis = self.shape(x), self.random.randrange(self.rank(x))
        which = self.random.randrange(3)
        if which == 0:
            self.add("flip", [x], shape, axis=(axis,))
        elif which == 1:
            self.add("roll", [x], shape, axis=(axis,), shift=(self.random.randint(-3, 3),))
        else:
            low, high = (tuple(n if d == axis else 0 for d in range(len(shape))) for n in (1, 2))
            self.add("pad", [x], tuple(sum(n) for n in zip(shape, low, high)), low=low, high=high, value=0.5)

    def along(self) -> None:
        """Ops along one dim."""
        x = self.value(1)
        shape, axis = self.shape(x), self.random.randrange(self.rank(x))
        op = self.random.choice(("cumsum", "cumprod", "sort", "argsort", "argmax", "argmin"))
        if op.startswith("argm"):
            self.add(op, [x], tuple(n for d, n in enumerate(shape) if d != axis), "i64", axis=axis, keepdims=False)
        else:
            self.add(op, [x], shape, "i64" if op == "argsort" else "f32", axis=axis)

    def lookup(self) -> None:
        x = self.value(1)
        shape, axis = self.shape(x), self.random.randrange(self.rank(x))
        count = self.random.choice(SIZES)
        if self.random.random() < 0.4:
            found = (*shape[:axis], count, *shape[axis + 1 :])
            self.add("take", [x, self.input((count,), "i64")], found, axis=axis)
        elif self.random.random() < 0.5:
            found = tuple(count if d == axis else n for d, n in enumerate(shape))
            self.add("take_along_axis", [x, self.input(found, "i64")], found, axis=axis)
        else:
            rows = (*shape[:axis], count, *shape[axis + 1 :])
            self.add("scatter", [x, self.input((count,), "i64"), self.input(rows)], shape, axis=axis)

    def made(self) -> None:
        size = self.random.choice(SIZES)
        n = self.add("arange", [], (size,), start=2, step=3)
        f = self.add("full", [], (self.random.choice(SIZES), size), value=1.5)
        self.add("multiply", [f, n], self.shape(f))

    def triangle(self) -> None:
        x = self.value(2)
        self.add(self.random.choice(("tril", "triu")), [x], self.shape(x), k=self.random.randint(-1, 1))

    def two(self) -> None:
        x = self.value()
        type = TensorType(self.shape(x))
        self.pool += self.builder.op("divmod", [x, self.like(x)], [type, type])

    def nodes(self) -> tuple[Callable[[], None], ...]:
        many = (self.unary, self.binary, self.reduce, self.matmul)
        few = (self.choice, self.einsum, self.transpose, self.reshape, self.stretch, self.join, self.window, self.shift)
        return (*many, *many, *few, self.along, self.lookup, self.made, self.triangle, self.two)


def random_spec(rng: random.Random, mesh: DeviceMesh, shape: tuple[int, ...]) -> str:
    """Some axes on some dims; parts of axes only where they divide."""
    dims: list[list[str]] = [[] for _ in shape]
    for axis in rng.sample(mesh.axes, len(mesh.axes)):
        if shape and rng.random() < 0.7:
            d = rng.randrange(len(shape))
            part = (
                f"{axis.name}:(1)2"
                if axis.size == 4 and not dims[d] and shape[d] % 2 == 0 and rng.random() < 0.3
                else ""
            )
            dims[d].append(part or axis.name)
    return "[" + ", ".join("+".join(dim) or "_" for dim in dims) + "]"


def random_case(seed: int, nodes: int = 8) -> Case:
    writer = Writer(seed)
    rng = writer.random
    writer.input(tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 3))))
    for _ in range(nodes):
        rng.choice(writer.nodes())()
    made = [value.id for value in writer.builder.values if value.producer is not None]
    outputs = dict.fromkeys([made[-1], rng.choice(made), rng.choice(made)])
    graph = writer.builder.finish(list(outputs))
    text = rng.choice(MESHES)
    mesh = DeviceMesh(text)

    def some(values: list[int], chance: float) -> dict[str, str]:
        chosen = [graph.values[value] for value in values if rng.random() < chance]
        return {value.name: random_spec(rng, mesh, value.shape) for value in chosen}

    given = some(list(graph.inputs), 0.6)
    pinned = some([*graph.inputs, *made], 0.15)
    outs = {i: random_spec(rng, mesh, graph.values[v].shape) for i, v in enumerate(graph.outputs) if rng.random() < 0.3}
    return graph, plan(graph, text, given, pinned=pinned, outputs=outs)
