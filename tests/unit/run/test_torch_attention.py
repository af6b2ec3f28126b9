"""Attention by the device's kernel against the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from by_hand import Said, compile_graph
from shardwright.errors import SpecError
from shardwright.frontends.torch import capture_step, run_graph
from shardwright.ir.graph import TensorType
from shardwright.run.torch import emit
from shardwright.run.torch.attention import BACKWARD, FORWARD, choose_attention
from shardwright.spec.band import Band
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


# -- bands, and kernels of a GPU, by what they would be called with ------------------------------------------


def formula(q: Any, k: Any, v: Any, band: Band, scale: float) -> tuple[Any, Any]:
    options = [0.0, band.attrs["is_causal"], scale, q.shape[1] != k.shape[1], -1, False, band.attrs.get("sees")]
    made: tuple[Any, Any] = torch.ops.shardwright.attention(q, k, v, None, *options)
    return made


def pretended(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A GPU's kernels by the formula: flash aligns the last query with the last key."""
    name = str(op)
    scale = kwargs.get("scale", 1.0)
    if name == "aten._flash_attention_forward.default":
        q, k, v = (x.transpose(1, 2) for x in args[:3])
        left, right = kwargs["window_size_left"], kwargs["window_size_right"]
        assert (args[5], args[6]) == (q.shape[2], k.shape[2])
        band = Band(None if left < 0 else left, None if right < 0 else right).moved(k.shape[2] - q.shape[2])
        out, sums = formula(q, k, v, band, scale)
        return out.transpose(1, 2), sums
    if name == "aten._flash_attention_backward.default":
        grad, q, k, v, out = (x.transpose(1, 2) for x in args[:5])
        left, right = kwargs["window_size_left"], kwargs["window_size_right"]
        band = Band(None if left < 0 else left, None if right < 0 else right).moved(k.shape[2] - q.shape[2])
        return [x.transpose(1, 2) for x in _back(grad, q, k, v, out, args[5], band, scale)]
    if name in ("aten._scaled_dot_product_flash_attention.default", "aten._scaled_dot_product_cudnn_attention.default"):
        causal = args[4] if "flash" in name else args[6]
        out, sums = formula(*args[:3], Band(right=0) if causal else Band(), scale)
        return out, sums if "flash" in name else sums.unsqueeze(-1)
    if name.startswith("aten._scaled_dot_product_") and name.endswith("_backward.default"):
        sums = args[5].squeeze(3) if "cudnn" in name else args[5]
        causal = args[11] if "flash" in name else args[14]
        return _back(*args[:5], sums, Band(right=0) if causal else Band(), scale)
    return op(*args, **kwargs)


def _back(grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, band: Band, scale: float) -> Any:
    options = [0.0, band.attrs["is_causal"], scale, q.shape[1] != k.shape[1], -1, False, band.attrs.get("sees")]
    return torch.ops.shardwright.attention_backward(grad, q, k, v, None, out, sums, *options)


BANDS = {"causal": Band(right=0), "window": Band(2, 0), "prefix": Band(right=0, prefix=5), "both sides": Band(3, 2),
         "late": Band(None, 3), "all": Band()}  # fmt: skip


@pytest.mark.parametrize("kernel", ["flash", "cudnn", "math", "cpu flash"])
@pytest.mark.parametrize("name", BANDS)
def test_bands_on_queries_that_begin_somewhere(name: str, kernel: str) -> None:
    """Every kernel, whole or in tiles, against the formula of a mask; what a kernel cannot do is refused."""
    band, done = BANDS[name], 0
    device = torch.device("cpu" if kernel == "cpu flash" else "cuda")
    for rows, keys, served, offset in ((8, 8, 4, 0), (4, 16, 2, 8), (4, 16, 1, 12), (4, 16, 4, 0)):
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, h, n, 8, dtype=torch.float32) for h, n in ((4, rows), (served, keys), (served, keys)))
        types: list[Any] = [TensorType(tuple(x.shape), "bf16" if device.type == "cuda" else "f32") for x in (q, k, v)]
        attrs = {**OPTIONS, "enable_gqa": served < 4, **band.attrs}
        here = [*types, None, TensorType((), "i64")]
        back = [types[0], *types, None, types[0], TensorType((2, 4, rows), "f32"), TensorType((), "i64")]
        wanted = formula(q, k, v, band.moved(offset), 0.3)
        grad = torch.randn_like(q)
        expected = _back(grad, q, k, v, *wanted, band.moved(offset), 0.3)
        try:
            forward = choose_attention(FORWARD, attrs, here, device, offset, kernel.split()[-1])
            backward = choose_attention(BACKWARD, attrs, back, device, offset, kernel.split()[-1])
        except SpecError:
            assert kernel in ("cudnn", "cpu flash") or band.prefix
            continue
        done += 1
        assert forward is not None
        assert backward is not None
        call = pretended if device.type == "cuda" else now

        def half_as_it_is(op: Any, *args: Any, call: Any = call, **kwargs: Any) -> Any:
            kwargs = {**kwargs, "dtype": torch.float32} if str(op) == "aten._to_copy.default" else kwargs
            return call(op, *args, **kwargs)

        found = forward(half_as_it_is, [q, k, v, None, offset])
        changes = backward(half_as_it_is, [grad, q, k, v, None, *found, offset])
        for one, other in zip([*found, *changes], [*wanted, *expected], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert done or name in ("window", "both sides")


def test_the_nearest_measured_case_decides() -> None:
    types = [TensorType((8, 16, 2048, 128), "bf16")] * 3
    attrs = {**OPTIONS, "is_causal": True, "enable_gqa": False}
    back = [types[0], *types, None, types[0], TensorType((8, 16, 2048), "f32")]
    chosen = choose_attention(BACKWARD, attrs, back, torch.device("cuda"))
    assert chosen is not None
    assert chosen.kernel == "cudnn"
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
        chosen = choose_attention(BACKWARD, attrs, back, torch.device("cuda"))
        assert chosen is not None
        assert chosen.kernel == "efficient"
    with pytest.raises(SpecError, match="no kernel 'flush' computes this attention on cuda"):
        choose_attention(BACKWARD, attrs, back, torch.device("cuda"), kernel="flush")
