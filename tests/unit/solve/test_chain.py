"""Elimination along a deep stack: exact, at any depth, with ends that differ and with what is of no layer."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise, product

import numpy as np
import pytest

from shardwright.optimize import NumericProblem, bucket
from shardwright.optimize.bucket import eliminate
from shardwright.optimize.compact import Compact, compact
from shardwright.optimize.problem import Ints
from shardwright.solve.repeated import chain
from shardwright.solve.repeated.chain import solve_chain
from shardwright.solve.repeated.deep import DeepChoice, Inner

SHORT = 4
Edges = list[tuple[int, int, Ints]]
Terms = tuple[list[Ints], Edges, list[int], list[Hashable]]


class Tower:
    """Layers with a few variables, linked at random to their own layer, the next one, and two of no layer.

    The first layer may lack a variable that nothing above it reads, as a first layer's gradient is; and it and the last
    one may have costs of their own.
    """

    def __init__(self, seed: int, leaf: bool = False) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.sizes = rng.integers(1, 5, 5).tolist()
        self.costs = [self.table(size) for size in self.sizes]
        pairs = list(product(range(5), repeat=2))
        self.own = [(a, b, self.table(self.sizes[a], self.sizes[b])) for a, b in pairs if a < b and rng.random() < 0.5]
        some = [(a, b) for a, b in pairs if rng.random() < 0.15]
        self.up = [(a, b, self.table(self.sizes[a], self.sizes[b])) for a, b in some]
        self.none = [3, 2]
        self.outer = [self.table(size) for size in self.none]
        self.linked = [
            (i, a, self.table(self.none[i], self.sizes[a])) for i in (0, 1) for a in range(5) if rng.random() < 0.3
        ]
        self.leaf = (self.table(3), self.table(self.none[0], 3)) if leaf else None
        self.end = self.table(self.sizes[0]), self.table(self.sizes[0])
        lower = {a for a, _, _ in self.up}
        free = [a for a in range(1, 5) if a not in lower]
        self.lost = free[0] if free and rng.random() < 0.5 else -1
        """What the first layer does not have."""

    def table(self, *shape: int) -> Ints:
        return self.rng.integers(0, 60, shape)

    def terms(self, layers: int) -> Terms:
        costs, layer, key = list(self.outer), [-1, -1], ["x", "y"]
        at: dict[tuple[int, int], int] = {}
        edges: Edges = []
        for n in range(layers):
            for a in range(5):
                if n == 0 and a == self.lost:
                    continue
                at[a, n] = len(costs)
                extra = self.end[0] if (a, n) == (0, 0) else self.end[1] if (a, n) == (0, layers - 1) else 0
                costs.append(self.costs[a] + extra)
                layer.append(n)
                key.append(f"v{a}")
            if self.leaf is not None:
                edges.append((0, len(costs), self.leaf[1]))
                costs.append(self.leaf[0])
                layer.append(n)
                key.append("leaf")
        for n in range(layers):
            edges += [(at[a, n], at[b, n], t) for a, b, t in self.own if (a, n) in at and (b, n) in at]
            edges += [(i, at[a, n], t) for i, a, t in self.linked if (a, n) in at]
            if n + 1 < layers:
                edges += [(at[a, n], at[b, n + 1], t) for a, b, t in self.up]
        return costs, edges, layer, list(key)

    def inner(self, compacted: bool) -> Inner:
        costs, edges, layer, key = self.terms(SHORT)
        small = Compact(NumericProblem.build(costs, edges), 0, len(costs), tuple(range(len(costs))), ())
        if compacted:
            kept = {i for i, j, _ in edges if layer[i] != layer[j]}
            small = compact(costs, edges, kept=kept, layer=layer)
        return Inner.of(small, layer, key, 2)


def whole(tower: Tower, layers: int) -> tuple[NumericProblem, int]:
    """The problem of all layers, and its optimum."""
    costs, edges, _, _ = tower.terms(layers)
    problem = NumericProblem.build(costs, edges)
    best = eliminate(problem)
    assert best is not None
    return problem, problem.evaluate(best).cost


def choice_of(tower: Tower, found: DeepChoice, layers: int) -> list[int]:
    """For the problem of all layers, from the choices layer by layer."""
    _, _, layer, key = tower.terms(layers)
    _, _, short_layer, short_key = tower.terms(SHORT)
    at = {pair: i for i, pair in enumerate(zip(short_layer, short_key))}
    choices, here = found.choices(), found.inner.low - 1
    result = []
    for own, name in zip(layer, key):
        lower = own if own <= here else max(here, own - found.out)
        result.append(choices[own][at[lower, name]])
    return result


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("out", [0, 1, 2, 7])
def test_optimal_at_any_depth(out: int, compacted: bool) -> None:
    for seed in range(40):
        tower = Tower(seed, leaf=seed % 3 == 0)
        inner = tower.inner(compacted)
        if not inner.is_regular():
            continue
        found = solve_chain(inner, out)
        assert found is not None
        assert found.cost == found.lower_bound
        problem, best = whole(tower, SHORT + out)
        assert found.cost == best, seed
        assert problem.evaluate(choice_of(tower, found, SHORT + out)).cost == best, seed


def test_enough_towers_are_regular() -> None:
    """Or the test above would say little.  Compacting may leave ends in the next layer."""
    for compacted, least in ((False, 40), (True, 20)):
        assert sum(Tower(seed, seed % 3 == 0).inner(compacted).is_regular() for seed in range(40)) >= least


def test_layers_may_alternate() -> None:
    """Where the best choices of two layers differ by turns, so do the sums."""
    differ = np.array([[9, 0], [0, 9]])
    costs = [np.array([0, 1])] * SHORT
    edges: Edges = [(n, n + 1, differ) for n in range(SHORT - 1)]
    small = Compact(NumericProblem.build(costs, edges), 0, SHORT, tuple(range(SHORT)), ())
    inner = Inner.of(small, list(range(SHORT)), ["a"] * SHORT, 2)
    for out in range(6):
        found = solve_chain(inner, out)
        assert found is not None
        assert found.cost == (SHORT + out) // 2
        picks = [choice[min(n, 1) if n <= 1 + out else n - out] for n, choice in enumerate(found.choices()[:-1])]
        assert all(a != b for a, b in pairwise(picks))


def test_repeated_layers_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = chain._Chain.without

    def counted(self: chain._Chain, *about: object) -> object:
        calls.append(1)
        return plain(self, *about)  # type: ignore[arg-type]

    monkeypatch.setattr(chain._Chain, "without", counted)
    inner = Tower(1).inner(False)
    assert solve_chain(inner, 3) is not None
    few = len(calls)
    assert solve_chain(inner, 300) is not None
    assert len(calls) - few < 30


def test_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "LARGEST", 3)
    assert solve_chain(Tower(1).inner(False), 3) is None


def test_forbidden_choices_of_many_layers_do_not_run_over() -> None:
    """Each layer costs far too much with one choice of what is of no layer, and nothing with the other."""
    dear = np.array([[10**17] * 2, [0, 1]])
    costs = [np.array([0, 5]), *[np.array([0, 0])] * SHORT]
    edges: Edges = [(0, n + 1, dear) for n in range(SHORT)]
    edges += [(n + 1, n + 2, np.array([[0, 1], [1, 0]])) for n in range(SHORT - 1)]
    small = Compact(NumericProblem.build(costs, edges), 0, SHORT + 1, tuple(range(SHORT + 1)), ())
    inner = Inner.of(small, [-1, *range(SHORT)], ["g", *["a"] * SHORT], 2)
    found = solve_chain(inner, 400)
    assert found is not None
    assert found.cost == 5
    assert found.choices()[-1][0] == 1
