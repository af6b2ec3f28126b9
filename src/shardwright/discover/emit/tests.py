"""From a statement to a test file for the emitted strategy: every rule but all-replicated, three assertions each.

A rule is tested on up to three samples that differ in their arguments, for every dim that its conditions admit:
no communication, the outputs lie as the rule says, the numbers are those of the plain operator.

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
)

MOST_SAMPLES = 3
"""Samples on which a rule is tested."""

MOST_LITERALS = 512
"""Numbers of a tensor that are written out; larger tensors only if random numbers do as well."""

_PARTS = '''\
def parts(tensor, reduce, seed):
    """What ranks may hold of a pending tensor: unequal parts that reduce to it."""
    others = WORLD - 1
    count = torch.arange(tensor.numel()).reshape(tensor.shape) + seed
    if reduce in ("sum", "avg"):
        whole = tensor * WORLD if reduce == "avg" else tensor
        held = [((count * (rank + 3)) % 7 - 2).to(tensor.dtype) for rank in range(others)]
        return [*held, whole - sum(held)]
    if reduce == "product":
        factor = 1 - 2 * (count % 2)  # 1 and -1: exact in every dtype
        return [*[factor.to(tensor.dtype)] * others, tensor * (factor**others).to(tensor.dtype)]
    # Each element is right on one rank, and beaten on the others.
    away = (count % 3 + 1).to(tensor.dtype) * (-1 if reduce == "max" else 1)
    return [torch.where(count % WORLD == rank, tensor, tensor + away) for rank in range(WORLD)]
'''

_NORMAL = '''\
def normal(seed, *shape, dtype):
    """Random numbers, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
'''

_TENSORS_OF = '''\
def tensors_of(result):
    """The tensors that a call returns, as a list."""
    items = result if isinstance(result, (list, tuple)) else [result]
    return [item for item in items if isinstance(item, torch.Tensor)]
'''

_LOCAL_CHECK = '''\
    def setUp(self):
        dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
        self.addCleanup(dist.destroy_process_group)

    def check(self, sample, inputs, outputs):
        """Tensors lying like `inputs` give results lying like `outputs`: locally, and with the right numbers."""
        tensors, call = sample()
        plain = [tensor.clone() for tensor in tensors]
        expected = tensors_of(call(*plain)) + [plain[i] for i in WRITTEN]
        pending = [
            parts(tensor, placement.reduce_op, seed) if placement.is_partial() else None
            for seed, (tensor, placement) in enumerate(zip(tensors, inputs, strict=True))
        ]
        with LocalTensorMode(WORLD) as ranks:
            mesh = init_device_mesh("cpu", (WORLD,))
            placed = [
                DTensor.from_local(ranks.rank_map(held.__getitem__), mesh, [placement], run_check=False)
                if held is not None
                else distribute_tensor(tensor.clone(), mesh, [placement])
                for tensor, held, placement in zip(tensors, pending, inputs, strict=True)
            ]
            with CommDebugMode() as communication:
                found = tensors_of(call(*placed)) + [placed[i] for i in WRITTEN]
            self.assertEqual(communication.get_total_counts(), 0)
            self.assertEqual([result.placements for result in found], [(p,) for p in wanted(inputs, outputs)])
            numbers = [result.full_tensor() for result in found]
            numbers = [n.reconcile() if isinstance(n, LocalTensor) else n for n in numbers]
'''

_SPAWNED_CHECK = '''\
    @property
    def world_size(self):
        return WORLD

    def check(self, sample, inputs, outputs):
        """Tensors lying like `inputs` give results lying like `outputs`: locally, and with the right numbers."""
        tensors, call = sample()
        plain = [tensor.clone() for tensor in tensors]
        expected = tensors_of(call(*plain)) + [plain[i] for i in WRITTEN]
        mesh = self.build_device_mesh()
        placed = []
        for seed, (tensor, placement) in enumerate(zip(tensors, inputs, strict=True)):
            if placement.is_partial():
                held = parts(tensor, placement.reduce_op, seed)[self.rank].to(self.device_type)
                placed.append(DTensor.from_local(held, mesh, [placement], run_check=False))
            else:
                placed.append(distribute_tensor(tensor.to(self.device_type), mesh, [placement]))
        with CommDebugMode() as communication:
            found = tensors_of(call(*placed)) + [placed[i] for i in WRITTEN]
        self.assertEqual(communication.get_total_counts(), 0)
        self.assertEqual([result.placements for result in found], [(p,) for p in wanted(inputs, outputs)])
        numbers = [finished(result) for result in found]
'''

_FINISHED = '''\
def finished(result):
    """The whole tensor on the CPU.  Averages are finished by hand, since gloo has none."""
    if result.placements == (Partial("avg"),):
        result = DTensor.from_local(result.to_local() / WORLD, result.device_mesh, [Partial("sum")], run_check=False)
    return result.full_tensor().cpu()
'''

_WANTED = '''\
def wanted(inputs, outputs):
    """How the results should lie, then the tensors that were written to."""
    return [*outputs, *(inputs[i] for i in WRITTEN)]
