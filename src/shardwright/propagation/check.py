"""`check_complete`: decisions that were written down, in a plan file say, held against the rules of their ops.

An op's operands and results have to be what its rule makes of the axes of its factors, pending only where the rule says
so; one without a rule is replicated.  Copies have to lead from the value as it is made to somebody who reads it.  What
the user asked for in so many words (``pins`` by value, ``outs`` by output) is the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from ..errors import GraphError, ShardwrightError
from ..ir.core import CONSTRAINT
from ..plans.complete import Complete, Decision
from ..spec.mesh import DeviceMesh
from ..spec.sharding import DimSpec, ShardingSpec
from .choices import forced_choices, legal_axes, legal_spec
from .parts import in_parts, parts_of

Specs = Mapping[int, ShardingSpec]
_HELP = "the plan was changed, or the op's rule is another than when it was made: plan this program anew"


def check_complete(made: Complete, pins: Specs, outs: Specs) -> None:
    """Refuse what no rule gives, with the place."""
    for decision in made.decisions:
        try:
            _check_node(made, decision)
            _check_homes(made, decision, pins)
        except ShardwrightError as error:
            raise error.add("node", f"{decision.node} {made.graph.nodes[decision.node].op}") from None
    _check_ends(made, pins, outs)
    _check_copies(made)


# -- nodes ------------------------------------------------------------------------------------------------


def _check_node(made: Complete, decision: Decision) -> None:
    node, mesh, rule = made.graph.nodes[decision.node], made.mesh, decision.rule
    if node.op == CONSTRAINT and _is_as_asked(decision):
        return
    if rule is None:
        operands, results = (_replicated(mesh, specs) for specs in (decision.operands, decision.results))
        _compare(decision, operands, results, "an op without a rule runs replicated")
        return
    used = [(axis, factor.name) for factor, given in zip(rule.factors, decision.axes) for axis in given]
    for (one, name), (other, place) in combinations(used, 2):
        if one.excludes(other):
            fact = f"factors {name!r} and {place!r} of an op cannot be split over {one} and {other} together"
            raise GraphError(fact, rows=[("rule", str(rule))], help=_HELP)
    legal = legal_axes(rule, decision.axes)
    if legal != decision.axes:
        f = next(f for f, (one, other) in enumerate(zip(legal, decision.axes)) if one != other)
        name, words = rule.factors[f].name, "+".join(map(str, decision.axes[f]))
        raise GraphError(
            f"factor {name!r} of an op cannot be split over {words}", rows=[("rule", str(rule))], help=_HELP
        )
    if in_parts(rule, decision.axes) and parts_of(made.graph, node) is None:
        raise GraphError("the op is split as only its parts can be, but nobody knows them", help=_HELP)
    offered = forced_choices(rule, mesh, decision.operands, decision.axes)
    if any((way.operands, way.results) == (decision.operands, decision.results) for way in offered):
        return
    way = offered[0]
    _compare(decision, way.operands, way.results, str(decision))


def _is_as_asked(decision: Decision) -> bool:
    """Whether a constraint inside the program reads, makes and leaves its value in one sharding, whichever it is."""
    spec = decision.results[0]
    same = decision.operands == decision.results == decision.homes
    return same and decision.axes == tuple(dim.axes for dim in spec.dims)


def _replicated(mesh: DeviceMesh, specs: tuple[ShardingSpec, ...]) -> tuple[ShardingSpec, ...]:
    return tuple(ShardingSpec.replicate(mesh, spec.rank) for spec in specs)


def _compare(
    decision: Decision, operands: tuple[ShardingSpec, ...], results: tuple[ShardingSpec, ...], why: str
) -> None:
    for kind, mine, given in (("operand", decision.operands, operands), ("result", decision.results, results)):
        for i, (spec, right) in enumerate(zip(mine, given)):
            if spec != right:
                raise GraphError(
                    f"{kind} {i} of an op is {spec}, but its split makes that {right}",
                    rows=[("split", why)],
                    help=_HELP,
                )


def _check_homes(made: Complete, decision: Decision, pins: Specs) -> None:
    """What is made may be brought to another sharding at once, but nothing becomes pending by that."""
    values = made.graph.nodes[decision.node].results
    for value, spec, home in zip(values, decision.results, decision.homes):
        if home != spec and not set(home.partial) <= set(spec.partial) and not _is_said(pins.get(value), home):
            raise GraphError(f"a result is made as {spec} and kept as {home}", help=_HELP)


# -- ends -------------------------------------------------------------------------------------------------


def _check_ends(made: Complete, pins: Specs, outs: Specs) -> None:
    """What goes in and comes out is finished and divides, unless it was asked for otherwise; state stays as it is."""
    graph = made.graph
    for value, spec in zip(graph.inputs, made.inputs):
        if not _is_said(pins.get(value), spec):
            _check_end(f"input {graph.values[value].name!r}", spec, graph.type(value).shape)
    states = {output: i for i, output in graph.updates}
    for i, (value, spec) in enumerate(zip(graph.outputs, made.outputs)):
        if i in states and not spec.same_layout(made.inputs[states[i]]):
            name = graph.values[graph.inputs[states[i]]].name
            rows = [("input", str(made.inputs[states[i]])), ("output", str(spec))]
            raise GraphError(f"the next state of {name!r} has another sharding than the state", rows=rows, help=_HELP)
        if i not in states and not _is_said(outs.get(i), spec) and not _is_said(pins.get(value), spec):
            _check_end(f"output {i}", spec, graph.type(value).shape)


def _check_end(what: str, spec: ShardingSpec, shape: tuple[int, ...]) -> None:
    if spec.partial:
        raise GraphError(f"{what} is pending, which nobody asked for: {spec}", help=_HELP)
    if legal_spec(spec, shape) != spec:
        raise GraphError(f"{what} is cut by a part of an axis that does not divide it: {spec} of {list(shape)}")


def _is_said(said: ShardingSpec | None, spec: ShardingSpec) -> bool:
    return said is not None and said.closed() == spec


# -- copies -----------------------------------------------------------------------------------------------


def _check_copies(made: Complete) -> None:
    """Copies come from the value as it is made, and go to its readers."""
    if not made.sources and not made.kept:
        return
    graph, homes = made.graph, made.homes
    read: dict[int, set[ShardingSpec]] = {value: set() for value in (*made.sources, *made.kept)}
    for decision in made.decisions:
        for value, spec in zip(graph.nodes[decision.node].inputs, decision.operands):
            if value in read:
                read[value].add(_splitting(spec))
    for value, spec in zip(graph.outputs, made.outputs):
        if value in read:
            read[value].add(_splitting(spec))
    for value, wanted in read.items():
        home, name = homes[value].closed(), graph.values[value].name
        if home in made.sources.get(value, {}):
            raise GraphError(f"%{name} is made as {home}, so that is no copy of it", help=_HELP)
        home = _splitting(home)
        pairs = [(_splitting(copy), _splitting(source)) for copy, source in made.sources.get(value, {}).items()]
        sources = {copy: source for copy, source in pairs if copy not in (source, home)}
        if value in made.kept:
            kept = _splitting(made.kept[value])
            if kept not in (wanted | {home} | set(sources)):
                raise GraphError(f"%{name} is to be kept as {made.kept[value]}, which is not made", help=_HELP)
            wanted.add(kept)
        _check_tree(name, sources, home, wanted)


def _splitting(spec: ShardingSpec) -> ShardingSpec:
    """Without axes of one device: shardings that differ in them alone are of one copy."""
    partial = tuple(pair for pair in spec.partial if pair[0].size > 1)
    return ShardingSpec.make(spec.mesh, tuple(DimSpec(dim.cutting) for dim in spec.dims), partial)


def _check_tree(
    name: str, sources: Mapping[ShardingSpec, ShardingSpec], home: ShardingSpec, wanted: set[ShardingSpec]
) -> None:
    rooted = {home}
    for start in sources:
        path: list[ShardingSpec] = []
        spec = start
        while spec not in rooted:
            if spec in path:
                raise GraphError(f"a copy of %{name} is made from itself: {spec}", help=_HELP)
            path.append(spec)
            if spec not in sources:
                raise GraphError(f"a copy of %{name} is made from {spec}, which is not there", help=_HELP)
            spec = sources[spec]
        rooted.update(path)
    pending = {kind for spec in (*wanted, home) for _, kind in spec.partial}  # over which axes, a copy may choose
    for copy in sources:
        if copy not in wanted and copy not in sources.values():
            raise GraphError(f"a copy of %{name} is made as {copy}, which nobody reads", help=_HELP)
        if not all(kind in pending for _, kind in copy.partial):
            raise GraphError(f"a copy of %{name} is pending where nothing else of it is: {copy}", help=_HELP)
