"""Constraints of a plan, as users write them and as the planner takes them.

| written | what holds |
|---|---|
| ``{"w*": P(None, "tp")}``, ``pin("w*", P(None, "tp"))`` | tensors of these names lie so |
| ``forbid("embed*", "dp")`` | nothing of these names is split over that axis, in no copy of it |
| ``cap_gather("64 MiB")`` | no all_gather leaves more than that on a device |
| ``memory="40 GiB"`` | no device ever holds more than that |

Shardings given as ``in_specs``, ``out_specs`` and `with_sharding_constraint` are words of the user, too.  All of them
are kept, or the plan is refused: `Word` is one of them, bound to a program; `Terms` is what they come to together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..errors import ShardwrightError, SpecError, near_misses
from ..ir.graph import Graph
from ..ir.program import Program
from ..plans import Wish, amount_text, read_bytes
from ..propagation.complete import Complete
from ..spec.axes import AxisRef, is_prefix
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .specs import spec_text


@dataclass(frozen=True)
class Pin:
    """Tensors of this name, or that match this pattern, lie so."""

    pattern: str
    spec: Any

    def __str__(self) -> str:
        return f'pin("{self.pattern}", "{_shown(self.spec)}")'


@dataclass(frozen=True)
class Forbid:
    """No tensor that matches is split over this mesh axis."""

    pattern: str
    axis: str

    def __str__(self) -> str:
        return f'forbid("{self.pattern}", "{self.axis}")'


@dataclass(frozen=True)
class CapGather:
    """No all_gather leaves more bytes than this on a device."""

    bytes: int
    written: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"cap_gather({self.written or self.bytes})"


def pin(pattern: str, spec: Any) -> Pin:
    """For ``constraints``: inputs that match lie so; a pattern that matches no input is one of intermediate values.

    >>> print(pin("*.weight", "[tp, _]"))
    pin("*.weight", "[tp, _]")
    """
    return Pin(_pattern(pattern), spec)


def forbid(pattern: str, axis: str) -> Forbid:
    """For ``constraints``: nothing that matches, inputs and intermediate values, is split over this axis.

    >>> print(forbid("embed*", "dp"))
    forbid("embed*", "dp")
    """
    if not isinstance(axis, str) or not axis:
        raise SpecError(f"forbid needs the name of a mesh axis, not {axis!r}")
    return Forbid(_pattern(pattern), axis)


def cap_gather(bytes: int | str) -> CapGather:
    """For ``constraints``: no all_gather leaves more than so many bytes on a device.

    >>> print(cap_gather("64 MiB"), cap_gather("64 MiB").bytes)
    cap_gather("64 MiB") 67108864
    """
    return CapGather(amount(bytes, "cap_gather"), f'"{bytes}"' if isinstance(bytes, str) else "")


def amount(bytes: int | str, what: str) -> int:
    """Bytes from a number, or from text such as "40 GiB"."""
    if isinstance(bytes, str):
        return read_bytes(bytes)
    if isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 0:
        raise SpecError(f"{what} takes a number of bytes, not {bytes!r}", help='write 2**30 or "1 GiB"')
    return bytes


def _pattern(pattern: str) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise SpecError(f"a constraint names tensors by a name or a pattern, not by {pattern!r}")
    return pattern


def _shown(spec: Any) -> str:
    try:
        return spec_text(spec)
    except TypeError:
        return str(spec)


# -- bound to a program -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Word:
    """One thing that the user asked for, as it was written, and what it says of a graph's values."""

    text: str
    pins: Mapping[int, ShardingSpec] = field(default_factory=dict)
    outs: Mapping[int, ShardingSpec] = field(default_factory=dict)
    """By output."""
    bans: Mapping[int, tuple[AxisRef, ...]] = field(default_factory=dict)
    """Axes that a value must not be split over."""
    gathered: int | None = None
    memory: int | None = None

    def __str__(self) -> str:
        return self.text


def read_words(constraints: Any, graph: Graph, mesh: DeviceMesh) -> list[Word]:
    """Words from what ``constraints`` was given: a mapping, a constraint, or a list of those."""
    if constraints is None:
        return []
    if isinstance(constraints, Mapping):
        return _from_mapping(constraints, graph, mesh)
    if isinstance(constraints, Pin):
        values = matching(constraints.pattern, graph, inputs_first=True)
        return [_pinned(str(constraints), constraints.pattern, constraints.spec, values, graph, mesh)]
    if isinstance(constraints, Forbid):
        axis = mesh.axis(constraints.axis)
        return [Word(str(constraints), bans=dict.fromkeys(matching(constraints.pattern, graph), (axis,)))]
    if isinstance(constraints, CapGather):
        return [Word(str(constraints), gathered=constraints.bytes)]
    if isinstance(constraints, list | tuple):
        return [word for item in constraints for word in read_words(item, graph, mesh)]
    raise SpecError(
        f"a constraint cannot be a {type(constraints).__name__}",
        help='give {"name": spec}, sw.pin(name, spec), sw.forbid(name, axis), sw.cap_gather(bytes), or a list of those',
    )


def wishes_of(constraints: Any) -> list[Wish]:
    """What ``constraints`` was given, as it was written; `read_words` has looked at it."""
    if isinstance(constraints, Mapping):
        said = tuple((name, _shown(spec)) for name, spec in constraints.items() if spec is not None)
        return [Wish("mapping", said)] if said else []
    if isinstance(constraints, Pin):
        return [Wish("pin", (constraints.pattern, _shown(constraints.spec)))]
    if isinstance(constraints, Forbid):
        return [Wish("forbid", (constraints.pattern, constraints.axis))]
    if isinstance(constraints, CapGather):
        return [Wish("cap_gather", constraints.written.strip('"') or constraints.bytes)]
    return [wish for item in constraints or () for wish in wishes_of(item)]


