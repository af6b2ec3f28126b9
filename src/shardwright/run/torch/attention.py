"""Which kernel computes attention on a device: by what each can do, and by what was measured.

| device | kernel | applies to |
|---|---|---|
| cuda | flash | f16, bf16; width at most 256 and a multiple of 8; no mask; any band without a prefix |
| cuda | cudnn | f16, bf16; width at most 128 and a multiple of 8; no mask; all keys, or those up to a query's place |
| cuda | efficient | f32 and half types; width a multiple of 4 (half: 8); the same bands, or a mask and 16n keys |
| cpu | flash | f32, f64, f16, bf16; the same bands, or a mask without gradient |
| any | math | everything: the formula of the frontend, in blocks of queries |

Of those that apply, and that PyTorch's switches allow (`torch.nn.attention.sdpa_kernel`,
``torch.backends.cuda.enable_flash_sdp``, ...), the one is taken that was fastest in the nearest measured case of
``attention_times.toml``; ``kernel=`` names another.  Kernels other than flash know causal attention of as many queries
as keys only; where a rank has later queries, or a prefix is seen by all, attention is put together of two such calls
(`tiles`), which is as exact: each leaves the logarithm of its sums.

To extend: a `Kernel` in `attention_kernels`, and lines in the table of times.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import torch

from ...errors import SpecError, near_misses
from ...frontends.torch.recording.attention import local_attrs
from ...ir.graph import TensorType
from ...spec.band import Band
from .attention_kernels import KERNELS, Case, Emit, plain, together
from .wire import Call

FORWARD, BACKWARD, INFERENCE = (
    "shardwright.attention", "shardwright.attention_backward", "aten.scaled_dot_product_attention",
)  # fmt: skip
MATH = "math"
_OPERANDS = {FORWARD: (0, 4), BACKWARD: (1, 7), INFERENCE: (0, 4)}
"""Where the query stands, and how many operands the op has; one more says where queries begin."""
_TIMES = Path(__file__).parent / "attention_times.toml"
_switches: Any = torch.backends.cuda  # untyped


@dataclass(frozen=True)
class Chosen:
    """How an op of attention is computed: ``chosen(call, operands)`` writes it."""

    kernel: str
    emit: Emit

    def __call__(self, call: Call, operands: Sequence[Any]) -> Sequence[Any]:
        return self.emit(call, operands)


def choose_attention(
    op: str,
    attrs: Mapping[str, Any],
    given: Sequence[TensorType | None],
    device: torch.device,
    offset: int = 0,
    kernel: str | None = None,
) -> Chosen | None:
    """How to compute an op of attention here, on queries that begin at ``offset``; None for any other op."""
    if op not in _OPERANDS:
        return None
    at, count = _OPERANDS[op]
    query, key, value, mask = given[at : at + 4]
    assert query is not None
    assert key is not None
    assert value is not None
    said = local_attrs(attrs, offset, query.shape[-2], key.shape[-2])
    formula = Chosen(MATH, plain(op, said, count))
    band = Band.of(said)
    if said["dropout_p"] or said.get("mask_grad") or (op == INFERENCE and (mask is not None or band.sees_all)):
        return formula  # of the last PyTorch chooses the kernel by itself
    case = Case(query, key, value, mask, band, said["scale"], said["enable_gqa"])
    able = [name for name in KERNELS.get(device.type, {}) if KERNELS[device.type][name].applies(case)]
    if kernel is None:
        order = ranking(case, op != BACKWARD, _device_name(device)) if len(able) > 1 else []
        allowed = [name for name in able if device.type != "cuda" or _allowed(name)]
        kernel = min(allowed, key=lambda name: order.index(name) if name in order else len(order), default=MATH)
    elif kernel not in (*able, MATH):
        raise SpecError(
            f"no kernel {kernel!r} computes this attention on {device.type}",
            rows=[("able", ", ".join((*able, MATH))), ("query", str(query)), ("key", str(key)), ("sees", str(band))],
            help=near_misses(kernel, (*able, MATH)) or "leave it out, and one is chosen that does",
        )  # fmt: skip
    return formula if kernel == MATH else Chosen(kernel, together(KERNELS[device.type][kernel], case, op))


def _allowed(name: str) -> bool:
    """What the user allows PyTorch."""
    switch = {"flash": "flash_sdp_enabled", "cudnn": "cudnn_sdp_enabled", "efficient": "mem_efficient_sdp_enabled"}
    return bool(getattr(_switches, switch[name])())


# -- measured -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Milliseconds of each kernel in one case."""

    device: str
    direction: str
    sees: str
    batch_heads: int
    queries: int
    keys: int
    width: int
    ms: Mapping[str, float]


@cache
def measured() -> tuple[Measured, ...]:
    """The table of times."""
    with _TIMES.open("rb") as file:
        return tuple(Measured(**row) for row in tomllib.load(file)["case"])


def ranking(case: Case, forward: bool, device: str) -> list[str]:
    """The kernels of the nearest measured case, fastest first."""
    direction = "forward" if forward else "backward"
    sees = "all" if case.band.sees_all else "causal" if case.band.left is None else "window"
    heads = case.query.shape[0] * case.query.shape[1]
    here = (heads, case.query.shape[-2], case.key.shape[-2], case.query.shape[-1])

    def distance(row: Measured) -> tuple[bool, bool, float]:
        there = (row.batch_heads, row.queries, row.keys, row.width)
        apart = sum(abs(log2(a) - log2(b)) for a, b in zip(here, there))
        return row.device not in device, row.sees != sees, apart

    rows = [row for row in measured() if row.direction == direction]
    nearest = min(rows, key=distance, default=None)
    return [] if nearest is None else sorted(nearest.ms, key=lambda name: nearest.ms[name])


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else ""
