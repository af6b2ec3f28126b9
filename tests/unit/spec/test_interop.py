"""Shardings as PyTorch and JAX write them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.spec.interop import to_partition_spec, to_placements
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import P, ShardingSpec

MESH = DeviceMesh("dp=2, tp=4")


def spec(text: str, mesh: DeviceMesh = MESH) -> ShardingSpec:
    return ShardingSpec.parse(text, mesh)


# -- stand-ins ------------------------------------------------------------------------------------------


class Placement:
    def is_shard(self) -> bool:
        return isinstance(self, Shard)

    def is_partial(self) -> bool:
        return isinstance(self, Partial)


@dataclass(frozen=True)
class Shard(Placement):
    dim: int


@dataclass(frozen=True)
class Strided(Placement):
    """Like PyTorch's, it does not count as a shard."""

    dim: int
    split_factor: int = 1


@dataclass(frozen=True)
class Partial(Placement):
    reduce_op: str = "sum"


@dataclass(frozen=True)
class Replicate(Placement):
    pass


FAKE = SimpleNamespace(Shard=Shard, _StridedShard=Strided, Partial=Partial, Replicate=Replicate)

PAIRS = [
    ("[_, _]", [Replicate(), Replicate()]),
    ("[dp, _]", [Shard(0), Replicate()]),
    ("[_, tp] // dp", [Partial(), Shard(1)]),
    ("[_, _] // max(dp), prod(tp)", [Partial("max"), Partial("product")]),
    ("[dp+tp, _]", [Shard(0), Shard(0)]),
    ("[tp+dp, _]", [Strided(0, 4), Shard(0)]),
]


# -- PyTorch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "placements"), PAIRS)
def test_placements_and_back(text: str, placements: list[Any]) -> None:
    assert to_placements(spec(text), FAKE) == tuple(placements)
    assert ShardingSpec.of(placements, MESH, 2) == spec(text)


@pytest.mark.parametrize("order", ["a+b+c", "a+c+b", "b+a+c", "b+c+a", "c+a+b", "c+b+a"])
def test_three_axes_on_a_dim_in_any_order(order: str) -> None:
    made = spec(f"[{order}]", DeviceMesh("a=2, b=3, c=4"))
    assert ShardingSpec.of(to_placements(made, FAKE), made.mesh, 1) == made


def test_a_dim_counted_from_the_end() -> None:
    assert ShardingSpec.of([Shard(-1), Replicate()], MESH, 2) == spec("[_, dp]")


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dim_that_is_not_there(dim: int) -> None:
    with pytest.raises(SpecError, match="for a tensor of 2 dims"):
        ShardingSpec.of([Shard(dim), Replicate()], MESH, 2)


def test_one_placement_for_each_axis() -> None:
    with pytest.raises(SpecError, match="1 placements for a mesh of 2 axes"):
        ShardingSpec.of([Shard(0)], MESH, 1)


def test_a_strided_shard_that_fits_no_axes() -> None:
    with pytest.raises(SpecError, match="does not fit the axes after it"):
        ShardingSpec.of([Strided(0, 3), Shard(0)], MESH, 1)


def test_a_reduction_that_we_do_not_know() -> None:
    with pytest.raises(SpecError, match="no pending reduction is called 'band'"):
        ShardingSpec.of([Partial("band"), Replicate()], MESH, 1)


def test_sub_axes_have_no_placement() -> None:
    for text in ("[tp:(1)2]", "[_] // tp:(1)2"):
        with pytest.raises(SpecError, match="part of a mesh axis"):
            to_placements(spec(text), FAKE)


def test_writing_needs_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed.tensor", None)
    with pytest.raises(SpecError, match="is not imported"):
        to_placements(spec("[dp]"))


