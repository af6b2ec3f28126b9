"""Writes the presets of GPUs: data sheets, fitted constants, and measured collectives as compact tables.

    python tools/make_presets.py ../shared/hardware/nccl_measured_half.csv

The file holds columns system, nccl, op, num_gpus, bytes, latency_us: NVIDIA's measurements on single nodes, published
in ai-dynamo/aiconfigurator (Apache-2.0).  Only the tables are shipped.  `cpu` is not made here: calibrate measures it.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from shardwright.cost.files import GIGA, TERA, write_hardware
from shardwright.cost.fit import growing
from shardwright.cost.links import LinkTable
from shardwright.cost.machine import OVERLAPPED, Hardware, Roofline

OUT = Path(__file__).parent.parent / "src" / "shardwright" / "cost" / "presets"
KINDS = {
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
}
"""Names in the file -> ours."""

Series = dict[tuple[str, str, int], dict[int, float]]
"""(system, kind, group size) -> message in bytes -> microseconds."""

HOPPER = {"f32": 66.9, "f64": 66.9, "bf16": 989.4, "f16": 989.4} | dict.fromkeys(
    ("f8e4m3", "f8e5m2", "i8", "u8"), 1978.9
)
AMPERE = {"f32": 19.5, "f64": 19.5} | dict.fromkeys(("bf16", "f16", "f8e4m3", "f8e5m2"), 312.0) | {"i8": 624, "u8": 624}
BLACKWELL = {"f32": 75.0, "f64": 37.0, "bf16": 2250.0, "f16": 2250.0} | dict.fromkeys(
    ("f8e4m3", "f8e5m2", "i8", "u8"), 4500.0
)
MACHINES = {
    # preset: (system in the file, name, tera-operations a second, GB/s, GB, sheet)
    "a100": ("a100_sxm", "A100 SXM", AMPERE, 2039, 80, "NVIDIA A100 SXM4 80 GB data sheet"),
    "h100": ("h100_sxm", "H100 SXM", HOPPER, 3350, 80, "NVIDIA H100 SXM5 data sheet"),
    "h200": ("h200_sxm", "H200 SXM", HOPPER, 4800, 141, "NVIDIA H200 SXM data sheet"),
    "b200": ("b200_sxm", "B200 SXM", BLACKWELL, 7700, 180, "NVIDIA HGX B200 data sheet"),
}
H200 = {
    "matmul": Roofline(3.48e-6, 133, 79, unaligned_percent=620),
    "attention": Roofline(5.16e-6, 81, 67, 3_360 * GIGA, 132),
    "pointwise": Roofline(2.02e-6, 0, 120, unlike_percent=182),
    "reduce": Roofline(3.88e-6, 0, 170),
    "memory": Roofline(2.02e-6, 0, 140),
    "gather": Roofline(2.6e-6, 0, 119),
    "sort": Roofline(13.7e-6, 0, 769),
    "update": Roofline(1e-6, 0, 185),
    "fused": Roofline(2.5e-6, 0, 120),
}
"""Attention, sorting and what starting a product takes: `benchmarks/cost_accuracy.py --gpu`.  All else: steps of GPT-2
and ViT, op by op (`benchmarks/gpu_ops.py`), products and fused kernels by whole compiled steps of these two
(`benchmarks/gpu_step.py`).  A device that gives all its power to products is slower than in single ones (118%)."""
A100_PRODUCTS = 118
"""A100's products, as single ones of an H200: it has power enough for its peak."""
UNITS = {"a100": 108, "h100": 132, "h200": 132, "b200": 148}
"""Multiprocessors."""
A100_RATE = 200
"""TFLOP/s of attention: at H200's share of the peak products alone would need 97% of it, which its kernels do not."""


