"""The algebra of meshes, specs and rules, on random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.spec.axes import is_prefix, merge_axes
from shardwright.spec.factors import FactorSharding
from shardwright.spec.interop import to_placements
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule, RulePattern
from shardwright.spec.sharding import (
    DimSpec,
    ShardingSpec,
    compute_global_shape,
    needs_reshard,
)
from shardwright.spec.tensors import parse_tensor, tensor_text
from strategies import factor_shardings, meshes, patterns, placed, rules, shapes, specs

# -- parse(print(x)) == x -------------------------------------------------------------------------------


@given(meshes())
def test_mesh_text(mesh: DeviceMesh) -> None:
    assert DeviceMesh(str(mesh)) == mesh


@given(placed())
def test_spec_text(spec: ShardingSpec) -> None:
    assert ShardingSpec.parse(str(spec), spec.mesh) == spec


@given(placed(open=False, priorities=False, replicated=False), st.data())
def test_tensor_text(spec: ShardingSpec, data: st.DataObject) -> None:
    shape = data.draw(shapes(spec.rank))
    assert parse_tensor(tensor_text("bf16", shape, spec), spec.mesh) == ("bf16", shape, spec)


@given(patterns())
def test_pattern_text(pattern: RulePattern) -> None:
    assert RulePattern.parse(str(pattern)) == pattern


@given(rules())
def test_rule_text(rule: OpShardingRule) -> None:
    assert OpShardingRule.parse(str(rule)) == rule


@given(factor_shardings())
def test_rule_under_a_plan_text(chosen: FactorSharding) -> None:
    assert FactorSharding.parse(str(chosen), chosen.mesh, chosen.rule) == chosen


# -- meshes ---------------------------------------------------------------------------------------------


@given(meshes())
def test_coordinates_and_position_are_inverse(mesh: DeviceMesh) -> None:
    assert [mesh.position(mesh.coordinates(position)) for position in mesh] == list(mesh)


@given(st.data())
def test_groups_partition_the_mesh(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(specs(mesh, 1, partial=False, replicated=False)).sharded_axes
    groups = mesh.groups(axes)
    assert sorted(position for group in groups for position in group) == list(mesh)
    assert {len(group) for group in groups} == {DimSpec(axes).shards}


# -- local shards ---------------------------------------------------------------------------------------


@given(placed(), st.data())
def test_local_slices_tile_the_tensor(spec: ShardingSpec, data: st.DataObject) -> None:
    """Every element lies on as many devices as there are copies."""
    shape = data.draw(shapes(spec.rank, high=9))
    count = np.zeros(shape, int)
    for position in spec.mesh:
        count[spec.local_slices(shape, position)] += 1
    copies = spec.mesh.size // DimSpec(spec.sharded_axes).shards
    assert (count == copies).all()


@given(placed(), st.data())
def test_no_local_shape_is_larger_than_the_padded_one(spec: ShardingSpec, data: st.DataObject) -> None:
    shape = data.draw(shapes(spec.rank))
    local = np.array([spec.local_shape(shape, position) for position in spec.mesh])
    assert tuple(local.max(axis=0)) == spec.padded_shape(shape)


@given(placed(), st.data())
def test_global_shape_from_local_ones(spec: ShardingSpec, data: st.DataObject) -> None:
    shape = data.draw(shapes(spec.rank))
    local = [spec.local_shape(shape, position) for position in spec.mesh]
    assert compute_global_shape(local, spec) == shape


@given(st.data())
def test_no_reshard_means_equal_slices(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_axes=2, max_size=4))
    one, other = data.draw(specs(mesh, 2, partial=False)), data.draw(specs(mesh, 2, partial=False))
    shape = (24, 24)  # large enough for every axis to show

    def held(spec: ShardingSpec) -> list[tuple[slice, ...]]:
        return [spec.local_slices(shape, position) for position in mesh]

    assert needs_reshard(one, other) == (held(one) != held(other))


# -- PyTorch --------------------------------------------------------------------------------------------


def _sorted_in_mesh_order(spec: ShardingSpec) -> ShardingSpec:
    dims = [DimSpec(tuple(sorted(dim.axes, key=spec.mesh.order))) for dim in spec.dims]
    return ShardingSpec(spec.mesh, dims, spec.partial)


@given(placed(parts=False), st.data())
def test_local_shards_are_those_of_dtensor(spec: ShardingSpec, data: st.DataObject) -> None:
    """Uneven and empty ones included."""
    types = pytest.importorskip("torch.distributed.tensor")
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    spec = _sorted_in_mesh_order(spec)
    shape = data.draw(shapes(spec.rank, low=1))
    placements = to_placements(spec, types)
    for position in spec.mesh:
        where = list(spec.mesh.coordinates(position).values())
        local, offset = _compute_local_shape_and_global_offset(shape, spec.mesh.shape, where, placements)
        slices = spec.local_slices(shape, position)
        assert local == spec.local_shape(shape, position)
        if all(local):  # where an empty shard lies is nobody's business
            assert offset == tuple(part.start for part in slices)


@given(placed(parts=False, open=False, priorities=False, replicated=False), st.data())
def test_strided_shards_are_those_of_dtensor(spec: ShardingSpec, data: st.DataObject) -> None:
    """Axes in any order; PyTorch spells this for equal shards."""
    types = pytest.importorskip("torch.distributed.tensor")
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    assume(spec.rank > 0)
    times = data.draw(shapes(spec.rank, low=1, high=3))
    shape = tuple(n * dim.shards for n, dim in zip(times, spec.dims))
    placements = to_placements(spec, types)
    for position in spec.mesh:
        where = list(spec.mesh.coordinates(position).values())
        local, offset = _compute_local_shape_and_global_offset(shape, spec.mesh.shape, where, placements)
        slices = spec.local_slices(shape, position)
        assert local == spec.local_shape(shape, position)
        assert offset == tuple(part.start for part in slices)


@given(placed(parts=False, open=False, priorities=False, replicated=False))
def test_placements_and_back(spec: ShardingSpec) -> None:
    types = pytest.importorskip("torch.distributed.tensor")
    back = ShardingSpec.of(to_placements(spec, types), spec.mesh, spec.rank)
    assert not needs_reshard(back, spec)


# -- axes -----------------------------------------------------------------------------------------------


@given(placed(max_rank=1))
def test_merging_axes_changes_no_size_and_is_done_once(spec: ShardingSpec) -> None:
    merged = merge_axes(spec.sharded_axes)
    assert merge_axes(merged) == merged
    assert DimSpec(merged).shards == DimSpec(spec.sharded_axes).shards


@given(placed(max_rank=1))
def test_every_start_of_a_list_is_a_prefix(spec: ShardingSpec) -> None:
    axes = spec.sharded_axes
    assert all(is_prefix(axes[:count], axes) for count in range(len(axes) + 1))
