"""What the search rests on: a bound that never promises too much, offers that never undercut, moves with one name."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from math import prod

import numpy as np
import pytest

from shardwright.spec.axes import AxisRef, axes_size, merge_axes
from shardwright.spec.collective import collective_bytes
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.resharding.cheapest import clear_cache, reshard, reshard_table
from shardwright.spec.resharding.layouts import Layout, Pending, Space, make_atoms
from shardwright.spec.resharding.lower_bound import bound_to
from shardwright.spec.resharding.moves import all_moves, name_move, offers, write_out
from shardwright.spec.resharding.permute import finish, named_moves
from shardwright.spec.resharding.search import Stops
from shardwright.spec.resharding.steps import Step, bytes_cost
from shardwright.spec.sharding import DimSpec, ShardingSpec
from simulate import apply_step, scatter

SPACES = [
    ("x=2, y=2", (3, 5)),
    ("x=2, y=3", (6, 4)),
    ("x=2, y=3", (1, 5)),
    ("x=4", (6, 4)),  # two joined atoms, on a dim that they do not divide
    ("x=4, y=2", (16, 8)),
    ("x=2, y=2, z=2", (7, 8)),
    ("x=2, y=4, z=8", (64, 64)),
    ("x=2, y=2", (3, 4, 6)),
    ("x=4, y=3", ()),
]
FAR = 1 << 60


def space_and_layouts(mesh: str, shape: tuple[int, ...]) -> tuple[Space, list[Layout], Pending]:
    """Every layout of a space, values pending as sums."""
    on = DeviceMesh(mesh)
    space = Space(on, make_atoms(on, ()), shape, 4, bytes_cost)
    wanted = tuple((a, "sum") for a in range(len(space.atoms)))
    found = [space.at(((),) * len(shape), ())]
    seen = set(found)
    for here in found:  # grows as it goes
        for _, there, _ in all_moves(space, here, wanted):
            if there not in seen:
                seen.add(there)
                found.append(there)
    return space, found, wanted


@pytest.mark.parametrize(("mesh", "shape"), SPACES)
def test_no_step_brings_the_goal_nearer_than_it_costs(mesh: str, shape: tuple[int, ...]) -> None:
    """The bound drops by no more than the price along every move, and is 0 at the goal: so it is one."""
    space, layouts, wanted = space_and_layouts(mesh, shape)
    moves = {here: list(all_moves(space, here, wanted)) for here in layouts}
    for goal in layouts[:: max(1, len(layouts) // 25)]:
        bound = bound_to(space, goal)
        left = {layout: bound(layout)[0] for layout in layouts}
        assert left[goal] == 0
        stops = Stops(space, goal)
        for here in layouts:
            ways = moves[here] + [finish(space, here, stop, FAR) for stop in stops.with_pending(here.pending)]
            for price, there, _ in filter(None, ways):
                assert left[here] <= price + left[there], f"{here} -> {there} for {price}, to {goal}"


@pytest.mark.parametrize(("mesh", "shape"), SPACES)
def test_offers_come_cheapest_first_and_never_undercut(mesh: str, shape: tuple[int, ...]) -> None:
    space, layouts, _ = space_and_layouts(mesh, shape)
    for here in layouts:
        floors = [offer.floor for offer in offers(space, here)]
        assert floors == sorted(floors)
        for offer in offers(space, here):
            for price, there, _ in write_out(space, here, offer):
                assert price >= offer.floor
                assert name_move(space, here, there).kind == offer.kind


@pytest.mark.parametrize(("mesh", "shape"), SPACES)
def test_a_move_costs_what_its_name_says(mesh: str, shape: tuple[int, ...]) -> None:
    space, layouts, wanted = space_and_layouts(mesh, shape)
    for here in layouts:
        for price, there, _ in all_moves(space, here, wanted):
            move = name_move(space, here, there)
            assert move.after == space.spec(there)
            local = move.kind in ("slice", "to_partial")
            sent = 0 if local else collective_bytes(move.kind, axes_size(move.axes), move.elements * 4)
            assert price == sent, f"{here} -> {there}: {move}"


@pytest.mark.parametrize(("mesh", "shape"), SPACES)
def test_a_finish_costs_no_more_than_it_says(mesh: str, shape: tuple[int, ...]) -> None:
    space, layouts, _ = space_and_layouts(mesh, shape)
    for here, goal in itertools.product(layouts[::3], layouts[::3]):
        way = finish(space, here, goal, FAR) if here.pending == goal.pending else None
        if way is not None:
            price, _, recipe = way
            assert recipe is not None
            moves = [move for move in named_moves(space, here, goal, recipe) if move.kind != "slice"]
            assert price >= sum(collective_bytes(m.kind, axes_size(m.axes), m.elements * 4) for m in moves)
            assert finish(space, here, goal, price) is None, "nothing is offered at the budget or above"


@pytest.mark.parametrize(("mesh", "shape"), SPACES)
def test_every_search_equals_the_table(mesh: str, shape: tuple[int, ...]) -> None:
    """The table closes all moves and knows nothing of the bound."""
    space, layouts, _ = space_and_layouts(mesh, shape)
    whole = [space.spec(layout) for layout in layouts]
    specs = [spec for spec in whole if all(axis.is_whole for axis in spec.used_axes)][::2]
    table = reshard_table(specs, shape, 4)
    found = np.zeros_like(table)
    for (i, source), (j, target) in itertools.product(enumerate(specs), enumerate(specs)):
        found[i, j] = sum(step.bytes for step in reshard(source, target, shape, 4))
    i, j = np.argwhere(found != table)[0] if (found != table).any() else (0, 0)
    assert (found == table).all(), f"{specs[i]} -> {specs[j]}: {found[i, j]}, table {table[i, j]}"


def test_shapes_that_always_divide_share_their_answers() -> None:
    """Bytes are in proportion to the tensor's, and the same whichever shape came first."""
    mesh = DeviceMesh("x=2, y=4")
    source, target = ShardingSpec.parse("[x, _] // y", mesh), ShardingSpec.parse("[_, y]", mesh)
    clear_cache()
    small = reshard(source, target, (8, 16), 2)
    large = reshard(source, target, (24, 64), 4)
    clear_cache()
    assert reshard(source, target, (24, 64), 4) == large
    assert [step.kind for step in small] == [step.kind for step in large]
    assert [step.bytes * 24 for step in small] == [step.bytes for step in large]


