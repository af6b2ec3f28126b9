"""Emitted modules: all ranks of a mesh in lockstep, in one thread, against the virtual mesh."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from by_hand import Said, compile_graph
from shardwright.errors import SpecError
from shardwright.frontends.torch import capture, prepare, torch_dtype
from shardwright.ir.graph import TensorType
from shardwright.ir.program import Instr, Local, Program
from shardwright.lower.lowering import LOCAL_STEPS
from shardwright.run import VirtualEngine
from shardwright.run.torch import NamedGroups, TorchArrays, assemble, emit, scatter
from shardwright.run.torch.groups import Group
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.resharding.cheapest import reshard
from shardwright.spec.sharding import ShardingSpec

torch.set_num_threads(1)
NAN = float("nan")
functional = torch.ops._c10d_functional
Waiting = Generator[tuple[Any, tuple[Any, ...]], Any, list[Any]]


# -- all ranks in one thread ----------------------------------------------------------------------------


def rank_by_rank(module: Any, inputs: Sequence[Any]) -> Waiting:
    """Runs a module; stops at every collective, to be sent its result."""
    env: dict[Any, Any] = {}
    given = iter(inputs)

    def look(item: Any) -> Any:
        return torch.fx.node.map_arg(item, env.__getitem__)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            env[node] = getattr(module, node.target)
        elif node.op == "output":
            return list(look(node.args[0]))
        elif node.target is functional.wait_tensor.default:
            env[node] = look(node.args[0])
        elif str(node.target).startswith("_c10d_functional"):
            env[node] = yield node.target, look(node.args)
        else:
            env[node] = node.target(*look(node.args), **look(node.kwargs))
    raise AssertionError("no output")


def exchanged(op: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What the members of a group get, in the order of the process group."""
    tensors, count = [call[0] for call in calls], len(calls)
    assert all(tensor.is_contiguous() for tensor in tensors) or op is functional.all_reduce.default
    if op is functional.all_gather_into_tensor.default:
        return [torch.cat(tensors)] * count
    if op is functional.all_to_all_single.default:
        cut = [tensor.split(list(call[2])) for tensor, call in zip(tensors, calls)]
        made = [torch.cat([cut[i][j] for i in range(count)]) for j in range(count)]
        assert [[len(cut[i][j]) for i in range(count)] for j in range(count)] == [list(call[1]) for call in calls]
        return made
    combine = {
        "sum": torch.Tensor.sum,
        "max": torch.Tensor.amax,
        "min": torch.Tensor.amin,
        "product": torch.Tensor.prod,
    }
    total = combine[calls[0][1]](torch.stack(tensors), 0).to(tensors[0].dtype)
    if op is functional.all_reduce.default:
        return [total] * count
    assert op is functional.reduce_scatter_tensor.default
    return list(total.split(len(total) // count)) if len(total) else [total] * count


def in_lockstep(program: Program, inputs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Outputs by rank position, of all emitted modules; every rank must make the same collectives."""
    groups = NamedGroups()
    ranks = program.mesh.device_ids
    runs = [rank_by_rank(emit(program, at, groups), [shards[at] for shards in inputs]) for at in program.mesh]
    results: dict[int, list[Any]] = {}
    answers: list[Any] = [None] * len(runs)
    while len(results) < len(runs):
        asked: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        for at, run in enumerate(runs):
            try:
                asked[at] = run.send(answers[at])
            except StopIteration as stop:
                results[at] = stop.value
        assert not (asked and results), "some ranks are done while others communicate"
        members: dict[str, list[int]] = {}
        for at, (_, args) in asked.items():
            members.setdefault(args[-1], []).append(at)
        for group in members.values():
            group.sort(key=lambda at: ranks[at])
            (op,) = {asked[at][0] for at in group}
            for at, answer in zip(group, exchanged(op, [asked[at][1] for at in group])):
                answers[at] = answer
    return [results[at] for at in range(len(runs))]


def resharding(mesh: DeviceMesh, shape: Sequence[int], dtype: str, source: str, target: str) -> Program:
    """One input, taken from one sharding to another."""
    before, after = (ShardingSpec.parse(text, mesh) for text in (source, target))
    type = TensorType(tuple(shape), dtype)
    values, instrs = [Local(0, type, before, "x")], []
    for step in reshard(before, after, type.shape, type.item_bytes, idle=False):
        values.append(Local(len(values), type, step.after.closed(), f"x_{len(values)}"))
        said = {"dim": step.dim, "to_dim": step.to_dim, "reduction": step.reduction}
        attrs = tuple(sorted((k, v) for k, v in said.items() if v is not None))
        op, n = LOCAL_STEPS.get(step.kind, step.kind), len(values) - 1
        instrs.append(Instr(op, (n - 1,), (n,), attrs, step.axes, step.bytes))
    return Program("reshard", mesh, tuple(values), tuple(instrs), (0,), (len(values) - 1,))


def made(shape: Sequence[int], dtype: str, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 5, tuple(shape), generator=generator)
    return numbers.to(torch_dtype(dtype))


def check(program: Program, shards: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Equal on every rank to the virtual mesh, and the collectives to the Program's."""
    wanted, executed = VirtualEngine(program.mesh, prepare, TorchArrays()).compile(program).run(shards)
    found = in_lockstep(program, shards)
    for at in program.mesh:
        for output, expected in zip(found[at], wanted):
            local = expected[at]
            assert output.dtype == local.dtype
            assert output.shape == local.shape
            if local.dtype.itemsize > 1 or local.dtype in (torch.bool, torch.uint8, torch.int8):
                torch.testing.assert_close(output, local, rtol=0, atol=0, equal_nan=True)
    assert emit(program, 0).meta["collectives"] == program.collectives
    assert executed.collectives == program.collectives
    return found


SPECS = ["[_, _]", "[a, _]", "[_, a]", "[b, a]", "[a+b, _]", "[b+a, _]", "[_, b+a]", "[a, b]", "[_, b] // a"]


CASES = [
    *[("a=2, b=2", shape) for shape in ((4, 12), (5, 7), (1, 3), (2, 1), (0, 4))],
    *[("a=3, b=2", shape) for shape in ((5, 7), (2, 1))],
    *[("a=2, b=2; devices=[3, 1, 0, 2]", shape) for shape in ((4, 12), (5, 7))],
]


@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=str)
def test_reshards(mesh: str, shape: tuple[int, int]) -> None:
    on = DeviceMesh.of(mesh)
    for source in SPECS:
        for target in SPECS:
            program = resharding(on, shape, "f32", source, target)
            spec = program.values[0].spec
            shards = scatter(made(shape, "f32", 1), spec)
            if spec.partial:  # what each device has to add
                shards = [made(part.shape, "f32", at) for at, part in enumerate(shards)]
            check(program, [shards])


def test_three_dims_and_sub_axes() -> None:
    mesh = DeviceMesh("x=4, y=2")
    specs = ["[x, _, y]", "[_, x, _]", "[_, _, x+y]", "[x:(1)2, x:(2)2, _]", "[x:(2)2+y, _, x:(1)2]", "[y, _, _]"]
    for source in specs:
        for target in specs:
            for shape in ((1, 8, 8), (8, 5, 8)):
                try:
                    program = resharding(mesh, shape, "f32", source, target)
                except SpecError:
                    continue
                check(program, [scatter(made(shape, "f32", 1), program.values[0].spec)])


@pytest.mark.parametrize("dtype", ["bool", "u8", "i8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32",
                                   "f64", "c64", "c128", "f8e4m3", "f8e5m2"])  # fmt: skip
def test_every_element_type_moves(dtype: str) -> None:
    mesh = DeviceMesh("a=3, b=2")
    for source, target in (("[a, _]", "[_, _]"), ("[_, a]", "[_, _]"), ("[a, _]", "[_, a]"), ("[a, b]", "[b, a]")):
        for shape in ((6, 6), (5, 4)):
            program = resharding(mesh, shape, dtype, source, target)
            whole = made(shape, dtype, 1)
            spec = program.values[program.outputs[0]].spec
            found = in_lockstep(program, [scatter(whole, program.values[0].spec)])
            for at, expected in enumerate(scatter(whole, spec)):
                assert found[at][0].dtype == whole.dtype
                assert torch.equal(found[at][0].to(torch.complex128), expected.to(torch.complex128))


NUMBERS = ["u8", "i8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"]


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "avg"])
@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", "c64"])
def test_every_reduction(kind: str, dtype: str) -> None:
    mesh = DeviceMesh("a=3, b=2")
    for target in ("[_, _]", "[a, _]", "[_, a]"):
        program = resharding(mesh, (5, 4), dtype, f"[_, _] // {kind}(a)", target)
        if (dtype == "bool" and kind in ("sum", "avg")) or (dtype == "c64" and kind in ("max", "min", "prod")):
            with pytest.raises(SpecError, match=f"a pending {kind} of {dtype} cannot be combined between processes"):
                emit(program, 0)
            continue
        parts = [made((5, 4), dtype, at % 3) for at in mesh]
        found = in_lockstep(program, [parts])
        wide = torch.float64 if dtype != "c64" else torch.complex128
        by_a = [[p for p in mesh if mesh.index_along(p, mesh.axis("b")) == b] for b in range(2)]
        for group in by_a:
            stacked = [parts[p].to(wide) for p in group]
            total = TorchArrays().combine(kind, stacked)
            for p in group:
                spec = program.values[program.outputs[0]].spec
                expected = total[spec.local_slices((5, 4), p)].to(torch_dtype(dtype))
                rough = 1e-2 if dtype in ("f16", "bf16") else 1e-6
                torch.testing.assert_close(found[p][0].to(wide), expected.to(wide), rtol=rough, atol=0)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_max_and_min_keep_nan_and_signs(dtype: str, kind: str) -> None:
    mesh = DeviceMesh("a=2")
    to = torch_dtype(dtype)
    left = torch.tensor([NAN, 1.0, -1.0, -NAN, float("inf"), float("-inf"), -0.0, 2.5, -3.0], dtype=to)
    right = torch.tensor([1.0, NAN, -2.0, 5.0, 1.0, 3.0, -1.0, 2.0, float("-inf")], dtype=to)
    program = resharding(mesh, (9,), dtype, f"[_] // {kind}(a)", "[_]")
    for found in in_lockstep(program, [[left, right]]):
        expected = TorchArrays().combine(kind, [left, right])
        torch.testing.assert_close(found[0], expected, rtol=0, atol=0, equal_nan=True)


