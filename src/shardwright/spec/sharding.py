"""`ShardingSpec`: how one tensor is sharded over a mesh.

Each dim has the mesh axes that cut it, major to minor.  An *open* dim may be cut further by propagation, a
closed one is the user's word.  *Partial* axes hold values that still have to be combined; *replicated* axes
may not be used by propagation.  Text form: ``[dp, tp:(1)2+sp, _, ?] // ep, max(cp) ~ pp`` (``_`` not cut,
``?`` open, ``//`` pending over, ``~`` kept replicated over; ``!1`` after a dim is its priority).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from ..errors import SpecError, front
from .axes import Axes, AxisRef, merge_axes
from .chunks import nested_chunk, padded_size
from .collective import check_reduction
from .foreign import read_foreign
from .interop import to_partition_spec, to_placements
from .mesh import DeviceMesh
from .notation import parse_dim, parse_partial, parse_spec

Shape = tuple[int, ...]
Partial = tuple[tuple[AxisRef, str], ...]
"""Axes over which values are pending, each with its reduction."""


@dataclass(frozen=True, slots=True)
class DimSpec:
    """The axes that cut one dimension, major to minor.

    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> print(DimSpec(mesh.axes, open=True))
    dp+tp+?
    """

    axes: Axes = ()
    open: bool = False
    priority: int | None = None

    def __str__(self) -> str:
        words = [str(axis) for axis in self.axes] + (["?"] if self.open else [])
        return ("+".join(words) or "_") + (f"!{self.priority}" if self.priority is not None else "")

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.cutting)

    @property
    def shards(self) -> int:
        return prod(axis.size for axis in self.axes)

    @property
    def cutting(self) -> Axes:
        """The axes that do cut: those of more than one device; what then follows each other is one axis again."""
        if all(axis.size > 1 for axis in self.axes):
            return self.axes
        return merge_axes(axis for axis in self.axes if axis.size > 1)


CLOSED = DimSpec()
OPEN = DimSpec(open=True)
_DIM = "an entry for each dim of the tensor: None, 'dp', ('dp', 'tp') or 'dp+?'"


class P(tuple[Any, ...]):
    """The short form users write; it needs no mesh.

    An entry is None (not cut), an axis, several axes, or ``"?"`` (left to propagation).  Trailing dims may
    be left out.

    >>> P("dp", None), P(("dp", "tp"), "tp:(1)2"), P("dp", partial="tp")
    (P('dp', None), P(('dp', 'tp'), 'tp:(1)2'), P('dp', partial='tp'))
    """

    partial: Any
    replicated: tuple[str, ...]

    @front
    def __new__(cls, *dims: Any, partial: Any = (), replicated: Any = ()) -> P:
        for entry in dims:
            words = entry if isinstance(entry, list | tuple) else (entry,)
            if not all(word is None or isinstance(word, str | AxisRef | DimSpec) for word in words):
                raise SpecError(f"P cannot hold {entry!r}", help=_DIM)
        self = super().__new__(cls, dims)
        self.partial = partial
        self.replicated = (replicated,) if isinstance(replicated, str) else tuple(replicated)
        return self

    def __repr__(self) -> str:
        words = [repr(dim) for dim in self]
        if self.partial:
            words.append(f"partial={self.partial!r}")
        if self.replicated:
            words.append(f"replicated={self.replicated!r}")
        return f"P({', '.join(words)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, P):
            return NotImplemented
        mine = (tuple(self), self.partial, self.replicated)
        return mine == (tuple(other), other.partial, other.replicated)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.replicated))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)  # a copy is made from the entries, not from one tuple of them

    def __str__(self) -> str:
        """The text form, which needs no mesh: ``[dp, tp+sp, _]``."""

        def word(entry: Any) -> str:
            if entry is None:
                return "_"
            return str(entry) if isinstance(entry, str | AxisRef | DimSpec) else "+".join(map(str, entry)) or "_"

        text = "[" + ", ".join(map(word, self)) + "]"
        pending = self.partial
        if pending and not isinstance(pending, str):
            pairs = pending.items() if isinstance(pending, Mapping) else pending
            pending = ", ".join(p if isinstance(p, str) else f"{p[1]}({p[0]})" for p in pairs)
        text += f" // {pending}" if pending else ""
        return text + (f" ~ {', '.join(self.replicated)}" if self.replicated else "")

    def bind(self, mesh: DeviceMesh, rank: int | None = None) -> ShardingSpec:
        """On a mesh, for a tensor of this rank."""
        if rank is not None and len(self) > rank:
            raise SpecError(
                f"{self!r} speaks of {len(self)} dims, the tensor has {rank}",
                help=f"write at most {rank} entries",
            )
        missing = (rank or len(self)) - len(self)
        return ShardingSpec(mesh, (*self, *[None] * missing), self.partial, self.replicated)


class ShardingSpec:
    """A sharding on a mesh.  Immutable, hashable, cheap to compare.

    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> spec = ShardingSpec(mesh, ["dp", None], partial="tp")
    >>> print(spec, spec.local_shape((10, 3), 7))
    [dp, _] // tp (5, 3)
    >>> spec == ShardingSpec.parse("[dp, _] // tp", mesh)
    True
    """

    __slots__ = ("_hash", "dims", "mesh", "partial", "replicated")

    mesh: DeviceMesh
    dims: tuple[DimSpec, ...]
    partial: Partial
    replicated: Axes

    def __init__(
        self, mesh: Any, dims: Iterable[Any], partial: Any = (), replicated: Iterable[str | AxisRef] = ()
    ) -> None:
        mesh = DeviceMesh.of(mesh)
        if isinstance(dims, ShardingSpec):
            raise SpecError("a sharding is given where dims are expected", help="use it as it is")
        if isinstance(dims, P):
            partial, replicated = partial or dims.partial, replicated or dims.replicated
        if isinstance(replicated, str):
            replicated = (replicated,)
        self.mesh = mesh
        self.dims = tuple(_read_dim(entry, mesh) for entry in dims)
        self.partial = _read_partial(partial, mesh)
        self.replicated = tuple(sorted((mesh.axis(axis) for axis in replicated), key=mesh.order))
        self._check_no_axis_twice()
        self._hash = hash((self.mesh, self.dims, self.partial, self.replicated))

    @classmethod
    def make(
        cls, mesh: DeviceMesh, dims: tuple[DimSpec, ...], partial: Partial = (), replicated: Axes = ()
    ) -> ShardingSpec:
        """For engine code whose parts are known to be right: no reading, no checks."""
        self = object.__new__(cls)
        put = object.__setattr__
        put(self, "mesh", mesh)
        put(self, "dims", dims)
        put(self, "partial", partial)
        put(self, "replicated", replicated)
        put(self, "_hash", hash((mesh, dims, partial, replicated)))
        return self

    @classmethod
    def replicate(cls, mesh: Any, rank: int, *, open: bool = False) -> ShardingSpec:
        """Not cut anywhere."""
        return cls.make(DeviceMesh.of(mesh), ((OPEN if open else CLOSED),) * rank)

    @classmethod
    def parse(cls, text: str, mesh: Any) -> ShardingSpec:
        mesh = DeviceMesh.of(mesh)
        dims, partial, replicated = parse_spec(text, mesh)
        return cls(mesh, [DimSpec(*words) for words in dims], partial, replicated)

    @classmethod
    def of(cls, spec: Any, mesh: Any, rank: int) -> ShardingSpec:
        """Accept whatever says a sharding: ours, text, `P`, JAX's PartitionSpec, PyTorch's placements."""
        mesh = DeviceMesh.of(mesh)
        if isinstance(spec, ShardingSpec):
            if spec.mesh != mesh:
                wrong_mesh("the sharding", spec, mesh)
            found = spec
        elif spec is None:
            found = cls.replicate(mesh, rank)
        elif isinstance(spec, str):
            found = cls.parse(spec, mesh)
        elif isinstance(spec, P):
            found = spec.bind(mesh, rank)
        elif hasattr(spec, "spec") and hasattr(spec, "mesh"):  # jax.sharding.NamedSharding
            theirs = DeviceMesh.of(spec.mesh)
            if theirs != mesh:
                wrong_mesh("the sharding", cls.replicate(theirs, rank), mesh)
            return cls.of(spec.spec, mesh, rank)
        else:
            dims, partial = read_foreign(spec, mesh, rank)
            found = P(*dims, partial=partial).bind(mesh, rank)
        if found.rank != rank:
            fact = f"a sharding of {found.rank} dims for a tensor of {rank}"
            raise SpecError(fact, rows=[("spec", str(found))])
        return found

    # -- as others write it -----------------------------------------------------------------------------

    def to_placements(self, types: Any = None) -> tuple[Any, ...]:
        """PyTorch's placements, one for each mesh axis; ``torch.distributed.tensor`` has to be imported."""
        return to_placements(self, types)

    def to_partition_spec(self, type: Any = None) -> Any:
        """JAX's PartitionSpec; ``jax.sharding`` has to be imported."""
        return to_partition_spec(self, type)

    def to_json(self) -> str:
        """The mesh and the sharding, as text.

        >>> ShardingSpec.parse("[x, _]", DeviceMesh("x=2")).to_json()
        '{"mesh": "x=2", "spec": "[x, _]"}'
        """
        return json.dumps({"mesh": str(self.mesh), "spec": str(self)})

    @classmethod
    def from_json(cls, text: str) -> ShardingSpec:
        """What `to_json` wrote, read strictly."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"not JSON: {error}") from None
        words = {"mesh", "spec"}
        if not isinstance(record, dict) or set(record) != words or not all(isinstance(v, str) for v in record.values()):
            raise SpecError("a sharding in JSON is an object with a mesh and a spec, both as text")
        return cls.parse(record["spec"], DeviceMesh(record["mesh"]))

    # -- identity ---------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, ShardingSpec)
            and self._hash == other._hash
            and self.dims == other.dims
            and self.partial == other.partial
            and self.replicated == other.replicated
            and self.mesh == other.mesh
        )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardingSpec, (self.mesh, self.dims, self.partial, self.replicated)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "_hash"):
            raise AttributeError("a ShardingSpec does not change; make a new one")
        object.__setattr__(self, name, value)

    def __str__(self) -> str:
        text = "[" + ", ".join(map(str, self.dims)) + "]"
        if self.partial:
            text += " // " + partial_text(self.partial)
        if self.replicated:
            text += " ~ " + ", ".join(map(str, self.replicated))
        return text

    def __repr__(self) -> str:
        return f"<{self} on {self.mesh}>"

    # -- questions --------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_replicated(self) -> bool:
        """Every device holds all of the finished tensor."""
        return not self._pending and not any(dim.cutting for dim in self.dims)

    @property
    def _pending(self) -> Partial:
        return tuple((axis, kind) for axis, kind in self.partial if axis.size > 1)

    @property
    def sharded_axes(self) -> Axes:
        return tuple(axis for dim in self.dims for axis in dim.axes)

    @property
    def used_axes(self) -> Axes:
        return self.sharded_axes + tuple(axis for axis, _ in self.partial)

    def same_layout(self, other: ShardingSpec) -> bool:
        """Whether every device holds the same data; open, priority and replicated are only intentions."""
        return (
            (self.mesh == other.mesh or (self.is_replicated and other.is_replicated))
            and (self.partial == other.partial or self._pending == other._pending)
            and len(self.dims) == len(other.dims)
            and all(a.axes == b.axes or a.cutting == b.cutting for a, b in zip(self.dims, other.dims))
        )

    def closed(self) -> ShardingSpec:
        """The layout alone: no open dims, priorities or replicated axes."""
        if not self.replicated and not any(dim.open or dim.priority is not None for dim in self.dims):
            return self
        return ShardingSpec.make(self.mesh, tuple(DimSpec(dim.axes) for dim in self.dims), self.partial)

    def replace(self, **changes: Any) -> ShardingSpec:
        parts = {
            "mesh": self.mesh,
            "dims": self.dims,
            "partial": self.partial,
            "replicated": self.replicated,
        }
        return ShardingSpec(**{**parts, **changes})

    # -- shapes -----------------------------------------------------------------------------------------

    def check_rank(self, shape: Sequence[int]) -> None:
        if len(shape) != len(self.dims):
            raise SpecError(
                f"a sharding of {len(self.dims)} dims for a tensor of {len(shape)}",
                rows=[("spec", str(self)), ("shape", str(list(shape)))],
            )

    def local_slices(self, shape: Sequence[int], position: int) -> tuple[slice, ...]:
        """The part of the tensor that one device holds."""
        self.check_rank(shape)
        index = self.mesh.index_along
        slices = []
        for size, dim in zip(shape, self.dims):
            where = [index(position, axis) for axis in dim.cutting]
            slices.append(slice(*nested_chunk(size, dim.parts, where)))
        return tuple(slices)

    def local_shape(self, shape: Sequence[int], position: int) -> Shape:
        return tuple(part.stop - part.start for part in self.local_slices(shape, position))

    def padded_shape(self, shape: Sequence[int]) -> Shape:
        """The largest local shape: what a collective moves for every device."""
        self.check_rank(shape)
        return tuple(padded_size(size, dim.parts) for size, dim in zip(shape, self.dims))

    def divides(self, shape: Sequence[int]) -> bool:
        """Whether all shards are equal."""
        self.check_rank(shape)
        return all(size % dim.shards == 0 for size, dim in zip(shape, self.dims))

    def _check_no_axis_twice(self) -> None:
        seen: list[tuple[AxisRef, str]] = []
        for d, dim in enumerate(self.dims):
            for axis in dim.axes:
                _claim(axis, f"dim {d}", seen, self)
        for axis, _ in self.partial:
            _claim(axis, "partial", seen, self)
        for axis in self.replicated:
            _claim(axis, "replicated", seen, self)


def partial_text(partial: Partial) -> str:
    return ", ".join(str(axis) if kind == "sum" else f"{kind}({axis})" for axis, kind in partial)


def sort_partial(pairs: Iterable[tuple[AxisRef, str]], mesh: DeviceMesh) -> Partial:
    """In mesh order, neighbouring parts of one axis joined where they are pending alike.

    >>> mesh = DeviceMesh("x=4")
    >>> partial_text(sort_partial([(mesh.axis("x:(2)2"), "max"), (mesh.axis("x:(1)2"), "max")], mesh))
    'max(x)'
    """
    joined: list[tuple[AxisRef, str]] = []
    for axis, kind in sorted(pairs, key=lambda pair: mesh.order(pair[0])):
        if joined and joined[-1][1] == kind and joined[-1][0].can_merge(axis):
            joined[-1] = (joined[-1][0].merge(axis), kind)
        else:
            joined.append((axis, kind))
    return tuple(joined)


def _claim(axis: AxisRef, where: str, seen: list[tuple[AxisRef, str]], spec: ShardingSpec) -> None:
    for other, place in seen:
        if not axis.coexists(other):
            raise SpecError(
                f"{other} and {axis} are parts of one mesh axis that cannot coexist: {place} and {where}",
                rows=[("spec", str(spec)), ("mesh", str(spec.mesh))],
                help="cut the axis one way: where one part begins or ends must divide where the next one does",
            )
        if axis.overlaps(other):
            raise SpecError(
                f"mesh axis {axis} is used twice: {place} and {where}",
                rows=[("spec", str(spec)), ("mesh", str(spec.mesh))],
                help="an axis cuts one dim only; split it into sub-axes to share it",
            )
    seen.append((axis, where))


def _read_dim(entry: Any, mesh: DeviceMesh) -> DimSpec:
    if entry is None:
        return CLOSED
    if isinstance(entry, DimSpec):
        return DimSpec(merge_axes(mesh.axis(axis) for axis in entry.axes), entry.open, entry.priority)
    if isinstance(entry, str):
        return DimSpec(*parse_dim(entry, mesh))
    if isinstance(entry, AxisRef):
        return DimSpec((mesh.axis(entry),))
    if isinstance(entry, Iterable):
        words = list(entry)
        is_open = "?" in words
        axes = merge_axes(mesh.axis(word) for word in words if word != "?")
        return DimSpec(axes, is_open)
    raise SpecError(f"cannot read {entry!r} as the axes of a dim", help=_DIM)


def _read_partial(partial: Any, mesh: DeviceMesh) -> Partial:
    if isinstance(partial, str):
        return sort_partial(parse_partial(partial, mesh), mesh)
    if isinstance(partial, AxisRef):
        partial = (partial,)
    pairs: list[tuple[AxisRef, str]] = []
    items: Iterable[Any] = partial.items() if isinstance(partial, Mapping) else partial
    for item in items:
        if isinstance(item, str | AxisRef):
            axis, kind = item, "sum"
        else:
            axis, kind = item
        pairs.append((mesh.axis(axis), check_reduction(kind)))
    return sort_partial(pairs, mesh)


def compute_global_shape(local_shapes: Sequence[Any], spec: ShardingSpec) -> Shape:
    """The shape of the whole tensor.

    Give the local shape of every device (in mesh order) and uneven shards are added up exactly; give a single
    local shape and all devices are taken to hold as much.

    >>> spec = ShardingSpec(DeviceMesh("x=2"), ["x", None])
    >>> compute_global_shape((4, 3), spec), compute_global_shape([(3, 3), (2, 3)], spec)
    ((8, 3), (5, 3))
    """
    if not isinstance(spec, ShardingSpec):
        raise SpecError(f"{spec!r} does not say of which mesh it is", help='write ShardingSpec.parse("[d]", "d=2")')
    if all(isinstance(size, int) for size in local_shapes):
        spec.check_rank(local_shapes)
        return tuple(size * dim.shards for size, dim in zip(local_shapes, spec.dims))
    if len(local_shapes) != spec.mesh.size:
        raise SpecError(f"{len(local_shapes)} local shapes for a mesh of {spec.mesh.size} devices")
    shape = []
    for d, dim in enumerate(spec.dims):
        # Devices that differ only along other axes hold the same slice of this dim: count one of them.
        sizes = {
            tuple(spec.mesh.index_along(position, axis) for axis in dim.axes): local_shapes[position][d]
            for position in spec.mesh
        }
        shape.append(sum(sizes.values()))
    return tuple(shape)


def needs_reshard(source: ShardingSpec | None, target: ShardingSpec | None) -> bool:
    """Whether data has to move, or be combined, to get from one to the other (None: replicated).

    >>> mesh = DeviceMesh("x=2")
    >>> needs_reshard(ShardingSpec(mesh, ["x"]), ShardingSpec(mesh, ["x+?"]))
    False
    """
    if source is None or target is None:
        known = source or target
        return known is not None and not known.is_replicated
    return not source.same_layout(target)


def wrong_mesh(what: str, spec: ShardingSpec, mesh: DeviceMesh) -> NoReturn:
    raise SpecError(
        f"{what} is on another mesh",
        rows=[("its mesh", str(spec.mesh)), ("this mesh", str(mesh))],
        help="make the sharding on this mesh, or transfer between meshes explicitly",
    )
