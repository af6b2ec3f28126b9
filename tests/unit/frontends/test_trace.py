"""From a function to a graph: arguments and results, constants, source lines, and what cannot be traced."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from shardwright.errors import GraphError, ShardwrightError, TraceAttributeError, TraceError
from shardwright.frontends.numpy import ShapeDtype, Tracer, constrain, is_traced, run_graph, trace
from shardwright.frontends.numpy.trees import flatten, unflatten

Case = Callable[..., Any]
F32 = ShapeDtype((2, 3), np.float32)


# The programs of seed 001, as they stand there.


def transformer_block(x, w_q, w_k, w_v, w_o, w_ff1, w_ff2):  # type: ignore[no-untyped-def]
    # Attention
    q = x @ w_q
    k = x @ w_k
    v = x @ w_v
    # (simplified - real attention would have softmax etc.)
    attn = q @ k.T @ v
    attn_out = attn @ w_o

    # FFN
    h = (x + attn_out) @ w_ff1
    h = h @ w_ff2

    return x + h


def diamond(x, w1, w2):  # type: ignore[no-untyped-def]
    h = x @ w1
    branch1 = h + 1
    branch2 = h * 2
    return branch1 @ branch2.T


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
def test_transformer_block(dtype: str, agree: Case, numbers: Case) -> None:
    shapes = [(8, 16), (16, 16), (16, 16), (16, 16), (16, 16), (16, 32), (32, 16)]
    traced = agree(transformer_block, *(numbers(shape, dtype, i) for i, shape in enumerate(shapes)))
    assert traced.names == ("x", "w_q", "w_k", "w_v", "w_o", "w_ff1", "w_ff2")
    ops = [node.op for node in traced.graph.nodes]
    assert ops == ["matmul"] * 3 + ["transpose"] + ["matmul"] * 3 + ["add"] + ["matmul"] * 2 + ["add"]


def test_diamond(agree: Case, numbers: Case) -> None:
    traced = agree(diamond, numbers((4, 6), "f4"), numbers((6, 5), "f4", 1), numbers((2, 2), "f4", 2))
    assert traced.names == ("x", "w1", "w2")  # an argument that is not used is an input all the same
    assert str(traced.graph).splitlines()[1:-2] == [
        f"  {line}  # {source} in diamond"
        for line, source in zip(
            (
                "%3 = matmul(%x, %w1) : f32[4, 5]",
                "%4 = full() {value=1.0} : f32[]",
                "%5 = add(%3, %4) : f32[4, 5]",
                "%6 = full() {value=2.0} : f32[]",
                "%7 = multiply(%3, %6) : f32[4, 5]",
                "%8 = transpose(%7) {permutation=[1, 0]} view[0<-0] : f32[5, 4]",
                "%9 = matmul(%5, %8) : f32[4, 4]",
            ),
            (f'"tests/unit/frontends/test_trace.py":{_line(diamond, n)}' for n in (1, 2, 2, 3, 3, 4, 4)),
        )
    ]


def _line(fn: Case, offset: int) -> int:
    return inspect.getsourcelines(fn)[1] + offset


# Arguments and results.


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Params:
    w: Any
    b: Any = None
    scale: float = 1.0
    cache: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Derived:
    x: Any
    double: Any = field(init=False, default=None)


def test_arguments_are_named_after_parameters() -> None:
    def fn(x: Any, /, params: Any, layers: Any, *rest: Any, key: Any, **others: Any) -> Any:
        return x

    traced = trace(
        fn,
        F32,
        {"w1": F32, "b": None},
        [Params(F32, cache=[F32]), Pair(F32, 3)],
        F32,
        (F32, "no"),
        key=F32,
        more={1: F32},
    )
    assert traced.names == (
        "x", "params.w1", "layers.0.w", "layers.0.cache.0", "layers.1.left", "rest.0", "rest.1.0", "key", "more.1",
    )  # fmt: skip
    assert trace(np.add, F32, F32).names in (("x1", "x2"), ("arg0", "arg1"))  # newer Pythons know them
    assert trace(max, [F32, F32], key=lambda x: 0).names == ("arg0.0", "arg0.1")
    assert trace(functools.partial(fn, params=1, layers=2, key=3), F32).names == ("x",)


def test_graphs_are_named_after_functions() -> None:
    assert trace(diamond, F32, ShapeDtype((3, 4)), F32).graph.name == "diamond"
    assert trace(lambda x: x, F32).graph.name == "main"
    assert trace(functools.partial(np.add, 1), F32).graph.name == "add"

    class Model:
        def __call__(self, x: Any) -> Any:
            return x

        def forward(self, x: Any) -> Any:
            return x

    assert trace(Model(), F32).graph.name == "Model"
    assert trace(Model().forward, F32).graph.name == "forward"


def test_results_are_built_as_the_function_builds_them(agree: Case, numbers: Case) -> None:
    x = numbers((2, 3), "f4")
    agree(lambda x: {"a": x + 1, "b": [x, (x.T, None)], "c": 3, "d": "word"}, x)
    agree(lambda x: Pair(x, Pair(x.sum(), 2.5)), x)
    agree(lambda x: (), x)
    agree(lambda x: None, x)
    assert trace(lambda x: 7, x)(x) == 7
    agree(lambda x: (np.ones((2, 2)), np.arange(3), np.float32(2), np.array(1.5), x), x)
    agree(lambda x: [x, x, x.T], x)
    made = trace(lambda x: Params(x, b=x * 2), x)(x)
    assert isinstance(made, Params)
    assert made.cache == []
    np.testing.assert_array_equal(made.b, x * 2)


def test_trees() -> None:
    point = namedtuple("point", "x y")
    items: list[Any] = [
        {"b": F32, "a": [F32, 1, "s"]}, point(F32, None), Params(F32), OrderedDict(z=F32), (F32,), [], None, 5,
        np.float32, np.dtype("f4"),
    ]  # fmt: skip
    for item in items:
        leaves, tree = flatten(item)
        assert unflatten(tree, [leaf for _, leaf in leaves]) == item
        assert tree.leaves == len(leaves)
    derived = Derived(F32)
    object.__setattr__(derived, "double", F32)
    leaves, tree = flatten(derived)
    assert unflatten(tree, [leaf for _, leaf in leaves]) == derived
    leaves, tree = flatten(defaultdict(list, a=F32))
    assert unflatten(tree, [1]) == {"a": 1}


def test_static_arguments_are_part_of_the_program(numbers: Case) -> None:
    def fn(x: Any, n: int, kind: str = "sum", flag: bool = False) -> Any:
        return getattr(x, kind)(axis=n) if flag else x * n

    x = numbers((2, 3), "f4")
    traced = trace(fn, x, 1, kind="max", flag=True)
    np.testing.assert_array_equal(traced(x, 1, kind="max", flag=True), x.max(axis=1))
    with pytest.raises(TraceError, match="n was 1 when the function was traced, and is 0 now"):
        traced(x, 0, kind="max", flag=True)
    with pytest.raises(TraceError, match="n was 1 when the function was traced, and is an array now"):
        traced(x, x, kind="max", flag=True)


def test_a_traced_function_takes_what_it_was_traced_for(numbers: Case) -> None:
    x = numbers((2, 3), "f4")
    traced = trace(lambda x, p: x + p["b"] + p["a"], x, {"a": x, "b": x})
    np.testing.assert_array_equal(traced(x, {"b": x, "a": 2 * x}), 4 * x)  # order of keys does not matter
    for args, message in (
        ((x, {"a": x}), "p is not built as it was when the function was traced"),
        ((x, [x, x]), "p is not built as it was"),
        ((x, x), "given   an array"),
        ((x, {"a": x, "b": None}), "p.b is not built as it was"),
        ((x,), "the argument list is not built as it was"),
        ((x[:1], {"a": x, "b": x}), r"x is f32\[1, 3\], but the function was traced for f32\[2, 3\]"),
        ((x, {"a": x, "b": x.astype("f8")}), r"p.b is f64\[2, 3\], but the function was traced for f32"),
    ):
        with pytest.raises(TraceError, match=message):
            traced(*args)


def test_inputs_of_many_kinds() -> None:
    class Foreign:
        shape = (np.int64(2), 3)
        dtype = "float16"

    class Odd:
        shape = (2,)
        dtype = "torch.float32"

    traced = trace(lambda *xs: xs, Foreign(), np.float32(3), np.zeros((), "i4"), np.zeros(2, ">f8"), np.zeros(0, bool))
    assert [str(traced.graph.type(value)) for value in traced.graph.inputs] == [
        "f16[2, 3]",
        "f32[]",
        "i32[]",
        "f64[2]",
        "bool[0]",
    ]
    for wrong, message in (
        (Odd(), "which is none of NumPy's"),
        (np.zeros(2, object), "cannot have element type object"),
        (np.zeros(2, "M8[s]"), "cannot have element type datetime64"),
        (np.zeros(2, np.longdouble), "cannot have element type"),
    ):
        with pytest.raises(TraceError, match=message):
            trace(lambda x: x, wrong)


def test_shape_dtype() -> None:
    assert ShapeDtype([2, np.int64(3)], "float32") == F32
    assert hash(ShapeDtype((2, 3), np.float32)) == hash(F32)
    with pytest.raises(TraceError, match="negative size"):
        ShapeDtype((2, -1))
    with pytest.raises(TraceError, match="cannot have element type"):
        ShapeDtype((2,), "U3")


# Constants.


def test_closed_over_arrays_are_inputs(agree: Case, numbers: Case) -> None:
    w, b = numbers((3, 4), "f4"), numbers((4,), "f4", 1)
    x = numbers((2, 3), "f4", 2)
    traced = agree(lambda x: (x @ w + b) * b, x)
    assert traced.names == ("x",)
    assert traced.const_names == ("const0", "const1")  # each once
    assert [str(traced.graph.type(value)) for value in traced.graph.inputs] == ["f32[2, 3]", "f32[3, 4]", "f32[4]"]
    (made,) = run_graph(traced.graph, [x, *traced.consts])
    np.testing.assert_array_equal(made, (x @ w + b) * b)


def test_a_parameter_may_be_called_const0(agree: Case, numbers: Case) -> None:
    w = numbers((3,), "f4")
    traced = agree(lambda const0: const0 * w, numbers((3,), "f4"))
    assert traced.names == ("const0",)
    assert traced.const_names == ("const0_1",)


def test_arrays_with_one_value_are_full(agree: Case, numbers: Case) -> None:
    x = numbers((2, 3), "f4")
    for array in (
        np.zeros((2, 3)),
        np.full(3, np.nan),
        np.array(2.5),
        np.ones((2, 1), "c8") * 2j,
        np.ones(3, bool),
        np.full((2, 3), -0.0),
    ):
        traced = agree(lambda x, a=array: x * a, x)
        assert not traced.consts
        assert traced.graph.nodes[0].op == "full"
    for array in (
        np.array([0.0, -0.0, 0.0]),
        np.array([np.nan, 1, np.nan]),
        np.arange(3),
        np.eye(2, 3),
        np.zeros((0, 1, 1)),
    ):
        assert len(agree(lambda x, a=array: x * a, x).consts) == 1


def test_a_constant_is_kept_as_it_was_used(agree: Case, numbers: Case) -> None:
    def fn(x: Any) -> Any:
        counter = np.arange(3.0)
        parts = []
        for _ in range(3):
            parts.append(x * counter)
            counter += 1
        return parts

    assert len(agree(fn, numbers((2, 3), "f8")).consts) == 3
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    assert trace(lambda x: x * frozen, F32).consts[0] is frozen


def test_a_constant_of_foreign_byte_order(agree: Case, numbers: Case) -> None:
    assert agree(lambda x: x * np.arange(3).astype(">f8"), numbers((2, 3), "f4")).consts[0].dtype.isnative


def test_arrays_of_something_else_are_refused() -> None:
    with pytest.raises(TypeError):
        trace(lambda x: x + np.array(["a", "b", "c"]), F32)
    with pytest.raises(TraceError, match="element type object meets a traced array"):
        trace(lambda x: np.where(x > 0, x, np.array([None, 1, 2], object)), F32)
    with pytest.raises(TraceError, match="NoneType of element type object meets a traced array"):
        trace(lambda x: x == None, F32)  # noqa: E711


# SourceLine lines.


def outer_function(x: Any) -> Any:
    y = inner_function(x)  # line 1
    return (
        y
        - np.mean(x, axis=0)  # line 4
        + 1
    )


def inner_function(x: Any) -> Any:
    return np.linalg.norm(x, axis=1, keepdims=True)


def test_source_lines() -> None:
    nodes = trace(outer_function, F32).graph.nodes
    found = [(node.op, node.source.line, node.source.scope) for node in nodes if node.source]
    inner, outer = _line(inner_function, 1), _line(outer_function, 0)
    assert found[:3] == [(op, inner, "inner_function") for op in ("multiply", "reduce_sum", "sqrt")]
    assert found[3:6] == [(op, outer + 4, "outer_function") for op in ("reduce_sum", "full", "divide")]
    assert {scope for _, _, scope in found} == {"inner_function", "outer_function"}
    assert {node.source.file for node in nodes if node.source} == {"tests/unit/frontends/test_trace.py"}


def test_source_of_methods_and_nested_functions() -> None:
    class Block:
        def forward(self, x: Any) -> Any:
            return x + 1

    def nested(x: Any) -> Any:
        return [row * 2 for row in Block().forward(x)]

    scopes = [node.source.scope for node in trace(nested, F32).graph.nodes if node.source]
    assert scopes[:2] == ["Block.forward", "Block.forward"]
    assert set(scopes[2:]) <= {"nested", "<listcomp>", "nested.<listcomp>"}


def test_source_passes_over_the_library() -> None:
    from shardwright.numpy import softmax

    def fn(x: Any) -> Any:
        return softmax(x)

    lines = {node.source.line for node in trace(fn, F32).graph.nodes if node.source}
    assert lines == {_line(fn, 1)}


# What a traced value cannot do.

NUMBERS: dict[str, tuple[Case, str]] = {
    "bool()": (lambda x: x if x else 0, "np.where(condition, a, b)"),
    "float()": (lambda x: float(x), "return the value from the traced function"),
    "int()": (lambda x: int(x), "as a Python scalar argument"),
    "complex()": (lambda x: complex(x), "return the value"),
    "an index": (lambda x: [1, 2][x], "np.take(x, i)"),
    "in": (lambda x: 1 in x, "np.any(x == item)"),
    "np.asarray": (lambda x: np.asarray(x), "leave np.asarray out"),
    ".item()": (lambda x: x.item(), "return the value"),
    ".tolist()": (lambda x: x.tolist(), "return the value"),
    ".tobytes()": (lambda x: x.tobytes(), "return the value"),
}


@pytest.mark.parametrize("asked", sorted(NUMBERS))
def test_a_traced_value_has_no_numbers(asked: str) -> None:
    fn, help = NUMBERS[asked]
    with pytest.raises(TraceError) as caught:
        trace(fn, ShapeDtype((), np.int32))
    assert f"a traced value has no numbers, but {asked} needs those of i32[]" in str(caught.value)
    assert help in str(caught.value)
    assert "test_trace.py" in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ShardwrightError)


def test_lists_and_arrays_of_numbers_cannot_hold_traced_values() -> None:
    for fn in (
        lambda x: np.array([x, x]),
        lambda x: np.zeros((2, 3)).__setitem__(slice(None), x),
        lambda x: np.sum([x, x]),
        lambda x: np.copyto(np.zeros((2, 3)), x),
    ):
        with pytest.raises(TraceError, match=r"np\.asarray needs those of"):
            trace(fn, F32)


def test_unknown_attributes() -> None:
    with pytest.raises(TraceAttributeError, match=r"ndarray\.searchsorted is not supported in a traced function"):
        trace(lambda x: x.searchsorted(1), F32)
    with pytest.raises(TraceError, match="AttributeError: a traced array has no attribute 'summ'"):
        trace(lambda x: x.summ(), F32)

    def fn(x: Any) -> Any:
        assert not hasattr(x, "strides")
        assert not hasattr(x, "__array_interface__")
        assert isinstance(x, Tracer)
        assert is_traced(x)
        assert repr(x) == "traced f32[2, 3]"
        with pytest.raises(TypeError):
            hash(x)
        with pytest.raises(TypeError):
            len(x.sum())
        with pytest.raises(TypeError):
            iter(x.sum())
        return x

    trace(fn, F32)
    assert not is_traced(np.zeros(2))


def test_shape_and_dtype_are_not_assigned() -> None:
    for name, value in (("shape", (6,)), ("dtype", np.float64), ("real", 1)):
        with pytest.raises(TraceError, match="AttributeError"):
            trace(lambda x, name=name, value=value: setattr(x, name, value), F32)


def test_values_stay_in_their_trace() -> None:
    kept: list[Any] = []
    trace(lambda x: kept.append(x), F32)
    with pytest.raises(TraceError, match="is used after its trace ended"):
        kept[0] + 1
    with pytest.raises(TraceError, match="is used after its trace ended"):
        np.sum(kept[0])
    with pytest.raises(TraceError, match="is used in the trace of main"):
        trace(lambda x: x + kept[0], F32)
    with pytest.raises(TraceError, match="is used in the trace of main"):
        trace(lambda x: np.concatenate([x, kept[0]]), F32)
    with pytest.raises(TraceError, match="is used in the trace of main"):
        trace(lambda x: kept[0], F32)


def test_traces_nest() -> None:
    inner = []

    def fn(x: Any) -> Any:
        inner.append(trace(lambda y: y * 3, ShapeDtype(x.shape, x.dtype)).graph)
        return x + 1

    outer = trace(fn, F32).graph
    assert [node.op for node in outer.nodes] == ["full", "add"]
    assert [node.op for node in inner[0].nodes] == ["full", "multiply"]


def test_threads_trace_apart() -> None:
    found: dict[int, list[str]] = {}

    def work(n: int) -> None:
        def fn(x: Any) -> Any:
            for _ in range(50):
                x = x + n if n % 2 else x * n
            return x

        found[n] = [node.op for node in trace(fn, F32).graph.nodes]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[n] == ["full", "add" if n % 2 else "multiply"] * 50 for n in range(4))


def test_an_error_ends_the_trace() -> None:
    def fn(x: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(TraceError, match="fn fails: RuntimeError: mine"):
        trace(fn, F32)
    assert trace(lambda x: x, F32).graph.nodes == ()


def test_foreign_results_are_refused() -> None:
    with pytest.raises(TraceError, match="a traced function returned a ShapeDtype"):
        trace(lambda x: F32, F32)


def test_operands_may_decline() -> None:
    class Quantity:
        __array_ufunc__ = None

        def __radd__(self, other: Any) -> str:
            return "mine"

    assert trace(lambda x: x + Quantity(), F32)(np.zeros((2, 3), "f4")) == "mine"
    with pytest.raises(TypeError):
        trace(lambda x: x * Quantity(), F32)


# Constraints.


def test_constraints(agree: Case, numbers: Case) -> None:
    x = numbers((2, 3), "f4")
    traced = agree(lambda x: constrain(x * 2, "[dp, _]") + 1, x)
    node = traced.graph.nodes[2]
    assert (node.op, node.attrs) == ("core.constraint", (("spec", "[dp, _]"),))
    assert constrain(x, "[dp, _]") is x


def test_run_graph_checks_its_inputs() -> None:
    graph = trace(lambda x, y: x + y, F32, F32).graph
    with pytest.raises(GraphError, match="takes 2 inputs, not 1"):
        run_graph(graph, [np.zeros((2, 3), "f4")])
    with pytest.raises(GraphError, match=r"%y of main is f32\[2, 3\], not f64\[2, 3\]"):
        run_graph(graph, [np.zeros((2, 3), "f4"), np.zeros((2, 3))])
