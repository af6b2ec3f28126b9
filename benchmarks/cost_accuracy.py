"""How near costs come to what was measured: ``python benchmarks/cost_accuracy.py``

Collectives: tables are made of every other measurement (NVIDIA's, single nodes, ../shared/hardware) and tested on the
rest; the mean relative error is printed beside its goal, for straight lines in bytes, which `cost.links` uses, and in
logarithms.  Then the laws that any model must obey, over all presets.

``--gpu`` measures matrix products, attention and ops of other classes on the CUDA device it runs on, compares them with
a preset, and fits the constants anew (on half of the shapes, tested on the other half).  The measurements go to
``$OUT/cost_gpu.csv``, or to ``--csv FILE``; ``--read FILE`` evaluates such a file without a GPU.

    PYTHONPATH=src python benchmarks/cost_accuracy.py --gpu --preset h200
    PYTHONPATH=src python benchmarks/cost_accuracy.py --read cost_gpu.csv --preset h200

Copies that transpose are measured and shown, but nothing is fitted to them: neighbours in memory end far apart, which
takes seven times as long as a plain copy, and costs know no strides.  Fitted in, they would make plain copies dear.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

from shardwright import DeviceMesh, OpShardingRule
from shardwright.cost import Hardware, LinkTable, Roofline, communication_cost, hardware_of
from shardwright.cost.compute import SCORED, Work, op_time, operations
from shardwright.cost.fit import fit_roofline

ROOT = Path(__file__).parent.parent
MEASURED = ROOT.parent / "shared" / "hardware" / "nccl_measured_half.csv"
MIB = 2**20
PRESETS = ("a100", "h100", "h200", "b200", "cpu")
ITEM = 2
"""Bytes of bf16."""
TRANSPOSED = "transposed"
"""Rows that are costed as memory and that nothing is fitted to."""


# -- collectives ----------------------------------------------------------------------------------------


def in_logarithms(table: LinkTable, kind: str, ways: int, size: int) -> float:
    """The other way to read a table, for comparison."""
    row = next(row for k, w, row in table.times if (k, w) == (kind, ways))
    i = min(max(bisect_right(table.sizes, size), 1), len(row) - 1)
    (a, b), (s, t) = table.sizes[i - 1 : i + 1], row[i - 1 : i + 1]
    return s * (t / s) ** (math.log(size / a) / math.log(b / a))


def withheld() -> None:
    """Errors on the measurements that the tables were not made of, both ways round."""
    sys.path.insert(0, str(ROOT / "tools"))
    from make_presets import read_measurements, table

    series = read_measurements(MEASURED)
    straight: list[tuple[int, float]] = []
    logarithms: list[tuple[int, float]] = []
    for system in sorted({system for system, _, _ in series}):
        mine: list[float] = []
        for first in (0, 1):
            made = table(series, system, slice(first, None, 2))
            for (name, kind, ways), measured in series.items():
                for size in sorted(measured)[1 - first :: 2] if name == system else ():
                    if made.sizes[0] <= size <= made.sizes[-1]:
                        true = measured[size] * 10**6
                        mine.append(abs(made.time(kind, ways, size) / true - 1))
                        straight.append((size, mine[-1]))
                        logarithms.append((size, abs(in_logarithms(made, kind, ways, size) / true - 1)))
        print(f"  {system:22} {mean(mine):6.2%}  ({len(mine)} measurements)")
    for title, found in (("straight in bytes", straight), ("straight in logarithms", logarithms)):
        large = mean(error for size, error in found if size >= MIB)
        print(f"  {title:22} all sizes {mean(e for _, e in found):6.2%} (goal 6%), from 1 MiB {large:6.2%} (goal 6.5%)")


def laws() -> None:
    """Counts how often a law is broken, over presets, groups and sizes."""
    checked = broken = 0
    for name in PRESETS:
        for axes in ("d=2", "d=3", "d=4", "d=6", "d=8", "d=16", "a=4, b=8", "a=3, b=8"):
            mesh = DeviceMesh(axes)
            hardware = hardware_of(name).on(mesh)
            before: dict[str, int] = {}
            for exponent in range(4, 125):
                size = round(2 ** (exponent / 4))

                def cost(kind: str, put_in: int, hardware: Hardware = hardware, mesh: DeviceMesh = mesh) -> int:
                    return communication_cost(kind, mesh.axes, put_in, hardware)

                now = {kind: cost(kind, size) for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")}
                halves = now["reduce_scatter"] + cost("all_gather", -(-size // mesh.size)) + cost("all_gather", 0)
                kept = [
                    all(before.get(kind, 0) <= found for kind, found in now.items()),
                    now["reduce_scatter"] <= now["all_reduce"],
                    now["all_reduce"] <= halves,
                    size * mesh.size < MIB or now["all_to_all"] <= 1.05 * now["all_gather"],
                ]
                checked += len(kept)
                broken += kept.count(False)
                before = now
    print(f"  {checked} checks, {broken} broken")


# -- compute --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One measurement: an op by class, its work and its bytes."""

    kind: str
    shape: str
    dtype: str
    flops: int
    read: int
    made: int
    us: float

    @cached_property
    def work(self) -> Work:
        return scored(self.shape) if self.kind in SCORED else Work(self.flops)

    def predicted(self, hardware: Hardware) -> float:
        kind = "memory" if self.kind == TRANSPOSED else self.kind
        return op_time(kind, self.work, [self.read], [self.made], self.dtype, hardware) / 10**6

    def error(self, hardware: Hardware) -> float:
        return abs(self.predicted(hardware) / self.us - 1)