class TestTorch:
    """The same with PyTorch's own classes."""

    @pytest.fixture
    def types(self) -> Any:
        return pytest.importorskip("torch.distributed.tensor")

    @pytest.mark.parametrize(
        "text", [text for text, _ in PAIRS] + ["[_, dp] // avg(tp)", "[_, _] // min(dp)", "[tp, dp]"]
    )
    def test_placements_and_back(self, types: Any, text: str) -> None:
        assert ShardingSpec.of(to_placements(spec(text), types), MESH, 2) == spec(text)

    def test_the_module_is_found_when_imported(self, types: Any) -> None:
        assert to_placements(spec("[dp, _]")) == (types.Shard(0), types.Replicate())

    def test_strided_shard(self, types: Any) -> None:
        from torch.distributed.tensor.placement_types import _StridedShard

        assert to_placements(spec("[tp+dp]"), types) == (_StridedShard(0, split_factor=4), types.Shard(0))

    def test_strided_shard_without_its_name_in_the_module(self, types: Any) -> None:
        from torch.distributed.tensor.placement_types import _StridedShard

        public = SimpleNamespace(Shard=types.Shard, Partial=types.Partial, Replicate=types.Replicate)
        assert to_placements(spec("[tp+dp]"), public)[0] == _StridedShard(0, split_factor=4)

    @pytest.mark.parametrize("order", ["a+b+c", "a+c+b", "b+a+c", "b+c+a", "c+a+b", "c+b+a"])
    def test_strided_shards_and_back(self, types: Any, order: str) -> None:
        made = spec(f"[{order}]", DeviceMesh("a=2, b=3, c=4"))
        assert ShardingSpec.of(to_placements(made, types), made.mesh, 1) == made


# -- JAX ------------------------------------------------------------------------------------------------


class PartitionSpec(tuple[Any, ...]):
    unreduced: frozenset[str] = frozenset()

    def __new__(cls, *entries: Any, unreduced: Any = ()) -> PartitionSpec:
        made = super().__new__(cls, entries)
        made.unreduced = frozenset(unreduced)
        return made


class UnconstrainedSingleton:
    pass


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (PartitionSpec("dp", None), "[dp, _]"),
        (PartitionSpec("dp"), "[dp, _]"),
        (PartitionSpec(), "[_, _]"),
        (PartitionSpec(None, ("tp", "dp")), "[_, tp+dp]"),
        (PartitionSpec((), "tp"), "[_, tp]"),
        (PartitionSpec(UnconstrainedSingleton(), "tp"), "[?, tp]"),
        (PartitionSpec("dp", unreduced={"tp"}), "[dp, _] // tp"),
    ],
)
def test_partition_spec(theirs: PartitionSpec, text: str) -> None:
    assert ShardingSpec.of(theirs, MESH, 2) == spec(text)


def test_named_sharding() -> None:
    theirs = SimpleNamespace(mesh=MESH, spec=PartitionSpec("dp"))
    assert ShardingSpec.of(theirs, MESH, 2) == spec("[dp, _]")


def test_named_sharding_of_another_mesh() -> None:
    theirs = SimpleNamespace(mesh=DeviceMesh("dp=4, tp=2"), spec=PartitionSpec("dp"))
    with pytest.raises(SpecError, match="is on another mesh"):
        ShardingSpec.of(theirs, MESH, 2)


@pytest.mark.parametrize("text", ["[_, _]", "[dp, _]", "[tp+dp, _]"])
def test_partition_spec_and_back(text: str) -> None:
    assert ShardingSpec.of(to_partition_spec(spec(text), PartitionSpec), MESH, 2) == spec(text)


def test_what_a_partition_spec_cannot_say() -> None:
    with pytest.raises(SpecError, match="cannot say that values are pending"):
        to_partition_spec(spec("[_] // tp"), PartitionSpec)
    with pytest.raises(SpecError, match="part of a mesh axis"):
        to_partition_spec(spec("[tp:(1)2]"), PartitionSpec)


# -- anything that says a sharding ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [spec("[dp, _]"), "[dp, _]", P("dp"), P("dp", None), ["dp", None], ("dp",), [Shard(0), Replicate()]],
)
def test_of_takes_every_form(said: Any) -> None:
    assert ShardingSpec.of(said, "dp=2, tp=4", 2) == spec("[dp, _]")


def test_none_is_replicated() -> None:
    assert ShardingSpec.of(None, MESH, 2) == spec("[_, _]")


@pytest.mark.parametrize("said", [spec("[dp]"), "[dp]", [Shard(0), Shard(3)], P(None, None, None), ["dp", None, None]])
def test_wrong_rank(said: Any) -> None:
    with pytest.raises(SpecError):
        ShardingSpec.of(said, MESH, 2)


def test_a_spec_of_another_mesh() -> None:
    with pytest.raises(SpecError, match="is on another mesh"):
        ShardingSpec.of(spec("[x]", DeviceMesh("x=8")), MESH, 1)


def test_what_is_no_sharding() -> None:
    with pytest.raises(SpecError, match="cannot read a sharding from int"):
        ShardingSpec.of(3, MESH, 1)
