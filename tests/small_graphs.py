"""Small graphs for tests of the planner."""

from __future__ import annotations

import random

from shardwright import Graph, GraphBuilder


def random_graph(seed: int, nodes: int, sizes: tuple[int, ...] = (768, 1536, 3072)) -> Graph:
    """Ops of the NumPy book over few sizes, so that shapes often fit; values are shared, some inputs are updated."""
    rng = random.Random(seed)
    b = GraphBuilder("small")
    values: list[tuple[int, tuple[int, ...]]] = []

    def new(value: int, shape: tuple[int, ...]) -> None:
        values.append((value, shape))

    for _ in range(rng.randint(1, 3)):
        shape = (rng.choice(sizes), rng.choice(sizes))
        new(b.input(shape), shape)
    inputs = list(values)
    favourite = rng.randrange(len(values)) if rng.random() < 0.4 else None
    for _ in range(nodes):
        value, shape = values[favourite] if favourite is not None and rng.random() < 0.5 else rng.choice(values)
        fitting = [(v, s) for v, s in values if len(shape) == len(s) == 2 and s[0] == shape[1]]
        same = [v for v, s in values if s == shape]
        kind = rng.choice(["exp", "add", "multiply", "matmul", "matmul", "sum", "transpose"])
        if kind == "matmul" and fitting:
            other, with_shape = rng.choice(fitting)
            made = (shape[0], with_shape[1])
            new(b.op("matmul", [value, other], [made]), made)
        elif kind in ("add", "multiply"):
            new(b.op(kind, [value, rng.choice(same)], [shape]), shape)
        elif kind == "sum" and len(shape) == 2:
            axis = rng.randrange(2)
            made = (shape[1 - axis],)
            new(b.op("reduce_sum", [value], [made], attrs={"axis": (axis,)}), made)
        elif kind == "transpose" and len(shape) == 2:
            new(b.op("transpose", [value], [shape[::-1]], views=[(0, 0)]), shape[::-1])
        else:
            new(b.op("exp", [value], [shape]), shape)
    made = values[len(inputs) :]
    outputs = [made[-1], *rng.sample(made, min(len(made), rng.randint(0, 1)))]
    updates = []
    if rng.random() < 0.4:
        shape = inputs[0][1]
        new_state = next((o for o, (v, s) in enumerate(outputs) if s == shape), None)
        if new_state is not None:
            updates.append((0, new_state))
    return b.finish([value for value, _ in outputs], updates=updates)


def stack(layers: int, first: int, last: int) -> Graph:
    """Equal blocks between different ends."""
    b = GraphBuilder("stack")
    x = b.op("exp", [b.input((1536, 768))], [(1536, 768)])
    x = b.op("matmul", [x, b.input((768, first))], [(1536, first)])
    x = b.op("matmul", [x, b.input((first, 768))], [(1536, 768)])
    for _ in range(layers):
        up, down = b.input((768, 3072)), b.input((3072, 768))
        h = b.op("exp", [b.op("matmul", [x, up], [(1536, 3072)])], [(1536, 3072)])
        x = b.op("add", [x, b.op("matmul", [h, down], [(1536, 768)])], [(1536, 768)])
    return b.finish([b.op("matmul", [x, b.input((768, last))], [(1536, last)])])


def sharing_stack(seed: int, layers: int) -> Graph:
    """Equal layers of random ops, with weights of their own, that all read some values of no layer, too."""
    rng = random.Random(seed)
    width, inside, rows = rng.choice([(768, 1536, 3072), (1536, 768, 384), (768, 768, 6144)])
    b = GraphBuilder("sharing")
    shared = [b.input((width, width)), b.input((rows, width))][: rng.randint(1, 2)]
    if rng.random() < 0.5:
        shared[-1] = b.op("exp", [shared[-1]], [(width, width) if len(shared) == 1 else (rows, width)])
    steps = [rng.choice(["tied", "tied", "square", "own", "bias", "exp"]) for _ in range(rng.randint(2, 4))]
    x = b.op("exp", [b.input((rows, width))], [(rows, width)])
    seen = []
    for _ in range(layers):
        h = x
        for step in steps:
            if step == "tied":
                h = b.op("matmul", [h, shared[0]], [(rows, width)])
            elif step == "square":
                square = b.op("matmul", [shared[0], shared[0]], [(width, width)])
                h = b.op("matmul", [h, square], [(rows, width)])
            elif step == "bias" and len(shared) > 1:
                h = b.op("add", [h, shared[1]], [(rows, width)])
            elif step == "own":
                h = b.op("matmul", [h, b.input((width, inside))], [(rows, inside)])
                h = b.op("matmul", [h, b.input((inside, width))], [(rows, width)])
            else:
                h = b.op("exp", [h], [(rows, width)])
        x = b.op("add", [x, h], [(rows, width)])
        seen.append(h)
    outputs = [b.op("matmul", [x, b.input((width, inside))], [(rows, inside)])]
    if rng.random() < 0.3:
        outputs.append(b.op("exp", [shared[0]], [(width, width)]))
    return b.finish(outputs + (seen if rng.random() < 0.2 else []))
