"""A rule that did not come with the project is no proof of itself: it is tried, by execution, before it is used.

Rules that were learned, read from a user's book or given from outside (`sw.rule`, `sw.numpy.op`, entry points) are
held against the op itself: small shapes drawn here, even ones and odd ones, and the call's own where it is not too
large; every factor that the rule lets be split, one at a time, on 2, 3 and 4 devices, as lowering would split it; every
line about pending tensors, on parts that false lines fail on (`oracle`).  The first difference is the counter-example.

What was tried once in a process is not tried again: small shapes once for calls of one kind (op, attributes, dims,
element types, what the rule says), own sizes once each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from ...errors import RuleError, ShardwrightError, UnknownOpError
from ...frontends.numpy.kernels import KERNELS
from ...ir.graph import Graph, GraphBuilder, Node, TensorType
from ...lower import lower
from ...propagation import rule_of
from ...propagation.choices import legal_axes
from ...propagation.complete import complete
from ...propagation.engine import OpView
from ...rules import registry
from ...run import VirtualEngine, assemble, scatter
from ...spec.axes import Axes
from ...spec.mesh import DeviceMesh
from ...spec.op_record import OpRecord, slots_of
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from ..isolate import isolated
from ..judging.encode import kinds_for
from ..judging.oracle import Counterexample, Oracle, refute
from ..operator import Operator, Sample
from ..placement import KINDS
from . import study
from .op_library import OpLibrary

WORLDS = (2, 3, 4)
MOST_DEVICES = 24
MOST_DRAWS = 3
"""Sets of small sizes that are tried."""
SECONDS = 15.0
"""CPU time for the trial of one call."""
EXACT = 1e-9
CLOSE = {"f32": 1e-4, "c64": 1e-4, "f16": 2e-2, "bf16": 5e-2}
"""How far results may be off, for the size of the numbers that go in and come out; a false rule is off by far more."""


@dataclass(frozen=True)
class Verdict:
    """What came of trying a rule."""

    tries: int = 0
    """Comparisons of the op on shards with the op on whole tensors."""
    counterexample: str = ""
    untried: str = ""
    """Why it could not be tried."""

    def __add__(self, other: Verdict) -> Verdict:
        tries = self.tries + other.tries
        untried = "" if tries else self.untried or other.untried
        return Verdict(tries, self.counterexample or other.counterexample, untried)


@dataclass(frozen=True)
class Trusted:
    """A rule that a program uses and that did not come with the project."""

    op: str
    origin: str
    rule: str
    tries: int
    untried: str = ""

    def __str__(self) -> str:
        tried = f"could not be tried: {self.untried}" if self.untried else f"tried on {self.tries} draws"
        return f"rule of {self.op}: {self.origin}, {tried}"


def trusted_rules(graph: Graph) -> tuple[Trusted, ...]:
    """The rules of a program that did not come with the project, each tried; `RuleError` for one that is false."""
    found: dict[tuple[str, str], Trusted] = {}
    for node in graph.nodes:
        record = registry.find(node.op)
        view = rule_of(graph, node) if record is not None and record.origin else None
        if record is None or view is None:
            continue
        verdict = try_rule(graph, node, record, view.rule)
        text = str(view.rule.pattern)
        if verdict.counterexample:
            raise _false(node, record, text, verdict)
        known = found.get((node.op, text))
        tries = verdict.tries + (0 if known is None else known.tries)
        found[node.op, text] = Trusted(node.op, record.origin, text, tries, "" if tries else verdict.untried)
    return tuple(found.values())


def _false(node: Node, record: OpRecord, rule: str, verdict: Verdict) -> RuleError:
    return RuleError(
        f"the rule of {node.op} does not hold",
        rows=[
            ("op", f"{node.op}   at {node.source}" if node.source else node.op),
            ("rule", f"{rule}   ({record.origin})"),
            ("counter-example", verdict.counterexample),
        ],
        help="mend the rule; without one the op runs replicated, and learn=True finds one by execution",
    )


def try_rule(graph: Graph, node: Node, record: OpRecord, rule: OpShardingRule) -> Verdict:
    """Try what a rule says of one call."""
    operands, results = graph.types(node.inputs), graph.types(node.results)
    call = _Call(node, operands, results, record, rule)
    # What computes a NumPy op is part of it: a notebook may define it anew.
    kind = (
        node.op, KERNELS.get(node.op), repr(node.attrs), slots_of(node.operands), _dims((*operands, *results)),
        tuple(type.dtype for type in operands), _structure(rule),
    )  # fmt: skip
    if kind not in _verdicts:
        _verdicts[kind] = call.run_alone(call.draws())
    verdict = _verdicts[kind]
    if verdict.counterexample or not study.runs_as_it_is(operands, results):
        return verdict
    own = (kind, tuple(type.shape for type in (*operands, *results)))
    if own not in _verdicts:
        _verdicts[own] = call.run_alone([(tuple(operands), tuple(results))])
    return verdict + _verdicts[own]


_verdicts: dict[Any, Verdict] = {}
"""By kind of call, and by kind and shapes."""


def _resized(types: Sequence[TensorType], sizes: Mapping[int, int]) -> Types:
    return tuple(TensorType(tuple(sizes.get(size, size) for size in type.shape), type.dtype) for type in types)


def _dims(types: Sequence[TensorType]) -> tuple[tuple[int, ...], ...]:
    """Shapes by which of their sizes are 1 and which are equal."""
    numbers: dict[int, int] = {0: -1, 1: -2}
    return tuple(tuple(numbers.setdefault(size, len(numbers)) for size in type.shape) for type in types)


def _structure(rule: OpShardingRule) -> tuple[object, ...]:
    """What a rule says, whatever the sizes."""
    factors = tuple(replace(factor, size=min(factor.size, 2)) for factor in rule.factors)
    return factors, rule.operands, rule.results, rule.reductions, rule.transfers


Types = tuple[TensorType, ...]
Draw = tuple[Types, Types]
"""Operands and results."""


@dataclass(frozen=True)
class _Call:
    """One call of an op, and the rule that is claimed for it."""

    node: Node
    operands: Sequence[TensorType]
    results: Sequence[TensorType]
    record: OpRecord
    rule: OpShardingRule

    def draws(self) -> list[Draw]:
        """The call on small sizes: equal ones stay equal."""
        maps = islice(study.small_sizes(self.operands), MOST_DRAWS)
        found = [tuple(_resized(types, sizes) for types in (self.operands, self.results)) for sizes in maps]
        if any(len(dim) > 1 for tensor in self.rule.tensors for dim in tensor):
            found += self._draws_by_factors()
        return [(operands, results) for operands, results in dict.fromkeys(found)]

    def _draws_by_factors(self) -> Iterator[Draw]:
        """Where dims are made of several factors: small factors; minor ones also as they are."""
        rule = self.rule
        minor = {f for tensor in rule.tensors for dim in tensor for f in dim[1:]}
        for pool in study.POOLS:
            for kept in (set(), minor):
                large = dict.fromkeys(size for f, size in enumerate(rule.sizes) if f not in kept and size > 1)
                small = dict(zip(large, pool))
                sizes = [size if f in kept else small.get(size, size) for f, size in enumerate(rule.sizes)]
                shapes = [tuple(prod(sizes[f] for f in dim) for dim in tensor) for tensor in rule.tensors]
                if len(large) > len(pool) or sum(map(prod, shapes)) > study.MOST_ELEMENTS:
                    continue
                types = (*self.operands, *self.results)
                made = tuple(TensorType(shape, type.dtype) for shape, type in zip(shapes, types, strict=True))
                yield made[: len(self.operands)], made[len(self.operands) :]

    def run_alone(self, draws: Sequence[Draw]) -> Verdict:
        """In a process of its own: what an op does on shapes that its user never saw is not known."""
        try:
            library = study.library_of(self.node.op)
        except UnknownOpError as error:
            return Verdict(untried=error.fact)
        refused = library.refused or ("its numbers are random" if self.record.random else "")
        if refused or not draws:
            return Verdict(untried=refused or "its sizes cannot be made small")

        def work() -> list[Any]:
            verdict = self.run(library, draws)
            return [verdict.tries, verdict.counterexample, verdict.untried]

        done = isolated(work, seconds=SECONDS)
        return Verdict(untried=f"its trial {done.failure}") if done.failure else Verdict(*done.value)

    def run(self, library: OpLibrary, draws: Sequence[Draw]) -> Verdict:
        verdict = Verdict()
        for number, draw in enumerate(draws):
            small = _Small.of(self, library, *draw)
            if isinstance(small, str):
                verdict += Verdict(untried=small)
                continue
            is_small = sum(prod(type.shape) for types in draw for type in types) <= study.MOST_ELEMENTS
            worlds = WORLDS if is_small else study.OWN_WORLDS
            wide, narrow = small.in_types(study.WIDE), small.in_types({})
            exact = wide.try_factors(worlds, EXACT) + wide.try_transfers(worlds)
            verdict += exact
            if narrow.types != wide.types and (number == 0 or not exact.tries):
                close = max(CLOSE.get(type.dtype, EXACT) for type in (*narrow.types, *narrow.results))
                verdict += narrow.try_factors(worlds[:1], close)
            if verdict.counterexample:
                break
        return verdict


@dataclass(frozen=True)
class _Small:
    """A call on small tensors of our own, with the rule as bound to them."""

    library: OpLibrary
    node: Node
    rule: OpShardingRule
    types: Types
    results: Types
    operator: Operator
    sample: Sample

    @classmethod
    def of(cls, call: _Call, library: OpLibrary, types: Types, results: Types) -> _Small | str:
        """Or why not, where the rule says something else of such sizes."""
        slots = slots_of(call.node.operands)
        try:
            rule = call.record.bind(
                [t.shape for t in types], [t.shape for t in results], dict(call.node.attrs), slots
            )  # fmt: skip
        except ShardwrightError:
            return "its rule covers no small sizes"
        if _structure(rule) != _structure(call.rule):
            return "its rule is another one on small sizes"
        operator, sample = study.small_call(library, call.node, types, results, {})
        return cls(library, call.node, rule, types, results, operator, sample)

    def in_types(self, wide: Mapping[str, str]) -> _Small:
        def turned(types: Types) -> Types:
            return tuple(TensorType(type.shape, wide.get(type.dtype, type.dtype)) for type in types)

        return replace(self, types=turned(self.types), results=turned(self.results))

    # -- factors ----------------------------------------------------------------------------------------------

    def try_factors(self, worlds: Sequence[int], close: float) -> Verdict:
        tensors = [self.library.cast(array, type.dtype) for array, type in zip(self.sample.tensors, self.types)]
        try:
            whole = self.whole(tensors)
            again = self.whole(tensors)
        except Exception as error:  # whatever the library raises
            return Verdict(untried=f"it does not run on small tensors: {_first_line(error)}")
        shapes = [array.shape for array in whole]
        if shapes != [type.shape for type in self.results]:
            return Verdict(untried=f"its results on small tensors are {shapes}")
        if any(_difference(a, b, 0.0) for a, b in zip(whole, again)):
            return Verdict(untried="two runs give different numbers")
        size = max((_largest(np.asarray(array)) for array in (*self.sample.tensors, *whole)), default=0.0)
        tries = 0
        for f, factor in enumerate(self.rule.factors):
            for mesh, axes in self.splits(f, worlds):
                wrong = self.on_shards(mesh, axes, tensors, whole, close * size)
                if wrong is None:
                    continue
                tries += 1
                if wrong:
                    ways = f"{factor.name} split over {mesh.axes[-1].size} devices"
                    return Verdict(tries, f"{self.text()}: {ways}: {wrong}")
        return Verdict(tries)

    def whole(self, tensors: Sequence[Any]) -> list[Any]:
        run = self.library.prepare(self.node.op, dict(self.node.attrs), self.results)
        rest = iter(tensors)
        arguments = [
            None if o is None else [next(rest) for _ in o] if isinstance(o, tuple) else next(rest)
            for o in self.node.operands
        ]
        return [self.library.plain(tensor) for tensor in run(arguments)]

    def splits(self, f: int, worlds: Sequence[int]) -> Iterator[tuple[DeviceMesh, tuple[Axes, ...]]]:
        """Meshes that split a factor: inside a dim, those before it have to be split in full."""
        major = {m for tensor in self.rule.tensors for dim in tensor if f in dim for m in dim[: dim.index(f)]}
        before = {m: f"m{m}" for m in sorted(major) if self.rule.sizes[m] > 1}
        for world in worlds:
            mesh = DeviceMesh({**{name: self.rule.sizes[m] for m, name in before.items()}, "d": world})
            if mesh.size > MOST_DEVICES:
                continue
            wanted: list[Axes] = [()] * len(self.rule.factors)
            for m, name in before.items():
                wanted[m] = (mesh.axis(name),)
            wanted[f] = (mesh.axis("d"),)
            axes = legal_axes(self.rule, wanted)
            if axes == tuple(wanted):
                yield mesh, axes

    def on_shards(
        self, mesh: DeviceMesh, axes: tuple[Axes, ...], tensors: Sequence[Any], whole: Sequence[Any], close: float
    ) -> str | None:
        """How the op on shards differs, split as lowering does it; None where it cannot, or a shard would be empty."""
        graph = self.graph()
        replicated = [ShardingSpec.replicate(mesh, value.type.rank) for value in graph.values]
        try:
            fixed = complete(graph, mesh, replicated, lambda g, n: OpView(self.rule), forced={0: axes})
            program = lower(fixed)
        except ShardwrightError:
            return None  # no plan can split it so either
        for local in program.values:
            if prod(local.type.shape) and not all(prod(local.local_shape(p)) for p in mesh):
                return None
        try:
            shards = [scatter(tensor, spec, self.library.arrays) for tensor, spec in zip(tensors, fixed.inputs)]
            engine = VirtualEngine(mesh, self.library.prepare, self.library.arrays)
            outputs = engine.compile(program).run(shards)[0]
            for number, (value, parts, want) in enumerate(zip(program.outputs, outputs, whole)):
                local = program.values[value]
                held = [tuple(part.shape) for part in parts]
                due = [local.local_shape(position) for position in mesh]
                if held != due:
                    return f"shards of result {number} are {held}, not {due}"
                got = self.library.plain(assemble(parts, local.spec, local.type.shape, self.library.arrays))
                wrong = _difference(got, want, close)
                if wrong:
                    return f"of result {number} {wrong}"
        except Exception as error:  # whatever the library raises on a shard
            return f"a shard fails: {_first_line(error)}"
        return ""

    def graph(self) -> Graph:
        builder = GraphBuilder(self.node.op)
        inputs = iter([builder.input(type) for type in self.types])
        operands = [
            None if o is None else [next(inputs) for _ in o] if isinstance(o, tuple) else next(inputs)
            for o in self.node.operands
        ]
        builder.op(self.node.op, operands, self.results, attrs=dict(self.node.attrs))
        return builder.finish(builder.nodes[-1].results)

    # -- pending tensors --------------------------------------------------------------------------------------

    def try_transfers(self, worlds: Sequence[int]) -> Verdict:
        rows = [row for transfer in self.rule.transfers for row in study.pending_claims(transfer)]
        if not rows:
            return Verdict()
        reason = Oracle(self.operator, self.sample, KINDS).table.refused
        if reason:
            return Verdict(untried=reason)
        tries = 0
        for inputs, outputs in rows:
            if len(inputs) != len(self.sample.tensors) or not all(
                p.kind != "P" or p.reduce in kinds_for(array, "data") for p, array in zip(inputs, self.sample.tensors)
            ):
                continue  # such tensors are never pending so
            for o, placement in enumerate(outputs):
                tries += 1
                found = refute(self.operator, [self.sample], inputs, o, placement, worlds, "uneven")
                if found is not None:
                    return Verdict(tries, f"{self.text()}: {_pending_text(found)}")
        return Verdict(tries)

    def text(self) -> str:
        return ", ".join(map(str, self.types))


def _pending_text(found: Counterexample) -> str:
    ins = ", ".join(map(str, found.inputs))
    wrong = found.error and f"a part fails: {found.error}"
    if not wrong:
        wrong = "the parts do not fit together" if found.got is None else _difference(found.got, found.want, 0.0)
    return f"{ins} -> {found.placement} over {found.world} devices: of result {found.output} {wrong}"


def _largest(array: Any) -> float:
    if array.size == 0 or array.dtype.kind not in "fciu":
        return 0.0
    numbers = np.abs(array[np.isfinite(array)].astype(np.complex128))
    return float(numbers.max(initial=0.0))


def _difference(got: Any, want: Any, close: float) -> str:
    """The first element that differs; empty if none does."""
    if got.shape != want.shape:
        return f"the shape is {list(got.shape)}, not {list(want.shape)}"
    with np.errstate(all="ignore"):
        alike = np.asarray(got == want)
        if want.dtype.kind in "fc":
            alike = alike | (np.abs(got - want) <= close) | (np.isnan(got) & np.isnan(want))
    if alike.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~alike)[0])
    return f"element {list(at)} is {got[at]}, not {want[at]}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
