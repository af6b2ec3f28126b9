"""`Asked`: all that the user asked of a plan: as it was written, and as bound to the values of a graph.

| written | what holds |
|---|---|
| ``in_specs``, ``out_specs``, ``specs``, `with_sharding_constraint` | these tensors are sharded so |
| ``{"w*": P(None, "tp")}``, ``pin("w*", P(None, "tp"))`` | tensors of these names are sharded so |
| ``forbid("embed*", "dp")`` | nothing of these names is split over that axis, in no copy of it |
| ``cap_gather("64 MiB")`` | no all_gather leaves more than that on a device |
| ``memory="40 GiB"`` | no device ever holds more than that |
| ``uneven=True``, ``recipe="zero3"`` | dims that do not divide may be split; this baseline and nothing else |

`Request` is one of them.  All are kept, or the plan is refused.  They travel in the plan's JSON and are bound anew
where a plan is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from ..errors import GraphError, PlanInfeasible, ShardwrightError, SpecError, near_misses
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph
from ..ir.json import take
from ..ir.program import Program
from ..spec.axes import AxisRef, is_prefix
from ..spec.mesh import DeviceMesh
from ..spec.sharding import P, ShardingSpec
from .amounts import amount_text, read_bytes
from .complete import Complete

Specs = Mapping[int, ShardingSpec]
PAIRS, PAIR, AMOUNT, WORD, YES = "pairs", "pair", "amount", "word", "yes"
KINDS = {
    "in_specs": PAIRS, "out_specs": PAIRS, "mapping": PAIRS, "pin": PAIR, "forbid": PAIR, "cap_gather": AMOUNT,
    "memory": AMOUNT, "recipe": WORD, "uneven": YES,
}  # fmt: skip
"""What a user may ask for, and what is said with it: names with shardings, a name with one or with an axis, bytes."""
_FORMS = {
    PAIRS: "it says pairs of a name and a sharding, both as text",
    PAIR: "it says a name or pattern, and a sharding or an axis, both as text",
    AMOUNT: 'it says a number of bytes, or text such as "40 GiB"',
    WORD: "it says a name",
    YES: 'it says "yes", or is left out',
}
INSIDE = "constraint"
"""What stands in the program itself (`with_sharding_constraint`); it is no part of the plan's JSON."""