def scored(shape: str) -> Work:
    """What costing counts for ``batch x heads/kv x length x width [causal] [backward]``, by a rule such as the book's.

    >>> scored("1x32/8x1024x128 causal") == scored("1x32/32x1024x128") // 2
    True
    """
    sizes, *words = shape.split()
    batch, heads, length, width = sizes.split("x")
    queries, served = (int(x) for x in heads.split("/"))
    q, k = "b (h g) s d", "b h t d"
    tensors = f"{q}, {q}, {k}, {k} -> {q}, {k}, {k}" if "backward" in words else f"{q}, {k}, {k} -> {q}"
    rule = OpShardingRule.parse(
        f"{tensors} | b={batch} h={served} g={queries // served} s={length} t={length} d={width}"
    )
    return operations(rule, "attention", rule.sizes, {"is_causal": "causal" in words})


Make = Callable[[Any, Any], Callable[[], object]]
"""(torch, device) -> a call on tensors of its own."""


@dataclass(frozen=True)
class Case:
    kind: str
    shape: str
    flops: int
    read: int
    made: int
    make: Make


def product(m: int, k: int, n: int, layout: str = "nt") -> Case:
    """``x @ w.T`` as layers do it (nt), ``x @ w`` (nn), ``x.T @ w`` as gradients of weights are made (tn)."""

    def make(torch: Any, device: Any) -> Callable[[], object]:
        a = torch.randn((k, m) if layout == "tn" else (m, k), dtype=torch.bfloat16, device=device)
        b = torch.randn((n, k) if layout == "nt" else (k, n), dtype=torch.bfloat16, device=device)
        left, right = (a.t() if layout == "tn" else a), (b.t() if layout == "nt" else b)
        out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        return lambda: torch.mm(left, right, out=out)

    return Case("matmul", f"{m}x{k}x{n} {layout}", 2 * m * k * n, ITEM * (m * k + k * n), ITEM * m * n, make)


def attention(batch: int, heads: int, kv: int, length: int, width: int, causal: bool, backward: bool = False) -> Case:
    def make(torch: Any, device: Any) -> Callable[[], object]:
        functional = torch.nn.functional
        q, k, v = (
            torch.randn((batch, h, length, width), dtype=torch.bfloat16, device=device, requires_grad=backward)
            for h in (heads, kv, kv)
        )

        def forward() -> Any:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv)

        if not backward:
            return forward
        out = forward()
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    score = 2 * batch * heads * length * length * width // (2 if causal else 1)
    of_q, of_k = ITEM * batch * heads * length * width, ITEM * batch * kv * length * width
    sums = 4 * batch * heads * length
    text = f"{batch}x{heads}/{kv}x{length}x{width}{' causal' if causal else ''}{' backward' if backward else ''}"
    if backward:
        return Case("attention", text, 5 * score, 3 * of_q + 2 * of_k + sums, of_q + 2 * of_k, make)
    return Case("attention", text, 2 * score, of_q + 2 * of_k, of_q, make)


