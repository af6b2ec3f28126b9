"""One call of a NumPy op, split in many ways on a virtual mesh, against the whole.

Each factor of the op's rule is given each mesh; the rest of the program follows.  Even, uneven, size-1 and empty dims;
one and two mesh axes; all dtypes that apply; NaN and infinities.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ShardwrightError, VerifyError
from ...frontends.numpy import Prepared, prepare, trace
from ...frontends.numpy.samples import Sample, arguments
from ...frontends.numpy.trees import flatten
from ...ir.graph import Graph, Node, TensorType
from ...ir.program import Local, Program
from ...lower import lower
from ...proof import check_identity, check_structure
from ...propagation import rule_of
from ...propagation.choices import legal_axes
from ...propagation.complete import Complete, complete
from ...propagation.engine import OpView
from ...run import VirtualEngine, assemble, scatter
from ...spec.axes import Axes
from ...spec.mesh import DeviceMesh
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from ..operator import Array

LINE = [DeviceMesh("x=2"), DeviceMesh("x=3"), DeviceMesh("x=4")]
GRID = [DeviceMesh("x=2, y=2"), DeviceMesh("x=2, y=3")]
SIZES = {"even": (12, 12), "uneven": (7, 5), "ones": (1, 1), "empty": (0, 4)}
"""Of ``n`` and ``m`` in the shapes of samples."""
TOLERANCE = {"f": 1e-5, "d": 1e-12, "e": 5e-3, "D": 1e-12, "F": 1e-5}
Prepare = Callable[[str, Mapping[str, Any], Sequence[TensorType]], Prepared]


@dataclass
class Case:
    """One call of a sample: traced and computed once, then split in many ways."""

    op: str
    graph: Graph
    inputs: list[Array]
    expected: list[Array]
    rules: dict[int, OpShardingRule]
    """Of the op's nodes."""
    prepare: Prepare = prepare
    done: dict[tuple[DeviceMesh, tuple[tuple[Axes, ...], ...]], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, op: str, sample: Sample, args: list[Array], prepare: Prepare = prepare) -> Case | None:
        """Nothing if these sizes do not fit the sample, or if NumPy needs no such op for them."""
        try:
            result = sample.fn(*args)
        except ValueError:
            return None
        traced = trace(sample.fn, *args)
        graph = traced.graph
        rules = {}
        for n, node in enumerate(graph.nodes):
            if node.op == op:
                view = rule_of(graph, node)
                if view is None:
                    raise VerifyError(f"the book has no rule for this call of {op}", rows=[("graph", str(graph))])
                rules[n] = view.rule
        expected = [np.asarray(leaf) for _, leaf in flatten(result)[0]]
        return cls(op, graph, [*args, *traced.consts], expected, rules, prepare) if rules else None

    @property
    def factors(self) -> int:
        """How many the rule has."""
        return max(len(rule.factors) for rule in self.rules.values())

    def check(self, mesh: DeviceMesh, places: tuple[int, ...], prove: bool = False) -> bool:
        """Mesh axis i goes to factor places[i], as far as the rule lets it; returns whether anything was split.

        What comes to the same once it is cut back is run once; with ``prove`` it is proven as well.
        """
        legal = {n: legal_axes(rule, _dealt(rule, mesh, places)) for n, rule in self.rules.items()}
        key = mesh, tuple(legal.values())
        if key not in self.done:
            self.done[key] = any(axes for given in legal.values() for axes in given)
            self.run(mesh, legal, prove=prove)
        return self.done[key]

    def run(
        self,
        mesh: DeviceMesh,
        forced: dict[int, tuple[Axes, ...]],
        instead: OpShardingRule | None = None,
        prove: bool = False,
    ) -> None:
        """``instead``: another rule than the op's own, to see whether it would do."""
        fixed = self.completed(mesh, forced, instead)
        program = lower(fixed)
        try:
            self.execute(program, fixed.inputs)
            if prove:
                check_structure(program)
                check_identity(self.graph, program)
        except VerifyError as error:
            raise error.add("op", self.op).add("mesh", str(mesh)).add("program", str(program)) from None

    def completed(
        self, mesh: DeviceMesh, forced: dict[int, tuple[Axes, ...]], instead: OpShardingRule | None = None
    ) -> Complete:
        def rules(graph: Graph, node: Node) -> OpView | None:
            return OpView(instead) if instead is not None and node.op == self.op else rule_of(graph, node)

        specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in self.graph.values]
        return complete(self.graph, mesh, specs, rules, forced=forced)

    def execute(self, program: Program, specs: Sequence[ShardingSpec]) -> None:
        """On a virtual mesh, beginning with inputs in these shardings."""
        shards = [scatter(np.asarray(a), spec) for a, spec in zip(self.inputs, specs)]
        try:
            outputs, executed = VirtualEngine(program.mesh, self.prepare).compile(program).run(shards)
        except ShardwrightError:
            raise
        except Exception as error:  # whatever the op raises on a shard
            raise VerifyError(f"{self.op} fails on a shard: {type(error).__name__}: {error}") from error
        if executed.collectives != program.collectives:
            raise VerifyError("other collectives were run than the program says")
        for value, parts, expected in zip(program.outputs, outputs, self.expected):
            check_output(program.values[value], parts, expected)