def attention(name: str) -> Roofline:
    """H200's constants: percentages kept, exponentials by multiprocessor; H100 is the same chip.

    A100's products take what its said rate leaves of the time of a score of heads of 128.
    """
    whole = H200["attention"]
    scores = round(whole.scores * UNITS[name] // UNITS["h200"], -10)
    found = replace(whole, scores=scores, units=UNITS[name])
    if name != "a100":
        return found
    flops = 4 * 128
    left = flops / (A100_RATE * TERA) - 1 / found.scores
    return replace(found, flops_percent=round(100 * left * AMPERE["bf16"] * TERA / flops))


STEPS = "PyTorch 2.11.0+cu130, steps of GPT-2 and ViT, 2026-11-18, benchmarks/gpu_ops.py and gpu_step.py"
OWN = f"constants of cost classes: in percent of its own peak and bandwidth as measured on an H200 ({STEPS})"
SCALED = "attention: scaled from H200 by peak, bandwidth and number of multiprocessors, not measured"
COMPUTE_SOURCE = {
    "a100": f"{OWN}, not measured; products as single ones on H200, since an A100 has power enough for its peak; "
    f"{SCALED}; its products so that heads of 128 reach the 200 TFLOP/s that kernels are said to",
    "h100": f"{OWN}, which has the same chip; {SCALED}",
    "h200": (
        "constants of cost classes: NVIDIA H200, PyTorch 2.11.0+cu130: start-up, attention with heads of 64 and 128, "
        "sorting from single ops (2026-11-15, benchmarks/cost_accuracy.py --gpu), pointwise, reductions, copies and "
        "updates from every op of a step of GPT-2 and ViT (2026-11-18, benchmarks/gpu_ops.py), products from whole "
        "compiled steps of these two, in which a device that gives all its power to products is slower by an eighth "
        "than in single ones (benchmarks/gpu_step.py); convolution as matrix products"
    ),
    "b200": f"{OWN}, not measured; {SCALED}",
}

NETWORK_SOURCE = (
    "network of 400 Gb/s for each GPU: all_reduce over 4 x 8 B200 (stas00/ml-engineering, network/benchmarks) "
    "and over 2 x 8 H100 (awsome-distributed-training, nccl-tests, MIT-0), each GPU taking an eighth to the network; "
    "other collectives 60% of it, as in one node"
)
FOUR_NODES = {  # KiB of all_reduce over 4 x 8: GB/s of the algorithm
    32: 0.33, 64: 0.66, 128: 1.21, 256: 2.10, 512: 3.61, 1024: 6.44, 2048: 10.73, 4096: 16.33, 8192: 26.12,
    16384: 37.06, 32768: 73.76, 65536: 102.07, 131072: 134.45, 262144: 146.18, 524288: 159.95, 2**20: 188.90,
    2**21: 191.62, 2**22: 193.37, 2**23: 194.14, 2**24: 194.43,
}  # fmt: skip
TWO_NODES = {  # bytes of all_reduce over 2 x 8: microseconds
    8: 69.12, 2**20: 123.2, 2**24: 298.1, 2**27: 870.3, 2**30: 4607.6, 2**34: 66132.0,
}  # fmt: skip


def read_measurements(path: Path) -> Series:
    """All series but those of the L40S, a box that looks broken."""
    found: Series = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["system"] != "l40s":
                key = row["system"], KINDS[row["op"]], int(row["num_gpus"])
                found[key][int(row["bytes"])] = float(row["latency_us"])
    return dict(found)


def table(series: Series, system: str, keep: slice = slice(None)) -> LinkTable:
    """The table of one system; ``keep`` withholds measurements, for testing."""
    rows: dict[str, dict[int, list[float]]] = defaultdict(dict)
    sizes: list[int] = []
    for (name, kind, ways), measured in series.items():
        if name == system:
            sizes = sorted(measured)[keep]
            rows[kind][ways] = [round(time, 3) for time in growing([measured[size] for size in sizes])]
    return LinkTable.of(sizes, rows)


def network() -> LinkTable:
    """Rings of one GPU in each node, from what whole nodes took: an eighth of the message each."""
    sizes = [2**i for i in range(9, 32)]
    four = {kib * 1024 // 8: kib * 1024 / (rate * 1000) for kib, rate in FOUR_NODES.items()}
    two = {size // 8: time for size, time in TWO_NODES.items()}
    reduce = {ways: growing([_loglog(known, size) for size in sizes]) for ways, known in ((2, two), (4, four))}
    share = {ways: [0.6 * time for time in row] for ways, row in reduce.items()}
    rows = {"all_reduce": reduce, "reduce_scatter": share, "all_gather": share}
    return LinkTable.of(
        sizes, {kind: {w: [round(t, 2) for t in row] for w, row in known.items()} for kind, known in rows.items()}
    )


def _loglog(known: dict[int, float], size: int) -> float:
    points = sorted(known.items())
    if size <= points[0][0]:
        return points[0][1]
    for (a, s), (b, t) in pairwise(points):
        if size <= b:
            at = math.log(size / a) / math.log(b / a)
            return s * (t / s) ** at
    return points[-1][1] * size / points[-1][0]


def preset(name: str, series: Series) -> Hardware:
    system, title, rates, bandwidth, memory, sheet = MACHINES[name]
    rates = {**rates, "c64": rates["f32"] / 4, "c128": rates["f64"] / 4}
    products = H200["matmul"]
    if name == "a100":
        products = replace(products, flops_percent=A100_PRODUCTS)
    return Hardware(
        name=title,
        flops=tuple((dtype, round(rate * TERA)) for dtype, rate in rates.items()),
        bandwidth=bandwidth * GIGA,
        memory=memory * GIGA,
        default_link=table(series, system),
        launch=products.launch,
        flops_percent=products.flops_percent,
        bytes_percent=products.bytes_percent,
        source=(
            f"peaks, bandwidth and memory: {sheet}, dense rates, f32 without TF32, complex a quarter of real; "
            f"{COMPUTE_SOURCE[name]}; "
            f"NVLink: NCCL on 2, 4 and 8 GPUs, measured by NVIDIA (ai-dynamo/aiconfigurator, Apache-2.0), made to "
            f"grow; {NETWORK_SOURCE}"
        ),
        network=network(),
        node=8,
        classes=tuple((H200 | {"matmul": products, "attention": attention(name)}).items()),
        overlap=OVERLAPPED,
    )


def main(path: str) -> None:
    series = read_measurements(Path(path))
    OUT.mkdir(exist_ok=True)
    for name in MACHINES:
        write_hardware(preset(name, series), OUT / f"{name}.toml")
        print(OUT / f"{name}.toml")


if __name__ == "__main__":
    main(*sys.argv[1:])
