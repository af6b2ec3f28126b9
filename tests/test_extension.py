"""Adding a thing is one file: each is written to a temporary folder, found there, planned with, proven and run.

Nothing else is changed for it; and each has a wrong twin that is noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from by_hand import Said, compile_graph
from shardwright import frontends, run
from shardwright.cost.hardware import hardware_of
from shardwright.cost.program import program_cost
from shardwright.errors import GraphError, PlanInfeasible, RuleError, SpecError, VerifyError
from shardwright.frontends.numpy import ops, trace
from shardwright.frontends.numpy.define import forget_op
from shardwright.numpy import check_op
from shardwright.optimize import NumericError, NumericProblem, solve, solver_names, solvers
from shardwright.proof import check_identity, check_structure
from shardwright.run.engine import Engine, engine_names

Write = Callable[[ModuleType | None, str, str], Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file and import it: by itself, or as one more file of a package that lists its folder."""
    before = set(sys.modules)

    def written(package: ModuleType | None, name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        if package is None:
            monkeypatch.syspath_prepend(tmp_path)
            return import_module(name)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        found = import_module(f"{package.__name__}.{name}")
        solver_names()  # lists anew: another test may have had a solver of this name
        return found

    yield written
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]


def proven(plan: Any) -> None:
    check_structure(plan.program)
    check_identity(plan.complete.graph, plan.program)


# -- an op ------------------------------------------------------------------------------------------------

OP = '''
"""Rows scaled by what they sum to, plus a bias."""

import numpy as np
from shardwright.numpy import op


def exact(a, x, w, *, power):
    scaled = a.multiply(a.apply("tanh", x), a.sum(x, axis=1, keepdims=True))
    return a.add(scaled, a.multiply(w, power))


@op(
    "mine.scaled",
    rule="i j, j -> i j ; j: {j}",
    meaning=exact,
    samples=[((6, 4), (4,), {{"power": 2}}), ("n m", "m", {{"power": 3}})],
    cost="pointwise",
)
def scaled(x, w, *, power):
    return np.tanh(x) * np.sum(x, axis=1, keepdims=True) + w * {power}
'''


@pytest.fixture(autouse=True)
def _no_ops_left() -> Iterator[None]:
    yield
    forget_op("mine.scaled")


@pytest.mark.parametrize("package", [None, ops], ids=["a user's module", "a file of the folder"])
def test_an_op_is_one_file(write: Write, package: ModuleType | None) -> None:
    scaled = write(package, "mine_op", OP.format(j="whole", power="power")).scaled
    rng = np.random.default_rng(0)
    x, w, v = rng.normal(size=(12, 8)), rng.normal(size=8), rng.normal(size=(8, 6))

    def model(x: Any, w: Any, v: Any) -> Any:
        return np.maximum(scaled(x, w, power=2), 0) @ v

    expected = np.maximum(np.tanh(x) * x.sum(1, keepdims=True) + 2 * w, 0) @ v
    np.testing.assert_allclose(model(x, w, v), expected)
    plan = sw.plan(model, x, w, v, mesh="d=4", in_specs=("[d, _]", None, None))
    assert [node.op for node in plan.complete.graph.nodes].count("mine.scaled") == 1
    assert not plan.collectives
    proven(plan)
    np.testing.assert_allclose(plan(x, w, v), expected)
    checked = check_op("mine.scaled")
    assert (checked.wrong, checked.splits) == ((), 1)


def test_a_rule_that_claims_too_much_is_noticed(write: Write) -> None:
    """Of a part of a row only a part of its sum is known: by execution and by the proof."""
    scaled = write(None, "loose_op", OP.format(j="blocked", power="power")).scaled
    with pytest.raises(VerifyError, match="differs from the unsharded result"):
        check_op("mine.scaled")

    def model(x: Any, w: Any) -> Any:
        return scaled(x, w, power=2)

    with pytest.raises(RuleError, match=r"(?s)does not hold.*loose_op.*j split over 2 devices"):
        sw.plan(model, np.ones((12, 8)), np.ones(8), mesh="d=4")
    mesh = sw.DeviceMesh("d=4")
    graph = trace(model, np.ones((12, 8)), np.ones(8)).graph
    specs = [sw.ShardingSpec.parse(text, mesh) for text in ("[_, d]", "[d]", "[_, d]")]
    made = compile_graph(graph, mesh, Said(dict(enumerate(specs[:2])), {0: specs[2]}))
    assert not made.program.collectives
    with pytest.raises(VerifyError, match="differs"):
        check_identity(made.graph, made.program)


def test_a_meaning_of_another_function_is_noticed(write: Write) -> None:
    write(None, "other_op", OP.format(j="whole", power="3"))
    with pytest.raises(VerifyError, match=r"what mine.scaled is said to mean differs"):
        check_op("mine.scaled")