def test_a_scalar_is_combined_at_once() -> None:
    """Its bytes are few, and rounded up: shares of them are not in proportion."""
    mesh = DeviceMesh("x=4, y=2")
    source, target = ShardingSpec.parse("[] // x, y", mesh), ShardingSpec.parse("[]", mesh)
    for item_bytes in (1, 2, 4, 8):
        steps = reshard(source, target, (), item_bytes)
        assert sum(step.bytes for step in steps) == reshard_table([source, target], (), item_bytes)[0, 1]
    assert [step.kind for step in steps] == ["all_reduce"]


def test_the_same_answer_whatever_was_asked_before() -> None:
    mesh, shape = DeviceMesh("x=2, y=2, z=2"), (8, 6)
    texts = ["[x+y, z]", "[_, x] // y, z", "[z, _] // x", "[y, z+x]", "[_, _]", "[_, z] // max(y)"]
    pairs = list(itertools.permutations([ShardingSpec.parse(text, mesh) for text in texts], 2))
    alone = []
    for source, target in pairs:
        clear_cache()
        alone.append(reshard(source, target, shape))
    clear_cache()
    assert [reshard(source, target, shape) for source, target in pairs[::-1]] == alone[::-1]


# -- as few bytes as Shardy -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target", "bytes"),
    [
        ("x=6, y=4", (8, 96), "[_, x:(1)3+y]", "[_, x:(2)3]", 3 * 256 + 256),  # permute, then gather over y
        ("a=6, b=6, c=8", (288,), "[a:(3)2+b:(3)2+a:(1)3+b:(1)3+c]", "[a+c+b:(2)3+b:(1)2]", 4),  # one permute
        ("a=6, b=6, c=2", (72,), "[c+b:(2)3]", "[a+b:(3)2]", 24),  # slice, then permute
        ("a=4, b=6", (24, 24), "[_, b]", "[b, a]", 160),  # slice, permute, shift between dims
        ("a=3, b=4, c=3", (24, 8, 8), "[b:(2)2, a, b:(1)2]", "[_, c+a, _]", 768),  # uneven: the same pieces move
        ("a=4, b=8, c=6", (192, 8), "[c:(2)3+c:(1)2+b, a]", "[b, a+c]", 112),
        ("a=6, b=6", (36, 8), "[a, b:(2)3]", "[b:(1)2+a:(1)2, b:(2)3+a:(2)3]", 60),
        # Uneven, and parts of axes that neither side names.
        ("a=8, b=4", (12,), "[a:(1)2+b]", "[b:(2)2+a]", 4),  # slice, then permute
        ("a=4, b=4, c=8", (12, 24), "[c:(1)4, b]", "[a, c+b:(2)2]", 24),
        ("a=4, b=2, c=2", (6,), "[b+a]", "[c+b]", 8),  # permute, then gather
        ("a=6, b=8", (6, 48), "[b:(1)4, a]", "[b+a:(3)2, a:(1)3]", 32),  # slice by the rest of b, then all_to_all
        # The same pieces elsewhere, then gathers of all that the target cuts less finely.
        ("a=4, b=8, c=8", (6, 256), "[c, a:(2)2+a:(1)2]", "[a, _]", 2048),
    ],
)
def test_parts_of_axes_of_3_and_6(mesh: str, shape: tuple[int, ...], source: str, target: str, bytes: int) -> None:
    """What Shardy's list of collectives sends, measured live, is the most; each step is what it says."""
    on = DeviceMesh(mesh)
    before, after = ShardingSpec.parse(source, on), ShardingSpec.parse(target, on)
    steps = reshard(before, after, shape)
    assert sum(step.bytes for step in steps) <= bytes
    deliver(steps, before, after, shape)


