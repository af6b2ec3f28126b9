"""Correct Programs: random graphs, functions under random shardings, models as users, recipes and the planner cut them.

None may be refused.  Of one that is, execution says whether it is a false alarm or was lowered wrongly.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from mutation import functions
from mutation.judging import distance, outputs_of, refusal
from mutation.subjects import Subject

import shardwright as sw
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


SOURCES = {
    "random graphs": random_graphs,
    "functions": sharded_functions,
    "planned functions": planned_functions,
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

        wanted = [x.numpy() for x in run_torch(subject.graph, given)]
    else:
        with np.errstate(all="ignore"):
            wanted = [np.asarray(x) for x in run_graph(subject.graph, given)]
    found = [whole for whole, _ in outputs_of(subject, subject.program, given)]
    return all(distance(a, b) < 1e-4 for a, b in zip(found, wanted))
