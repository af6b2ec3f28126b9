"""From a statement to a test file for the emitted strategy: every rule but all-replicated, three assertions each.

A rule is tested on up to three samples that differ in their arguments, and three fresh calls of the attack, for every
dim that its conditions admit: no communication, the outputs lie as the rule says, the numbers are those of the plain
operator.  What the tests share is `dtensor_checks`, written to the same folder.

The tests run in one process by default: a fake process group with ``LocalTensorMode``, which holds what every rank
holds and computes collectives exactly.  The threaded process group would do as well, but needs ``expecttest``, and
its threads share the random generator.  ``style="spawned"`` uses PyTorch's own base class and real processes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..operator import Array, Sample
from ..placement import Placement, R, S
from ..statement import FRAME, Rule, ShardedOn, Statement, Term
from .source import (
    WIDTH,
    Kept,
    NoLiteral,
    as_comment,
    bracketed,
    emitted_rules,
    environment,
    evaluate,
    identifier,
    literal,
    overload_parts,
    placement_source,
    results,
    spoken_of,
)

MOST_SAMPLES = 3
"""Calls at hand on which a rule is tested; and fresh ones."""

MOST_LITERALS = 512
"""Numbers of a tensor that are written out; larger tensors only if random numbers do as well."""


@dataclass(frozen=True)
class Case:
    """A rule on a sample, its dims filled in."""

    sample: int
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]


def emit_tests(
    statement: Statement,
    module: str,
    style: Literal["local", "spawned"] = "local",
    world: int = 2,
    even_only: bool = False,
) -> str:
    """The test file for the strategy that `emit_strategy` wrote.

    Args:
        module: the name by which the strategy file is imported; it lies in the same folder.
        style: ``local`` for one process, ``spawned`` for PyTorch's `DTensorTestBase`.
        world: the number of ranks.
        even_only: as it was given to `emit_strategy`.
    """
    if style not in ("local", "spawned"):
        raise ValueError(f"tests are 'local' or 'spawned', not {style!r}")
    kept, _ = emitted_rules(statement, even_only)
    cases = [(k, list(cases_of(statement, k, world))) for k in kept]
    samples = sorted({case.sample for _, found in cases for case in found})
    written = kept[0].layout.mutated if kept else ()
    body = _class(statement, cases, style, world, written, samples)
    sources = [sample_source(statement, number) for number in samples]
    blocks = [
        "\n".join(_header(statement, module, style, "\n".join([*sources, body]))),
        *sources,
        body,
        f'if __name__ == "__main__":\n    {"unittest.main" if style == "local" else "run_tests"}()\n',
    ]
    return "\n\n".join(block.rstrip("\n") + "\n" for block in blocks)


def _header(statement: Statement, module: str, style: str, body: str) -> list[str]:
    name = as_comment(statement.operator.name)
    placements = [n for n in ("Partial", "Replicate", "Shard") if f"{n}(" in body]
    checks = [n for n in ("LocalCase", "normal", "spawned_case") if f"{n}(" in body or f"({n})" in body]
    return [
        f'"""Tests of the sharding rules of {name}: local, placed as said, and with the right numbers."""',
        "",
        "import sys",
        *(["import unittest"] if style == "local" else []),
        "from pathlib import Path",
        "",
        *(["import torch"] if "torch." in body else []),
        *([f"from torch.distributed.tensor import {', '.join(placements)}"] if placements else []),
        *(["from torch.testing._internal.common_utils import run_tests"] if style == "spawned" else []),
        *(
            ["from torch.testing._internal.distributed._tensor.common_dtensor import with_comms"]
            if "@with_comms" in body
            else []
        ),
        "",
        "sys.path.append(str(Path(__file__).resolve().parent))  # the strategy lies beside this file",
        "",
        *sorted([f"from {module} import OP", *([f"from dtensor_checks import {', '.join(checks)}"] if checks else [])]),
    ]


def _tolerance(statement: Statement, samples: Sequence[int]) -> float:
    """Loose against rounding, since parts are added in another order; a false rule is off by far more."""
    calls = calls_of(statement)
    narrow = any(t.dtype == np.float16 for i in samples for t in calls[i].tensors)
    return 2e-2 if narrow else 1e-4


# ---- the tests -----------------------------------------------------------------------------------------------------


def _class(
    statement: Statement,
    cases: Sequence[tuple[Kept, list[Case]]],
    style: str,
    world: int,
    written: tuple[int, ...],
    samples: Sequence[int],
) -> str:
    _, name, _ = overload_parts(statement.operator)
    title = "".join(part.capitalize() for part in name.split("_")) or "Operator"
    base = "spawned_case()" if style == "spawned" else "LocalCase" if samples else "unittest.TestCase"
    lines = [f"class {title}ShardingTest({base}):"]
    if samples:
        lines.append(f"    WORLD = {world}")
        lines += [f"    WRITTEN = {literal(written)}  # tensors that the operator writes to"] if written else []
        tolerance = None if statement.operator.random else _tolerance(statement, samples)
        lines.append(f"    TOLERANCE = {tolerance}")
    used: set[str] = set()
    untested = []
    for k, found in cases:
        if not found:
            untested.append(k.rule)
            continue
        lines += ["", *(["    @with_comms"] if style == "spawned" else [])]
        lines += [f"    def {_test_name(k.rule, used)}(self):", *_described(k.rule)]
        for case in found:
            sides = (f"[{', '.join(map(placement_source, side))}]" for side in (case.inputs, case.outputs))
            lines += bracketed("self.check(", [f"sample_{case.sample}", *sides], ")", 8)
    if not used:
        used.add("")
        about = "No rule could be tested on a sample." if untested else "Nothing but replication was found."
        lines += [
            "    def test_registered(self):",
            f'        """{about}"""',
            f'        self.assertEqual(str(OP), "{".".join(overload_parts(statement.operator))}")',
        ]
    for rule in untested:
        lines += ["", *_wrapped(f"Not tested, no sample fits: {rule}", "    # ", "    # ")]
    return "\n".join(lines) + "\n"


def _test_name(rule: Rule, used: set[str]) -> str:
    left, right = (
        "_".join(re.sub(r"\W+", "_", str(t)).strip("_") for t in side) for side in (rule.inputs, rule.outputs)
    )
    stem = f"test_{left}_to_{right}".lower()[:80]
    name, number = stem, 2
    while name in used:
        name, number = f"{stem}_{number}", number + 1
    used.add(name)
    return name


def _described(rule: Rule) -> list[str]:
    text = as_comment(str(rule))
    if len(text) <= WIDTH - 16:
        return [f'        """{text}"""']
    return ['        """', *_wrapped(text, "        ", "        "), '        """']


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        as_comment(text), WIDTH - 4, initial_indent=first, subsequent_indent=rest, break_long_words=False
    )


# ---- the cases -----------------------------------------------------------------------------------------------------


def calls_of(statement: Statement) -> list[Sample]:
    """The calls that may be written out: those that the rules rest on, and fresh ones that attacked them."""
    return [*statement.samples, *statement.fresh_calls]


def cases_of(statement: Statement, kept: Kept, world: int) -> Iterator[Case]:
    """The rule on calls that admit it: float first, with different arguments; then as many fresh ones."""
    calls = calls_of(statement)
    count = len(kept.rule.inputs)
    fitting = [i for i, s in enumerate(calls) if len(s.tensors) == count and spoken_of(statement, s)]
    fitting.sort(key=lambda i: not all(t.dtype.kind == "f" for t in calls[i].tensors if t.dtype.kind in "fc"))
    for fresh in (False, True):
        seen: set[object] = set()
        for number in fitting:
            sample = calls[number]
            if (number >= len(statement.samples)) is not fresh:
                continue
            key: object = repr(sorted(sample.values(statement.operator).items(), key=lambda item: item[0]))
            key = (key, sample.shapes) if fresh else key
            if key in seen or len(seen) == MOST_SAMPLES:
                continue
            found = list(_cases_on(statement, kept, number, world))
            if found and sample_source(statement, number):
                seen.add(key)
                yield from found


def _cases_on(statement: Statement, kept: Kept, number: int, world: int) -> Iterator[Case]:
    sample = calls_of(statement)[number]
    rule = kept.rule
    if any(tensor.size == 0 or not _finite(tensor) for tensor in sample.tensors):
        return
    names = environment(statement, sample)
    ranks = [tensor.ndim for tensor in sample.tensors]
    room = 0 if rule.reference is None else max(ranks) if rule.reference == FRAME else ranks[rule.reference]
    for d in range(room) if rule.reference is not None else (None,):
        known = names if d is None else {**names, "d": d}
        try:
            if not all(evaluate(condition, known) for condition in rule.conditions):
                continue
        except TypeError:  # a condition on lists, where this call gives one number for all
            continue
        inputs = tuple(_filled(term, known, shape) for term, shape in zip(rule.inputs, sample.shapes))
        outputs = tuple(_filled(term, known) for term in kept.layout.result_terms(rule))
        if all(p is R for p in inputs):
            continue  # every input is broadcast along this dim
        if all(_placeable(*it, rule.grade, world) for it in zip(sample.tensors, sample.roles, inputs)):
            if any(p.kind == "S" and p.dim < 0 for p in outputs):
                continue  # the expression leaves the dims: the rule says nothing here
            if "avg" in {p.reduce for p in outputs} and not all(t.dtype.kind in "fc" for t in sample.tensors):
                continue
            yield Case(number, inputs, outputs)


def _filled(term: Term, names: dict[str, Any], shape: tuple[int, ...] = ()) -> Placement:
    if not isinstance(term, ShardedOn):
        return term
    dim = int(evaluate(term.dim, names))
    return R if term.broadcasts and shape != () and (dim < 0 or shape[dim] == 1) else S(dim)


def _placeable(tensor: Array, role: str, placement: Placement, grade: str, world: int) -> bool:
    """Whether a sample's tensor can lie so in a test."""
    if placement.kind == "S":
        if not 0 <= placement.dim < tensor.ndim:
            return False
        size = tensor.shape[placement.dim]
        # DTensor would gather a dim smaller than the mesh unless told otherwise: that is no test of the rule.
        return bool(size % world == 0 if grade == "even" else size > (world - 1) * -(-size // world))
    if placement.kind == "P":
        if role != "data" or tensor.dtype == bool:
            return False
        return placement.reduce != "avg" or tensor.dtype.kind in "fc"
    return True


def _finite(tensor: Array) -> bool:
    return tensor.dtype.kind not in "fc" or bool(np.isfinite(tensor).all())


# ---- the samples ---------------------------------------------------------------------------------------------------


def sample_source(statement: Statement, number: int, prefix: str = "", op: str = "OP") -> str:
    """A function that makes the sample, and calls `op`; empty if it has no Python text."""
    sample = calls_of(statement)[number]
    operator = statement.operator
    names = [identifier(name) for name in sample.tensor_names(operator)]
    try:
        given = [literal(value, names) for value in sample.args]
        given += [f"{name}={literal(value, names)}" for name, value in sample.kwargs.items()]
        tensors = _tensor_sources(statement, sample)
    except NoLiteral:
        return ""
    call = bracketed(f"return tensors, lambda {', '.join(names)}: {op}(", given, ")", 4)
    made = bracketed("tensors = [", tensors, "]", 4)
    if any("\n" in source for source in tensors):
        indented = [textwrap.indent(source, " " * 8) for source in tensors]
        made = ["    tensors = [", *(f"{source}," for source in indented), "    ]  # fmt: skip"]
    about = as_comment(sample.label or "made for the test")
    return "\n".join([f"def {prefix}sample_{number}():", f'    """{about}"""', *made, *call]) + "\n"


def _tensor_sources(statement: Statement, sample: Sample) -> list[str]:
    """Each tensor as an expression: random numbers where any do, otherwise the sample's own."""
    free = [i for i, role in enumerate(sample.roles) if role == "data" and _looks_free(sample.tensors[i])]
    # Positions may belong to the very numbers of another tensor: a sorter, pivots.
    if "index" in sample.roles or (free and not _any_numbers_do(statement, sample, free)):
        free = []
    found = []
    for i, tensor in enumerate(sample.tensors):
        dtype = f"dtype=torch.{tensor.dtype.name}"
        if i in free:
            found.append(f"normal({', '.join(map(str, (i, *tensor.shape)))}, {dtype})")
        else:
            found.append(_array_source(tensor, dtype))
    return found


def _looks_free(tensor: Array) -> bool:
    """Whether a tensor shows no sign of a legal domain: both signs, unsorted, no symmetry."""
    if tensor.dtype.kind != "f" or tensor.size < 6 or not ((tensor < 0).any() and (tensor > 0).any()):
        return False
    for axis, size in enumerate(tensor.shape):
        steps = np.diff(tensor, axis=axis)
        if size > 1 and ((steps >= 0).all() or (steps <= 0).all()):
            return False
    square = tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2]
    return not (square and np.allclose(tensor, np.swapaxes(tensor, -1, -2)))


def _any_numbers_do(statement: Statement, sample: Sample, free: Sequence[int]) -> bool:
    """Whether the operator still gives finite numbers when these tensors are replaced by random ones."""
    numbers = np.random.default_rng(0)
    tensors = list(sample.tensors)
    for i in free:
        tensors[i] = np.asarray(numbers.standard_normal(tensors[i].shape), dtype=tensors[i].dtype)
    found = results(statement.operator, sample.with_tensors(tuple(tensors)))
    return bool(found) and all(_finite(np.asarray(array)) for array in found)


def _array_source(tensor: Array, dtype: str) -> str:
    if tensor.ndim == 0:
        return f"torch.tensor({literal(tensor[()])}, {dtype})"
    shape = ", ".join(map(str, tensor.shape))
    flat = tensor.reshape(-1)
    if tensor.size > 1 and tensor.dtype != bool and (flat == flat[0]).all():
        return f"torch.full(({shape},), {literal(flat[0])}, {dtype})"
    if tensor.size > 4 and tensor.dtype.kind in "if" and (np.diff(flat) == 1).all():
        start = "" if flat[0] == 0 else f"{literal(flat[0])}, {literal(flat[-1] + 1)}"
        return f"torch.arange({start or tensor.size}, {dtype}).reshape({shape})"
    if tensor.size > MOST_LITERALS:
        raise NoLiteral("too many numbers to write out")
    numbers = [literal(number) for number in flat]
    one = f"torch.tensor([{', '.join(numbers)}], {dtype})"
    end = f".reshape({shape})" if tensor.ndim > 1 else ""
    if len(one + end) <= WIDTH - 9:
        return one + end
    first, *rest = textwrap.wrap(", ".join(numbers), WIDTH - 16)
    lines = ["torch.tensor(", f"    [{first}", *(f"     {line}" for line in rest)]
    return "\n".join(lines) + f"],\n    {dtype},\n){end}"
