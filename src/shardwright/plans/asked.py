"""`Asked`: all that the user asked of a plan, and what it comes to: shardings, refused axes, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import PlanInfeasible
from ..ir.graph import Graph
from ..ir.program import Program
from ..spec.axes import AxisRef
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .complete import Complete
from .requests import INSIDE, KINDS, PAIRS, Request, Specs, admits, is_open, requests_inside, splits


@dataclass(frozen=True)
class Asked:
    """Every request, bound to the values of one graph, and what they come to together."""

    graph: Graph = field(compare=False, repr=False)
    requests: tuple[Request, ...] = ()
    stays: bool = False
    """Whether outputs that nobody asked for in a sharding are delivered as they are cut; else where it is cheapest."""
    fixed: Specs = field(default_factory=dict)
    """Shardings that stand fast beside what was asked: the question that a study asks."""
    strict: bool = False
    """Whether sums that are pending over a forbidden axis are refused, too."""
    pushed: Specs = field(default_factory=dict, compare=False)
    """What constraints inside the program say of the values that they read."""
    ends: Specs | None = field(default=None, repr=False)
    """Outputs with the shardings that they are wanted in, where that is all there is to say of them."""

    @classmethod
    def of(cls, graph: Graph, mesh: DeviceMesh, requests: Iterable[Request], stays: bool = False) -> Asked:
        """Requests as they were written, bound to a graph, with what stands in the graph itself."""
        taken: dict[int, set[int]] = {}
        bound = [request.bind(graph, mesh, taken.setdefault(request.group, set())) for request in requests]
        bound = [part for request in bound for part in request.in_full(graph)]
        first = next(
            (i for i, request in enumerate(bound) if request.kind not in ("in_specs", "out_specs")), len(bound)
        )
        bound[first:first] = requests_inside(graph, mesh)
        for request in bound:
            request.check_pending(graph)
        return cls(graph, tuple(bound), stays)

    @classmethod
    def fixing(
        cls, graph: Graph, given: Specs | None = None, outs: Specs | None = None, memory: int | None = None
    ) -> Asked:
        """These shardings by value and by output, and no more."""
        found = [Request("pin", (graph.values[v].name, str(s)), pins={v: s}) for v, s in (given or {}).items()]
        found += [Request("out_specs", (f"output {i}", str(s)), outs={i: s}) for i, s in (outs or {}).items()]
        found += [] if memory is None else [Request("memory", memory)]
        return cls(graph, tuple(found))

    def keeping(self, requests: Iterable[Request]) -> Asked:
        """These requests only."""
        return replace(self, requests=tuple(requests))

    def limited(self, memory: int | None) -> Asked:
        """With this limit of memory, or none, in place of what was asked."""
        others = tuple(request for request in self.requests if request.memory is None)
        return replace(self, requests=others if memory is None else (*others, Request("memory", memory)))

    def also(self, fixed: Specs, strict: bool = False) -> Asked:
        """With shardings that stand fast beside."""
        return replace(self, fixed={**self.fixed, **fixed}, strict=strict)

    def on(self, graph: Graph, values: Mapping[int, int], outputs: Mapping[int, int]) -> Asked | None:
        """The same of a shorter graph, where ``values`` and ``outputs`` went; None if an output asked for is gone."""
        if any(i not in outputs for i in self.out_specs):
            return None
        given = {values[value]: spec for value, spec in self.given.items() if value in values}
        outs = {outputs[i]: spec for i, spec in self.out_specs.items()}
        limits = tuple(request for request in self.requests if request.kind in ("memory", "cap_gather", "uneven"))
        return Asked(graph, limits, self.stays, given, self.strict, ends=outs)

    @property
    def spoken_of(self) -> frozenset[int]:
        """Values of which something was asked: no pass may take them away."""
        asked = (value for request in self.requests for value in (*request.pins, *request.bans))
        return frozenset((*asked, *self.fixed, *self.pushed))

    def rewritten(self, graph: Graph, pushed: Specs) -> Asked:
        """Of a graph that a pass made of this one: values have kept their names, and what was asked for is there."""
        known = graph.by_name
        values = {value.id: known[value.name] for value in self.graph.values if value.name in known}
        requests = tuple(request.moved(values) for request in self.requests)
        made = replace(self, graph=graph, requests=requests, fixed={values[v]: s for v, s in self.fixed.items()})
        said = {value for request in requests for value in request.pins}
        free = {v: s for v, s in pushed.items() if v in said or not any(splits(s, a) for a in made.bans.get(v, ()))}
        return replace(made, pushed=free)

    # -- what they come to ----------------------------------------------------------------------------------

    @cached_property
    def contradiction(self) -> tuple[Request, ...]:
        """Requests of which two, or one by itself, cannot be kept, whatever the plan."""
        found = self._together
        return found if isinstance(found, tuple) else ()

    @cached_property
    def _terms(self) -> _Together:
        found = self._together
        if isinstance(found, tuple):
            raise PlanInfeasible("these cannot all be kept", rows=[("user", str(request)) for request in found])
        return found

    @cached_property
    def _together(self) -> _Together | tuple[Request, ...]:
        graph = self.graph
        pins: dict[int, tuple[ShardingSpec, Request]] = {}
        outs: dict[int, tuple[ShardingSpec, Request]] = {}
        bans: dict[int, list[tuple[AxisRef, Request]]] = {}
        renewed = {output: graph.inputs[i] for i, output in graph.updates}
        for request in self.requests:
            at_inputs = {renewed[i]: spec for i, spec in request.outs.items() if i in renewed}
            for value, spec in (*request.pins.items(), *at_inputs.items()):
                known = pins.get(value)
                both = spec if known is None else _both(known[0], spec)
                if both is None:
                    assert known is not None
                    return known[1], request
                if known is None or both != known[0]:
                    pins[value] = both, request
            for i, spec in request.outs.items():
                if i not in renewed:
                    outs[i] = spec, request
            for value, axes in request.bans.items():
                bans.setdefault(value, []).extend((axis, request) for axis in axes)
        # The next state of an input has the input's sharding, so what holds for it holds for the input.
        for output, value in renewed.items():
            bans.setdefault(value, []).extend(bans.get(graph.outputs[output], ()))
        said = [(value, *pair) for value, pair in pins.items()]
        said += [(graph.outputs[i], *pair) for i, pair in outs.items()]
        for value, spec, request in said:
            for axis, other in bans.get(value, ()):
                if splits(spec, axis):
                    return (request,) if request is other else (request, other)
        return _Together(
            {value: spec for value, (spec, _) in pins.items()},
            {i: spec for i, (spec, _) in outs.items()},
            {value: tuple(axis for axis, _ in pairs) for value, pairs in bans.items() if pairs},
        )

    @cached_property
    def pins(self) -> Specs:
        """Shardings by value; those of inputs may be open."""
        return {**self._terms.pins, **self.pushed}

    @property
    def outs(self) -> Specs:
        """Shardings by output."""
        return self._terms.outs

    @property
    def bans(self) -> Mapping[int, tuple[AxisRef, ...]]:
        return self._terms.bans

    @cached_property
    def given(self) -> dict[int, ShardingSpec]:
        """Shardings that stand fast.

        What the user left open at an input is chosen by the planner; elsewhere what was said is the whole of it.
        """
        inputs = set(self.graph.inputs)
        found = {v: s.closed() for v, s in self.pins.items() if not is_open(s) or (v not in inputs and s.used_axes)}
        return {**found, **self.fixed}

    @cached_property
    def out_specs(self) -> dict[int, ShardingSpec]:
        """Outputs that are wanted in a sharding; those that a study asks about, finished."""
        if self.ends is not None:
            return dict(self.ends)
        outs = {i: spec.closed() for i, spec in self.outs.items()}
        renewed = {output for _, output in self.graph.updates}
        for i, value in enumerate(self.graph.outputs):
            if value in self.fixed and i not in outs and i not in renewed:
                spec = self.fixed[value].closed()
                outs[i] = ShardingSpec.make(spec.mesh, spec.dims)
        return outs

    @property
    def most_gathered(self) -> int | None:
        """The most bytes that one all_gather may leave on a device."""
        return min((r.gathered for r in self.requests if r.gathered is not None), default=None)

    @property
    def memory(self) -> int | None:
        """Bytes on a device."""
        return min((r.memory for r in self.requests if r.memory is not None), default=None)

    @property
    def uneven(self) -> bool:
        """Whether dims may be split that do not divide: shards are then padded to the largest."""
        return any(request.kind == "uneven" for request in self.requests)

    @property
    def recipe(self) -> str | None:
        return next((request.says for request in self.requests if request.kind == "recipe"), None)

    @property
    def allows(self) -> Callable[[int, ShardingSpec], bool] | None:
        """Whether a value may be sharded so, anywhere; None where all is allowed."""
        return self._allows if self.bans else None

    def _allows(self, value: int, spec: ShardingSpec) -> bool:
        axes = self.bans.get(value, ())
        if any(splits(spec, axis) for axis in axes):
            return False
        pending = [axis for axis, _ in spec.partial] if self.strict else []
        return not any(axis.overlaps(other) for axis in axes for other in pending)

    @cached_property
    def _loose(self) -> Specs:
        return {value: spec for value, spec in self.pins.items() if value not in self.given}

    @property
    def offer(self) -> Callable[[int, tuple[ShardingSpec, ...]], tuple[ShardingSpec, ...]] | None:
        """Of an input and the shardings that it might have: those to choose from; None where all are."""
        return self._offer if self._loose else None

    def _offer(self, value: int, specs: tuple[ShardingSpec, ...]) -> tuple[ShardingSpec, ...]:
        """What the user left open begins as said."""
        spec = self._loose.get(value)
        if spec is None:
            return specs
        return tuple(one for one in specs if admits(spec, one)) or (spec.closed(),)

    @property
    def is_plain(self) -> bool:
        """Whether nothing speaks of values one by one, so that equal layers are equal to the planner, too."""
        return not self.bans and not self._loose

    # -- JSON -----------------------------------------------------------------------------------------------

    @property
    def written(self) -> tuple[Request, ...]:
        """What the user wrote beside the program."""
        return tuple(request for request in self.requests if request.kind != INSIDE)

    def to_json(self) -> list[dict[str, Any]]:
        """Entries of one mapping together, as they were written."""
        made: list[dict[str, Any]] = []
        last: tuple[str, int] | None = None
        for request in self.written:
            if KINDS[request.kind] != PAIRS:
                made.append({"kind": request.kind, "says": _listed(request.says)})
                last = None
            elif last == (request.kind, request.group):
                made[-1]["says"].append(_listed(request.says))
            else:
                made.append({"kind": request.kind, "says": [_listed(request.says)]})
                last = (request.kind, request.group)
        return made


@dataclass(frozen=True)
class _Together:
    pins: Specs
    outs: Specs
    bans: Mapping[int, tuple[AxisRef, ...]]


def _both(one: ShardingSpec, other: ShardingSpec) -> ShardingSpec | None:
    """The stricter of two words about one tensor, if they go together."""
    if admits(one, other):
        return other
    return one if admits(other, one) else None


def broken(asked: Asked, complete: Complete, program: Program, peak: int) -> list[Request]:
    """The requests that a lowered plan does not keep; read off the Program, not off what was intended."""
    graph = complete.graph
    homes = dict(zip(graph.inputs, (program.values[value].spec for value in program.inputs)))
    for decision in complete.decisions:
        homes.update(zip(graph.nodes[decision.node].results, decision.homes))
    ends = [program.values[value].spec for value in program.outputs]
    gathers = [i.results[0] for i in program.instrs if i.op == "all_gather"]
    most = max((program.values[value].padded_bytes for value in gathers), default=0)

    def keeps(request: Request) -> bool:
        if request.memory is not None and peak > request.memory:
            return False
        if request.gathered is not None and most > request.gathered:
            return False
        if not all(admits(spec, homes[value].closed()) for value, spec in request.pins.items()):
            return False
        if not all(admits(spec, ends[i]) for i, spec in request.outs.items()):
            return False
        return not any(
            splits(local.spec, axis)
            for local in program.values
            if local.origin is not None
            for axis in request.bans.get(local.origin, ())
        )

    return [request for request in asked.requests if not keeps(request)]


def _listed(says: Any) -> Any:
    return list(says) if isinstance(says, tuple) else says