@dataclass(frozen=True)
class Request:
    """One thing that the user asked for, as it was written, and what it says of a graph's values.

    >>> print(Request("pin", ("w*", "[_, tp]")), Request("memory", "40 GiB"), Request("cap_gather", 1024))
    pin("w*", "[_, tp]") memory="40 GiB" cap_gather(1024)
    """

    kind: str
    says: Any
    """Text, a number of bytes, or a pair of texts, as `KINDS` has it."""
    group: int = field(default=0, compare=False)
    """For an entry of a mapping: which mapping; of one mapping the first pattern that matches a tensor counts."""
    spec: Any = field(default=None, compare=False, repr=False)
    """The sharding as the user gave it, where it is no text."""
    pins: Specs = field(default_factory=dict, compare=False, repr=False)
    outs: Specs = field(default_factory=dict, compare=False, repr=False)
    """By output."""
    bans: Mapping[int, tuple[AxisRef, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Axes that a value must not be split over."""

    def __post_init__(self) -> None:
        form, says = KINDS.get(self.kind), self.says
        if self.kind == INSIDE:
            return
        good: dict[str, Callable[[], bool]] = {
            PAIRS: lambda: _is_pair(says),
            PAIR: lambda: _is_pair(says),
            AMOUNT: lambda: read_bytes(says) >= 0 if isinstance(says, str) else type(says) is int and says >= 0,
            WORD: lambda: isinstance(says, str),
            YES: lambda: bool(says == YES),
        }
        if form is None:
            raise GraphError(f"a plan cannot be asked for {self.kind!r}", rows=[("known", ", ".join(KINDS))])
        if not good[form]():
            raise GraphError(f"{self.kind} of a plan says {says!r}", help=_FORMS[form])

    @property
    def bytes(self) -> int | None:
        """What a limit says."""
        if KINDS.get(self.kind) != AMOUNT:
            return None
        return read_bytes(self.says) if isinstance(self.says, str) else int(self.says)

    @property
    def memory(self) -> int | None:
        return self.bytes if self.kind == "memory" else None

    @property
    def gathered(self) -> int | None:
        return self.bytes if self.kind == "cap_gather" else None

    def __str__(self) -> str:
        if self.kind == INSIDE:
            return f"with_sharding_constraint: {self.says}"
        if self.kind in ("in_specs", "out_specs"):
            return "{}: {} = {}".format(self.kind, *self.says)
        if self.kind == "mapping":
            return ": ".join(map(_quoted, self.says))
        if self.kind in ("pin", "forbid"):
            return f"{self.kind}({', '.join(map(_quoted, self.says))})"
        if self.kind == "cap_gather":
            return f"cap_gather({_quoted(self.says)})"
        if self.kind == "uneven":
            return "uneven=True"
        more = f" ({amount_text(self.says)})" if self.kind == "memory" and not isinstance(self.says, str) else ""
        return f"{self.kind}={_quoted(self.says)}{more}"

    # -- bound to a graph -------------------------------------------------------------------------------

    def bind(self, graph: Graph, mesh: DeviceMesh, taken: set[int]) -> Request:
        """With what it says of a graph's values; ``taken`` are those that its mapping has spoken of before."""
        if self.kind == "in_specs":
            value = graph.by_name.get(self.says[0])
            if value not in graph.inputs:
                raise SpecError(
                    f"the program has no input {self.says[0]!r}", help=near_misses(self.says[0], graph.by_name)
                )
            return replace(self, pins=self._pins([value], graph, mesh))
        if self.kind == "out_specs":
            i = _output_number(self.says[0], graph)
            return replace(self, outs={i: self._bound(graph, graph.outputs[i], mesh)})
        if self.kind == "mapping":
            values = [v for v in matching(self.says[0], graph, inputs_first=True) if v not in taken]
            taken.update(values)
            return replace(self, pins=self._pins(values, graph, mesh))
        if self.kind == "pin":
            return replace(self, pins=self._pins(matching(self.says[0], graph, inputs_first=True), graph, mesh))
        if self.kind == "forbid":
            axis = mesh.axis(self.says[1])
            return replace(self, bans=dict.fromkeys(matching(self.says[0], graph), (axis,)))
        return self

    def _pins(self, values: Iterable[int], graph: Graph, mesh: DeviceMesh) -> Specs:
        return {value: self._bound(graph, value, mesh) for value in values}

    def _bound(self, graph: Graph, value: int, mesh: DeviceMesh) -> ShardingSpec:
        shape = graph.type(value).shape
        try:
            return ShardingSpec.of(self.says[1] if self.spec is None else self.spec, mesh, len(shape))
        except ShardwrightError as error:
            named = graph.values[value].name if self.kind != "out_specs" else self.says[0]
            by = "" if named == self.says[0] else f", by {self.says[0]!r}"
            raise error.add("for", f"{named}: {list(shape)}{by}") from None

    def moved(self, values: Mapping[int, int]) -> Request:
        """The same of a graph whose values have other numbers."""
        return replace(
            self,
            pins={values[value]: spec for value, spec in self.pins.items()},
            bans={values[value]: axes for value, axes in self.bans.items()},
        )


def _is_pair(says: Any) -> bool:
    return isinstance(says, tuple) and len(says) == 2 and all(isinstance(text, str) for text in says)


def _quoted(says: object) -> str:
    return f'"{says}"' if isinstance(says, str) else str(says)


def _output_number(name: str, graph: Graph) -> int:
    number = name.removeprefix("output ")
    if not number.isdecimal() or int(number) >= len(graph.outputs):
        raise SpecError(f"the program has no {name!r}", rows=[("outputs", str(len(graph.outputs)))])
    return int(number)


# -- as users write them ------------------------------------------------------------------------------------


def pin(pattern: str, spec: Any) -> Request:
    """For ``constraints``: inputs that match are sharded so; else intermediate values that match.

    >>> print(pin("*.weight", "[tp, _]"))
    pin("*.weight", "[tp, _]")
    """
    return Request("pin", (_pattern(pattern), spec_text(spec)), spec=spec)


def forbid(pattern: str, axis: str) -> Request:
    """For ``constraints``: nothing that matches, inputs and intermediate values, is split over this axis.

    >>> print(forbid("embed*", "dp"))
    forbid("embed*", "dp")
    """
    if not isinstance(axis, str) or not axis:
        raise SpecError(f"forbid needs the name of a mesh axis, not {axis!r}")
    return Request("forbid", (_pattern(pattern), axis))


def cap_gather(bytes: int | str) -> Request:
    """For ``constraints``: no all_gather leaves more than so many bytes on a device.

    >>> print(cap_gather("64 MiB"), cap_gather("64 MiB").bytes)
    cap_gather("64 MiB") 67108864
    """
    return Request("cap_gather", amount(bytes, "cap_gather"))


def amount(bytes: int | str, what: str) -> int | str:
    """Bytes as a number, or as text such as "40 GiB", looked at."""
    if isinstance(bytes, str):
        read_bytes(bytes)
        return bytes
    if isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 0:
        raise SpecError(f"{what} takes a number of bytes, not {bytes!r}", help='write 2**30 or "1 GiB"')
    return bytes


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise SpecError(f"a constraint names tensors by a name or a pattern, not by {pattern!r}")
    return pattern


def spec_text(spec: Any) -> str:
    """A sharding as text, for a program that does not know its mesh yet."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, ShardingSpec | P):
        return str(spec)
    try:
        return str(P(*spec))
    except (TypeError, ShardwrightError):
        return str(spec)


def is_spec(item: Any) -> bool:
    """Whether something says a sharding by itself, rather than being a container of such things."""
    if isinstance(item, str | P | ShardingSpec) or type(item).__name__ in ("PartitionSpec", "NamedSharding"):
        return True
    return isinstance(item, list | tuple) and bool(item) and all(hasattr(entry, "is_shard") for entry in item)


def requests_of(constraints: Any) -> list[Request]:
    """What ``constraints`` was given: a mapping, a request, or a list of those."""
    found: list[Request] = []
    _collect(constraints, found)
    return found


def _collect(constraints: Any, found: list[Request]) -> None:
    if constraints is None:
        return
    if isinstance(constraints, Request):
        found.append(constraints)
    elif isinstance(constraints, Mapping):
        group = 1 + max((request.group for request in found), default=0)
        for pattern, spec in constraints.items():
            text = "" if spec is None else spec_text(spec)
            found.append(Request("mapping", (_pattern(pattern), text), group, spec))
    elif isinstance(constraints, list | tuple):
        for item in constraints:
            _collect(item, found)
    else:
        raise SpecError(
            f"a constraint cannot be a {type(constraints).__name__}",
            help='give {"name": spec}, sw.pin(name, spec), sw.forbid(name, axis), sw.cap_gather(bytes), or a list of '
            "those",
        )


def matching(pattern: str, graph: Graph, inputs_first: bool = False) -> list[int]:
    """Values by name or pattern; with ``inputs_first`` others count only where no input matches."""
    wanted = pattern.removeprefix("%")
    names = {value.id: value.name for value in graph.values}
    found = [value for value, name in names.items() if fnmatchcase(name, wanted)]
    if inputs_first:
        inputs = set(graph.inputs)
        found = [value for value in found if value in inputs] or found
    if not found:
        listed = [names[value] for value in graph.inputs]
        raise SpecError(
            f"a constraint names {pattern!r}, but nothing is called so",
            rows=[("inputs", ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else ""))],
            help=near_misses(wanted, names.values()),
        )
    return found


# -- together -------------------------------------------------------------------------------------------------


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
        bound = [request for request in bound if request.kind != "mapping" or request.says[1]]
        first = next(
            (i for i, request in enumerate(bound) if request.kind not in ("in_specs", "out_specs")), len(bound)
        )
        bound[first:first] = _inside(graph, mesh)
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

    def rewritten(self, graph: Graph, pushed: Specs) -> Asked:
        """Of a graph that a pass made of this one: values have kept their names."""
        values = {value.id: graph.by_name[value.name] for value in self.graph.values}
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


def read_requests(entries: Sequence[Any]) -> tuple[Request, ...]:
    """Requests from a plan's JSON, to be bound."""
    found: list[Request] = []
    for group, entry in enumerate(entries, 1):
        take(entry, "what was asked for", {"kind": str, "says": (str, int, list)})
        kind, says = entry["kind"], entry["says"]
        if KINDS.get(kind) != PAIRS:
            found.append(Request(kind, tuple(says) if isinstance(says, list) else says))
            continue
        if not isinstance(says, list):
            raise GraphError(f"{kind} of a plan says {says!r}", help=_FORMS[PAIRS])
        found += [Request(kind, tuple(pair) if isinstance(pair, list) else pair, group) for pair in says]
    return tuple(found)


def _listed(says: Any) -> Any:
    return list(says) if isinstance(says, tuple) else says


@dataclass(frozen=True)
class _Together:
    pins: Specs
    outs: Specs
    bans: Mapping[int, tuple[AxisRef, ...]]


def _inside(graph: Graph, mesh: DeviceMesh) -> list[Request]:
    """The shardings that `with_sharding_constraint` left in a program."""
    found = []
    for n, node in enumerate(graph.nodes):
        if node.op != CONSTRAINT:
            continue
        value = node.results[0]
        try:
            spec = ShardingSpec.of(node.attr("spec"), mesh, graph.type(value).rank)
        except ShardwrightError as error:
            where = f"constraint at {node.source}" if node.source else f"constraint, node {n}"
            raise error.add("in", where) from None
        where = f" at {node.source}" if node.source else ""
        found.append(Request(INSIDE, f"{spec}{where}", pins={value: spec}))
    return found


def splits(spec: ShardingSpec, axis: AxisRef) -> bool:
    """Whether some dim is cut by (a part of) this axis."""
    return any(axis.overlaps(other) for dim in spec.dims for other in dim.axes)


def admits(said: ShardingSpec, spec: ShardingSpec) -> bool:
    """Whether a tensor that is sharded so is as was said; an open dim may be cut further."""
    if not is_open(said):
        return said.same_layout(spec)
    if said.partial != spec.partial:
        return False
    return all(
        is_prefix(one.axes, other.axes) if one.open else one.axes == other.axes
        for one, other in zip(said.dims, spec.dims)
    )


def _both(one: ShardingSpec, other: ShardingSpec) -> ShardingSpec | None:
    """The stricter of two words about one tensor, if they go together."""
    if admits(one, other):
        return other
    return one if admits(other, one) else None


def is_open(spec: ShardingSpec) -> bool:
    return any(dim.open for dim in spec.dims)


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
