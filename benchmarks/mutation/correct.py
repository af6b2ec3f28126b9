"""Correct Programs: random graphs, functions under random shardings, models as users, recipes and the planner cut them.

None may be refused.  Of one that is, execution says whether it is a false alarm or was lowered wrongly.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

import shardwright as sw
from mutation import functions
from mutation.judging import distance, on_host, outputs_of, refusal
from mutation.subjects import Subject
from shardwright.errors import ShardwrightError
from shardwright.frontends.numpy.compute import run_graph
from shardwright.frontends.numpy.framework import NUMPY

MESHES = ("dp=2, tp=2", "dp=3, tp=2", "dp=6", "dp=2, tp=3", "dp=4, tp=2")
RECIPES = ("dp", "zero1", "zero2", "zero3", "megatron", "sequence", "fsdp+tp")


def random_graphs(seeds: range) -> Iterator[Subject]:
    from random_programs import random_case

    for seed in seeds:
        graph, program = random_case(seed, nodes=4 + seed % 9)
        examples = tuple(
            np.zeros(graph.type(v).shape, {"f32": np.float32, "i64": np.int64}[graph.type(v).dtype])
            for v in graph.inputs
        )
        yield Subject(f"random graph {seed}", graph, program, graph, NUMPY, examples)


def sharded_functions(seeds: range) -> Iterator[Subject]:
    """Functions and meshes in turn, now and then with outputs and sizes that are asked for."""
    names = list(functions.FUNCTIONS)
    for seed in seeds:
        yield functions.mapped(names[seed % len(names)], 100 + seed)


def planned_functions(seeds: range) -> Iterator[Subject]:
    """The same as the planner or a recipe splits them."""
    from mutation.subjects import of_plan

    names = list(functions.FUNCTIONS)
    for seed in seeds:
        rng = random.Random(seed)
        name = names[seed % len(names)]
        function, arguments = functions.FUNCTIONS[name]
        about: dict[str, Any] = {"mesh": rng.choice(functions.MESHES), "hardware": "virtual", "verify": "off"}
        if rng.random() < 0.4:
            about["recipe"] = rng.choice(("dp", "zero3", "megatron"))
        about["uneven"] = rng.random() < 0.5 and "recipe" not in about
        try:
            plan = sw.plan(function, *arguments, **about)
        except ShardwrightError:
            continue  # no such plan
        yield of_plan(f"{name} planned {seed}", plan, arguments)


MORE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "diagonals": (lambda x: (np.trace(x), np.diagonal(x, 1)), (functions.f(8, 8),)),
    "moments": (lambda x: (x.std(axis=0), x.var(axis=1), np.cumprod(x, axis=0)), (functions.f(6, 10),)),
    "powers": (lambda x, y: (np.power(x, 2), np.hypot(x, y), x // 2.0, x % 3.0), (functions.f(6, 8), functions.f(8))),
    "truths": (
        lambda x, y: ((x > y) & (y < 0), (x > 0).any(axis=0), (x > y).all()),
        (functions.f(6, 8), functions.f(8)),
    ),
    "stacked": (lambda x, y: np.stack([x, y, x * y], axis=1).max(axis=2), (functions.f(6, 8), functions.f(6, 8))),
    "repeated": (lambda x: np.repeat(x[:, None], 3, axis=1) + np.ones((3, 1)), (functions.f(6, 8),)),
    "norms": (
        lambda x: (np.linalg.norm(x, axis=1), np.abs(x).max(), np.log1p(np.exp(x)).sum(axis=0)),
        (functions.f(8, 6),),
    ),
    "outer": (lambda x, y: np.outer(x, y).T + np.dot(x[:6], y[:6]), (functions.f(8), functions.f(6))),
    "tensordot": (lambda x, y: np.tensordot(x, y, axes=([1, 2], [0, 1])), (functions.f(4, 6, 2), functions.f(6, 2, 5))),
    "scatter": (lambda x: _written(x), (functions.f(8, 6),)),
    "complex": (lambda x: (x * 1j).conj().real + np.exp(1j * x).imag, (functions.f(8, 6),)),
}


def _written(x: Any) -> Any:
    y = x * 2.0
    y[2:5] = x[:3]
    y[:, 1] += 1.0
    return y


def more_functions(seeds: range) -> Iterator[Subject]:
    """Other ops, in float64, float32 and float16."""
    functions_here = {**functions.FUNCTIONS, **MORE}
    names = [*MORE, *functions.FUNCTIONS]
    for seed in seeds:
        rng = random.Random(seed)
        name = names[seed % len(names)]
        function, arguments = functions_here[name]
        dtype = rng.choice((np.float64, np.float32, np.float16))
        arguments = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in arguments)
        yield _mapped(f"{name} {seed}", function, arguments, rng.choice(functions.MESHES), rng)


def large_functions(seeds: range) -> Iterator[Subject]:
    """Large dims, on long axes: shown at smaller sizes."""
    from mutation import far_kinds

    for seed in seeds:
        rng = random.Random(seed)
        function = rng.choice((far_kinds._normed, far_kinds._summed, far_kinds._moved, _blocks))
        m, n, k = (rng.choice((48, 50, 64, 72, 90, 96, 100, 120, 128)) for _ in range(3))
        shapes = ((m, n), (n, k)) if function is far_kinds._normed else ((m, n), (m, n))
        mesh = rng.choice(("x=8", "x=16", "x=5", "x=12", "x=10", "a=8, b=2", "a=2, b=8", "a=3, b=6", "a=4, b=4"))
        yield _mapped(f"large {seed}", function, tuple(np.zeros(shape) for shape in shapes), mesh, rng)


def _blocks(x: Any, y: Any) -> Any:
    """Slices, shifts and folds at places that depend on sizes."""
    m, n = x.shape
    halves = np.concatenate([x[m // 2 :], y[: m // 2]], axis=0)
    folded = x.reshape(m // 2, 2, n).sum(axis=1) / n
    return np.roll(halves, m // 2, axis=0), folded, np.tril(y, n - 3), y[-1] * m, x.mean() + 1 / n


def _mapped(name: str, function: Any, arguments: tuple[Any, ...], mesh: str, rng: random.Random) -> Subject:
    from mutation.subjects import of_plan

    specs = tuple(functions.random_spec(rng, sw.DeviceMesh(mesh), x.shape) for x in arguments)
    plan = sw.shard_map(function, mesh, in_specs=specs, verify="off").plan(*arguments)
    return of_plan(f"{name} on {mesh}", plan, arguments)


def models(quick: bool = False) -> Iterator[Subject]:
    from mutation import models

    logging.disable(logging.ERROR)
    for name in {**models.CASES, **models.LARGE}:
        yield models.trained(name)
        if quick:
            return
        for mesh in MESHES:
            for recipe in RECIPES:
                if name in models.LARGE and (mesh, recipe) not in ((MESHES[0], "zero3"), (MESHES[1], "megatron")):
                    continue
                try:
                    yield models.planned(name, recipe=recipe, mesh=mesh)
                except ShardwrightError:
                    continue  # a recipe that this model or mesh has not
            if name not in models.LARGE:
                yield models.planned(name, hardware="virtual", mesh=mesh)
        for dtype in ("float32", "float16", "bfloat16"):
            try:
                yield models.trained(name, dtype)
            except ShardwrightError:
                continue  # a model that cannot be captured or split in this type


def every_op(parts: range) -> Iterator[Subject]:
    """Every ATen op of the book, split by each factor of its rule: calls of PyTorch's own samples, in parts."""
    import torch

    from shardwright.discover.book.torch import made_ops, written_ops
    from shardwright.discover.book.torch_calls import calls_of
    from shardwright.frontends.torch import FRAMEWORK
    from shardwright.lower import lower
    from shardwright.propagation.choices import legal_axes
    from shardwright.propagation.complete import complete
    from shardwright.propagation.engine import OpView
    from shardwright.rules.registry import sharding_rule
    from shardwright.spec.op_record import slots_of
    from shardwright.spec.sharding import ShardingSpec

    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    ops = [op for part in parts for op in sorted({*written_ops(), *made_ops()})[part % OP_PARTS :: OP_PARTS]]
    for op, calls in calls_of(ops, each=2, drawn=2).items():
        for n, call in enumerate(calls):
            graph = call.graph()
            (node,) = graph.nodes
            try:
                shapes = [graph.type(v).shape for v in node.inputs]
                results = [graph.type(v).shape for v in node.results]
                slots = slots_of([0 if isinstance(o, int) else o for o in node.operands])
                rule = sharding_rule(op, shapes, results, dict(node.attrs), slots)
            except ShardwrightError:
                continue  # runs on whole tensors
            for f, factor in enumerate(rule.factors):
                for mesh in (sw.DeviceMesh("x=2"), sw.DeviceMesh("x=3")):
                    legal = legal_axes(rule, [mesh.axes if g == f else () for g in range(len(rule.factors))])
                    if not legal[f]:
                        continue
                    specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in graph.values]
                    program = lower(complete(graph, mesh, specs, lambda *_, r=rule: OpView(r), forced={0: legal}))
                    name = f"{op} call {n} by {factor.name} on {mesh}"
                    yield Subject(name, graph, program, graph, FRAMEWORK, tuple(call.tensors))


OP_PARTS = 10
SOURCES = {
    "random graphs": random_graphs,
    "functions": sharded_functions,
    "planned functions": planned_functions,
    "more functions": more_functions,
    "large functions": large_functions,
    "every op": every_op,
}


def alarm(subject: Subject) -> str:
    """What the proof says against a correct Program; nothing if it holds it for right."""
    why = refusal(subject, subject.program)
    if not why:
        return ""
    return f"{subject.name}: {why}{'' if _is_right(subject) else ' (and execution says that it is lowered wrongly)'}"


def _is_right(subject: Subject) -> bool:
    """Against the graph on one device."""
    given = subject.inputs[0]
    if subject.is_torch:
        from shardwright.frontends.torch.compute import run_graph as run_torch

        wanted = [on_host(x) for x in run_torch(subject.graph, given)]
    else:
        with np.errstate(all="ignore"):
            wanted = [np.asarray(x) for x in run_graph(subject.graph, given)]
    found = [whole for whole, _ in outputs_of(subject, subject.program, given)]
    return all(distance(a, b) < 1e-4 for a, b in zip(found, wanted))