# -- whole programs -------------------------------------------------------------------------------------


def lowered(fn: Callable[..., Any], args: Sequence[Any], mesh: str, specs: Sequence[str | None]) -> Program:
    captured = capture(fn, *args)
    on = DeviceMesh.of(mesh)
    said = {
        value: ShardingSpec.of(spec, on, captured.graph.type(value).rank)
        for value, spec in zip(captured.graph.inputs, specs)
        if spec is not None
    }
    return compile_graph(captured.graph, on, Said(said)).program


def check_program(fn: Callable[..., Any], args: Sequence[Any], mesh: str, specs: Sequence[str | None]) -> Program:
    program = lowered(fn, args, mesh, specs)
    shards = [scatter(arg, program.values[value].spec) for arg, value in zip(args, program.inputs)]
    found = in_lockstep(program, shards)
    expected = fn(*args)
    for i, (value, whole) in enumerate(zip(program.outputs, expected if isinstance(expected, tuple) else (expected,))):
        local = program.values[value]
        parts = [outputs[i] for outputs in found]
        torch.testing.assert_close(assemble(parts, local.spec, local.type.shape), whole, rtol=1e-9, atol=1e-9)
    assert emit(program, 1).meta["collectives"] == program.collectives
    return program


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    hidden = torch.relu(x @ w + b)
    return (hidden @ v).softmax(-1)