def deliver(steps: Sequence[Step], before: ShardingSpec, after: ShardingSpec, shape: tuple[int, ...]) -> None:
    """Carried out on numbers, the steps bring every device what the target gives it."""
    whole = np.arange(prod(shape), dtype=float).reshape(shape)
    shards = scatter(whole, before)
    for step in steps:
        shards = apply_step(shards, step)
    for found, right in zip(shards, scatter(whole, after), strict=True):
        np.testing.assert_array_equal(found, right)


def test_axes_cut_in_ways_that_exclude_each_other() -> None:
    """Random pairs, of which one side cuts an axis as 2 x 3 and the other as 3 x 2, on dims that divide and not."""
    rng = random.Random(0)
    for _ in range(60):
        mesh = DeviceMesh(rng.choice(("a=6", "a=6, b=2", "a=12, b=3", "a=6, b=6")))
        shape = tuple(rng.choice((mesh.size, mesh.size, 12, 7)) for _ in range(rng.choice((1, 2))))
        specs = []
        for n in rng.sample((2, 3), 2):
            dims: list[list[AxisRef]] = [[] for _ in shape]
            whole = mesh.axis("a")
            parts = [*whole.split(n), *(axis for axis in mesh.axes if axis.name != "a")]
            rng.shuffle(parts)
            for part in parts:
                if rng.random() < 0.75:
                    dims[rng.randrange(len(dims))].append(part)
            specs.append(ShardingSpec(mesh, [DimSpec(merge_axes(dim)) for dim in dims]))
        deliver(reshard(*specs, shape), *specs, shape)
