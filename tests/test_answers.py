"""What users read when the answer is no, word for word: ``golden/answers/<name>.txt``.

Plans that cannot be, requests that contradict each other, programs that are not equal.  ``UPDATE_GOLDEN=1`` writes the
files anew: read the difference before keeping it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.errors import ShardwrightError
from shardwright.ir.program import Program
from shardwright.proof import prove

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import shardwright.torch as swt  # noqa: E402

GOLDEN = Path(__file__).parent / "golden" / "answers"
ANSWERS: dict[str, Callable[[], Any]] = {}


def answer(function: Callable[[], Any]) -> Callable[[], Any]:
    ANSWERS[function.__name__] = function
    return function


def mlp(x: Any, w: Any, v: Any) -> Any:
    return np.tanh(x @ w) @ v


SHAPES = [sw.ShapeDtype(shape, np.float32) for shape in ((64, 256), (256, 1024), (1024, 256))]


@answer
def a_limit_that_nothing_fits() -> None:
    sw.plan(mlp, *SHAPES, mesh="d=2", memory="100 KiB")


@answer
def a_request_and_a_limit_that_contradict_each_other() -> None:
    sw.plan(mlp, *SHAPES, mesh="d=4", memory="1 MiB", constraints={"w": "[_, _]"})


@answer
def two_requests_that_contradict_each_other() -> None:
    sw.plan(mlp, *SHAPES, mesh="d=2", constraints=[sw.pin("w", "[d, _]"), sw.pin("w", "[_, d]")])


@answer
def a_program_without_its_reduction() -> None:
    args = [np.ones(shape) for shape in ((4, 8), (8, 6))]
    f = sw.shard_map(np.matmul, "d=2", in_specs=(P(None, "d"), P("d", None)))
    program = f.program(*args)
    prove(sw.trace(np.matmul, *args).graph, _without_reductions(program))


def _without_reductions(program: Program) -> Program:
    """Every reduction is a copy that claims to be finished."""
    values = tuple(replace(value, spec=value.spec.replace(partial=())) for value in program.values)
    instrs = tuple(
        replace(instr, op="copy", attrs=(), axes=(), bytes=0) if instr.op == "all_reduce" else instr
        for instr in program.instrs
    )
    return replace(program, values=values, instrs=instrs)


class Linear(torch.nn.Module):
    """One product, summed; in parallel each rank has a part of what is summed over."""

    def __init__(self, parallel: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        whole = torch.randn(6, 2)
        self.parallel = parallel
        if parallel is None:
            self.weight = torch.nn.Parameter(whole)
        else:
            self.weight = torch.nn.Parameter(whole.chunk(dist.get_world_size(), 0)[dist.get_rank()].clone())

    def forward(self, x: Any) -> Any:
        if self.parallel is None:
            return x @ self.weight
        return self.parallel(x.chunk(dist.get_world_size(), 1)[dist.get_rank()] @ self.weight)


def proven(parallel: Callable[[Any], Any]) -> Any:
    return swt.prove(lambda mesh: Linear(parallel), like=Linear(), mesh="tp=2", inputs=(torch.ones(4, 6),))


@answer
def a_parallel_program_that_forgets_to_reduce() -> Any:
    return proven(lambda part: part)


@answer
def a_parallel_program_whose_ranks_call_different_collectives() -> Any:
    def odd(part: Any) -> Any:
        part = part.clone()
        if dist.get_rank() == 0:
            dist.all_reduce(part)
        else:
            dist.broadcast(part, 0)
        return part

    return proven(odd)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer(name: str) -> None:
    try:
        said = str(ANSWERS[name]())
    except ShardwrightError as error:
        said = f"{type(error).__name__}: {error}"
    found = re.sub(r"(\.py:)\d+", r"\1N", said) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.exists(), "no golden file; run with UPDATE_GOLDEN=1"
    assert found == path.read_text(encoding="utf-8")


def test_every_file_has_its_answer() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(ANSWERS)