def memory_word(memory: int | str | None) -> list[Word]:
    if memory is None:
        return []
    limit = amount(memory, "memory")
    text = f'memory="{memory}"' if isinstance(memory, str) else f"memory={memory} ({amount_text(limit)})"
    return [Word(text, memory=limit)]


def _from_mapping(specs: Mapping[Any, Any], graph: Graph, mesh: DeviceMesh) -> list[Word]:
    """Of one mapping the first pattern that matches a tensor counts."""
    taken: set[int] = set()
    words = []
    for pattern, spec in specs.items():
        values = [value for value in matching(_pattern(pattern), graph, inputs_first=True) if value not in taken]
        taken.update(values)
        if spec is not None and values:
            words.append(_pinned(f'"{pattern}": "{_shown(spec)}"', pattern, spec, values, graph, mesh))
    return words


def _pinned(text: str, pattern: str, spec: Any, values: Iterable[int], graph: Graph, mesh: DeviceMesh) -> Word:
    found = {}
    for value in values:
        shape = graph.type(value).shape
        try:
            found[value] = ShardingSpec.of(spec, mesh, len(shape))
        except ShardwrightError as error:
            raise error.add("for", f"{graph.values[value].name}: {list(shape)}, by {pattern!r}") from None
    return Word(text, found)


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
class Terms:
    """What all words come to: shardings by value and by output, axes that are refused, and limits."""

    pins: Mapping[int, ShardingSpec]
    outs: Mapping[int, ShardingSpec]
    bans: Mapping[int, tuple[AxisRef, ...]]
    gathered: int | None = None
    memory: int | None = None

    def allows(self, value: int, spec: ShardingSpec) -> bool:
        return not any(splits(spec, axis) for axis in self.bans.get(value, ()))


def terms_of(words: Sequence[Word], graph: Graph) -> Terms | tuple[Word, ...]:
    """The terms, or the words of which two (or one by itself) cannot both be kept, whatever the plan."""
    pins: dict[int, tuple[ShardingSpec, Word]] = {}
    outs: dict[int, tuple[ShardingSpec, Word]] = {}
    bans: dict[int, list[tuple[AxisRef, Word]]] = {}
    renewed = {output: graph.inputs[i] for i, output in graph.updates}
    for word in words:
        at_inputs = {renewed[i]: spec for i, spec in word.outs.items() if i in renewed}
        for value, spec in (*word.pins.items(), *at_inputs.items()):
            known = pins.get(value)
            both = spec if known is None else _both(known[0], spec)
            if both is None:
                assert known is not None
                return known[1], word
            if known is None or both != known[0]:
                pins[value] = both, word
        for i, spec in word.outs.items():
            if i not in renewed:
                outs[i] = spec, word
        for value, axes in word.bans.items():
            bans.setdefault(value, []).extend((axis, word) for axis in axes)
    # The next state of an input lies as the input does, so what holds for it holds for the input.
    for output, value in renewed.items():
        bans.setdefault(value, []).extend(bans.get(graph.outputs[output], ()))
    said = [(value, *pair) for value, pair in pins.items()]
    said += [(graph.outputs[i], *pair) for i, pair in outs.items()]
    for value, spec, word in said:
        for axis, other in bans.get(value, ()):
            if splits(spec, axis):
                return (word,) if word is other else (word, other)
    caps = [word.gathered for word in words if word.gathered is not None]
    limits = [word.memory for word in words if word.memory is not None]
    return Terms(
        {value: spec for value, (spec, _) in pins.items()},
        {i: spec for i, (spec, _) in outs.items()},
        {value: tuple(axis for axis, _ in pairs) for value, pairs in bans.items() if pairs},
        min(caps, default=None),
        min(limits, default=None),
    )


def splits(spec: ShardingSpec, axis: AxisRef) -> bool:
    """Whether some dim is cut by (a part of) this axis."""
    return any(axis.overlaps(other) for dim in spec.dims for other in dim.axes)


def admits(said: ShardingSpec, spec: ShardingSpec) -> bool:
    """Whether a tensor that lies so is as was said; an open dim may be cut further."""
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


def broken(words: Sequence[Word], complete: Complete, program: Program, peak: int) -> list[Word]:
    """The words that a lowered plan does not keep; read off the Program, not off what was intended."""
    graph = complete.graph
    homes = dict(zip(graph.inputs, (program.values[value].spec for value in program.inputs)))
    for decision in complete.decisions:
        homes.update(zip(graph.nodes[decision.node].results, decision.homes))
    ends = [program.values[value].spec for value in program.outputs]
    gathers = [i.results[0] for i in program.instrs if i.op == "all_gather"]
    most = max((program.values[value].padded_bytes for value in gathers), default=0)

    def keeps(word: Word) -> bool:
        if word.memory is not None and peak > word.memory:
            return False
        if word.gathered is not None and most > word.gathered:
            return False
        if not all(admits(spec, homes[value].closed()) for value, spec in word.pins.items()):
            return False
        if not all(admits(spec, ends[i]) for i, spec in word.outs.items()):
            return False
        return not any(
            splits(local.spec, axis)
            for local in program.values
            if local.origin is not None
            for axis in word.bans.get(local.origin, ())
        )

    return [word for word in words if not keeps(word)]
