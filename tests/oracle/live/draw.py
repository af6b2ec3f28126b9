"""Random programs in Shardy's own text: forks, joins, shardings of any kind, barriers, constraints, groups."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from math import prod

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
AXIS_SIZES = (2, 2, 3, 4, 4, 6, 8)
POINTWISE = ("add", "multiply", "maximum", "subtract")
UNARY = ("tanh", "negate", "abs", "exponential")
Shape = tuple[int, ...]


def draw_mesh(rng: random.Random) -> dict[str, int]:
    return {name: rng.choice(AXIS_SIZES) for name in "abc"[: rng.choice((1, 2, 2, 3))]}


def tensor(shape: Shape, dtype: str = "f32") -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{dtype}>"


def mesh_text(mesh: dict[str, int]) -> str:
    return "sdy.mesh @mesh = <[" + ", ".join(f'"{name}"={size}' for name, size in mesh.items()) + "]>\n"


def cut_axes(rng: random.Random, mesh: dict[str, int]) -> list[str]:
    """Every axis whole, or cut in two where its size allows: the parts of an axis always exist together."""
    found = []
    for name, size in mesh.items():
        parts = [n for n in range(2, size) if size % n == 0]
        if parts and rng.random() < 0.35:
            n = rng.choice(parts)
            found += [f'"{name}":(1){n}', f'"{name}":({n}){size // n}']
        else:
            found.append(f'"{name}"')
    return found


def draw_sharding(rng: random.Random, mesh: dict[str, int], rank: int, priorities: bool, open: float = 0.6) -> str:
    dims: list[list[str]] = [[] for _ in range(rank)]
    replicated, unused = [], cut_axes(rng, mesh)
    rng.shuffle(unused)
    for axis in unused:
        if rank and rng.random() < 0.6:
            dims[rng.randrange(rank)].append(axis)
        elif rng.random() < 0.15:
            replicated.append(axis)
    merged = [_merged(dim) for dim in dims]
    texts = []
    for dim in merged:
        free = rng.random() < open
        priority = f"p{rng.randrange(3)}" if priorities and (dim or free) and rng.random() < 0.3 else ""
        texts.append("{" + ", ".join([*dim, *(["?"] if free else [])]) + "}" + priority)
    kept = sorted(replicated, key=lambda axis: (axis.split(":")[0], _pre(axis)))
    rest = f", replicated={{{', '.join(_merged(kept))}}}" if kept else ""
    return f"<@mesh, [{', '.join(texts)}]{rest}>"


def _pre(axis: str) -> int:
    return int(axis.partition("(")[2].partition(")")[0] or 1)


def _merged(axes: list[str]) -> list[str]:
    """Two parts of one axis that follow each other are the axis."""
    found: list[str] = []
    for axis in axes:
        name = axis.partition(":")[0]
        if found and ":" in axis and found[-1].startswith(f"{name}:(1)") and _pre(axis) > 1:
            found[-1] = name
        else:
            found.append(axis)
    return found


class Drawing:
    """A function while it is drawn."""

    def __init__(self, seed: int, ops: tuple[int, int] = (3, 40), control: bool = False) -> None:
        self.random = rng = random.Random(seed)
        self.mesh = draw_mesh(rng)
        self.priorities = rng.random() < 0.3
        self.lines: list[str] = []
        self.shapes: dict[str, Shape] = {}
        self.args: list[str] = []
        self.control = control
        """Whether there are branches and calls."""
        self.functions: list[str] = []
        self.busy = rng.choice((0.05, 0.15, 0.4))
        """The part of ops that come with a sharding."""
        for i in range(rng.randint(1, 4)):
            self.argument(f"%arg{i}", tuple(rng.choices(SIZES, k=rng.choice((1, 2, 2, 3)))))
        for _ in range(rng.randint(*ops)):
            rng.choice(self.words())()

    def argument(self, name: str, shape: Shape) -> str:
        said = ""
        if self.random.random() < 0.6:
            said = f" {{sdy.sharding = #sdy.sharding{self.sharding(len(shape))}}}"
        self.args.append(f"{name}: {tensor(shape)}{said}")
        self.shapes[name] = shape
        return name

    def sharding(self, rank: int) -> str:
        return draw_sharding(self.random, self.mesh, rank, self.priorities)

    def value(self, rank: int = 0) -> str:
        known = [name for name, shape in self.shapes.items() if len(shape) >= rank and prod(shape) < 100_000]
        if not known:
            return self.argument(f"%arg{len(self.args)}", tuple(self.random.choices(SIZES, k=rank)))
        return known[max(self.random.randrange(len(known)), self.random.randrange(len(known)))]

    def like(self, name: str) -> str:
        same = [other for other, shape in self.shapes.items() if shape == self.shapes[name]]
        if self.random.random() < 0.8:
            return self.random.choice(same)
        return self.argument(f"%arg{len(self.args)}", self.shapes[name])

    def add(self, shape: Shape, text: str, said: bool = True) -> None:
        """A line with its result; ``{}`` in the text is where a sharding may stand."""
        name = f"%{len(self.lines)}"
        attrs = ""
        if said and self.random.random() < self.busy:
            attrs = f" {{sdy.sharding = #sdy.sharding_per_value<[{self.sharding(len(shape))}]>}}"
        self.lines.append(f"{name} = {text.replace('@@', attrs)}")
        self.shapes[name] = shape

    # -- ops ------------------------------------------------------------------------------------------------

    def words(self) -> list[Callable[[], None]]:
        few = [self.unary, self.slice, self.pad, self.concat, self.reverse, self.barrier, self.constraint, self.select]
        many = [self.pointwise, self.dot, self.transpose, self.reshape, self.broadcast, self.reduce]
        return [*few, *many, *many, *([self.case, self.call] * 3 if self.control else [])]

    def unary(self) -> None:
        x = self.value()
        shape = self.shapes[x]
        self.add(shape, f"stablehlo.{self.random.choice(UNARY)} {x}@@ : {tensor(shape)}")

    def pointwise(self) -> None:
        x = self.value()
        y, shape = self.like(x), self.shapes[x]
        self.add(shape, f"stablehlo.{self.random.choice(POINTWISE)} {x}, {y}@@ : {tensor(shape)}")

    def select(self) -> None:
        x = self.value()
        shape = self.shapes[x]
        self.add(shape, f"stablehlo.clamp {self.like(x)}, {x}, {self.like(x)}@@ : {tensor(shape)}")

    def dot(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        k = self.random.randrange(len(shape))
        batch = [d for d in range(len(shape)) if d != k and self.random.random() < 0.3][:1]
        rest = [d for d in range(len(shape)) if d != k and d not in batch]
        n = self.random.choice(SIZES)
        other = (*(shape[d] for d in batch), shape[k], n)
        fits = [name for name, known in self.shapes.items() if known == other]
        y = self.random.choice(fits) if fits else self.argument(f"%arg{len(self.args)}", other)
        result = (*(shape[d] for d in batch), *(shape[d] for d in rest), n)
        batching = f"batching_dims = {batch} x {list(range(len(batch)))}, " if batch else ""
        types = f"({tensor(shape)}, {tensor(other)}) -> {tensor(result)}"
        self.add(
            result, f"stablehlo.dot_general {x}, {y}, {batching}contracting_dims = [{k}] x [{len(batch)}]@@ : {types}"
        )

    def transpose(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        order = self.random.sample(range(len(shape)), len(shape))
        result = tuple(shape[d] for d in order)
        self.add(result, f"stablehlo.transpose {x}, dims = {order}@@ : ({tensor(shape)}) -> {tensor(result)}")

    def reshape(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        result = list(shape)
        for _ in range(self.random.randint(1, 2)):
            if len(result) > 1 and self.random.random() < 0.5:
                d = self.random.randrange(len(result) - 1)
                result[d : d + 2] = [result[d] * result[d + 1]]
            elif len(result) < 5:
                d = self.random.randrange(len(result))
                p = self.random.choice([p for p in range(1, result[d] + 1) if result[d] % p == 0])
                result[d : d + 1] = [p, result[d] // p]
        self.add(tuple(result), f"stablehlo.reshape {x}@@ : ({tensor(shape)}) -> {tensor(tuple(result))}")

    def broadcast(self) -> None:
        x = self.value()
        shape = self.shapes[x]
        rank = len(shape) + 1
        if rank > 4:
            return
        new = self.random.randrange(rank)
        dims = [d for d in range(rank) if d != new]
        result = [0] * rank
        result[new] = self.random.choice(SIZES)
        for d, size in zip(dims, shape):
            result[d] = self.random.choice((1, 4)) if size == 1 else size
        types = f"({tensor(shape)}) -> {tensor(tuple(result))}"
        self.add(tuple(result), f"stablehlo.broadcast_in_dim {x}, dims = {dims}@@ : {types}")

    def reduce(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        d = self.random.randrange(len(shape))
        result = tuple(size for e, size in enumerate(shape) if e != d)
        types = f"({tensor(shape)}, tensor<f32>) -> {tensor(result)}"
        self.add(
            result, f"stablehlo.reduce({x} init: %zero) applies stablehlo.add across dimensions = [{d}]@@ : {types}"
        )

    def slice(self) -> None:
        x = self.value(1)
        shape, result, cuts = self.shapes[x], [], []
        for size in shape:
            start = self.random.randrange(size) if self.random.random() < 0.4 else 0
            stop = self.random.randint(start + 1, size) if self.random.random() < 0.4 else size
            step = self.random.choice((1, 1, 2))
            cuts.append(f"{start}:{stop}" + (f":{step}" if step > 1 else ""))
            result.append(-(-(stop - start) // step))
        self.add(
            tuple(result), f"stablehlo.slice {x} [{', '.join(cuts)}]@@ : ({tensor(shape)}) -> {tensor(tuple(result))}"
        )

    def pad(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        low, high, inner = ([self.random.choice((0, 0, n)) for _ in shape] for n in (1, 2, 1))
        result = tuple(n + a + b + c * (n - 1) for n, a, b, c in zip(shape, low, high, inner))
        types = f"({tensor(shape)}, tensor<f32>) -> {tensor(result)}"
        self.add(result, f"stablehlo.pad {x}, %zero, low = {low}, high = {high}, interior = {inner}@@ : {types}")

    def concat(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        d = self.random.randrange(len(shape))
        y = self.like(x)
        result = tuple(2 * size if e == d else size for e, size in enumerate(shape))
        types = f"({tensor(shape)}, {tensor(shape)}) -> {tensor(result)}"
        self.add(result, f"stablehlo.concatenate {x}, {y}, dim = {d}@@ : {types}")

    def reverse(self) -> None:
        x = self.value(1)
        shape = self.shapes[x]
        self.add(shape, f"stablehlo.reverse {x}, dims = [{self.random.randrange(len(shape))}]@@ : {tensor(shape)}")

    def barrier(self) -> None:
        x = self.value()
        shape = self.shapes[x]
        way = self.random.choice(("NONE", "FORWARD", "BACKWARD"))
        self.add(shape, f"sdy.propagation_barrier {x} allowed_direction={way} : {tensor(shape)}", said=False)

    def constraint(self) -> None:
        x = self.value()
        shape = self.shapes[x]
        said = draw_sharding(self.random, self.mesh, len(shape), False)
        self.add(shape, f"sdy.sharding_constraint {x} {said} : {tensor(shape)}", said=False)

    def case(self) -> None:
        """Two branches, of what is there or of an op of it."""
        x = self.value()
        type, branches = tensor(self.shapes[x]), []
        for i, operand in enumerate((x, self.like(x))):
            inner = f"%b{len(self.lines)}_{i}"
            if self.random.random() < 0.4:
                op = f"{inner} = stablehlo.{self.random.choice(UNARY)} {operand} : {type}\n    "
                branches.append(f"{op}stablehlo.return {inner} : {type}")
            else:
                branches.append(f"stablehlo.return {operand} : {type}")
        regions = "\n  }, {\n    ".join(branches)
        self.add(self.shapes[x], f'"stablehlo.case"(%index) ({{\n    {regions}\n  }})@@ : (tensor<i32>) -> {type}')

    def call(self) -> None:
        """A function that is called once: some ops, perhaps with a constraint."""
        x = self.value()
        shape, name = self.shapes[x], f"@f{len(self.functions)}"
        type, lines = tensor(shape), []
        here = "%arg0"
        for i in range(self.random.randint(0, 3)):
            if self.random.random() < 0.3:
                said = draw_sharding(self.random, self.mesh, len(shape), False)
                lines.append(f"%{i} = sdy.sharding_constraint {here} {said} : {type}")
            else:
                lines.append(f"%{i} = stablehlo.{self.random.choice(UNARY)} {here} : {type}")
            here = f"%{i}"
        body = "\n  ".join([*lines, f"return {here} : {type}"])
        self.functions.append(f"func.func private {name}(%arg0: {type}) -> {type} {{\n  {body}\n}}\n")
        self.add(shape, f"func.call {name}({x})@@ : ({type}) -> {type}")

    def text(self) -> str:
        """All that nobody reads is returned: what is dead Shardy takes out."""
        words = {word for line in self.lines for word in re.findall(r"%\w+", line.partition(" = ")[2])}
        names = [name for name in self.shapes if not name.startswith("%arg")]
        out = [name for name in names if name not in words or self.random.random() < 0.1]
        out = out or [next(iter(self.shapes))]
        results = []
        for name in out:
            shape = self.shapes[name]
            said = ""
            if self.random.random() < 0.3:
                said = f" {{sdy.sharding = #sdy.sharding{self.sharding(len(shape))}}}"
            results.append(f"{tensor(shape)}{said}")
        body = ["%zero = stablehlo.constant dense<0.0> : tensor<f32>", *self.lines]
        body = body if "%zero" in words else body[1:]
        args = [*self.args, *(["%index: tensor<i32>"] if "%index" in words else [])]
        types = ", ".join(tensor(self.shapes[name]) for name in out)
        return (
            mesh_text(self.mesh)
            + f"func.func @main({', '.join(args)}) -> ({', '.join(results)}) {{\n  "
            + "\n  ".join(body)
            + f"\n  return {', '.join(out)} : {types}\n}}\n"
            + "".join(self.functions)
        )


def draw_reshard(seed: int) -> str:
    """A tensor from one sharding to another."""
    rng = random.Random(seed)
    mesh = draw_mesh(rng)
    rank = rng.choice((1, 2, 2, 3))
    even = prod(mesh.values())
    shape = tuple(even if rng.random() < 0.7 else rng.choice((6, 8, 12, 24)) for _ in range(rank))
    while True:
        both = [draw_sharding(rng, mesh, len(shape), False, open=0.0).partition(", replicated")[0] for _ in range(2)]
        both = [text if text.endswith(">") else text + ">" for text in both]
        if both[0] != both[1]:
            break
    return (
        mesh_text(mesh)
        + f"func.func @main(%arg0: {tensor(shape)} {{sdy.sharding = #sdy.sharding{both[0]}}}) -> {tensor(shape)} {{\n"
        + f"  %0 = sdy.reshard %arg0 {both[1]} : {tensor(shape)}\n  return %0 : {tensor(shape)}\n}}\n"
    )
