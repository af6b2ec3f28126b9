"""`NumpyEngine`: one device, no collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..errors import MeshError
from ..frontends.base import Framework
from ..ir.program import Program
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .engine import EngineBase
from .virtual import CompiledProgram, VirtualEngine


class NumpyEngine(EngineBase):
    """Runs Programs of one device; refuses every collective."""

    name = "numpy"

    def __init__(self, mesh: Any = "d=1", framework: Framework | None = None) -> None:
        self.mesh = DeviceMesh.of(mesh)
        if self.mesh.size != 1:
            raise MeshError(
                f"the numpy engine has one device, the mesh {self.mesh} has {self.mesh.size}",
                help="use engine='virtual' for several in one process",
            )
        self.counts: Counter[str] = Counter()
        self._one = VirtualEngine.of(self.mesh, framework)

    def supports_distributed(self) -> bool:
        return False

    def compile(self, program: Program) -> CompiledProgram:
        self.counts["compile"] += 1
        return self._one.compile(program)

    def scatter(self, whole: Any, spec: ShardingSpec) -> Any:
        return self._one.scatter(whole, spec)

    def assemble(self, held: Any, spec: ShardingSpec, shape: Sequence[int]) -> Any:
        return self._one.assemble(held, spec, shape)

    def all_reduce_sum(self, tensor: Any, group: Any = None) -> Any:
        raise self._one_device("all_reduce_sum")

    def all_gather(self, tensor: Any, group: Any = None) -> Any:
        raise self._one_device("all_gather")

    def reduce_scatter(self, tensor: Any, group: Any = None) -> Any:
        raise self._one_device("reduce_scatter")

    def _one_device(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"the numpy engine has one device and no {what}; use engine='virtual' for several in one process"
        )


def make(mesh: Any, framework: Framework) -> NumpyEngine:
    return NumpyEngine(mesh, framework)
