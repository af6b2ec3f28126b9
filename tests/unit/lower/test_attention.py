"""Attention as the user meant it: the pass over captured graphs, and what comes of it on a mesh.

The golden files hold a layer of a small Llama before and after the pass; run this file as a script to write them anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright import P  # noqa: E402
from shardwright.errors import VerifyError  # noqa: E402
from shardwright.frontends.torch import capture, capture_step, run_graph  # noqa: E402
from shardwright.ir.graph import Graph  # noqa: E402
from shardwright.lower import attention_as_meant  # noqa: E402
from shardwright.proof import prove  # noqa: E402
from shardwright.proof.same import check_same  # noqa: E402
from shardwright.run.torch import emit  # noqa: E402
from shardwright.spec.band import Band  # noqa: E402
from shardwright.torch import shard_step, train_step  # noqa: E402
from torch_zoo import LanguageModel  # noqa: E402

torch.set_num_threads(1)
GOLDEN = Path(__file__).parents[2] / "golden" / "passes"
MASKED = ("shardwright.attention", "shardwright.attention_backward", "aten.scaled_dot_product_attention")


def model_of(kind: str, **config: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
             "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    made: Any
    if kind == "gpt2":
        made = transformers.GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=1, n_head=4, attn_pdrop=0.0,
                                       resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=1, eos_token_id=1)  # fmt: skip
        return transformers.GPT2LMHeadModel(made)
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[kind]
    window = {"sliding_window": 3} if kind == "mistral" else {}
    made = getattr(transformers, f"{name}Config")(**{**sizes, **window, **config})
    return getattr(transformers, f"{name}ForCausalLM")(made)


def loss_of(model: Any, use_cache: bool) -> Callable[[Any], Any]:
    return lambda ids: model(input_ids=ids, labels=ids, use_cache=use_cache).loss


def attention_nodes(graph: Graph) -> list[Any]:
    return [node for node in graph.nodes if node.op in MASKED]


def masks(graph: Graph) -> list[Any]:
    return [node.operands[4 if len(node.operands) > 4 else 3] for node in attention_nodes(graph)]


# -- models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "qwen2"])
def test_models_have_no_mask_left(kind: str, use_cache: bool) -> None:
    torch.manual_seed(0)
    model, ids = model_of(kind).double(), torch.randint(0, 32, (2, 7))
    captured = capture_step(loss_of(model, use_cache), ids)
    graph = attention_as_meant(captured.graph)
    check_same(captured.graph, graph)
    assert masks(graph) == [None, None]
    grouped = kind != "gpt2"
    wanted = Band(2, 0) if kind == "mistral" else Band(right=0)
    for node in attention_nodes(graph):
        assert node.attr("enable_gqa") == grouped
        assert Band.of(dict(node.attrs)) == wanted
    assert not any(value.shape[-2:] == (7, 7) for value in graph.values)
    inputs = [tensor.detach() for tensor in captured.inputs(ids)]
    with torch.no_grad():
        for one, other in zip(run_graph(graph, inputs), run_graph(captured.graph, inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_steps_equal_eager(kind: str) -> None:
    torch.manual_seed(0)
    model, ids = LanguageModel(model_of(kind)).double(), torch.randint(0, 32, (4, 6))
    other = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = shard_step(model, ids, ids, mesh="dp=2, cp=3", specs={"ids": "[dp, cp]"}, optimizer=optimizer)
    assert "attention" in [rewrite.name for rewrite in step.plan.data.rewrites]
    theirs = torch.optim.AdamW(other.parameters(), lr=0.01)
    for _ in range(2):
        loss = other(ids, ids)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(step(ids, ids), loss.detach(), rtol=1e-9, atol=1e-10)
    step.sync()
    for one, two in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


def test_a_step_in_pieces_is_cut_where_it_was() -> None:
    torch.manual_seed(0)
    model, ids = model_of("llama").double(), torch.randint(0, 32, (4, 6))
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = train_step(
        loss_of(model, False), batch=(ids,), optimizer=optimizer, mesh="dp=2", specs={"ids": "[dp, _]"}, accumulate=2,
        data="global", clip_grad_norm=1.0,
    )  # fmt: skip
    step(ids)
    step.sync()
    (loss_of(other, False)(ids)).backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    for one, two in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


# -- single calls ------------------------------------------------------------------------------------------


def tensors(queries: int, keys: int, heads: int = 4, served: int = 2, width: int = 4) -> list[Any]:
    torch.manual_seed(1)
    shapes = ((2, heads, queries, width), (2, served, keys, width), (2, served, keys, width))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def with_gradients(attend: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        leaves = [x.detach().requires_grad_() for x in given]
        out = attend(*leaves)
        out.square().sum().backward()
        return out.detach(), *(x.grad for x in leaves)

    return run


REPEATS: dict[str, Callable[[Any], Any]] = {
    "expand and reshape": lambda x: x[:, :, None].expand(2, 2, 2, *x.shape[2:]).reshape(2, 4, *x.shape[2:]),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "heads inside": lambda x: x.transpose(1, 2)[:, :, :, None].expand(2, x.shape[2], 2, 2, x.shape[3])
    .reshape(2, x.shape[2], 4, x.shape[3]).transpose(1, 2),
}  # fmt: skip


@pytest.mark.parametrize("spelled", REPEATS)
def test_repeated_heads_are_shared(spelled: str) -> None:
    repeat = REPEATS[spelled]
    run = with_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True))
    given = tensors(6, 6)
    captured = capture(run, *given)
    graph = attention_as_meant(captured.graph)
    check_same(captured.graph, graph)
    assert [node.attr("enable_gqa") for node in attention_nodes(graph)] == [True, True]
    assert len(graph.nodes) < len(captured.graph.nodes) - 6
    for one, other in zip(run_graph(graph, given), run_graph(captured.graph, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


LEFT_ALONE: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "a mask of data": (
        lambda q, k, v, seen: F.scaled_dot_product_attention(q, k, v, torch.ones(6, 6, dtype=torch.bool).tril() & seen),
        [*tensors(6, 6, served=4), torch.ones(6, dtype=torch.bool)],
    ),
    "heads in another order": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)), tensors(6, 6),
    ),
    "keys repeated, values not": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), torch.cat([v, v], 1)),
        tensors(6, 6),
    ),
    "a bias that is learned": (
        lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias),
        [*tensors(6, 6, served=4), torch.zeros(6, 6, dtype=torch.float64)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(name: str) -> None:
    attend, given = LEFT_ALONE[name]
    floats = [x for x in given if x.is_floating_point()]
    rest = [x for x in given if not x.is_floating_point()]
    run = with_gradients(lambda *leaves: attend(*leaves, *rest))
    graph = capture(run, *floats).graph
    assert attention_as_meant(graph) is graph


def test_a_mask_that_others_read_stays() -> None:
    def run(q: Any, k: Any, v: Any) -> Any:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, mask), mask.sum(-1)

    given = tensors(6, 6, served=4)
    captured = capture(run, *given).graph
    graph = attention_as_meant(captured)
    assert masks(graph) == [None]
    assert any(value.shape == (6, 6) for value in graph.values)
    for one, other in zip(run_graph(graph, given), run_graph(captured, given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [4096, 4097, 32768])
def test_a_window_of_4096(size: int) -> None:
    def run(q: Any, k: Any, v: Any) -> Any:
        row, column = torch.arange(size)[:, None], torch.arange(size)
        return F.scaled_dot_product_attention(q, k, v, (column <= row) & (column > row - 4096))

    given = [torch.empty(1, 1, size, 8, device="meta")] * 3
    graph = attention_as_meant(capture(run, *given).graph)
    (node,) = attention_nodes(graph)
    assert masks(graph) == [None]
    assert Band.of(dict(node.attrs)) == (Band(right=0) if size == 4096 else Band(4095, 0))
    assert max(value.type.elements for value in graph.values) == size * 8


# -- the proof ---------------------------------------------------------------------------------------------


def banded(band: Band) -> Callable[..., Any]:
    def mask(rows: int, keys: int) -> Any:
        row, column = torch.arange(rows)[:, None], torch.arange(keys)
        seen = torch.ones(rows, keys, dtype=torch.bool)
        if band.left is not None:
            seen = seen & (column >= row - band.left)
        if band.right is not None:
            seen = seen & (column <= row + band.right)
        return seen | (column < band.prefix)

    return lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, mask(q.shape[-2], k.shape[-2]), enable_gqa=q.shape[1] != k.shape[1]
    )


BANDS = {"causal": Band(right=0), "window": Band(2, 0), "wide window": Band(5, 0), "prefix": Band(right=0, prefix=3),
         "both sides": Band(2, 1), "window and prefix": Band(1, 0, 2)}  # fmt: skip


def said_otherwise(graph: Graph, **attrs: Any) -> Graph:
    nodes = tuple(
        replace(node, attrs=tuple(sorted({**dict(node.attrs), **attrs}.items()))) if node.op in MASKED else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def test_other_words_are_refused() -> None:
    captured = capture(with_gradients(banded(Band(2, 0))), *tensors(8, 8)).graph
    graph = attention_as_meant(captured)
    check_same(captured, graph)
    for wrong in (Band(3, 0), Band(1, 0), Band(2, 1), Band(right=0), Band(2, -1), Band(2, 0, 1), Band()):
        with pytest.raises(VerifyError, match="computes another output"):
            check_same(captured, said_otherwise(graph, **{"sees": None, **wrong.attrs}))
    for kind in ("scale", "dropout_p"):
        with pytest.raises(VerifyError, match="computes another output"):
            check_same(captured, said_otherwise(graph, **{kind: 0.7}))


def plan_of(band: Band, ways: int, given: list[Any]) -> Any:
    query = P(None, None, "cp", None)
    return sw.shard_map(with_gradients(banded(band)), f"cp={ways}", in_specs=(query, P(), P())).plan(*given)


def test_a_wrong_offset_is_refused() -> None:
    plan = plan_of(Band(2, 0), 2, tensors(8, 8))
    plan.verify()
    program = plan.program
    attention = [n for n, instr in enumerate(program.instrs) if instr.op in MASKED]
    offsets = [n for n, instr in enumerate(program.instrs) if instr.op == "core.offset"]
    assert len(attention) == len(offsets) == 2

    def refused(n: int, **change: Any) -> None:
        instrs = list(program.instrs)
        instrs[n] = replace(instrs[n], **change)
        with pytest.raises(VerifyError):
            prove(plan.graph, replace(program, instrs=tuple(instrs)), plan.source.graph)

    for n in attention:
        refused(n, operands=program.instrs[n].operands[:-1])
        for wrong in ("i-3 <= j <= i", "i-1 <= j <= i", "i-2 <= j <= i+1", "i-2 <= j", "i-2 <= j <= i or j < 1"):
            refused(n, attrs=tuple(sorted({**dict(program.instrs[n].attrs), "sees": wrong}.items())))
    for n in offsets:
        refused(n, attrs=(("size", 6),))
        refused(n, axes=())


# -- on a mesh -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ways", [2, 3, 6])
@pytest.mark.parametrize("name", BANDS)
def test_split_queries(name: str, ways: int) -> None:
    """Even and uneven shards, windows smaller and larger than one; numbers and gradients in float64."""
    given = tensors(14, 14)
    run = with_gradients(banded(BANDS[name]))
    plan = plan_of(BANDS[name], ways, given)
    for one, other in zip(plan(*given), run(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
    assert not any(local.type.shape[-2:] == (14, 14) for local in plan.program.values)
    shards = [emit(plan.program, rank, stand_ins=True) for rank in range(ways)]
    found = [module(*(x.contiguous() for x in local_inputs(plan, rank, given))) for rank, module in enumerate(shards)]
    out = run(*given)[0]
    parts = torch.cat([one[0] for one in found], 2) if found[0][0].shape[2] < 14 else found[0][0]
    torch.testing.assert_close(parts, out, rtol=1e-10, atol=1e-11)


def local_inputs(plan: Any, rank: int, given: list[Any]) -> list[Any]:
    program = plan.program
    query = program.values[program.inputs[0]]
    sizes = [query.local_shape(at)[2] for at in range(program.mesh.size)]
    start = sum(sizes[:rank])
    return [given[0][:, :, start : start + sizes[rank]], *given[1:]]


@pytest.mark.parametrize("size", [32768, 131072])
def test_long_sequences_make_nothing_of_queries_by_keys(size: int) -> None:
    heads, served, width = 4, 2, 8
    given = [torch.empty(1, n, size, width, device="meta") for n in (heads, served, served)]
    run = with_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    query = P(None, None, "cp", None)
    plan = sw.shard_map(run, "cp=8", in_specs=(query, P(), P()), out_specs=(query, query, P(), P())).plan(*given)
    plan.verify()
    most = size // 8 * heads * width * 4
    for rank in (0, 7):
        module = emit(plan.program, rank, stand_ins=True)
        with FakeTensorMode() as mode:
            inputs = [torch.empty(plan.program.values[v].local_shape(rank)) for v in plan.program.inputs]
            FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
        targets = {str(node.target) for node in module.graph.nodes}
        assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in targets
        assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in targets
        for node in module.graph.nodes:
            value = node.meta.get("val")
            for item in value if isinstance(value, tuple | list) else [value]:
                assert not isinstance(item, torch.Tensor) or prod(item.shape) <= most, node


# -- plans -------------------------------------------------------------------------------------------------


def test_a_plan_records_the_pass() -> None:
    torch.manual_seed(0)
    given = tensors(6, 6)
    run = with_gradients(banded(Band(2, 0)))
    plan = sw.plan(run, *given, mesh="x=2")
    assert "attention" in [rewrite.name for rewrite in plan.data.rewrites]
    assert masks(plan.graph) == [None, None]
    again = sw.load_plan(plan.to_json(), run, *given)
    assert again.graph == plan.graph
    for one, other in zip(again(*given), run(*given), strict=True):
        torch.testing.assert_close(one, other)


def test_a_plan_without_the_pass_still_loads() -> None:
    given = tensors(6, 6)
    run = with_gradients(banded(Band(2, 0)))
    source = capture(run, *given)
    plan = sw.plan(run, *given, mesh="x=2")
    planner = replace(plan.planner, passes=())
    old = planner.by_recipe("dp")
    assert old.rewrites == ()
    again = sw.load_plan(old.to_json(), run, *given)
    assert len(again.graph.nodes) == len(source.graph.nodes)
    for one, other in zip(again(*given), run(*given), strict=True):
        torch.testing.assert_close(one, other)


# -- golden ------------------------------------------------------------------------------------------------


def llama_layer() -> dict[str, str]:
    model = model_of("llama").model.layers[0].self_attn
    cos = torch.ones(1, 8, 4)

    def layer(x: Any) -> Any:
        row, column = torch.arange(8)[:, None], torch.arange(8)
        mask = (column <= row)[None, None].expand(2, 1, 8, 8)
        return model(x, position_embeddings=(cos, cos * 0), attention_mask=mask)[0].square().sum()

    before = capture_step(layer, torch.zeros(2, 8, 16)).graph
    return {"llama-before": _text(before), "llama-after": _text(attention_as_meant(before))}


def _text(graph: Graph) -> str:
    """Without where in the library each line is from."""
    return "\n".join(line.split("  #")[0] for line in str(graph).splitlines()) + "\n"


def test_golden() -> None:
    for name, text in llama_layer().items():
        assert text == (GOLDEN / f"attention-{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, text in llama_layer().items():
        (GOLDEN / f"attention-{name}.txt").write_text(text, encoding="utf-8")
