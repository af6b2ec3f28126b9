"""Random small numeric problems, and their optimum by trying every choice."""

from __future__ import annotations

import numpy as np

from shardwright.optimize import FORBIDDEN, NumericProblem


def generate(seed: int) -> NumericProblem:
    """Up to 7 nodes; forbidden entries, parallel edges, ties, followers; memory in two of three.

    Every second problem is sparse, so that reductions bite; the others are dense, so that they leave a lot.
    """
    rng = np.random.default_rng(seed)
    dense = seed % 2 == 1
    nodes = int(rng.integers(4, 7)) if dense else int(rng.integers(1, 8))
    sizes = rng.integers(3, 5, nodes) if dense else rng.integers(1, 5, nodes)
    top = int(rng.choice([3, 20, 10**6]))
    forbid = float(rng.choice([0.0, 0.1] if dense else [0.0, 0.1, 0.35]))

    def entries(*shape: int) -> np.ndarray:
        values = rng.integers(0, top, shape)
        return np.where(rng.random(shape) < forbid, FORBIDDEN + rng.integers(0, 5, shape), values)

    costs = [entries(int(size)) for size in sizes]
    edges = []
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    for number in rng.permutation(len(pairs))[: int(rng.integers(2 * nodes, 4 * nodes) if dense else 2 * nodes)]:
        i, j = pairs[number]
        table = entries(int(sizes[i]), int(sizes[j]))
        if not dense and rng.random() < 0.3:
            # The first decides the second.
            picks = rng.integers(0, sizes[j], sizes[i])
            table = np.where(np.arange(sizes[j]) == picks[:, None], table, FORBIDDEN)
        edges.append((i, j, table))
    usages, limits = [], []
    if seed % 3:
        moments = int(rng.integers(1, 7))
        for node in range(nodes):
            for _ in range(1 if dense else int(rng.integers(0, 3))):
                start, end = sorted(int(t) for t in rng.integers(0, moments + 1, 2))
                usages.append((node, start, end, rng.integers(0, 6, int(sizes[node]))))
        limits = rng.integers(3 * (seed % 5), 14, moments)
    return NumericProblem.build(costs, edges, usages, limits)


def every(problem: NumericProblem) -> np.ndarray:
    """All choices, one a row."""
    return np.indices([len(row) for row in problem.costs]).reshape(problem.nodes, -1).T


def brute(problem: NumericProblem) -> int | None:
    """The least cost of all choices, by trying each; None if none is allowed and fits."""
    choices = every(problem)
    columns = [row[choices[:, node]] for node, row in enumerate(problem.costs)]
    columns += [edge.table[choices[:, edge.first], choices[:, edge.second]] for edge in problem.edges]
    terms = np.stack(columns, 1)
    fits = (terms < FORBIDDEN).all(1)
    for moment, limit in enumerate(problem.limits):
        held = np.zeros(len(choices), np.int64)
        for usage in problem.usages:
            if usage.start <= moment < usage.end:
                held += usage.amounts[choices[:, usage.node]]
        fits &= held <= limit
    return int(terms[fits].sum(1).min()) if fits.any() else None
