"""What a parallel program that somebody else wrote costs: `foreign_view`, for `compare`.

A rank's program is read as a Program: its values are as large as they are on the rank, its collectives run over the
axes of the mesh that their groups are.  Time and memory are then computed as for any Program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..cost import RESIDENT, Hardware, ProgramCost, memory_profile, program_cost
from ..errors import SpecError
from ..frontends.ranks import COMMUNICATION, PARAMETER, Traced
from ..ir.program import Instr, Local, Program
from ..spec.axes import Axes
from ..spec.collective import COLLECTIVES, collective_bytes
from ..spec.mesh import DeviceMesh
from ..spec.sharding import DimSpec, ShardingSpec

_LIKE = {
    "broadcast": "all_gather", "gather": "all_gather", "scatter": "all_to_all", "reduce": "reduce_scatter",
    "send": "collective_permute", "receive": "collective_permute",
}  # fmt: skip
"""Calls that Programs do not have, by the collective that moves as much."""


@dataclass(frozen=True)
class ForeignView:
    """A foreign program as it is run: the Program of all ranks, or of the slowest."""

    program: Program
    cost: ProgramCost
    memory: int
    """Bytes, at the peak."""
    alike: bool
    """Whether all ranks do the same."""

    @property
    def collectives(self) -> int:
        return len(self.program.collectives)


def foreign_view(
    parallel: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], mesh: DeviceMesh,
    hardware: Hardware, loss: Any = None,
) -> ForeignView:  # fmt: skip
    """Run a parallel program on all ranks, and price it; ``parallel`` is as for `shardwright.torch.prove`."""
    from ..frontends.torch.foreign.running import trace_parallel

    if not callable(parallel):
        raise SpecError(
            f"foreign= takes functions that make a parallel module or step of a torch mesh, not {parallel!r}",
            help='write foreign={"mine": lambda mesh: parallelize_module(...)}',
        )
    ranks = trace_parallel(parallel, tuple(args), dict(kwargs), mesh.shape, mesh.axis_names, loss)
    return view_of(ranks, mesh, hardware)


def view_of(ranks: Sequence[Traced], mesh: DeviceMesh, hardware: Hardware) -> ForeignView:
    programs = [program_of(traced, mesh) for traced in ranks]
    texts = [[(instr.op, instr.operands, instr.axes, instr.bytes) for instr in program.instrs] for program in programs]
    alike = all(text == texts[0] for text in texts)
    priced = [(program_cost(program, hardware), program) for program in (programs[:1] if alike else programs)]
    cost, program = max(priced, key=lambda pair: pair[0].objective)
    memory = max(memory_profile(one, RESIDENT).peak for _, one in priced)
    return ForeignView(program, cost, memory, alike)


def program_of(traced: Traced, mesh: DeviceMesh) -> Program:
    """The program of one rank: tensors are as large as they are there."""
    graph = traced.graph
    values = tuple(
        Local(value.id, value.type, ShardingSpec.make(mesh, (DimSpec(()),) * value.type.rank), value.name)
        for value in graph.values
    )
    instrs = []
    for node in graph.nodes:
        if not node.op.startswith(COMMUNICATION):
            instrs.append(Instr(node.op, node.operands, node.results, node.attrs, source=node.source, views=node.views))
            continue
        kind = node.op.removeprefix(COMMUNICATION)
        kind = _LIKE.get(kind, kind)
        attrs: dict[str, Any] = dict(node.attrs)
        axes = _axes(mesh, traced.rank, attrs["group"])
        moved = node.inputs if kind != "collective_permute" or node.inputs else node.results
        given = sum(graph.type(value).bytes for value in moved)
        if kind in COLLECTIVES:
            sent = collective_bytes(kind, len(attrs["group"]), given)
            instrs.append(Instr(kind, node.operands, node.results, (), axes, sent, cause="yours", source=node.source))
    places = {given.name: i for i, given in enumerate(traced.given) if given.kind == PARAMETER}
    updates = tuple(
        (places[left.name], i) for i, left in enumerate(traced.left) if left.kind == PARAMETER and left.name in places
    )
    return Program("foreign", mesh, values, tuple(instrs), graph.inputs, graph.outputs, updates)


def _axes(mesh: DeviceMesh, rank: int, group: Sequence[int]) -> Axes:
    """The axes along which the ranks of a group differ; all of them, if the group is none of the mesh."""
    for count in range(1, len(mesh.axes) + 1):
        for some in combinations(mesh.axes, count):
            if any(sorted(found) == sorted(group) for found in mesh.groups(some)):
                return tuple(some)
    return tuple(mesh.axes)