@pytest.mark.parametrize("sizes", [(8, 4, 6, 4), (5, 3, 7, 2)], ids=["even", "uneven"])
@pytest.mark.parametrize("specs", [("[dp, _]", "[_, tp]", "[tp]", "[tp, _]"), ("[dp, tp]", None, None, None),
                                   ("[_, dp]", "[dp, tp]", None, "[_, dp]")], ids=str)  # fmt: skip
def test_mlp(sizes: tuple[int, ...], specs: Sequence[str | None]) -> None:
    n, i, h, o = sizes
    args = [torch.randn(shape, dtype=torch.float64) for shape in ((n, i), (i, h), (h,), (h, o))]
    program = check_program(mlp, args, "dp=2, tp=2", specs)
    assert program.collectives


def test_a_program_with_several_results_lists_and_created_values() -> None:
    def f(x: Any, w: Any) -> Any:
        a, b, c = x.split([1, 2, 3], 1)
        y, mean, _ = torch.ops.aten.native_layer_norm(b @ w, [4], None, None, 1e-5)
        top, where = torch.topk(x, 2)
        return torch.cat([a, c], 1) + torch.arange(4, dtype=x.dtype), y.view(-1), mean, top, where, torch.ones(3) * 2

    args = [torch.randn(4, 6, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)]
    check_program(f, args, "x=2", ("[x, _]", None))
    check_program(f, args, "x=3", ("[x, _]", "[_, x]"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["layer", "group", "batch"])
@pytest.mark.parametrize("wide", [False, True], ids=["half parameters", "float32 parameters"])
def test_norms_in_half_types(norm: str, dtype: Any, wide: bool) -> None:
    """Statistics are float32 between ops; a CPU's kernels take and give them as eager PyTorch has them."""
    torch.manual_seed(0)  # sums that cancel are rounded to anything

    def f(x: Any, w: Any, b: Any) -> Any:
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        if norm == "layer":
            made = torch.nn.functional.layer_norm(x, (4,), w, b)
        elif norm == "group":
            made = torch.nn.functional.group_norm(x, 2, w, b)
        else:
            made = torch.nn.functional.batch_norm(x, None, None, w, b, training=True)
        return (made.detach(), *torch.autograd.grad(made.square().sum(), (x, w, b)))

    args = [torch.randn(6, 4, 4).to(dtype), *(torch.randn(4).to(torch.float32 if wide else dtype) for _ in range(2))]
    for specs in (("[d, _, _]", None, None), ("[_, d, _]", None, None), ("[_, _, d]", "[d]", None)):
        for mesh in ("d=2", "d=3"):
            program = lowered(f, args, mesh, specs)
            shards = [scatter(arg, program.values[value].spec) for arg, value in zip(args, program.inputs)]
            found = in_lockstep(program, shards)
            for i, (value, whole) in enumerate(zip(program.outputs, f(*args))):
                local = program.values[value]
                parts = [outputs[i] for outputs in found]
                near = 4 * torch.finfo(dtype).eps  # sums in another order are rounded otherwise
                torch.testing.assert_close(assemble(parts, local.spec, local.type.shape), whole, rtol=near, atol=near)


@settings(max_examples=30)
@given(st.integers(0, 7), st.integers(1, 7), st.sampled_from(SPECS[:8]), st.sampled_from(["[_]", "[a]", "[b]", None]))
def test_uneven_and_empty_shards(rows: int, columns: int, spec: str, other: str | None) -> None:
    args = [torch.randn(rows, columns, dtype=torch.float64), torch.randn(columns, dtype=torch.float64)]
    check_program(lambda x, w: ((x * w).sum(1), torch.tanh(x).t()), args, "a=2, b=2", (spec, other))


# -- what the module is ---------------------------------------------------------------------------------


def test_the_code_is_plain_calls_and_drops_dead_values() -> None:
    args = [torch.randn(4, 4), torch.randn(4, 4)]
    program = lowered(lambda x, w: (x @ w + 1).relu(), args, "dp=2, tp=2", ("[dp, tp]", "[tp, _]"))
    code = emit(program, 0).code
    assert "mm_default = _op_aten_mm_default(x, w);  x = w = None" in code
    assert "_op__c10d_functional_all_reduce_default(mm_default, 'sum', 'ranks_0_1')" in code
    assert "_op_aten_add_Tensor(wait_tensor_default, 1);  wait_tensor_default = None" in code


def test_nodes_say_where_they_come_from() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    captured = capture(model, torch.randn(4, 4))
    mesh = DeviceMesh("x=2")
    said = Said({captured.graph.inputs[0]: ShardingSpec.of("[_, x]", mesh, 2)})
    module = emit(compile_graph(captured.graph, mesh, said).program, 1)
    (node,) = [node for node in module.graph.nodes if node.meta.get("op") == "aten.addmm"]
    assert node.meta["scope"] == "0"
    assert ".py:" in node.meta["source"]
    assert node.meta["sharding"].startswith("f32[4, 4")
    assert "File" in node.meta["stack_trace"]
    collective = next(node for node in module.graph.nodes if "collective" in node.meta)
    assert collective.meta["collective"].endswith(" x")
    assert collective.meta["cause"]


def test_stand_ins_run_one_rank_alone() -> None:
    args = [torch.randn(6, 5), torch.randn(5, 7)]
    program = lowered(lambda x, w: torch.tanh(x @ w).sum(0), args, "dp=2, tp=3", ("[dp, tp]", "[_, tp]"))
    for at in program.mesh:
        module = emit(program, at, stand_ins=True)
        inputs = [scatter(arg, program.values[v].spec)[at] for arg, v in zip(args, program.inputs)]
        (found,) = module(*inputs)
        assert found.shape == program.values[program.outputs[0]].local_shape(at)
        assert not any(str(node.target).startswith("_c10d") for node in module.graph.nodes)


def test_torch_compile_and_copies_take_the_module() -> None:
    args = [torch.randn(4, 4), torch.randn(4, 4)]
    program = lowered(lambda x, w: (x @ w + 1).view(-1).relu(), args, "x=1", (None, None))
    module = emit(program, 0)
    (expected,) = module(*args)
    (compiled,) = torch.compile(module, backend="eager", fullgraph=True)(*args)
    (copied,) = copy.deepcopy(module)(*args)
    assert torch.equal(expected, compiled)
    assert torch.equal(expected, copied)
    assert not any(node.target is operator.getitem for node in module.graph.nodes)


def test_gathers_by_gloo_are_given_memory_for_their_result() -> None:
    """Two that make it themselves must not be under way at once: PyTorch 2.13 then corrupts the heap."""

    class Hosts(NamedGroups):
        def of(self, ranks: Sequence[int]) -> Group:
            return replace(super().of(ranks), on_host=True)

    program = resharding(DeviceMesh("x=4"), (8, 6), "f32", "[x, _]", "[_, _]")
    targets = {str(node.target) for node in emit(program, 0, Hosts()).graph.nodes}
    assert "_c10d_functional.all_gather_into_tensor_out.default" in targets
    assert "_c10d_functional.all_gather_into_tensor.default" not in targets


def test_an_error_names_the_instruction() -> None:
    program = resharding(DeviceMesh("a=2"), (4,), "bool", "[_] // a", "[_]")
    with pytest.raises(SpecError, match="instruction  0: all_reduce"):
        emit(program, 0)


def test_ops_that_refuse_empty_shards() -> None:
    def f(x: Any, w: Any) -> Any:
        return x.amax(0), torch.nn.functional.conv1d(x.unsqueeze(1), w)

    args = [torch.randn(2, 6, dtype=torch.float64), torch.randn(3, 1, 2, dtype=torch.float64)]
    check_program(f, args, "x=3", ("[x, _]", None))