def moved(kind: str, shape: tuple[int, int]) -> Case:
    """An op that memory decides."""
    m, n = shape
    size = ITEM * m * n
    taken = max(1, m // 4)
    read, made = {
        "pointwise": (2 * size, size),
        "reduce": (size, ITEM * m),
        "memory": (size, size),
        TRANSPOSED: (size, size),
        "gather": (ITEM * taken * n + 8 * taken, ITEM * taken * n),
        "sort": (size, size + 8 * m * n),
    }[kind]

    def make(torch: Any, device: Any) -> Callable[[], object]:
        a, b = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        rows = torch.randint(m, (taken,), device=device)
        return {
            "pointwise": lambda: torch.add(a, b),
            "reduce": lambda: torch.sum(a, 1),
            "memory": lambda: torch.cat((a[: m // 2], a[m // 2 :])),
            TRANSPOSED: lambda: a.t().contiguous(),
            "gather": lambda: torch.index_select(a, 0, rows),
            "sort": lambda: torch.sort(a, 1),
        }[kind]

    return Case(kind, f"{m}x{n} cat" if kind == "memory" else f"{m}x{n}", 0, read, made, make)


def cases(small: bool) -> Iterator[Case]:
    if small:  # a test of the script on a CPU
        yield from (product(m, 64, 64, layout) for m in (16, 128) for layout in ("nt", "nn", "tn"))
        yield from (attention(1, 4, kv, 64, 16, causal) for kv in (2, 4) for causal in (False, True))
        yield attention(1, 4, 4, 64, 16, True, backward=True)
        yield from (moved(kind, (64, 64)) for kind in ("pointwise", "reduce", "memory", TRANSPOSED, "gather", "sort"))
        return
    weights = [
        (4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 1024), (4096, 768), (512, 4096),
        (1792, 4096), (4096, 3584), (8192, 8192), (8192, 1280), (3584, 8192), (4096, 16032), (2048, 2048),
    ]  # fmt: skip
    for tokens in (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384):
        for k, n in weights:
            yield product(tokens, k, n)
    for tokens in (1024, 4096, 8192, 16384):
        for k, n in weights[:8]:
            yield product(tokens, n, k, "nn")
            yield product(n, tokens, k, "tn")
    for width, heads in ((64, 16), (128, 32), (128, 4)):
        for length in (512, 1024, 2048, 4096, 8192):
            for batch in (1, 4):
                for causal in (False, True):
                    yield attention(batch, heads, heads, length, width, causal)
    for length in (1024, 4096, 8192):
        yield attention(1, 32, 8, length, 128, True)
        yield attention(1, 32, 32, length, 128, True, backward=True)
        yield attention(4, 16, 16, length, 64, False, backward=True)
    for kind in ("pointwise", "reduce", "memory", TRANSPOSED, "gather"):
        for shape in ((64, 4096), (512, 4096), (2048, 4096), (8192, 4096), (8192, 14336), (16384, 28672)):
            yield moved(kind, shape)
    for shape in ((64, 4096), (1024, 4096), (8192, 4096)):
        yield moved("sort", shape)


def measure(case: Case, torch: Any, device: Any) -> float:
    """Microseconds of one call: several in a row, on tensors of their own where the cache would hold them."""
    if device.type == "cpu":
        call = case.make(torch, device)
        call()
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            call()
            taken.append((time.perf_counter() - start) * 10**6)
        return median(taken)
    sets = max(1, min(16, 256 * MIB // (case.read + case.made)))
    calls = [case.make(torch, device) for _ in range(sets)]
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()

    def timed(work: Callable[[], object], repeats: int) -> list[float]:
        found = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) * 1000)
        return found

    once = min(timed(calls[0], 3))
    count = max(len(calls) if once < 200 else 1, min(64, round(2000 / once)))

    def several() -> None:
        for i in range(count):
            calls[i % sets]()

    run: Callable[[], object] = several
    if "backward" not in case.shape:
        # A graph takes the host's time per call out, which a program that runs ahead does not see either.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            several()
        run = graph.replay
    timed(run, 2)
    return median(timed(run, 5)) / count


def gpu(small: bool) -> list[Row]:
    import torch

    device = torch.device("cpu" if small else "cuda")
    title = "cpu" if small else torch.cuda.get_device_name()
    print(f"measuring on {title}, PyTorch {torch.__version__}", flush=True)
    start = time.perf_counter()
    rows = []
    for case in cases(small):
        try:
            taken = measure(case, torch, device)
        except RuntimeError as error:  # one shape must not cost the others
            print(f"  left out: {case.kind} {case.shape}: {str(error).splitlines()[0]}")
            continue
        rows.append(Row(case.kind, case.shape, "bf16", case.flops, case.read, case.made, round(taken, 3)))
        if not small:
            torch.cuda.empty_cache()
    print(f"{len(rows)} measurements in {time.perf_counter() - start:.0f} s")
    return rows


def write(rows: Sequence[Row], path: Path) -> None:
    names = [field.name for field in fields(Row)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)
    print(f"written to {path}")


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(
                # Copies were once all transposing, and their shapes said no more.
                TRANSPOSED if row["kind"] == "memory" and " " not in row["shape"] else row["kind"],
                row["shape"], row["dtype"], int(row["flops"]), int(row["read"]), int(row["made"]), float(row["us"]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


def fitted(rows: Sequence[Row], hardware: Hardware, units: int = 0) -> Roofline:
    """Constants for rows of one class; how many ``units`` a device has is known."""
    samples, scores = [], []
    for row in rows:
        work = row.work
        times, over = work.stretch(units)
        taken = work * times / over / hardware.peak(row.dtype)
        samples.append((taken, (row.read + row.made) / hardware.bandwidth, row.us / 10**6))
        scores.append(work.scores * times / over)
    return fit_roofline(samples, scores=scores if any(scores) else (), units=units)


def evaluate(rows: Sequence[Row], hardware: Hardware) -> None:
    """Errors of the preset, and of constants fitted to every other shape, tested on the rest."""
    print(f"against {hardware.name}; goal for matrix products and attention: 15%")
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        text = f"  {kind:10} {len(mine):4} shapes: mean error {mean(row.error(hardware) for row in mine):6.1%}"
        if kind == TRANSPOSED:
            text += " (costed as plain copies; nothing is fitted to them)"
        elif len(mine) > 2:
            text += anew(mine, hardware)
        print(text)
        for row in sorted(mine, key=lambda row: -row.error(hardware))[:3]:
            print(f"    {row.shape:28} {row.us:10.1f} us, predicted {row.predicted(hardware):10.1f}")


def anew(mine: Sequence[Row], hardware: Hardware) -> str:
    """What fitting rows of one class gives."""
    kind, units = mine[0].kind, hardware.roofline(mine[0].kind).units
    text = ""
    if len(mine) > 7:
        errors = []
        for first in (0, 1):
            found = replace(hardware, classes=((kind, fitted(mine[first::2], hardware, units)),))
            errors.append(mean(row.error(found) for row in mine[1 - first :: 2]))
        text = "; fitted on one half, on the other " + " and ".join(f"{error:.1%}" for error in errors)
    whole = fitted(mine, hardware, units)
    now = mean(row.error(replace(hardware, classes=((kind, whole),))) for row in mine)
    parts = [f"{whole.launch:.3g}", str(whole.flops_percent), str(whole.bytes_percent)]
    parts += [f"{whole.scores:.4g}", str(units)] if whole.scores or units else []
    return f"{text}; on all {now:.1%}: Roofline({', '.join(parts)})"


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy of the cost model")
    parser.add_argument("--gpu", action="store_true", help="measure ops on this machine's CUDA device")
    parser.add_argument("--small", action="store_true", help="a few small ops on the CPU instead: tests the script")
    parser.add_argument("--preset", default="h200", help="what to compare with (a name or a TOML file)")
    parser.add_argument("--csv", type=Path, help="where the measurements go")
    parser.add_argument("--read", type=Path, help="evaluate measurements instead")
    said = parser.parse_args()
    if said.gpu or said.small:
        rows = gpu(said.small)
        write(rows, said.csv or Path(os.environ.get("OUT", ".")) / "cost_gpu.csv")
        evaluate(rows, hardware_of(said.preset))
    elif said.read:
        evaluate(read(said.read), hardware_of(said.preset))
    else:
        print("collectives, every other measurement withheld")
        withheld()
        print("laws")
        laws()


if __name__ == "__main__":
    main()
