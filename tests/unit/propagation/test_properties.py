"""What holds of propagation whatever the program, on random ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.propagation.engine import Propagated, propagate_sharding, run_hierarchical_propagation_pass
from shardwright.propagation.factors import Strategy, aggressive, basic
from shardwright.propagation.project import Projection
from shardwright.spec.axes import is_prefix
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import DimSpec, ShardingSpec
from strategies import Said, meshes, rule_of, rules, said, specs


def spread(said: Said, strategy: Strategy = aggressive) -> Propagated:
    return run_hierarchical_propagation_pass(
        said.graph, said.specs, rule_of, out_specs=said.out_specs, strategy=strategy
    )


def without_priorities(spec: ShardingSpec) -> ShardingSpec:
    return spec.replace(dims=[DimSpec(dim.axes, dim.open) for dim in spec.dims])


def assert_extends(after: ShardingSpec | None, before: ShardingSpec) -> None:
    assert after is not None
    assert (after.partial, after.replicated) == (before.partial, before.replicated)
    for new, old in zip(after.dims, before.dims, strict=True):
        assert new.open == old.open
        assert is_prefix(old.axes, new.axes)
        if not old.open:
            assert new.axes == old.axes


# -- dims and factors -----------------------------------------------------------------------------------


@given(st.data())
def test_dims_to_factors_to_dims_is_the_identity(data: st.DataObject) -> None:
    rule, mesh = data.draw(rules()), data.draw(meshes())
    given = [data.draw(specs(mesh, len(mapped), priorities=False)) for mapped in rule.tensors]
    assert Projection.of(rule, given).specs(mesh) == given


@given(rules(), meshes())
def test_nothing_said_is_everything_open(rule: OpShardingRule, mesh: object) -> None:
    found = Projection.of(rule, [None] * len(rule.tensors)).specs(mesh)  # type: ignore[arg-type]
    assert all(dim == DimSpec(open=True) for spec in found for dim in spec.dims)


# -- one op ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [basic, aggressive])
@given(data=st.data())
def test_one_op_extends_and_is_finished(strategy: Strategy, data: st.DataObject) -> None:
    rule, mesh = data.draw(rules()), data.draw(meshes())
    given = [data.draw(specs(mesh, len(mapped), priorities=False)) for mapped in rule.tensors]
    found = propagate_sharding(rule, given, strategy=strategy)
    for before, after in zip(given, found, strict=True):
        assert_extends(after, before)
    assert propagate_sharding(rule, found, strategy=strategy) == found


# -- whole programs -------------------------------------------------------------------------------------


@given(said())
def test_deterministic(said: Said) -> None:
    one, other = spread(said), spread(said)
    assert one == other


@pytest.mark.parametrize("strategy", [basic, aggressive])
@given(said=said())
def test_monotone(strategy: Strategy, said: Said) -> None:
    """Axes are only added, and none to a closed dim."""
    found = spread(said, strategy)
    for value, before in said.specs.items():
        assert_extends(found.specs[value], before)
    for output, before in said.out_specs.items():
        assert_extends(found.out_specs[output], before)


@given(said())
def test_specs_are_well_formed(said: Said) -> None:
    """The engine makes specs unchecked; made again with all checks they are the same."""
    found = spread(said)
    for spec in (*found.specs, *found.out_specs):
        if spec is not None:
            assert ShardingSpec(spec.mesh, spec.dims, spec.partial, spec.replicated) == spec


@pytest.mark.parametrize("strategy", [basic, aggressive])
@given(said=said())
def test_fixed_point(strategy: Strategy, said: Said) -> None:
    once = spread(said, strategy)
    specs = {value: spec for value, spec in enumerate(once.specs) if spec is not None}
    outs = {i: spec for i, spec in enumerate(once.out_specs) if spec is not None}
    twice = spread(Said(said.graph, specs, outs), strategy)
    assert (twice.specs, twice.out_specs) == (once.specs, once.out_specs)
    assert twice.updates == 0


@given(said())
def test_every_axis_has_a_reason(said: Said) -> None:
    """An axis is there because the user said so, or because it came from somewhere that has it."""
    found = spread(said)
    for value, spec in enumerate(found.specs):
        before = said.specs.get(value)
        for d, dim in enumerate(spec.dims if spec is not None else ()):
            for axis in dim.axes:
                was = before is not None and any(old.overlaps(axis) for old in before.dims[d].axes)
                assert was or found.provenance.find(value, d, axis) is not None