# -- a solver ---------------------------------------------------------------------------------------------

SOLVER = '''
"""Coordinate descent: each node takes what is best beside its neighbours, until nothing changes."""

import numpy as np
from shardwright.optimize import Accepts

NAME = "descent"
ACCEPTS = Accepts(memory=False)
seen = []


def solve(problem, search):
    seen.append(problem.nodes)
    choice = np.array([row.argmin() for row in problem.costs])
    before = None
    while before != choice.tolist():
        before = choice.tolist()
        for node, row in enumerate(problem.costs):
            cost = row.astype(float)
            for edge in problem.edges:
                if edge.first == node:
                    cost = cost + edge.table[:, choice[edge.second]]
                elif edge.second == node:
                    cost = cost + edge.table[choice[edge.first]]
            choice[node] = cost.argmin()
        search.offer(choice)
    return True
'''
WRONG = '''
"""Offers what it should not."""

from shardwright.optimize import Accepts

NAME = "descent"
ACCEPTS = Accepts()


def solve(problem, search):
    search.offer({choice})
    return True
'''


def circle(x: Any, y: Any, z: Any, w: Any) -> Any:
    """Products that read each other: what reductions alone do not solve."""
    p, q, r, s = x @ y, y @ z, z @ w, w @ x
    return p @ q + q @ r + r @ s + s @ p + p * r + q * s


def arrays() -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(64, 64)) for _ in range(4)]


def test_a_solver_is_one_file(write: Write) -> None:
    args = arrays()
    with pytest.raises(SpecError, match="no solver is called 'descent'"):
        sw.plan(circle, *args, mesh="x=2, y=2", solver="descent")
    solver = write(solvers, "descent", SOLVER)
    assert "descent" in solver_names()
    plan = sw.plan(circle, *args, mesh="x=2, y=2", solver="descent")
    priced = program_cost(plan.program, hardware_of("h100"), plan.complete.graph)
    assert plan.cost.objective == priced.compute + priced.communication - priced.hidden
    assert solver.seen
    assert plan.cost.objective >= sw.plan(circle, *args, mesh="x=2, y=2").cost.objective
    proven(plan)
    np.testing.assert_allclose(plan(*args), circle(*args))


def test_what_a_solver_does_not_take_is_not_handed_to_it(write: Write) -> None:
    write(solvers, "descent", SOLVER)
    triangle = [(i, j, [[0, 3, 5], [4, 0, 3], [3, 5, 0]]) for i in range(5) for j in range(i)]
    free = NumericProblem.build([[0, 1, 2]] * 5, triangle)
    assert solve(free, "descent").cost == solve(free).cost == 0
    tight = NumericProblem.build([[0, 1, 2]] * 5, triangle, [(i, 0, 1, [3, 2, 1]) for i in range(5)], [11])
    with pytest.raises(NumericError, match="takes no problem with limits of memory"):
        solve(tight, "descent")


def test_a_solver_that_is_gone_is_not_listed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(solvers, "descent", SOLVER)
    assert "descent" in solver_names()
    monkeypatch.undo()
    assert "descent" not in solver_names()


def test_a_forbidden_choice_is_priced_and_refused(write: Write) -> None:
    write(solvers, "wrong", WRONG.format(choice="[0] * problem.nodes"))
    never = 10**18
    table = [[never, 3, 5], [4, 0, 3], [3, 5, 0]]
    problem = NumericProblem.build([[0, 1, 2]] * 5, [(i, j, table) for i in range(5) for j in range(i)])
    assert solve(problem).cost == 5
    with pytest.raises(PlanInfeasible, match="no choice that is allowed and fits was found by this solver"):
        solve(problem, "descent")


def test_a_choice_of_nothing_that_there_is_is_refused(write: Write) -> None:
    write(solvers, "wrong", WRONG.format(choice="[999] * problem.nodes"))
    with pytest.raises(NumericError, match="a choice names one existing strategy per node"):
        sw.plan(circle, *arrays(), mesh="x=2, y=2", solver="descent")


def test_a_bad_choice_is_no_worse_than_a_recipe(write: Write) -> None:
    """It is priced as it will be lowered, beside all recipes."""
    write(solvers, "wrong", WRONG.format(choice="[len(row) - 1 for row in problem.costs]"))
    args = arrays()
    plan = sw.plan(circle, *args, mesh="x=2, y=2", solver="descent")
    priced = program_cost(plan.program, hardware_of("h100"), plan.complete.graph)
    assert plan.cost.objective == priced.compute + priced.communication - priced.hidden
    assert plan.cost.objective <= sw.plan(circle, *args, mesh="x=2, y=2", recipe="dp").cost.objective
    proven(plan)


# -- an engine ------------------------------------------------------------------------------------------------

