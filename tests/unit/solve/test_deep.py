"""The deep stack's numeric problem is the short one's with its inner layer repeated."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator

import numpy as np
import pytest

from shardwright.optimize import NumericProblem
from shardwright.optimize.compact import Compact, compact
from shardwright.optimize.problem import Floats, Ints
from shardwright.solve.repeated.deep import Deep, DeepChoice, Inner

SHORT = 4
Edges = list[tuple[int, int, Ints]]
KINDS = "abc"


class Stacked:
    """Layers of variables a, b and c, and one of no layer.

    Of a layer: a-b, b-c.  To the next one: a-a, c-a, and a second edge between b and c with the table of the first.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = dict(zip(KINDS, rng.integers(2, 5, 3).tolist()))
        self.costs = {kind: rng.integers(0, 50, size) for kind, size in self.sizes.items()}
        pairs = ["ab", "bc", "aa", "ca"]
        self.tables = {pair: rng.integers(0, 50, (self.sizes[pair[0]], self.sizes[pair[1]])) for pair in pairs}
        self.outer = rng.integers(0, 50, 3), rng.integers(0, 50, (3, self.sizes["b"]))
        self.ends = rng.integers(0, 50, self.sizes["a"])
        self.mixed = random.Random(seed).random() < 0.5

    def terms(self, layers: int) -> tuple[list[Ints], Edges, list[int], list[Hashable]]:
        costs, layer, key = [self.outer[0]], [-1], ["outer"]
        at: dict[tuple[str, int], int] = {}
        for n in range(layers):
            # Variables need not come in the order of layers.
            for kind in KINDS if n % 2 or not self.mixed else reversed(KINDS):
                at[kind, n] = len(costs)
                end = kind == "a" and n in (0, layers - 1)
                costs.append(self.costs[kind] + self.ends if end else self.costs[kind])
                layer.append(n)
                key.append(kind)
        edges: Edges = []
        for n in range(layers):
            edges += [(at[a, n], at[b, n], self.tables[a + b]) for a, b in ("ab", "bc")]
            edges.append((0, at["b", n], self.outer[1]))
            if n + 1 < layers:
                edges += [(at[a, n], at[b, n + 1], self.tables[a + b]) for a, b in ("aa", "ca", "bc")]
        return costs, edges, layer, list(key)

    def inner(self, short: int = SHORT) -> Inner:
        costs, edges, layer, key = self.terms(short)
        small = Compact(NumericProblem.build(costs, edges), 0, len(costs), tuple(range(len(costs))), ())
        return Inner.of(small, layer, key, 2)


@pytest.mark.parametrize("out", [0, 1, 2, 3, 8])
def test_costs_are_those_of_all_layers(out: int) -> None:
    for seed in range(20):
        about = Stacked(seed)
        deep = Deep(about.inner(), out)
        assert about.inner().is_regular()
        costs, edges, layer, key = about.terms(SHORT + out)
        whole = NumericProblem.build(costs, edges)
        members = {(inner_key, n): pair for inner_key, n, pair in where(deep)}
        assert len(members) == len(costs)
        rng = np.random.default_rng(seed)
        for _ in range(5):
            picks = [rng.integers(0, batch.shape[1], batch.shape[0]) for batch in deep.batches.costs]
            choice = [int(picks[batch][row]) for batch, row in (members[key[i], layer[i]] for i in range(len(costs)))]
            assert deep.batches.evaluate(picks) == whole.evaluate(choice).cost, (seed, out)


def where(deep: Deep) -> list[tuple[Hashable, int, tuple[int, int]]]:
    """Place, layer, and (batch, row) of all that the batches have."""
    found = []
    for i, member in enumerate(deep.member):
        layer = deep.inner.layer[i]
        for n, pair in zip(deep.deep(layer), member.T.tolist()):
            found.append((deep.inner.key[i], n if layer >= 0 else -1, (pair[0], pair[1])))
    return found


def chosen(deep: Deep, picks: list[Ints]) -> DeepChoice:
    return DeepChoice(deep.inner, deep.out, deep.picked(picks), 0, 0, False, "messages")


@pytest.mark.parametrize("out", [0, 1, 5])
def test_links_have_each_member_once_and_batches_none_among_them(out: int) -> None:
    for seed in range(20):
        deep = Deep(Stacked(seed).inner(), out)
        for link, numbers in zip(deep.batches.links, deep.edges):
            assert link.first < link.second
            assert len(link.mine) == len(link.theirs) == len(numbers)
            for batch, rows in ((link.first, link.mine), (link.second, link.theirs)):
                assert len(deep.batches.costs[batch]) == 1 or len(set(rows.tolist())) == len(rows)


@pytest.mark.parametrize("out", [1, 2, 7])
def test_choices_show_each_layer_with_its_neighbours(out: int) -> None:
    for seed in range(10):
        deep = Deep(Stacked(seed).inner(), out)
        rng = np.random.default_rng(seed)
        picks = [rng.integers(0, batch.shape[1], batch.shape[0]) for batch in deep.batches.costs]
        picked = {(key, n): int(picks[batch][row]) for key, n, (batch, row) in where(deep)}
        choices = chosen(deep, picks).choices()
        assert len(choices) == SHORT + out + 1
        inner, here = deep.inner, 1
        for n, choice in enumerate(choices[:-1]):
            own = n if n < here else here if n <= here + out else n - out
            for i, layer in enumerate(inner.layer):
                if layer == own or (own == here and layer >= 0 and abs(layer - own) <= 1):
                    assert choice[i] == picked[inner.key[i], n + layer - own], (seed, n, i)
            assert choice[0] == choices[-1][0] == picked["outer", -1]


def test_equal_choices_are_one_list() -> None:
    deep = Deep(Stacked(0).inner(), 6)
    choices = chosen(deep, [np.zeros(len(batch), np.int64) for batch in deep.batches.costs]).choices()
    assert len({id(choice) for choice in choices}) == 1


def test_layers_of_which_nothing_is_left_are_counted() -> None:
    """Where the last layers are eliminated, there still is a choice for them."""
    costs, edges, layer, key = Stacked(1).terms(SHORT)
    kept = [i for i, n in enumerate(layer) if n <= 1]
    small = compact(costs, edges, kept=kept)
    assert max(layer[at] for at in small.left) < SHORT - 1
    inner = Inner.of(small, layer, key, 2)
    deep = Deep(inner, 0)
    assert len(chosen(deep, deep.batches.round()).choices()) == SHORT + 1


def test_messages_are_taken_over_by_edge() -> None:
    """Every copy of an edge starts from the messages of the one it stands for."""
    for seed in range(10):
        inner = Stacked(seed).inner()
        shallow, deep = Deep(inner, 0), Deep(inner, 5)
        shallow.batches.sweep()
        deep.start_from(shallow)
        known = dict(messages(shallow))
        assert len(known) == len(inner.small.problem.edges)
        for number, pair in messages(deep):
            assert all((now == was).all() for now, was in zip(pair, known[number]))


def messages(deep: Deep) -> Iterator[tuple[int, list[Floats]]]:
    """By edge of the short problem, those to its first variable and to its second."""
    for boxes, edges in zip(deep.batches.boxes, deep.edges):
        for row, edge in enumerate(edges.tolist()):
            yield edge // 2, [box[row] for box in (reversed(boxes) if edge % 2 else boxes)]
