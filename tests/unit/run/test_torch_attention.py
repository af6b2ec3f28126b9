"""Attention by the device's kernel against the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from by_hand import Said, compile_graph
from shardwright.frontends.torch import capture_step, run_graph
from shardwright.ir.graph import TensorType
from shardwright.run.torch import emit
from shardwright.run.torch.attention import BACKWARD, FORWARD, choose_attention
from shardwright.spec.mesh import DeviceMesh

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = {"dropout_p": 0.0, "scale": 0.3, "draw": -1, "mask_grad": False}


def run(call: Any, op: str, attrs: dict[str, Any], tensors: list[Any]) -> list[Any]:
    types = [None if t is None else TensorType(tuple(t.shape), NAMES[t.dtype]) for t in tensors]
    chosen = choose_attention(op, attrs, types, torch.device(DEVICE))
    assert chosen is not None
    return list(chosen(call, tensors))


NAMES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.bool: "bool"}


def now(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def tensors(
    dtype: Any, heads: int = 4, kv_heads: int = 4, queries: int = 8, keys: int = 8, width: int = 8
) -> list[Any]:
    torch.manual_seed(0)
    shapes = ((2, heads, queries, width), (2, kv_heads, keys, width), (2, kv_heads, keys, width))
    return [torch.randn(shape, dtype=torch.float32).to(DEVICE, dtype) for shape in shapes]


def both(dtype: Any, attrs: dict[str, Any], qkv: list[Any], mask: Any = None) -> None:
    """Forward and backward, equal to the formula."""
    attrs = {**OPTIONS, "is_causal": False, "enable_gqa": False, **attrs}
    options = [attrs[name] for name in ("dropout_p", "is_causal", "scale", "enable_gqa", "draw", "mask_grad")]
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}
    with torch.no_grad():
        wanted = torch.ops.shardwright.attention(*qkv, mask, *options)
        found = run(now, FORWARD, attrs, [*qkv, mask])
        for one, other in zip(found, wanted):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, **close)
        grad = torch.randn_like(wanted[0])
        expected = torch.ops.shardwright.attention_backward(grad, *qkv, mask, *wanted, *options)
        for one, other in zip(run(now, BACKWARD, attrs, [grad, *qkv, mask, *found]), expected, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, **close)


FLOATS = [torch.float32, torch.bfloat16, torch.float16] + ([torch.float64] if DEVICE == "cpu" else [])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype: Any, causal: bool) -> None:
    both(dtype, {"is_causal": causal}, tensors(dtype))
    both(dtype, {"is_causal": causal, "enable_gqa": True}, tensors(dtype, kv_heads=2))
    both(dtype, {"is_causal": causal}, tensors(dtype, queries=37, keys=37, width=16))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lengths_that_differ(dtype: Any) -> None:
    both(dtype, {}, tensors(dtype, queries=5, keys=16))
    both(dtype, {"enable_gqa": True}, tensors(dtype, kv_heads=1, queries=1, keys=7))


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_masks(dtype: Any) -> None:
    qkv = tensors(dtype, queries=16, keys=16)
    seen = (torch.rand(2, 1, 16, 16, device=DEVICE) > 0.4) | torch.eye(16, dtype=torch.bool, device=DEVICE)
    both(dtype, {}, qkv, seen)
    both(dtype, {}, qkv, torch.randn(16, 16, device=DEVICE).to(dtype))
    both(dtype, {"enable_gqa": True}, tensors(dtype, kv_heads=2, queries=16, keys=16), seen)


def test_what_no_kernel_does_is_left_to_the_formula() -> None:
    q = TensorType((2, 4, 8, 8), "f32")
    attrs = {**OPTIONS, "is_causal": False, "enable_gqa": False}
    device = torch.device("cpu")
    assert choose_attention("aten.mm", {}, [q, q], device) is None

    def kernel(attrs: dict[str, Any], type: TensorType, device: Any = device) -> str:
        chosen = choose_attention(FORWARD, attrs, [type, type, type, None], device)
        assert chosen is not None
        return chosen.kernel

    assert kernel(attrs, q) == "flash"
    assert kernel({**attrs, "mask_grad": True}, q) == "math"
    assert kernel({**attrs, "dropout_p": 0.1}, q) == "math"
    assert kernel(attrs, TensorType((0, 4, 8, 8), "f32")) == "math"
    assert kernel(attrs, TensorType((2, 4, 8), "f32")) == "math"
    assert kernel(attrs, q, torch.device("meta")) == "math"


def test_a_captured_step_uses_the_kernel() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(16, 48)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()

    model, x = Block(), torch.randn(2, 5, 16)
    captured = capture_step(model, x)
    program = compile_graph(captured.graph, DeviceMesh("x=1"), Said({})).program
    module = emit(program, 0)
    targets = {str(node.target) for node in module.graph.nodes}
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in targets
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in targets
    inputs = [tensor.detach() for tensor in captured.inputs(x)]
    with torch.no_grad():
        for one, other in zip(module(*inputs), run_graph(captured.graph, inputs)):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
