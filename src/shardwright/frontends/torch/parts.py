"""What ops are made of: for strategies that need communication in their midst.

A softmax over a dim that is split is a pending maximum, a pending sum and elementwise ops; each of these has a rule,
so nothing is said here of devices.  A function takes what `Signature` calls operands and attributes, and is captured
as any program is.  It must compute what the op computes, in the precision in which the op's kernel computes: a test
compares them.  Its results are cast to the types of the op's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from ...errors import TraceError
from ...ir.graph import Graph, TensorType
from .dtypes import torch_dtype
from .recording.half_types import HALF

Parts = Callable[..., Any]
PARTS: dict[str, Parts] = {}


def parts_of(*ops: str) -> Callable[[Parts], Parts]:
    def register(function: Parts) -> Parts:
        PARTS.update(dict.fromkeys(ops, function))
        return function

    return register


def parts_graph(
    function: Parts,
    name: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Any],
    results: Sequence[TensorType] | None = None,
) -> Graph:
    """Capture a function of the op's operands, absent ones and lists included; it gives the types of ``results``."""
    from .recording.capturing import capture

    def fake(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return [fake(item) for item in operand]
        if operand is None:
            return None
        return torch.empty(operand.shape, dtype=torch_dtype(operand.dtype), device="meta")

    given = [fake(operand) for operand in operands]
    tensors = [operand for operand in given if operand is not None]
    options = dict(attrs)
    absent = options.pop("absent", ())

    def run(*tensors: Any) -> Any:
        rest = iter(tensors)
        made = function(*[None if operand is None else next(rest) for operand in given], **options)
        made = [made] if isinstance(made, torch.Tensor) else made
        made = [item for i, item in enumerate(made) if item is not None and i not in absent]
        if results is None:
            return made
        return [item.to(torch_dtype(type.dtype)) for item, type in zip(made, results, strict=True)]

    try:
        return capture(run, *tensors).graph
    except TraceError as error:
        raise error.add("parts of", name) from None


def _wide(x: Any) -> Any:
    """The precision in which kernels compute: float32 at least."""
    if not x.is_floating_point() and not x.is_complex():
        return x.to(torch.get_default_dtype())
    return x.float() if x.dtype in HALF else x


def _dims(x: Any, dim: Any) -> list[int]:
    if not x.dim():
        return []  # of a 0-d tensor dim 0 may be named, which it has not
    named = range(x.dim()) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    return [d % x.dim() for d in named]


def _count(x: Any, dims: Sequence[int]) -> int:
    return prod(x.shape[d] for d in dims)


def _largest(x: Any, dim: Any) -> Any:
    """The largest number along dims; PyTorch knows none of no elements, where any will do."""
    return (torch.amax if _count(x, _dims(x, dim)) else torch.sum)(x, dim, keepdim=True)


# -- softmax family -------------------------------------------------------------------------------------


@parts_of("aten._softmax")
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    wide = _wide(x)
    raised = torch.exp(wide - _largest(wide, dim))
    return raised / torch.sum(raised, dim, keepdim=True)


@parts_of("aten._log_softmax")
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    wide = _wide(x)
    shifted = wide - _largest(wide, dim)
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))


@parts_of("aten._safe_softmax")
def safe_softmax(x: Any, dim: int, dtype: str | None) -> Any:
    """Zeros, not NaN, where all of a row is minus infinity."""
    made = softmax(x if dtype is None else x.to(torch_dtype(dtype)), dim, False)
    hidden = _largest(x, dim) == float("-inf")
    return torch.where(hidden, torch.zeros_like(made), made)


@parts_of("aten._softmax_backward_data")
def softmax_backward(grad: Any, out: Any, dim: int, input_dtype: str) -> Any:
    wide, out = _wide(grad), _wide(out)
    product = wide * out
    return product - out * torch.sum(product, dim, keepdim=True)


@parts_of("aten._log_softmax_backward_data")
def log_softmax_backward(grad: Any, out: Any, dim: int, input_dtype: str) -> Any:
    wide = _wide(grad)
    return wide - torch.exp(_wide(out)) * torch.sum(wide, dim, keepdim=True)