def check_output(local: Local, parts: Sequence[Array], expected: Array) -> None:
    """Shards of the shapes they should have, alike where they overlap, that make up what was expected."""
    spec, shape = local.spec, local.type.shape
    shapes = [local.local_shape(position) for position in spec.mesh]
    if [part.shape for part in parts] != shapes:
        rows = [("shards", str([list(part.shape) for part in parts])), ("should", str([*map(list, shapes)]))]
        raise VerifyError(f"%{local.name} has shards of other shapes than its sharding says", rows=rows)
    whole = assemble(parts, spec, shape)
    check_same(whole, expected, f"%{local.name}")
    for position, part in enumerate(parts):
        if part.tobytes() != whole[spec.local_slices(shape, position)].tobytes():
            raise VerifyError(f"devices disagree about %{local.name}", rows=[("device", str(position))])


def check_same(found: Array, expected: Array, what: str) -> None:
    """Raise `VerifyError` unless two arrays are alike, up to rounding."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        rows = [("is", f"{found.dtype}{list(found.shape)}"), ("should", f"{expected.dtype}{list(expected.shape)}")]
        raise VerifyError(f"{what} has another type than unsharded", rows=rows)
    if expected.dtype.kind in "fc":
        close = TOLERANCE[expected.dtype.char]
        same = np.isclose(found, expected, rtol=close, atol=close, equal_nan=True)
    else:
        same = np.asarray(found == expected)
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        rows = [("element", f"{list(at)}: {found[at]}, not {expected[at]}")]
        raise VerifyError(f"{what} differs from the unsharded result", rows=rows)


def check_sample(op: str, sample: Sample, prepare: Prepare = prepare, prove: bool = False) -> int:
    """Run a sample in all sizes, dtypes and splits; returns how many factors of the op were split, one at a time."""
    split = factors = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's own, of the values
        for sizes in SIZES.values():
            if 0 in sizes and not sample.empty:
                continue
            case = Case.of(op, sample, arguments(sample, sizes, sample.dtypes[0]), prepare)
            if case is None:
                continue
            factors = max(factors, case.factors)
            for mesh in LINE:
                split = max(split, sum(case.check(mesh, (f,), prove) for f in range(case.factors)))
            for mesh in GRID:
                for places in itertools.product(range(case.factors), repeat=2):
                    case.check(mesh, places, prove)
        for dtype in sample.dtypes:
            for sizes, mesh in (((6, 4), LINE[0]), ((5, 7), LINE[1])):
                for special in (False, True) if dtype[0] == "f" else (False,):
                    case = Case.of(op, sample, arguments(sample, sizes, dtype, special), prepare)
                    for f in range(case.factors if case is not None else 0):
                        assert case is not None
                        case.check(mesh, (f,))
    if not factors:
        raise VerifyError(f"a sample of {op} never runs it", rows=[("shapes", ", ".join(sample.shapes))])
    return split


def _dealt(rule: OpShardingRule, mesh: DeviceMesh, places: tuple[int, ...]) -> list[Axes]:
    axes: list[Axes] = [()] * len(rule.factors)
    for axis, f in zip(mesh.axes, places):
        if f < len(axes):
            axes[f] = (*axes[f], axis)
    return axes
