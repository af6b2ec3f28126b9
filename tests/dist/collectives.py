"""Every rank: the engine's collectives on real processes, each against NumPy."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardwright.errors import MeshError, SpecError
from shardwright.run.torch import TorchEngine, exchange
from shardwright.run.torch.wire import moved_as, reduced_as

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
          torch.int32, torch.int64]  # fmt: skip

UNDER_WAY = 3_000


def run_op(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def numpy(tensor: Any) -> Any:
    tensor = tensor.detach()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def same(found: Any, expected: Any) -> None:
    assert tuple(found.shape) == np.shape(expected), (found.shape, np.shape(expected))
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-6)


class Check:
    def __init__(self) -> None:
        self.engine = TorchEngine("dp=2, tp=2", timeout=60)
        self.rank = self.engine.rank

    def of(self, rank: int, shape: tuple[int, ...], dtype: Any = torch.float64) -> Any:
        """What a rank has: everybody can make it."""
        generator = torch.Generator().manual_seed(rank)
        return torch.randint(0, 5, shape, generator=generator).to(dtype)

    def all(self, shape: tuple[int, ...], dtype: Any = torch.float64, ranks: Any = range(4)) -> list[Any]:
        return [numpy(self.of(rank, shape, dtype)) for rank in ranks]

    def group(self, axis: str) -> list[int]:
        at = self.engine.mesh.coordinates(self.rank)
        return [
            r for r in range(4) if self.engine.mesh.coordinates(r) == {**at, axis: r // 2 if axis == "dp" else r % 2}
        ]

    def reduce(self) -> None:
        engine = self.engine
        for dtype in DTYPES:
            x = self.of(self.rank, (3, 2), dtype)
            same(engine.all_reduce_sum(x), sum(self.all((3, 2), dtype)))
            assert engine.all_reduce_sum(x).dtype == dtype
        same(engine.all_reduce_sum(self.of(self.rank, ())), sum(self.all(())))
        same(engine.all_reduce_sum(self.of(self.rank, (0, 3))), np.zeros((0, 3)))
        same(engine.all_reduce_sum(self.of(self.rank, (3, 2)).t()), sum(self.all((3, 2))).T)
        same(engine.all_reduce(self.of(self.rank, (4,)), "avg"), sum(self.all((4,))) / 4)
        same(engine.all_reduce(self.of(self.rank, (4,)), "prod"), np.prod(self.all((4,)), axis=0))
        for axis in ("dp", "tp"):
            same(engine.all_reduce_sum(self.of(self.rank, (4,)), axis), sum(self.all((4,), ranks=self.group(axis))))
        same(engine.all_reduce_sum(self.of(self.rank, (4,)), ["dp", "tp"]), sum(self.all((4,))))

    def nan(self) -> None:
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            mine = [-float(self.rank), float("nan") if self.rank == 2 else 1.0, float("-inf"), float(self.rank)]
            x = torch.tensor(mine, dtype=dtype)
            same(self.engine.all_reduce(x, "max"), [0.0, np.nan, -np.inf, 3.0])
            same(self.engine.all_reduce(x, "min"), [-3.0, np.nan, -np.inf, 0.0])

    def gather(self) -> None:
        engine = self.engine
        for dtype in [*DTYPES, torch.bool]:
            same(engine.all_gather(self.of(self.rank, (2, 3), dtype)), np.concatenate(self.all((2, 3), dtype)))
        same(engine.all_gather(self.of(self.rank, ())), np.stack(self.all(())))
        same(engine.all_gather(self.of(self.rank, (3, 2)).t()), np.concatenate([x.T for x in self.all((3, 2))]))
        uneven = [self.of(r, (r, 2)) for r in range(4)]
        same(engine.all_gather(uneven[self.rank]), np.concatenate([numpy(x) for x in uneven]))
        same(engine.all_gather(self.of(self.rank, (0, 2))), np.zeros((0, 2)))
        same(engine.all_gather(self.of(self.rank, (2,)), "dp"), np.concatenate(self.all((2,), ranks=self.group("dp"))))

    def scatter(self) -> None:
        engine = self.engine
        for rows in (8, 6, 3, 1, 0):
            total = sum(self.all((rows, 2)))
            width = -(-rows // 4)
            same(
                engine.reduce_scatter(self.of(self.rank, (rows, 2))), total[self.rank * width : (self.rank + 1) * width]
            )
        same(engine.reduce_scatter(self.of(self.rank, (2, 4)).t()), sum(self.all((2, 4))).T[self.rank : self.rank + 1])
        half = self.of(self.rank, (4, 2), torch.bfloat16)
        same(engine.reduce_scatter(half), sum(self.all((4, 2), torch.bfloat16))[self.rank : self.rank + 1])

    def exchange(self) -> None:
        engine = self.engine
        for rows in ((8, 8, 8, 8), (5, 3, 0, 9)):
            all_rows = [numpy(self.of(r, (rows[r], 2))) for r in range(4)]
            cut = [np.split(x, [min(len(x), -(-len(x) // 4) * i) for i in (1, 2, 3)]) for x in all_rows]
            same(
                engine.all_to_all(self.of(self.rank, (rows[self.rank], 2))), np.concatenate([c[self.rank] for c in cut])
            )
        for dtype in (torch.int16, torch.bool, torch.complex64, torch.bfloat16):
            found = engine.all_to_all(self.of(self.rank, (4,), dtype))
            assert torch.equal(found, torch.stack([self.of(r, (4,), dtype)[self.rank] for r in range(4)]))
        ring = [(i, (i + 1) % 4) for i in range(4)]
        same(engine.permute(self.of(self.rank, (2, 3)), ring), self.all((2, 3))[(self.rank - 1) % 4])
        one = numpy(self.of(3, (2,))) if self.rank == 1 else np.zeros(2)
        same(engine.permute(self.of(self.rank, (2,)), [(3, 1)]), one)
        same(engine.broadcast(self.of(self.rank, (2, 3)), 2), self.all((2, 3))[2])
        same(engine.broadcast(self.of(self.rank, (2,)), 1, "tp"), self.all((2,))[self.group("tp")[1]])

    def groups(self) -> None:
        torch_mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        engine = TorchEngine(torch_mesh, timeout=60)
        assert engine.groups.process_group([0, 1] if self.rank < 2 else [2, 3]) is torch_mesh.get_group("b")
        same(engine.all_reduce_sum(self.of(self.rank, (2,)), "a"), sum(self.all((2,), ranks=self.group("dp"))))
        same(engine.all_reduce_sum(self.of(self.rank, (2,)), dist.group.WORLD), sum(self.all((2,))))
        turned = TorchEngine("dp=2, tp=2; devices=[3, 1, 0, 2]", timeout=60)
        order = np.concatenate([numpy(self.of(r, (2,))) for r in (3, 1, 0, 2)])
        same(turned.all_gather(self.of(self.rank, (2,))), order)
        cut = [numpy(self.of(r, (4,))) for r in (3, 1, 0, 2)]
        me = (3, 1, 0, 2).index(self.rank)
        same(turned.all_to_all(self.of(self.rank, (4,))), np.array([c[me] for c in cut]))
        if self.rank < 2:
            small = TorchEngine("x=2", allow_smaller_mesh=True, timeout=60)
            same(small.all_reduce_sum(self.of(self.rank, (2,))), sum(self.all((2,), ranks=range(2))))

    def under_way(self) -> None:
        """Many at a time, whose operands are gone: gloo's threads work on several of them at once."""
        draw = np.random.default_rng(0)
        peers = self.engine._peers("tp")
        started: deque[Any] = deque()
        for n in range(UNDER_WAY):
            size = int(draw.choice([4, 12, 64, 400]))
            kind = ("gather", "gather", "scatter", "reduce")[draw.integers(4)]
            x = torch.full((size,), float(n % 7))
            combined = reduced_as("f32", "sum", 2)
            cuts = [(0, size // 2), (size // 2, size)]
            if kind == "gather":
                message, total = exchange.all_gather(run_op, x, (size,), 0, [size] * 2, moved_as("f32"), peers), 1
            elif kind == "scatter":
                message, total = exchange.reduce_scatter(run_op, x, (size,), 0, cuts, combined, peers), 2
            else:
                message, total = exchange.all_reduce(run_op, x, combined, peers), 2
            (finish,) = exchange.start(run_op, [message])
            started.append((finish, total * (n % 7)))
            del x, finish, message
            if len(started) > 3:
                finish, number = started.popleft()
                assert (finish() == number).all()
        while started:
            finish, number = started.popleft()
            assert (finish() == number).all()

    def refused(self) -> None:
        engine = self.engine
        raises(
            SpecError, "a pending sum of bool cannot", lambda: engine.all_reduce_sum(torch.ones(2, dtype=torch.bool))
        )
        raises(SpecError, "a 0-d tensor has none", lambda: engine.reduce_scatter(torch.ones(())))
        raises(SpecError, "does not fit that of rank 0", lambda: engine.all_gather(torch.ones(2, 2 + self.rank // 3)))
        raises(SpecError, "rank 3", lambda: engine.all_gather(torch.ones(2, dtype=DTYPES[self.rank // 3])))
        raises(MeshError, "no member 4", lambda: engine.broadcast(torch.ones(2), 4))
        raises(MeshError, "smaller than the number of processes", lambda: TorchEngine("x=2"))
        raises(MeshError, "no process stands for", lambda: TorchEngine("x=8"))
        raises(MeshError, "no axis 'pp'", lambda: engine.all_reduce_sum(torch.ones(2), "pp"))


def raises(kind: type[Exception], text: str, work: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        work()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check = Check()
    for name in ("reduce", "nan", "gather", "scatter", "exchange", "groups", "under_way", "refused"):
        getattr(check, name)()
        print(f"passed {name}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
