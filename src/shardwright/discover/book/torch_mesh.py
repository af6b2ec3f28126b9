"""One call, split: the program of a single op is lowered for a factor of its rule and run on a virtual mesh.

This is how factors are proven that need more than the op itself on each device (``form(...)``), and the others are run
as well, so that what the frontend computes on a shard is what the rule means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...errors import ShardwrightError
from ...frontends.torch import prepare
from ...lower import lower
from ...propagation.choices import legal_axes
from ...propagation.complete import complete
from ...propagation.engine import OpView
from ...run import VirtualEngine
from ...run.torch import TorchArrays, assemble, scatter
from ...spec.axes import Axes
from ...spec.mesh import DeviceMesh
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from .torch_calls import AtenCall

MESHES = (DeviceMesh("x=2"), DeviceMesh("x=3"))
CLOSE = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 2e-5, torch.complex64: 2e-5}


def computed(call: AtenCall) -> tuple[Any, ...]:
    """The call on whole tensors."""
    with torch.no_grad():
        return prepare(call.op, call.attrs, call.results)(call.operands)


class Split:
    """A call, its rule, and what it gives unsplit."""

    def __init__(self, call: AtenCall, rule: OpShardingRule) -> None:
        self.call, self.rule = call, rule
        self.graph = call.graph()
        self.whole = computed(call)
        self.arbitrary = "empty" in call.op.split(".")[1].split("_")
        """Its numbers are whatever is in memory; only shapes can be compared."""

    def check(self, meshes: Sequence[DeviceMesh] = MESHES) -> Iterator[tuple[str, str]]:
        """Each factor that may be split, on each mesh: where, and what is wrong ("" if it is right)."""
        for f, factor in enumerate(self.rule.factors):
            for mesh in meshes:
                axes: list[Axes] = [()] * len(self.rule.factors)
                axes[f] = mesh.axes
                legal = legal_axes(self.rule, axes)
                if legal[f]:
                    yield f"{factor.name}/{mesh}", self.run(mesh, legal)

    def run(self, mesh: DeviceMesh, axes: tuple[Axes, ...]) -> str:
        """What goes wrong with these axes; "" if nothing does."""
        try:
            return self._compared(mesh, axes)
        except ShardwrightError as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:  # whatever the library raises on a shard
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"

    def _compared(self, mesh: DeviceMesh, axes: tuple[Axes, ...]) -> str:
        specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in self.graph.values]
        fixed = complete(self.graph, mesh, specs, lambda graph, node: OpView(self.rule), forced={0: axes})
        program = lower(fixed)
        shards = [scatter(tensor, spec) for tensor, spec in zip(self.call.tensors, fixed.inputs)]
        engine = VirtualEngine(mesh, prepare, TorchArrays())
        with torch.no_grad():
            outputs = engine.compile(program).run(shards)[0]
        for number, (value, parts, want) in enumerate(zip(program.outputs, outputs, self.whole)):
            local = program.values[value]
            shapes = [tuple(part.shape) for part in parts]
            expected = [local.local_shape(position) for position in local.spec.mesh]
            if shapes != expected:
                return f"result {number} has shards {shapes}, not {expected}"
            wrong = "" if self.arbitrary else _differ(assemble(parts, local.spec, local.type.shape), want)
            if wrong:
                return f"result {number} {wrong}"
        return ""


def _differ(got: Any, want: Any) -> str:
    if got.dtype != want.dtype:
        return f"is {got.dtype}, not {want.dtype}"
    if want.dtype in CLOSE:
        close = CLOSE[want.dtype]
        if torch.allclose(got, want, rtol=close, atol=close, equal_nan=True):
            return ""
        return f"is off by {float((got - want).abs().nan_to_num(float('inf')).max()):.3g}"
    if got.dtype in (torch.bfloat16, torch.float16):
        return "" if torch.allclose(got.float(), want.float(), rtol=2e-2, atol=2e-2, equal_nan=True) else "differs"
    return "" if torch.equal(got, want) else f"differs in {int((got != want).sum())} elements"
