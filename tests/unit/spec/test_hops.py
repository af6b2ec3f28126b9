"""Single steps between shardings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardwright import DeviceMesh, ShardingSpec
from shardwright.spec.resharding.cheapest import reshard, reshard_table
from shardwright.spec.resharding.single_steps import Hops, one_step, steps_to
from shardwright.spec.resharding.steps import bytes_cost


def all_specs(mesh: DeviceMesh, rank: int, pending: bool = True) -> list[ShardingSpec]:
    """Every way to give each axis to a dim, to nobody, or to a sum; in mesh order."""
    found = []
    places = [None, *range(rank), *(["sum"] if pending else [])]
    for choice in product(places, repeat=len(mesh.axes)):
        dims = [[axis.name for axis, at in zip(mesh.axes, choice) if at == d] for d in range(rank)]
        left = [axis.name for axis, at in zip(mesh.axes, choice) if at == "sum"]
        found.append(ShardingSpec(mesh, dims, partial=left))
    return found


@pytest.mark.parametrize(("text", "rank"), [("d=4", 2), ("x=2, y=4", 2), ("x=2, y=2, z=2", 2), ("x=2, y=4", 3)])
def test_the_list_is_what_pairs_say(text: str, rank: int) -> None:
    mesh = DeviceMesh(text)
    specs = all_specs(mesh, rank)
    hops = Hops(mesh, specs)
    shape, item = (64,) * rank, 2
    bytes = 64**rank * item
    listed = {(int(i), int(j)): hops.classes[int(kind)] for i, j, kind in hops.steps}
    for i, source in enumerate(hops.specs):
        for j, target in enumerate(hops.specs):
            step = one_step(source, target, shape, item) if i != j else None
            if step is None:
                assert (i, j) not in listed, (source, target)
                continue
            found = listed.get((i, j))
            if found is None:
                # A slice or a new sum over several axes at once: the list has it axis by axis.
                assert step.is_local
                continue
            assert (found.kind, found.axes, found.sent(bytes)) == (step.kind, step.axes, step.bytes)


def test_ways_are_never_cheaper_than_a_search_finds() -> None:
    """A search also takes axes apart, which now and then saves bytes (in more steps)."""
    mesh = DeviceMesh("x=2, y=4")
    specs = all_specs(mesh, 2)
    hops = Hops(mesh, specs)
    shape = (64, 64)
    closed = np.full((len(hops.specs),) * 2, 1 << 60)
    np.fill_diagonal(closed, 0)
    for i, j, kind in hops.steps:
        closed[i, j] = min(closed[i, j], hops.classes[kind].sent(64 * 64 * 4))
    for k in range(len(closed)):
        closed = np.minimum(closed, closed[:, k, None] + closed[None, k])
    table = reshard_table(hops.specs, shape, 4, bytes_cost)
    assert (closed >= table).all()
    assert (closed == table).mean() > 0.8
    assert closed.sum() < 1.1 * table.sum()


def test_a_copy_is_made_from_what_was_said() -> None:
    mesh = DeviceMesh("x=2, y=4")
    whole, rows, columns = (ShardingSpec(mesh, dims) for dims in ([None, None], ["x", None], [None, "x"]))
    at, steps = steps_to(columns, [whole, rows], rows, (8, 8), 4)
    assert at == 1
    assert [step.kind for step in steps] == ["all_to_all"]
    at, steps = steps_to(columns, [whole, rows], None, (8, 8), 4)
    assert at == 0
    assert [step.kind for step in steps] == ["slice"]


def test_uneven_shards_have_no_single_step() -> None:
    """What a search finds for them is more than a name."""
    mesh = DeviceMesh("x=4")
    a, b = ShardingSpec(mesh, ["x", None]), ShardingSpec(mesh, [None, None])
    assert one_step(a, b, (6, 4), 4) is None
    assert steps_to(b, [a], a, (6, 4), 4) == (0, reshard(a, b, (6, 4), 4, idle=False))


def test_parts_of_axes_that_exclude_each_other_are_refused() -> None:
    mesh = DeviceMesh("x=6")
    a, b = ShardingSpec.parse("[x:(1)2, _]", mesh), ShardingSpec.parse("[x:(1)3, _]", mesh)
    with pytest.raises(ValueError, match="exclude"):
        Hops(mesh, [a, b])
    assert one_step(a, b, (6, 6), 4) is None