'''

_COMPARE = """\
        for number, truth in zip(numbers, expected, strict=True):
            torch.testing.assert_close(number, truth, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
"""

_COMPARE_RANDOM = """\
        # The operator is random: only shapes and dtypes can be compared.
        for number, truth in zip(numbers, expected, strict=True):
            self.assertEqual((number.shape, number.dtype), (truth.shape, truth.dtype))
"""


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
    cases = [(k, list(_cases(statement, k, world))) for k in kept]
    samples = sorted({case.sample for _, found in cases for case in found})
    written = kept[0].layout.mutated if kept else ()
    body = _class(statement, cases, style)
    sources = [_sample_source(statement, number) for number in samples]
    uses_normal = any("normal(" in source for source in sources)
    blocks = [
        "\n".join(_header(statement, module, style, world, written, body, samples)),
        *([_NORMAL] if uses_normal else []),
        *sources,
        *([_PARTS, _TENSORS_OF, _WANTED] if samples else []),
        *([_FINISHED] if samples and style == "spawned" else []),
        body,
        f'if __name__ == "__main__":\n    {"unittest.main" if style == "local" else "run_tests"}()\n',
    ]
    return "\n\n".join(block.rstrip("\n") + "\n" for block in blocks)


def _header(
    statement: Statement,
    module: str,
    style: str,
    world: int,
    written: tuple[int, ...],
    body: str,
    samples: Sequence[int],
) -> list[str]:
    text = (
        f"Tests of the sharding rules of {statement.operator.name}: local, placed as said, and with the right numbers."
    )
    lines = [f'"""{text}"""', ""]
    if style == "local":
        lines += ["import unittest", ""]
    if samples:
        lines.append("import torch")
        lines += ["import torch.distributed as dist"] if style == "local" else []
        if style == "local":
            lines += [
                "from torch.distributed._local_tensor import LocalTensor, LocalTensorMode",
                "from torch.distributed.device_mesh import init_device_mesh",
            ]
        placements = {n for n in ("Partial", "Replicate", "Shard") if f"{n}(" in body}
        placements |= {"Partial"} if style == "spawned" else set()
        names = ["DTensor", *sorted(placements), "distribute_tensor"]
        lines += [
            f"from torch.distributed.tensor import {', '.join(names)}",
            "from torch.distributed.tensor.debug import CommDebugMode",
        ]
        if style == "local":
            lines.append("from torch.testing._internal.distributed.fake_pg import FakeStore")
    if style == "spawned":
        lines += [
            "from torch.testing._internal.common_utils import run_tests",
            "from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms",
        ]
    lines += ["", f"from {module} import OP", ""]
    if samples:
        lines += [
            f"WORLD = {world}",
            f"WRITTEN = {literal(list(written))}  # tensors that the operator writes to",
        ]
        if not statement.operator.random:
            lines.append(f"TOLERANCE = {_tolerance(statement, samples)}")
    return lines


def _tolerance(statement: Statement, samples: Sequence[int]) -> float:
    """Loose against rounding, since parts are added in another order; a false rule is off by far more."""
    narrow = any(t.dtype == np.float16 for i in samples for t in statement.samples[i].tensors)
    return 2e-2 if narrow else 1e-4


# ---- the tests -----------------------------------------------------------------------------------------------------


def _class(statement: Statement, cases: Sequence[tuple[Kept, list[Case]]], style: str) -> str:
    _, name, _ = overload_parts(statement.operator)
    title = "".join(part.capitalize() for part in name.split("_")) or "Operator"
    base = "unittest.TestCase" if style == "local" else "DTensorTestBase"
    lines = [f"class {title}ShardingTest({base}):"]
    if any(found for _, found in cases):
        check = _LOCAL_CHECK if style == "local" else _SPAWNED_CHECK
        compare = _COMPARE_RANDOM if statement.operator.random else _COMPARE
        lines.append((check + compare).rstrip("\n"))
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


def _cases(statement: Statement, kept: Kept, world: int) -> Iterator[Case]:
    """The rule on samples that admit it: small, float first, and with different arguments."""
    seen: set[object] = set()
    fitting = [i for i, s in enumerate(statement.samples) if len(s.tensors) == len(kept.rule.inputs)]
    floats = {
        i: all(t.dtype.kind == "f" for t in statement.samples[i].tensors if t.dtype.kind in "fc") for i in fitting
    }
    for number in sorted(fitting, key=lambda i: not floats[i]):
        sample = statement.samples[number]
        key = repr(sorted(sample.values(statement.operator).items(), key=lambda item: item[0]))
        if key in seen or len(seen) == MOST_SAMPLES:
            continue
        found = list(_cases_on(statement, kept, number, world))
        if found and _sample_source(statement, number):
            seen.add(key)
            yield from found


def _cases_on(statement: Statement, kept: Kept, number: int, world: int) -> Iterator[Case]:
    sample = statement.samples[number]
    rule = kept.rule
    if any(tensor.size == 0 or not _finite(tensor) for tensor in sample.tensors):
        return
    names = environment(statement, sample)
    ranks = [tensor.ndim for tensor in sample.tensors]
    room = 0 if rule.reference is None else max(ranks) if rule.reference == FRAME else ranks[rule.reference]
    for d in range(room) if rule.reference is not None else (None,):
        known = names if d is None else {**names, "d": d}
        if not all(evaluate(condition, known) for condition in rule.conditions):
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


def _sample_source(statement: Statement, number: int) -> str:
    """A function that makes the sample; empty if it has no Python text."""
    sample = statement.samples[number]
    operator = statement.operator
    names = [identifier(name) for name in sample.tensor_names(operator)]
    try:
        given = [literal(value, names) for value in sample.args]
        given += [f"{name}={literal(value, names)}" for name, value in sample.kwargs.items()]
        tensors = _tensor_sources(statement, sample)
    except NoLiteral:
        return ""
    call = bracketed(f"return tensors, lambda {', '.join(names)}: OP(", given, ")", 4)
    made = bracketed("tensors = [", tensors, "]", 4)
    if any("\n" in source for source in tensors):
        indented = [textwrap.indent(source, " " * 8) for source in tensors]
        made = ["    tensors = [", *(f"{source}," for source in indented), "    ]  # fmt: skip"]
    about = as_comment(sample.label or "made for the test")
    return "\n".join([f"def sample_{number}():", f'    """{about}"""', *made, *call]) + "\n"


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
