"""`Request`: one thing that the user asked of a plan: as it was written, and as bound to the values of a graph.

| written | what holds |
|---|---|
| ``in_specs``, ``out_specs``, ``specs``, `with_sharding_constraint` | these tensors are sharded so |
| ``{"w*": P(None, "tp")}``, ``pin("w*", P(None, "tp"))`` | tensors of these names are sharded so |
| ``forbid("embed*", "dp")`` | nothing of these names is split over that axis, in no copy of it |
| ``cap_gather("64 MiB")`` | no all_gather leaves more than that on a device |
| ``memory="40 GiB"`` | no device ever holds more than that |
| ``uneven=True``, ``recipe="zero3"`` | dims that do not divide may be split; this baseline and nothing else |

All of them are kept (`asked`), or the plan is refused.  They travel in the plan's JSON and are bound anew
where a plan is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from ..errors import GraphError, ShardwrightError, SpecError, front, near_misses, printable
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph
from ..ir.json import take
from ..spec.axes import AxisRef, is_prefix
from ..spec.mesh import DeviceMesh
from ..spec.pending import check_pending
from ..spec.sharding import P, ShardingSpec
from .amounts import amount_text, read_bytes

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
LONGEST_PATTERN = 4096
"""Characters: longer ones take quadratic time to read."""
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
        return printable(self._text())

    def _text(self) -> str:
        if self.kind == INSIDE:
            return f"with_sharding_constraint: {self.says}"
        if self.kind in ("in_specs", "out_specs"):
            return "{}: {} = {}".format(self.kind, *self.says)
        if self.kind == "mapping":
            return f"{_quoted(self.says[0])}: {_quoted(self.says[1] or None)}"
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
            if not self.says[1]:
                return self  # None: left to the planner, whatever later patterns say
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

    def in_full(self, graph: Graph) -> list[Request]:
        """With shardings that were given as objects (``P("d")``, placements) as text that needs no such object.

        One of them may say different things of tensors with different numbers of dims: then it is one request each.
        """
        bound = {**self.pins, **self.outs}
        texts = {str(spec) for spec in bound.values()}
        if self.spec is None or isinstance(self.spec, str) or not texts:
            return [self]
        if len(texts) == 1:
            return [replace(self, says=(self.says[0], texts.pop()), spec=None)]
        return [
            replace(self, says=(graph.values[value].name, str(spec)), spec=None, pins={value: spec})
            for value, spec in self.pins.items()
        ]

    def check_pending(self, graph: Graph) -> None:
        """Raise where a tensor is wanted pending in a way that its element type has no meaning for."""
        for value, spec in (*self.pins.items(), *((graph.outputs[i], spec) for i, spec in self.outs.items())):
            try:
                check_pending(spec, graph.type(value).dtype)
            except ShardwrightError as error:
                raise error.add("for", f"{graph.values[value].name}: {graph.type(value)}, by {self}") from None

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
    if number not in map(str, range(len(graph.outputs))):
        raise SpecError(f"the program has no {name!r}", rows=[("outputs", str(len(graph.outputs)))])
    return int(number)


# -- as users write them ------------------------------------------------------------------------------------


@front
def pin(pattern: str, spec: Any) -> Request:
    """For ``constraints``: inputs that match are sharded so; else intermediate values that match.

    >>> print(pin("*.weight", "[tp, _]"))
    pin("*.weight", "[tp, _]")
    """
    if not is_spec(spec):
        raise SpecError(f"pin needs a sharding, not {spec!r}", help='write pin("w", P("dp", None)) or "[dp, _]"')
    return Request("pin", (_pattern(pattern), spec_text(spec)), spec=spec)


@front
def forbid(pattern: str, axis: str) -> Request:
    """For ``constraints``: nothing that matches, inputs and intermediate values, is split over this axis.

    >>> print(forbid("embed*", "dp"))
    forbid("embed*", "dp")
    """
    if not isinstance(axis, str) or not axis:
        raise SpecError(f"forbid needs the name of a mesh axis, not {axis!r}")
    return Request("forbid", (_pattern(pattern), axis))


@front
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
            if spec == "":
                raise SpecError(
                    f"the sharding of {pattern!r} is empty", help='write "[dp, _]", or None to leave it open'
                )
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
    if len(pattern) > LONGEST_PATTERN:
        raise SpecError(f"a constraint names tensors by a pattern of {len(pattern)} characters")
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


def requests_inside(graph: Graph, mesh: DeviceMesh) -> list[Request]:
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


def read_requests(entries: Sequence[Any]) -> tuple[Request, ...]:
    """Requests from a plan's JSON, to be bound."""
    found: list[Request] = []
    for group, entry in enumerate(entries, 1):
        take(entry, "what was asked for", {"kind": str, "says": (str, int, list)})
        kind, says = entry["kind"], entry["says"]
        if kind not in KINDS:
            raise GraphError(f"a plan cannot be asked for {kind!r}", rows=[("known", ", ".join(KINDS))])
        if KINDS[kind] != PAIRS:
            found.append(Request(kind, tuple(says) if isinstance(says, list) else says))
            continue
        if not isinstance(says, list):
            raise GraphError(f"{kind} of a plan says {says!r}", help=_FORMS[PAIRS])
        found += [Request(kind, tuple(pair) if isinstance(pair, list) else pair, group) for pair in says]
    return tuple(found)


# -- what a sharding says ----------------------------------------------------------------------------------------


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


def is_open(spec: ShardingSpec) -> bool:
    return any(dim.open for dim in spec.dims)