ENGINE = '''
"""Devices in a row that talk through a list, and know sums only."""

from collections import Counter

from shardwright.run.engine import EngineBase, Executed
from shardwright.spec.mesh import DeviceMesh

RAN = []


class Row(EngineBase):
    name = "row"

    def __init__(self, mesh, framework):
        self.mesh, self.framework, self.counts = DeviceMesh.of(mesh), framework, Counter()

    def supports_distributed(self):
        return True

    def scatter(self, whole, spec):
        return [whole[spec.local_slices(whole.shape, p)] for p in self.mesh]

    def assemble(self, held, spec, shape):
        arrays = self.framework.arrays
        return arrays.joined(held[0], shape, [(spec.local_slices(shape, p), held[p]) for p in self.mesh])

    def all_reduce_sum(self, tensor, group=None):
        made = list(tensor)
        for members in self.mesh.groups(self.mesh.axes if group is None else group):
            total = self.framework.arrays.combine("sum", [tensor[p] for p in members])
            for p in members:
                made[p] = total
        return made

    def all_gather(self, tensor, group=None):
        raise NotImplementedError("this engine knows sums only")

    reduce_scatter = all_gather

    def compile(self, program):
        self.counts["compile"] += 1
        return Compiled(program, self)


class Compiled:
    def __init__(self, program, engine):
        self.program, self.engine = program, engine

    def run(self, inputs, donate=False):
        program, engine, done = self.program, self.engine, Executed()
        values = dict(zip(program.inputs, inputs))
        for instr in program.instrs:
            if instr.is_collective:
                assert instr.op == "all_reduce", instr.op
                handle = engine.start("all_reduce_sum", values[instr.inputs[0]], {group})
                values[instr.results[0]] = engine.wait(handle)
                done.collectives.append(program.collectives[len(done.collectives)])
                continue
            made = []
            for p in engine.mesh:
                types = [type(v.type)(v.local_shape(p), v.type.dtype) for v in program.locals_of(instr.results)]
                call = engine.framework.prepare(instr.op, dict(instr.attrs), types)
                made.append(call([values[v][p] for v in instr.inputs]))
            values.update((v, [made[p][r] for p in engine.mesh]) for r, v in enumerate(instr.results))
        RAN.append(program.name)
        return [values[v] for v in program.outputs], done


def make(mesh, framework):
    return Row(mesh, framework)
'''


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return np.maximum(x @ w1, 0) @ w2


def test_an_engine_is_one_file(write: Write) -> None:
    """Written to the protocol of the documentation, it runs what the virtual mesh runs."""
    module = write(run, "row", ENGINE.replace("{group}", "instr.axes"))
    assert "row" in engine_names()
    args = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(((6, 8), (8, 12), (12, 4)))]
    specs = ("[dp, _]", "[_, tp]", "[tp, _]")
    mapped = sw.shard_map(mlp, "dp=2, tp=2", in_specs=specs, engine="row")
    virtual = sw.shard_map(mlp, "dp=2, tp=2", in_specs=specs)
    np.testing.assert_allclose(mapped(*args), mlp(*args))
    assert module.RAN == ["mlp"]
    virtual(*args)
    assert mapped.executed.collectives == virtual.executed.collectives != []
    mapped(*args)
    plan = mapped.plan(*args)
    proven(plan)
    assert plan.engine.counts == {"compile": 1}
    assert isinstance(plan.engine, Engine)


def test_an_engine_that_sums_over_the_wrong_group_is_noticed(write: Write) -> None:
    write(run, "row", ENGINE.replace("{group}", "None"))
    args = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(((6, 8), (8, 12), (12, 4)))]
    mapped = sw.shard_map(mlp, "dp=2, tp=2", in_specs=("[dp, _]", "[_, tp]", "[tp, _]"), engine="row")
    assert not np.allclose(mapped(*args), mlp(*args))


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(SpecError, match=r"(?s)no engine is called 'vitrual'.*did you mean 'virtual'"):
        sw.shard_map(mlp, "d=2", engine="vitrual")(*[np.ones((4, 4))] * 3)


# -- a frontend -----------------------------------------------------------------------------------------------

