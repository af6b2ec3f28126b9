"""Measure the machine this runs on: matrix products, memory bandwidth, and collectives when run under torchrun.

With PyTorch its device is measured (CUDA, or the CPU), without it NumPy.  Under torchrun every group of 2, 4, ...
processes of a node is timed, and across nodes groups of one process in each; the slowest member counts.  The figures
are those of `cost.files`: `calibrate` writes a TOML that ``hardware="file.toml"`` takes.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..cost.files import write_hardware
from ..cost.fit import fit_roofline, growing
from ..cost.links import Link, LinkTable, Wire
from ..cost.machine import Hardware, Roofline

MOVED = ("pointwise", "reduce", "memory", "gather", "sort")
"""Cost classes that take the constants of memory traffic."""
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
Work = Callable[[], object]


class _Numpy:
    """Matrix products and copies with NumPy."""

    kinds: tuple[tuple[str, Any], ...] = (("f32", np.float32), ("f64", np.float64))

    @property
    def title(self) -> str:
        return f"{platform.processor() or platform.machine()} CPU, NumPy {np.__version__}"

    @property
    def memory(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def product(self, m: int, k: int, n: int, dtype: Any) -> Work:
        a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
        out = np.empty((m, n), dtype)
        return lambda: np.matmul(a, b, out=out)

    def move(self, count: int) -> Work:
        """Reads and writes ``count`` numbers of four bytes each."""
        a, out = np.ones(count, np.float32), np.empty(count, np.float32)
        return lambda: np.negative(a, out=out)

    def wait(self) -> None:
        return None


class _Torch:
    """The same with PyTorch, on CUDA where there is a device."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.cuda else torch.device("cpu")
        self.kinds = (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16))
        if not self.cuda:
            self.kinds = (("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16))

    @property
    def title(self) -> str:
        name = self.torch.cuda.get_device_name(self.device) if self.cuda else _Numpy().title.split(",")[0]
        return f"{name}, PyTorch {self.torch.__version__}"

    @property
    def memory(self) -> int:
        return int(self.torch.cuda.get_device_properties(self.device).total_memory) if self.cuda else _Numpy().memory

    def product(self, m: int, k: int, n: int, dtype: Any) -> Work:
        a, b = (self.torch.ones(shape, dtype=dtype, device=self.device) for shape in ((m, k), (k, n)))
        out = self.torch.empty((m, n), dtype=dtype, device=self.device)
        return lambda: self.torch.mm(a, b, out=out)

    def move(self, count: int) -> Work:
        a, out = (self.torch.ones(count, device=self.device) for _ in range(2))
        return lambda: self.torch.neg(a, out=out)

    def wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()


def calibrate(out: Path | str | None = None, quick: bool = False) -> Hardware:
    """Measure this machine; ``out`` is where the TOML goes, ``quick`` takes seconds and is coarser.

    Under torchrun every process must call it; the first one writes.
    """
    device = _device()
    spent = 0.01 if quick else 0.1
    sizes = (128, 512, 1024) if quick else (64, 128, 256, 512, 1024, 2048)
    if getattr(device, "cuda", False):
        sizes = (*sizes, 4096, 8192)
    moves = [2**i for i in ((10, 22, 24) if quick else (10, 12, 22, 23, 24, 25))]  # starting one, and main memory
    traffic = [(8 * count, seconds(device.move(count), device.wait, spent)) for count in moves]
    bandwidth = traffic[-1][0] / traffic[-1][1]  # the largest: no cache holds it
    rates, samples = [], []
    for name, dtype in device.kinds:
        item = np.dtype(dtype).itemsize if isinstance(device, _Numpy) else dtype.itemsize
        found = list(_products(device, dtype, item, sizes, spent))
        rates.append((name, max(flops / taken for flops, _, taken in found)))
        samples += [(flops / rates[-1][1], size / bandwidth, taken) for flops, size, taken in found]
    general = _rounded(fit_roofline(samples))
    moved = fit_roofline([(0.0, size / bandwidth, taken) for size, taken in traffic])
    link, network, node, nodes = _links(device, quick, bandwidth)
    measured = "collectives included" if isinstance(link, LinkTable) else "collectives not measured: run under torchrun"
    hardware = Hardware(
        name=device.title.split(",")[0],
        flops=tuple((name, round(rate)) for name, rate in rates),
        bandwidth=round(bandwidth),
        memory=device.memory // (1 if getattr(device, "cuda", False) else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
        default_link=link,
        launch=general.launch,
        flops_percent=general.flops_percent,
        bytes_percent=general.bytes_percent,
        source=f"measured by shardwright calibrate on {device.title}: {measured}",
        network=network,
        node=node,
        nodes=nodes,
        classes=tuple((kind, moved) for kind in MOVED),
    )
    if out is not None and int(os.environ.get("RANK", "0")) == 0:
        write_hardware(hardware, out)
    return hardware


def seconds(work: Work, wait: Callable[[], None], spent: float) -> float:
    """The median time of one call, over as many calls as fit in ``spent`` seconds."""
    work()
    wait()
    start = time.perf_counter()
    work()
    wait()
    calls = max(1, min(1000, round(spent / 5 / max(time.perf_counter() - start, 1e-7))))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        taken.append((time.perf_counter() - start) / calls)
    return median(taken)


def _device() -> _Numpy | _Torch:
    try:
        import torch
    except ImportError:
        return _Numpy()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return _Torch(torch)


def _products(
    device: _Numpy | _Torch, dtype: Any, item: int, sizes: Sequence[int], spent: float
) -> Iterator[tuple[int, int, float]]:
    """Operations, bytes and seconds of square products, and of flat ones that bytes decide."""
    for size in sizes:
        for m, k, n in ((size, size, size), (16, size, size)):
            taken = seconds(device.product(m, k, n, dtype), device.wait, spent)
            yield 2 * m * k * n, item * (m * k + k * n + m * n), taken


def _rounded(found: Roofline) -> Roofline:
    """A machine's percentages must be above 0."""
    return Roofline(found.launch, max(1, found.flops_percent), max(1, found.bytes_percent))


# -- collectives ----------------------------------------------------------------------------------------


def _links(
    device: _Numpy | _Torch, quick: bool, bandwidth: float
) -> tuple[Wire, LinkTable | None, int | None, int | None]:
    """The link of a node, the network, and how many devices and nodes there are."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or not isinstance(device, _Torch):
        # Nothing to talk to: as if every step of a ring went through memory.
        return Link(alpha=1e-6, beta=max(1, round(bandwidth / 2)), launch=5e-6), None, None, None
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    probe = _Probe(device, quick)
    try:
        link = probe.table([list(range(ways)) for ways in _doubling(inside)])
        across = [[node * inside for node in range(ways)] for ways in _doubling(world // inside)]
        network = probe.table(across) if across else None
    finally:
        probe.close()
    if link is None:  # one process in each node
        assert network is not None
        return network, None, None, None
    return link, network, inside if device.cuda or network else None, world // inside if network else None


def _doubling(limit: int) -> list[int]:
    """2, 4, 8, ... and the limit itself."""
    found = [2**i for i in range(1, limit.bit_length()) if 2**i <= limit]
    return found if not found or found[-1] == limit else [*found, limit]


class _Probe:
    """Times collectives of torch.distributed."""

    def __init__(self, device: _Torch, quick: bool) -> None:
        import torch.distributed as dist

        self.dist: Any = dist
        self.device = device
        self.mine = not dist.is_initialized()
        if self.mine:
            dist.init_process_group("nccl" if device.cuda else "gloo")
        self.rank = dist.get_rank()
        # Both were renamed after PyTorch 2.11.
        self.scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        self.gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        top = (24 if quick else 28) if device.cuda else (20 if quick else 24)
        self.sizes = [2**i for i in range(10, top + 1, 4 if quick else 2)]
        self.spent = 0.02 if quick else 0.1

    def close(self) -> None:
        if self.mine:
            self.dist.destroy_process_group()

    def table(self, groups: Sequence[Sequence[int]]) -> LinkTable | None:
        """Times of every group, on every rank; None without groups."""
        rows: dict[str, dict[int, list[float]]] = {}
        for ranks in groups:
            group = self.dist.new_group(list(ranks))
            for kind in KINDS:
                times = [self.measure(kind, ranks, group, size) for size in self.sizes]
                if all(taken is not None for taken in times):
                    grown = growing([round(taken * 10**6, 3) for taken in times if taken is not None])
                    rows.setdefault(kind, {})[len(ranks)] = [round(taken, 3) for taken in grown]
        return LinkTable.of(self.sizes, rows) if rows else None

    def measure(self, kind: str, ranks: Sequence[int], group: Any, size: int) -> float | None:
        """Seconds of the slowest member, known to all ranks; None where the backend has no such collective."""
        torch, count = self.device.torch, size // 4
        taken = 0.0
        if self.rank in ranks:
            whole, other = (torch.ones(count, device=self.device.device) for _ in range(2))
            part = torch.ones(count // len(ranks) or 1, device=self.device.device)
            room = whole[: part.numel() * len(ranks)]
            work = {
                "all_reduce": lambda: self.dist.all_reduce(whole, group=group),
                "reduce_scatter": lambda: self.scatter(part, room, group=group),
                "all_gather": lambda: self.gather(room, part, group=group),
                "all_to_all": lambda: self.dist.all_to_all_single(other[: room.numel()], room, group=group),
            }[kind]
            try:
                taken = self.repeated(work)
            except (RuntimeError, ValueError):
                taken = -1.0
        found = torch.tensor([taken, -taken], dtype=torch.float32, device=self.device.device)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        slowest, failed = float(found[0]), float(found[1]) > 0
        return None if failed else slowest

    def repeated(self, work: Work) -> float:
        """As `seconds`, with a number of calls that all members agree on."""
        for _ in range(2):
            work()
        self.device.wait()
        taken = []
        calls = 5 if self.spent < 0.1 else 20
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(calls):
                work()
            self.device.wait()
            taken.append((time.perf_counter() - start) / calls)
        return median(taken)
