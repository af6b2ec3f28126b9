"""What tests of emitted strategies share: this file is copied into their folder.  Needs nothing but torch.

Each check makes three assertions: nothing is communicated, the results lie as the rule says, the numbers are right.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

Made = Callable[[], tuple[list[torch.Tensor], Callable[..., Any]]]
"""Makes the tensors of a call, and what calls the operator on them."""


def normal(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parts(tensor: torch.Tensor, reduce: str, seed: int, world: int) -> list[torch.Tensor]:
    """What ranks may hold of a pending tensor: unequal parts that reduce to it."""
    others = world - 1
    count = torch.arange(tensor.numel()).reshape(tensor.shape) + seed
    if reduce in ("sum", "avg"):
        whole = tensor * world if reduce == "avg" else tensor
        held = [((count * (rank + 3)) % 7 - 2).to(tensor.dtype) for rank in range(others)]
        return [*held, whole - sum(held)]
    if reduce == "product":
        factor = 1 - 2 * (count % 2)  # 1 and -1: exact in every dtype
        return [*[factor.to(tensor.dtype)] * others, tensor * (factor**others).to(tensor.dtype)]
    # Each element is right on one rank, and beaten on the others.
    away = (count % 3 + 1).to(tensor.dtype) * (-1 if reduce == "max" else 1)
    return [torch.where(count % world == rank, tensor, tensor + away) for rank in range(world)]


def tensors_of(result: Any) -> list[Any]:
    """The tensors that a call returns, as a list."""
    items = result if isinstance(result, (list, tuple)) else [result]
    return [item for item in items if isinstance(item, torch.Tensor)]


class _Checking:
    """What both ways to run the checks have in common."""

    WORLD = 2
    WRITTEN: tuple[int, ...] = ()
    """Tensors that the operator writes to."""
    TOLERANCE: float | None = 1e-4
    """None where the operator is random: then only shapes and dtypes can be compared."""

    def expected(self, tensors: Sequence[torch.Tensor], call: Callable[..., Any]) -> list[Any]:
        plain = [tensor.clone() for tensor in tensors]
        return tensors_of(call(*plain)) + [plain[i] for i in self.WRITTEN]

    def compare(self, communication: CommDebugMode, found: Sequence[Any], inputs: Sequence[Any], outputs: Any) -> None:
        wanted = [*outputs, *(inputs[i] for i in self.WRITTEN)]
        assert communication.get_total_counts() == 0, f"{communication.get_total_counts()} != 0 collectives"
        assert [result.placements for result in found] == [(p,) for p in wanted], "the results lie otherwise"

    def compare_numbers(self, numbers: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        for number, truth in zip(numbers, expected, strict=True):
            if self.TOLERANCE is None:
                assert (number.shape, number.dtype) == (truth.shape, truth.dtype)
            else:
                torch.testing.assert_close(number, truth, rtol=self.TOLERANCE, atol=self.TOLERANCE, equal_nan=True)


class LocalCase(_Checking, unittest.TestCase):
    """All ranks in this process: a fake process group, and `LocalTensorMode`, which computes collectives exactly."""

    def setUp(self) -> None:
        dist.init_process_group("fake", rank=0, world_size=self.WORLD, store=FakeStore())
        self.addCleanup(dist.destroy_process_group)

    def check(self, sample: Made, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Tensors lying like `inputs` give results lying like `outputs`: locally, and with the right numbers."""
        tensors, call = sample()
        expected = self.expected(tensors, call)
        pending = [
            parts(tensor, placement.reduce_op, seed, self.WORLD) if placement.is_partial() else None
            for seed, (tensor, placement) in enumerate(zip(tensors, inputs, strict=True))
        ]
        with LocalTensorMode(self.WORLD) as ranks:
            mesh = init_device_mesh("cpu", (self.WORLD,))
            placed = [
                DTensor.from_local(ranks.rank_map(held.__getitem__), mesh, [placement], run_check=False)
                if held is not None
                else distribute_tensor(tensor.clone(), mesh, [placement])
                for tensor, held, placement in zip(tensors, pending, inputs, strict=True)
            ]
            with CommDebugMode() as communication:  # type: ignore[no-untyped-call]
                found = tensors_of(call(*placed)) + [placed[i] for i in self.WRITTEN]
            self.compare(communication, found, inputs, outputs)
            numbers = [result.full_tensor() for result in found]
            numbers = [n.reconcile() if isinstance(n, LocalTensor) else n for n in numbers]
        self.compare_numbers(numbers, expected)


def spawned_case() -> type:
    """One process a rank, by PyTorch's own base class (which needs ``expecttest``)."""
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

    class SpawnedCase(_Checking, DTensorTestBase):
        @property
        def world_size(self) -> int:
            return self.WORLD

        def check(self, sample: Made, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            """As `LocalCase.check`."""
            tensors, call = sample()
            expected = self.expected(tensors, call)
            mesh = self.build_device_mesh()
            placed = []
            for seed, (tensor, placement) in enumerate(zip(tensors, inputs, strict=True)):
                if placement.is_partial():
                    held = parts(tensor, placement.reduce_op, seed, self.WORLD)[self.rank].to(self.device_type)
                    placed.append(DTensor.from_local(held, mesh, [placement], run_check=False))
                else:
                    placed.append(distribute_tensor(tensor.to(self.device_type), mesh, [placement]))
            with CommDebugMode() as communication:  # type: ignore[no-untyped-call]
                found = tensors_of(call(*placed)) + [placed[i] for i in self.WRITTEN]
            self.compare(communication, found, inputs, outputs)
            self.compare_numbers([_finished(result, self.WORLD) for result in found], expected)

    return SpawnedCase


def _finished(result: Any, world: int) -> torch.Tensor:
    """The whole tensor on the CPU.  Averages are finished by hand, since gloo has none."""
    if result.placements == (Partial("avg"),):
        result = DTensor.from_local(result.to_local() / world, result.device_mesh, [Partial("sum")], run_check=False)
    whole: torch.Tensor = result.full_tensor().cpu()
    return whole