FRONTEND = '''
"""A language of three ops: sums, products and what is above zero, on its own class of matrices."""

import numpy as np

from shardwright.errors import TraceError
from shardwright.frontends.base import DATA, FORWARD, Input, Leaf, Source
from shardwright.frontends.numpy.arrays import NumpyArrays
from shardwright.ir.graph import GraphBuilder, TensorType


class Matrix:
    def __init__(self, numbers):
        self.numbers = np.asarray(numbers)

    shape = property(lambda self: self.numbers.shape)

    def __add__(self, other):
        return Matrix(self.numbers + other.numbers)

    def __matmul__(self, other):
        return Matrix(self.numbers @ other.numbers)

    def positive(self):
        return Matrix(self.numbers * (self.numbers > 0))


class Symbol:
    def __init__(self, builder, value, shape):
        self.builder, self.value, self.shape = builder, value, shape

    def _op(self, name, shape, *others):
        return Symbol(self.builder, self.builder.op(name, [self.value, *(o.value for o in others)], [shape],
                                                    dtype="f64"), shape)

    def __add__(self, other):
        return self._op("add", self.shape, other)

    def __matmul__(self, other):
        return self._op("matmul", (self.shape[0], other.shape[1]), other)

    def positive(self):
        return self._op("relu", self.shape)


COMPUTE = {"add": np.add, "matmul": np.matmul, "relu": lambda x: np.maximum(x, 0)}


class Arrays(NumpyArrays):
    def at(self, array, slices):
        return array.numbers[slices] if isinstance(array, Matrix) else array[slices]


class Mini:
    name, processes, arrays = "mini", None, Arrays()

    def prepare(self, op, attrs, results):
        return lambda operands: (COMPUTE[op](*operands),)

    def leaves(self, tree):
        if isinstance(tree, (Matrix, Leaf)):
            return [tree]
        parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
        return [leaf for part in parts for leaf in self.leaves(part)]

    def array_type(self, array):
        return TensorType(array.shape, "f64")

    def signature(self, args, kwargs):
        return tuple(m.shape for m in self.leaves((args, kwargs)))


FRAMEWORK = Mini()


class Program(Source):
    framework = FRAMEWORK

    def __init__(self, graph, names, fn):
        self.graph, self.names, self.fn = graph, names, fn
        self.phases = (FORWARD,) * len(graph.nodes)

    inputs_are = property(lambda self: tuple(Input(name, DATA) for name in self.names))

    def bind(self, args, kwargs):
        found = self.framework.leaves((args, kwargs))
        if [m.shape for m in found] != [self.graph.type(v).shape for v in self.graph.inputs]:
            raise TraceError("matrices of other shapes")
        return found

    def result(self, outputs):
        return Matrix(outputs[0])

    def result_tree(self):
        return Leaf()

    def read(self, slot):
        raise IndexError(slot)

    def write(self, slot, array):
        raise IndexError(slot)

    def recapture(self, args, kwargs):
        return source_of(self.fn, args, kwargs)


def accepts(fn, args, kwargs):
    return any(isinstance(argument, Matrix) for argument in args)


def source_of(fn, args, kwargs, **training):
    builder = GraphBuilder(fn.__name__)
    names = [f"m{i}" for i in range(len(args))]
    symbols = [Symbol(builder, builder.input(m.shape, "f64", n), m.shape) for m, n in zip(args, names)]
    return Program(builder.finish([fn(*symbols).value]), names, fn)
'''


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "__init__.py").write_text(FRONTEND)
    monkeypatch.setattr(frontends, "__path__", [*frontends.__path__, str(tmp_path)])
    yield import_module("shardwright.frontends.mini")
    sys.modules.pop("shardwright.frontends.mini", None)


def test_a_frontend_is_one_package(mini: Any) -> None:
    """Three ops, captured from a class of its own: planned, proven and run as NumPy's are."""
    rng = np.random.default_rng(0)
    x, w1, b, w2 = (mini.Matrix(rng.normal(size=shape)) for shape in ((8, 4), (4, 12), (8, 12), (12, 4)))

    def layers(x: Any, w1: Any, b: Any, w2: Any) -> Any:
        return (x @ w1 + b).positive() @ w2

    expected = layers(x, w1, b, w2).numbers
    plan = sw.plan(layers, x, w1, b, w2, mesh="dp=2, tp=2", constraints={"m1": "[_, tp]", "m3": "[tp, _]"})
    assert [node.op for node in plan.source.graph.nodes] == ["matmul", "add", "relu", "matmul"]
    assert plan.collectives
    proven(plan)
    np.testing.assert_allclose(plan(x, w1, b, w2).numbers, expected)
    assert plan.executed.collectives == plan.collectives
    mapped = sw.shard_map(layers, "d=4", in_specs=("[d, _]", None, None, None))
    np.testing.assert_allclose(mapped(x, w1, b, w2).numbers, expected)
    loaded = sw.load_plan(plan.to_json(), layers, x, w1, b, w2)
    np.testing.assert_allclose(loaded(x, w1, b, w2).numbers, expected)
    with pytest.raises(sw.TraceError, match="other shapes"):
        plan(x, w1, b, w1)
    broken = replace(plan.program, instrs=tuple(i for i in plan.program.instrs if i.op != "relu"))
    with pytest.raises((VerifyError, GraphError)):
        check_structure(broken)


def test_numpy_keeps_what_no_other_frontend_takes(mini: Any) -> None:
    assert type(sw.plan(mlp, *[np.ones((4, 4))] * 3, mesh="d=2").source).__name__ == "Traced"