@parts_of("aten.logsumexp")
def logsumexp(x: Any, dim: Any, keepdim: bool) -> Any:
    dims = _dims(x, dim)
    wide = _wide(x)
    top = _largest(wide, dims)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    made = torch.log(torch.sum(torch.exp(wide - top), dims, keepdim=True)) + top
    return made if keepdim else made.squeeze(dims)


# -- means ----------------------------------------------------------------------------------------------


def _mean(x: Any, dims: list[int], keepdim: bool) -> Any:
    return torch.sum(x, dims, keepdim=keepdim) / _count(x, dims)


@parts_of("aten.mean", "aten.mean.dim")
def mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: str | None = None) -> Any:
    target = x.dtype if dtype is None else torch_dtype(dtype)
    return _mean(_wide(x.to(target)), _dims(x, dim), keepdim)


@parts_of("aten.var.correction")
def var(x: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    dims = _dims(x, dim)
    wide = _wide(x)
    away = wide - _mean(wide, dims, True)
    count = _count(x, dims) - (1 if correction is None else correction)
    return torch.sum(away * away, dims, keepdim=keepdim) / max(count, 0)


@parts_of("aten.std.correction")
def std(x: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    return torch.sqrt(var(x, dim, correction, keepdim))


@parts_of("aten.var_mean.correction")
def var_mean(x: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    return var(x, dim, correction, keepdim), mean(x, dim, keepdim)


@parts_of("aten.std_mean.correction")
def std_mean(x: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    return std(x, dim, correction, keepdim), mean(x, dim, keepdim)


@parts_of("aten.norm.ScalarOpt_dim", "aten.norm.Scalar")
def norm(x: Any, p: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, None)


@parts_of("aten.dist")
def dist(x: Any, other: Any, p: Any) -> Any:
    return vector_norm(x - other, p, None, False, None)


@parts_of("aten._foreach_norm.Scalar")
def norms(tensors: Any, ord: Any, dtype: str | None) -> Any:
    return [vector_norm(x, ord, None, False, dtype) for x in tensors]


@parts_of("aten.linalg_vector_norm")
def vector_norm(x: Any, ord: float, dim: Any, keepdim: bool, dtype: str | None) -> Any:
    target = x.dtype if dtype is None else torch_dtype(dtype)
    dims = _dims(x, dim)
    size = torch.abs(_wide(x.to(target)))
    if ord == float("inf"):
        made = torch.amax(size, dims, keepdim=keepdim)
    elif ord == float("-inf"):
        made = torch.amin(size, dims, keepdim=keepdim)
    elif ord == 0:
        made = torch.sum((size != 0).to(size.dtype), dims, keepdim=keepdim)
    elif ord == 1:
        made = torch.sum(size, dims, keepdim=keepdim)
    elif ord == 2:
        made = torch.sqrt(torch.sum(size * size, dims, keepdim=keepdim))
    else:
        made = torch.pow(torch.sum(torch.pow(size, ord), dims, keepdim=keepdim), 1.0 / ord)
    return made


def _reduced(each: Any, reduction: int) -> Any:
    dims = list(range(each.dim()))
    if reduction == 0:
        return each
    total = torch.sum(each, dims)
    return total / each.numel() if reduction == 1 else total


@parts_of("aten.mse_loss")
def mse_loss(x: Any, target: Any, reduction: int) -> Any:
    away = _wide(x) - _wide(target)
    return _reduced(away * away, reduction)


@parts_of("aten.smooth_l1_loss")
def smooth_l1_loss(x: Any, target: Any, reduction: int, beta: float) -> Any:
    away = torch.abs(_wide(x) - _wide(target))
    each = torch.where(away < beta, 0.5 * away * away / beta, away - 0.5 * beta) if beta else away
    return _reduced(each, reduction)


@parts_of("aten.huber_loss")
def huber_loss(x: Any, target: Any, reduction: int, delta: float) -> Any:
    away = torch.abs(_wide(x) - _wide(target))
    return _reduced(torch.where(away <= delta, 0.5 * away * away, delta * (away - 0.5 * delta)), reduction)


@parts_of("aten.binary_cross_entropy_with_logits")
def bce_with_logits(x: Any, target: Any, weight: Any, pos_weight: Any, reduction: int) -> Any:
    wide, goal = _wide(x), _wide(target)
    log_weight = 1 if pos_weight is None else (pos_weight - 1) * goal + 1
    tail = torch.log1p(torch.exp(-torch.abs(wide))) + torch.clamp_min(-wide, 0)
    each = (1 - goal) * wide + log_weight * tail
    return _reduced(each if weight is None else each * weight, reduction)


@parts_of("aten.binary_cross_entropy")
def binary_cross_entropy(x: Any, target: Any, weight: Any, reduction: int) -> Any:
    wide, goal = _wide(x), _wide(target)
    each = (goal - 1) * torch.clamp_min(torch.log1p(-wide), -100) - goal * torch.clamp_min(torch.log(wide), -100)
    return _reduced(each if weight is None else each * weight, reduction)


@parts_of("aten.binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad: Any, x: Any, target: Any, weight: Any, reduction: int) -> Any:
    wide = _wide(x)
    made = _share(_wide(grad), x, reduction) * (wide - _wide(target)) / torch.clamp_min((1 - wide) * wide, 1e-12)
    return made if weight is None else made * weight


def _share(grad: Any, x: Any, reduction: int) -> Any:
    return grad / x.numel() if reduction == 1 else grad


@parts_of("aten.mse_loss_backward")
def mse_loss_backward(grad: Any, x: Any, target: Any, reduction: int) -> Any:
    return 2.0 * (_wide(x) - _wide(target)) * _share(_wide(grad), x, reduction)


@parts_of("aten.smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad: Any, x: Any, target: Any, reduction: int, beta: float) -> Any:
    away = _wide(x) - _wide(target)
    slope = torch.clamp(away / beta, -1, 1) if beta else torch.sign(away)
    return slope * _share(_wide(grad), x, reduction)


@parts_of("aten.huber_loss_backward")
def huber_loss_backward(grad: Any, x: Any, target: Any, reduction: int, delta: float) -> Any:
    away = _wide(x) - _wide(target)
    return torch.clamp(away, -delta, delta) * _share(_wide(grad), x, reduction)


# -- negative log likelihood ----------------------------------------------------------------------------


def _classes(target: Any, x: Any) -> Any:
    """Where the class of each sample stands: true at one place along dim 1."""
    count = x.shape[1] if x.dim() > 1 else x.shape[0]
    classes = torch.arange(count, dtype=target.dtype)
    if x.dim() == 1:
        return classes == target
    return classes.reshape(1, count, *[1] * (x.dim() - 2)) == target.unsqueeze(1)


def _of_class(weight: Any, known: Any) -> Any:
    return weight[known] if known.dim() else weight[known.reshape(1)].reshape(())


@parts_of("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """A lookup along the classes, which may be split; then sums over the samples, which may be, too."""
    along = 1 if x.dim() > 1 else 0
    counts = target != ignore_index
    known = torch.where(counts, target, torch.zeros_like(target))
    found = _wide(torch.gather(x, along, known.unsqueeze(along)).squeeze(along))
    shares = counts.to(found.dtype)
    if weight is not None:
        shares = shares * _of_class(_wide(weight), known)
    each = torch.masked_fill(-(found * shares), ~counts, 0.0)  # sums pass this: they are pending if classes are split
    if reduction == 0 and x.dim() > 1:
        return each, torch.zeros((), dtype=x.dtype)
    dims = list(range(each.dim()))
    total, whole = torch.sum(each, dims), torch.sum(shares, dims)
    return total / whole if reduction == 1 else total, whole


@parts_of("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    grad: Any, x: Any, target: Any, weight: Any, total_weight: Any, reduction: int, ignore_index: int
) -> Any:
    grad = _wide(grad)
    if reduction == 1:
        grad = grad / _wide(total_weight)
    along = 1 if x.dim() > 1 else 0
    if weight is not None:
        known = torch.where(target == ignore_index, torch.zeros_like(target), target)
        grad = grad * _of_class(_wide(weight), known)
    counted = torch.where(target == ignore_index, torch.zeros_like(grad), -grad)
    counted = counted.unsqueeze(along) if counted.dim() else counted
    return torch.where(_classes(target, x), counted, torch.zeros_like(counted))


# -- normalisations -------------------------------------------------------------------------------------


def _rows(x: Any, normalized_shape: Sequence[int]) -> list[int]:
    return list(range(x.dim() - len(normalized_shape), x.dim()))


@parts_of("aten.native_layer_norm")
def layer_norm(x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    dims = _rows(x, normalized_shape)
    wide = _wide(x)
    mean = _mean(wide, dims, True)
    away = wide - mean
    scale = torch.rsqrt(_mean(away * away, dims, True) + eps)
    made = away * scale
    made = made if weight is None else made * weight
    return made if bias is None else made + bias, mean, scale


@parts_of("aten.native_layer_norm_backward")
def layer_norm_backward(
    grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any, normalized_shape: Any, output_mask: Any
) -> Any:
    dims = _rows(x, normalized_shape)
    rows = [d for d in range(x.dim()) if d not in dims]
    wide = _wide(grad)
    normal = (_wide(x) - mean) * rstd
    scaled = wide if weight is None else wide * weight
    towards = scaled - _mean(scaled, dims, True) - normal * _mean(scaled * normal, dims, True)

    def total(each: Any) -> Any:
        return torch.sum(each, rows) if rows else each

    return (
        towards * rstd if output_mask[0] else None,
        total(wide * normal) if output_mask[1] else None,
        total(wide) if output_mask[2] else None,
    )


def _channel(x: Any, like: Any) -> Any:
    return x.reshape(1, -1, *[1] * (like.dim() - 2))


def _affine(normal: Any, weight: Any, bias: Any, x: Any) -> Any:
    scaled = normal if weight is None else normal * _channel(weight, x)
    return scaled if bias is None else scaled + _channel(bias, x)


@parts_of("aten._native_batch_norm_legit_functional")
def batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Statistics of the whole batch, however it is split."""
    wide = _wide(x)
    if not training:
        scale = torch.rsqrt(_wide(running_var) + eps)
        made = (wide - _channel(running_mean, x)) * _channel(scale, x)
        made = _affine(made, weight, bias, x)
        empty = running_mean.new_zeros((0,))
        return made, empty, empty, running_mean.clone(), running_var.clone()
    dims = [d for d in range(x.dim()) if d != 1]
    count = _count(x, dims)
    mean = _mean(wide, dims, True)
    away = wide - mean
    spread = _mean(away * away, dims, True)
    scale = torch.rsqrt(spread + eps)
    made = away * scale
    made = _affine(made, weight, bias, x)
    flat_mean, flat_spread = mean.reshape(-1), spread.reshape(-1)
    new_mean = (1 - momentum) * _wide(running_mean) + momentum * flat_mean
    new_var = (1 - momentum) * _wide(running_var) + momentum * (flat_spread * (count / max(count - 1, 1)))
    return made, flat_mean, scale.reshape(-1), new_mean, new_var


@parts_of("aten.native_batch_norm_backward")
def batch_norm_backward(
    grad: Any, x: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    dims = [d for d in range(x.dim()) if d != 1]
    wide = _wide(grad)
    mean, scale = (save_mean, save_invstd) if train else (running_mean, torch.rsqrt(_wide(running_var) + eps))
    normal = (_wide(x) - _channel(mean, x)) * _channel(scale, x)
    total, along = torch.sum(wide, dims), torch.sum(wide * normal, dims)
    towards = wide
    if train:
        count = _count(x, dims)
        towards = wide - _channel(total, x) / count - normal * _channel(along, x) / count
    scaled = _channel(scale if weight is None else scale * weight, x)
    return (
        towards * scaled if output_mask[0] else None,
        along if output_mask[1] else None,
        total if output_mask[2] else None,
    )
