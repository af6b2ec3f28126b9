"""Which kernel computes attention on a device: the table, and each as a few op calls.

| device | kernel | applies to |
|---|---|---|
| cuda | flash | f16, bf16; width at most 256 and a multiple of 8; no mask; causal only with as many keys as queries |
| cuda | cudnn | as flash; taken where flash is switched off |
| cuda | efficient | f32 and half types; width a multiple of 4 (half: 8); a mask only with keys a multiple of 16 |
| cpu | flash | f32, f64, f16, bf16; mask without gradient |
| any | plain | everything else: the formula of the frontend |

All work on [batch, heads, sequence, width], have no empty dim, no dropout, and leave the logarithm of the sum of
exponentials per query, natural base, as the captured program has it.  ``aten.scaled_dot_product_attention`` itself, in
programs without gradients, chooses like this within PyTorch and is called as it is.

To extend: a function of (call, operands) for each direction, and a line in `_CHOICES`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.graph import TensorType
from .wire import Call

aten = torch.ops.aten
FORWARD, BACKWARD = "shardwright.attention", "shardwright.attention_backward"
Emit = Callable[[Call, Sequence[Any]], Sequence[Any]]
_HALF = ("f16", "bf16")
_switches: Any = torch.backends.cuda  # untyped; what the user allows


@dataclass(frozen=True)
class Case:
    """One use of attention, as a rank sees it."""

    query: TensorType
    key: TensorType
    value: TensorType
    mask: TensorType | None
    causal: bool
    scale: float
    grouped: bool

    @property
    def repeats(self) -> int:
        """How many query heads share a key head."""
        return self.query.shape[-3] // self.key.shape[-3]

    @property
    def is_plain(self) -> bool:
        """What every kernel asks for."""
        tensors = (self.query, self.key, self.value)
        alike = all(t.rank == 4 and t.elements and t.dtype == self.query.dtype for t in tensors)
        heads = self.query.shape[-3] % self.key.shape[-3] == 0 if alike else False
        same_batch = alike and self.query.shape[0] == self.key.shape[0] == self.value.shape[0]
        return heads and same_batch and (self.grouped or self.repeats == 1)

    @property
    def square(self) -> bool:
        return self.query.shape[-2] == self.key.shape[-2]


def choose_attention(
    op: str, attrs: Mapping[str, Any], given: Sequence[TensorType | None], device: torch.device
) -> Emit | None:
    """How to compute a forward or backward op of attention here; None for any other op, and for the formula."""
    if op not in (FORWARD, BACKWARD) or attrs["dropout_p"] > 0 or attrs["mask_grad"]:
        return None
    query, key, value, mask = given[1:5] if op == BACKWARD else given[:4]
    if query is None or key is None or value is None:
        return None
    case = Case(query, key, value, mask, attrs["is_causal"], attrs["scale"], attrs["enable_gqa"])
    if not case.is_plain:
        return None
    for applies, forward, backward in _CHOICES.get(device.type, ()):
        if applies(case):
            made = forward if op == FORWARD else backward
            return lambda call, operands: made(call, case, operands)
    return None


# -- conditions -----------------------------------------------------------------------------------------


def _cpu_flash(case: Case) -> bool:
    same_width = case.query.shape[-1] == case.value.shape[-1]
    return case.query.dtype in ("f32", "f64", *_HALF) and same_width and not (case.causal and case.mask is not None)


def _cuda_flash(case: Case) -> bool:
    width = case.query.shape[-1]
    fits = width <= 256 and width % 8 == 0 and case.value.shape[-1] == width
    return (
        case.query.dtype in _HALF
        and fits
        and case.mask is None
        and (case.square or not case.causal)
        and bool(_switches.flash_sdp_enabled())
    )


def _cuda_cudnn(case: Case) -> bool:
    width = case.query.shape[-1]
    fits = width <= 128 and width % 8 == 0 and case.value.shape[-1] == width
    return (
        case.query.dtype in _HALF
        and fits
        and case.mask is None
        and (case.square or not case.causal)
        and case.query.shape[-2] > 1
        and bool(_switches.cudnn_sdp_enabled())
    )


def _cuda_efficient(case: Case) -> bool:
    step = 8 if case.query.dtype in _HALF else 4
    widths = case.query.shape[-1] % step == 0 and case.value.shape[-1] % step == 0
    mask = case.mask is None or (not case.causal and case.key.shape[-2] % 16 == 0)
    return (
        case.query.dtype in ("f32", *_HALF)
        and widths
        and mask
        and (case.square or not case.causal)
        and bool(_switches.mem_efficient_sdp_enabled())
    )


# -- parts ----------------------------------------------------------------------------------------------


def _pick(call: Call, made: Any, *places: int) -> list[Any]:
    return [call(operator.getitem, made, place) for place in places]


def _spread(call: Call, case: Case, tensor: Any, type: TensorType) -> Any:
    """A key head for every query head."""
    if case.repeats == 1:
        return tensor
    batch, heads, length, width = type.shape
    tensor = call(
        aten.expand.default, call(aten.unsqueeze.default, tensor, 2), [batch, heads, case.repeats, length, width]
    )
    return call(aten.reshape.default, tensor, [batch, heads * case.repeats, length, width])


def _gather(call: Call, case: Case, grad: Any, type: TensorType) -> Any:
    """The gradients of the query heads that share a key head, summed."""
    if case.repeats == 1:
        return grad
    batch, heads, length, width = type.shape
    grad = call(aten.reshape.default, grad, [batch, heads, case.repeats, length, width])
    return call(aten.sum.dim_IntList, grad, [2])


def _bias(call: Call, case: Case, mask: Any, expand: bool) -> Any:
    """A mask as numbers that are added to scores, with dims for batch and heads."""
    if mask is None or case.mask is None:
        return None
    if case.mask.dtype == "bool":
        wanted = call(aten.zeros_like.default, mask, dtype=_dtype(case))
        mask = call(aten.masked_fill.Scalar, wanted, call(aten.logical_not.default, mask), float("-inf"))
    elif case.mask.dtype != case.query.dtype:
        mask = call(aten._to_copy.default, mask, dtype=_dtype(case))
    if expand:
        full = [*case.query.shape[:-1], case.key.shape[-2]]
        return call(aten.expand.default, mask, full)
    missing = 4 - case.mask.rank
    return mask if missing <= 0 else call(aten.reshape.default, mask, [*[1] * missing, *case.mask.shape])


def _dtype(case: Case) -> torch.dtype:
    from ...frontends.torch import torch_dtype

    return torch_dtype(case.query.dtype)


def _shown(call: Call, tensor: Any) -> Any:
    """With the last dim contiguous, as kernels ask for."""
    return call(aten.contiguous.default, tensor)


def _rows(call: Call, case: Case, tensors: Sequence[Any]) -> tuple[Any, Any, Any]:
    query, key, value = tensors
    return query, _spread(call, case, key, case.key), _spread(call, case, value, case.value)


# -- CPU ------------------------------------------------------------------------------------------------


def _cpu_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = _rows(call, case, operands[:3])
    mask = _bias(call, case, operands[3], expand=False)
    options = {"attn_mask": mask} if mask is not None else {}
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    return _pick(call, call(op, query, key, value, 0.0, case.causal, scale=case.scale, **options), 0, 1)


def _cpu_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, *tensors, mask, out, logsumexp = operands
    query, key, value = _rows(call, case, tensors)
    mask = _bias(call, case, mask, expand=False)
    options = {"attn_mask": mask} if mask is not None else {}
    op = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    made = call(op, grad, query, key, value, out, logsumexp, 0.0, case.causal, scale=case.scale, **options)
    d_query, d_key, d_value = _pick(call, made, 0, 1, 2)
    return [d_query, _gather(call, case, d_key, case.key), _gather(call, case, d_value, case.value)]


# -- CUDA -----------------------------------------------------------------------------------------------


def _flash_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = _rows(call, case, operands[:3])
    op = aten._scaled_dot_product_flash_attention.default
    return _pick(call, call(op, query, key, value, 0.0, case.causal, scale=case.scale), 0, 1)


def _flash_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, *tensors, _, out, logsumexp = operands
    query, key, value = _rows(call, case, tensors)
    seed = _no_random(call, logsumexp)
    op = aten._scaled_dot_product_flash_attention_backward.default
    made = call(
        op, grad, query, key, value, out, logsumexp, None, None, case.query.shape[-2], case.key.shape[-2], 0.0,
        case.causal, seed, seed, scale=case.scale,
    )  # fmt: skip
    return _gradients(call, case, made)


def _cudnn_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = _rows(call, case, operands[:3])
    op = aten._scaled_dot_product_cudnn_attention.default
    out, logsumexp = _pick(call, call(op, query, key, value, None, True, 0.0, case.causal, scale=case.scale), 0, 1)
    return [out, call(aten.reshape.default, logsumexp, list(case.query.shape[:-1]))]


def _cudnn_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, *tensors, _, out, logsumexp = operands
    query, key, value = _rows(call, case, tensors)
    seed = _no_random(call, logsumexp)
    op = aten._scaled_dot_product_cudnn_attention_backward.default
    rows = call(aten.unsqueeze.default, logsumexp, 3)
    made = call(
        op, grad, query, key, value, out, rows, seed, seed, None, None, None, case.query.shape[-2],
        case.key.shape[-2], 0.0, case.causal, scale=case.scale,
    )  # fmt: skip
    return _gradients(call, case, made)


_LSE_STEP = 32  # the efficient kernel keeps rows of this many


def _efficient_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = _rows(call, case, operands[:3])
    bias = _bias(call, case, operands[3], expand=True)
    op = aten._scaled_dot_product_efficient_attention.default
    made = call(op, query, key, value, bias, True, 0.0, case.causal, scale=case.scale)
    out, logsumexp = _pick(call, made, 0, 1)
    if case.query.shape[-2] % _LSE_STEP:
        logsumexp = call(aten.slice.Tensor, logsumexp, 2, 0, case.query.shape[-2])
    return [out, logsumexp]


def _efficient_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, *tensors, mask, out, logsumexp = operands
    query, key, value = _rows(call, case, tensors)
    bias = _bias(call, case, mask, expand=True)
    missing = -case.query.shape[-2] % _LSE_STEP
    if missing:
        logsumexp = call(aten.constant_pad_nd.default, logsumexp, [0, missing], float("inf"))
    seed = _no_random(call, logsumexp)
    op = aten._scaled_dot_product_efficient_attention_backward.default
    made = call(
        op, grad, query, key, value, bias, out, _shown(call, logsumexp), seed, seed, 0.0, [True, True, True, False],
        case.causal, scale=case.scale,
    )  # fmt: skip
    return _gradients(call, case, made)


def _no_random(call: Call, like: Any) -> Any:
    """Seed and offset, which nobody reads without dropout."""
    return call(aten.new_zeros.default, like, [], dtype=torch.int64)


def _gradients(call: Call, case: Case, made: Any) -> Sequence[Any]:
    d_query, d_key, d_value = _pick(call, made, 0, 1, 2)
    return [d_query, _gather(call, case, d_key, case.key), _gather(call, case, d_value, case.value)]


_CHOICES: dict[str, list[tuple[Callable[[Case], bool], Any, Any]]] = {
    "cpu": [(_cpu_flash, _cpu_forward, _cpu_backward)],
    "cuda": [
        (_cuda_flash, _flash_forward, _flash_backward),
        (_cuda_cudnn, _cudnn_forward, _cudnn_backward),
        (_cuda_efficient, _efficient_forward, _efficient_backward),
    ],
}
