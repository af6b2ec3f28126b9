"""Calls that neither OpInfo nor schemas lead to: fused optimizers, lists, creation, operands that must fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...frontends.torch.signatures import find_op

Arguments = tuple[list[Any], dict[str, Any]]


def written_arguments(ops: Sequence[str]) -> Iterator[tuple[str, Arguments]]:
    """Every call below, some of which this version of PyTorch may lack; those of lists for the ops asked for."""
    yield from _created()
    yield from _lists([op for op in ops if op.startswith("aten._foreach_")])
    yield from _optimizers()
    yield from _fitting()


def _numbers(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _created() -> Iterator[tuple[str, Arguments]]:
    """Ops without operands; in whole numbers, too."""
    for dtype in (torch.float64, torch.int64):
        for size in ([4, 6], [7], []):
            yield "aten.full", ([size, 3], {"dtype": dtype})
            for name in ("zeros", "ones", "empty.memory_format"):
                yield f"aten.{name}", ([size], {"dtype": dtype})
        yield "aten.empty_strided", ([[4, 6], [6, 1]], {"dtype": dtype})
        yield "aten.scalar_tensor", ([3], {"dtype": dtype})
        yield "aten.arange", ([7], {"dtype": dtype})
        yield "aten.arange.start", ([2, 9], {"dtype": dtype})
        yield "aten.arange.start_step", ([10, -4, -2], {"dtype": dtype})
        yield "aten.eye", ([5], {"dtype": dtype})
        yield "aten.eye.m", ([5, 4], {"dtype": dtype})
    yield "aten.arange.start_step", ([0.5, 3.0, 0.25], {"dtype": torch.float64})
    yield "aten.linspace", ([0.0, 1.0, 7], {"dtype": torch.float64})


def _lists(ops: Sequence[str]) -> Iterator[tuple[str, Arguments]]:
    """Of two tensors that differ in shape, so that none is taken for the other."""
    first, second, third = ([_numbers(4, 6, seed=s).abs() + 1, _numbers(5, seed=s + 1).abs() + 1] for s in (0, 2, 4))
    for op in ops:
        given: list[Any] = []
        for parameter in find_op(op)._schema.arguments:
            if parameter.has_default_value() or parameter.kwarg_only:
                break
            kind = str(parameter.real_type)
            lists = sum(kind == "List[Tensor]" for kind in map(_kind, given))
            given.append(
                (first, second, third)[lists] if kind == "List[Tensor]" else [0.5, 2.0] if kind.startswith("List") else
                torch.tensor([0.5, 2.0], dtype=torch.float64) if kind == "Tensor" and "addc" in op else
                torch.tensor(2.0, dtype=torch.float64) if kind == "Tensor" else 0.5
            )  # fmt: skip
        yield op, (given, {})


def _kind(item: Any) -> str:
    return "List[Tensor]" if isinstance(item, list) and isinstance(item[0], torch.Tensor) else ""


def _optimizers() -> Iterator[tuple[str, Arguments]]:
    """Fused steps of two parameters, states as they are after some steps."""
    params, grads, first, second = (
        [_numbers(4, 6, seed=s).abs() + 0.1, _numbers(5, seed=s + 1).abs() + 0.1] for s in (0, 2, 4, 6)
    )
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    rate = torch.tensor(0.1, dtype=torch.float64)
    adam = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    for name in ("adam", "adamw"):
        for most in ([], [tensor + 1 for tensor in second]):
            states = [params, grads, first, second, most, steps]
            options = {**adam, "amsgrad": bool(most)}
            yield f"aten._fused_{name}", (states, {**options, "lr": 0.1})
            yield f"aten._fused_{name}.tensor_lr", (states, {**options, "lr": rate})
    sgd = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": True, "maximize": False}
    yield "aten._fused_sgd", ([params, grads, first], {**sgd, "lr": 0.1, "is_first_step": False})
    yield "aten._fused_sgd.tensor_lr", ([params, grads, first], {**sgd, "lr": rate, "is_first_step": False})
    adagrad = {"lr_decay": 0.0, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    yield "aten._fused_adagrad", ([params, grads, second, steps], {**adagrad, "lr": 0.1})
    yield "aten._fused_adagrad.tensor_lr", ([params, grads, second, steps], {**adagrad, "lr": rate})


def _fitting() -> Iterator[tuple[str, Arguments]]:
    x = _numbers(4, 6)
    yield "aten._reshape_alias", ([x, [4, 2, 3], [6, 3, 1]], {})
    yield "aten._reshape_alias", ([x, [24], [1]], {})
    a, b = _numbers(8, 16).bfloat16(), _numbers(3, 16, 8, seed=1).bfloat16()
    yield "aten._grouped_mm", ([a, b, torch.tensor([2, 5, 8], dtype=torch.int32)], {})
    yield "aten._grouped_mm", ([_numbers(3, 8, 16).bfloat16(), b], {})
    yield "aten._upsample_bicubic2d_aa", ([_numbers(2, 3, 6, 6), [3, 4], False], {})
    yield "aten._upsample_bicubic2d_aa_backward", ([_numbers(2, 3, 3, 4), [3, 4], [2, 3, 6, 6], False], {})
    for name in ("view_as_complex", "view_as_complex_copy"):
        yield f"aten.{name}", ([_numbers(4, 6, 2)], {})
    table, index, bags = _numbers(6, 4), torch.tensor([0, 2, 2, 5, 1]), torch.tensor([0, 2, 3])
    for mode in (0, 1, 2):
        kept = torch.ops.aten._embedding_bag(table, index, bags, False, mode)
        args = [torch.sin(kept[0]), index, kept[1], kept[2], kept[3], 6, False, mode, None]
        yield "aten._embedding_bag_dense_backward", (args, {})
    yield "aten.gather", ([_numbers(4, 6), 1, torch.tensor([[0, 5, 2], [1, 1, 4], [3, 0, 0], [2, 2, 5]])], {})
