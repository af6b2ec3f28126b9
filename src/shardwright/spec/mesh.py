"""`DeviceMesh`: named axes with sizes, and which device stands where.

Devices stand in row-major order of the axes.  A *position* is an index into that order; the *device id* at
a position is the position itself unless ``device_ids`` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

from ..errors import MeshError, NotationError, front, near_misses
from .axes import AxisRef
from .notation import parse_axis, parse_mesh

AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = frozenset({"_"})  # stands for "not sharded" in specs
MOST_DEVICES = 2**17
"""More than any machine has; devices are listed one by one."""
MOST_AXES = 32


class DeviceMesh:
    """Devices in a grid with named axes.

    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> mesh == DeviceMesh((2, 4), ("dp", "tp")) == DeviceMesh({"dp": 2, "tp": 4})
    True
    >>> mesh.size, mesh.coordinates(5), str(mesh.axis("tp:(2)2"))
    (8, {'dp': 1, 'tp': 1}, 'tp:(2)2')
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    device_ids: tuple[int, ...]

    @front
    def __init__(
        self, axes: Any, axis_names: Sequence[str] | None = None, *, device_ids: Iterable[int] | None = None
    ) -> None:
        shape, names, ids = _read_axes(axes, axis_names)
        if device_ids is not None:
            ids = tuple(int(device) for device in device_ids)
        _check(shape, names, ids)
        self.shape = shape
        self.axis_names = names
        size = prod(shape)
        self.device_ids = ids if ids is not None else tuple(range(size))
        self._hash = hash((shape, names, self.device_ids))

    # -- identity ---------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, DeviceMesh)
            and self.shape == other.shape
            and self.axis_names == other.axis_names
            and self.device_ids == other.device_ids
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        text = ", ".join(f"{name}={size}" for name, size in zip(self.axis_names, self.shape))
        if self.is_device_order_default:
            return text
        return f"{text}; devices={list(self.device_ids)}".removeprefix("; ")

    def __repr__(self) -> str:
        return f"DeviceMesh({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceMesh, (str(self),)  # the stored hash holds in this process only

    # -- axes -------------------------------------------------------------------------------------------

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_device_order_default(self) -> bool:
        return self.device_ids == tuple(range(self.size))

    @property
    def axis_sizes(self) -> dict[str, int]:
        return dict(zip(self.axis_names, self.shape))

    @cached_property
    def axes(self) -> tuple[AxisRef, ...]:
        """Every axis, whole, major to minor."""
        return tuple(AxisRef(name, 1, size, size) for name, size in zip(self.axis_names, self.shape))

    @cached_property
    def _by_text(self) -> dict[str, AxisRef]:
        return {axis.name: axis for axis in self.axes}

    @cached_property
    def _strides(self) -> dict[str, int]:
        strides, step = {}, 1
        for name, size in zip(reversed(self.axis_names), reversed(self.shape)):
            strides[name] = step
            step *= size
        return strides

    def axis(self, text: str | AxisRef) -> AxisRef:
        """The axis or sub-axis written ``tp`` or ``tp:(1)2``."""
        if isinstance(text, AxisRef):
            whole = self._by_text.get(text.name)
            if whole is None or whole.full != text.full:
                raise self.unknown_axis(text.name)
            return text
        if not isinstance(text, str):
            raise MeshError(f"{text!r} is no mesh axis", help="use its name, or a part of it: 'tp:(1)2'")
        found = self._by_text.get(text)
        if found is None:
            found = self._by_text[text] = self._read_axis(text)
        return found

    def _read_axis(self, text: str) -> AxisRef:
        name, pre, size = parse_axis(text)
        whole = self._by_text.get(name)
        if whole is None:
            raise self.unknown_axis(name)
        if size is None:
            return whole
        return self.sub_axis(name, pre, size)

    def sub_axis(self, name: str, pre: int, size: int) -> AxisRef:
        """Part of an axis: ``size`` ways, ``pre`` ways into it.

        >>> DeviceMesh("x=8").sub_axis("x", 3, 2)
        Traceback (most recent call last):
        ...
        shardwright.errors.MeshError: x:(3)2 is not a part of axis 'x'
          axis  x=8
          help  pre x size must divide 8
        """
        whole = self._by_text.get(name)
        if whole is None:
            raise self.unknown_axis(name)
        if pre < 1 or size < 1 or whole.full % (pre * size):
            raise MeshError(
                f"{name}:({pre}){size} is not a part of axis {name!r}",
                rows=[("axis", f"{name}={whole.full}")],
                help=f"pre x size must divide {whole.full}",
            )
        return AxisRef(name, pre, size, whole.full)

    def unknown_axis(self, name: str) -> MeshError:
        return MeshError(
            f"the mesh has no axis {name!r}",
            rows=[("mesh", str(self) or "(no axes)")],
            help=near_misses(name, self.axis_names),
        )

    def order(self, axis: AxisRef) -> tuple[int, int]:
        """Sort key: mesh order, then major to minor within one axis."""
        return self.axis_names.index(axis.name), axis.pre

    # -- devices ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))

    def coordinates(self, position: int) -> dict[str, int]:
        """Where a position stands along each axis."""
        if not 0 <= position < self.size:
            raise MeshError(f"no position {position} in a mesh of {self.size}", rows=[("mesh", str(self))])
        return {name: position // self._strides[name] % size for name, size in zip(self.axis_names, self.shape)}

    def position(self, coordinates: Mapping[str, int]) -> int:
        """The inverse of :meth:`coordinates`."""
        for name, index in coordinates.items():
            if name not in self._strides:
                raise self.unknown_axis(name)
            if not 0 <= index < self._by_text[name].full:
                raise MeshError(f"no coordinate {name}={index}", rows=[("mesh", str(self))])
        return sum(self._strides[name] * coordinates.get(name, 0) for name in self.axis_names)

    def index_along(self, position: int, axis: AxisRef) -> int:
        """Where a position stands along one axis or sub-axis.

        >>> mesh = DeviceMesh("x=4")
        >>> [mesh.index_along(p, mesh.axis("x:(1)2")) for p in mesh]
        [0, 0, 1, 1]
        """
        whole = position // self._strides[axis.name] % axis.full
        return whole // (axis.full // axis.end) % axis.size

    def groups(self, axes: Iterable[str | AxisRef]) -> tuple[tuple[int, ...], ...]:
        """Positions that talk to each other in a collective over ``axes``, in order along them.

        >>> DeviceMesh("dp=2, tp=2").groups(["dp"])
        ((0, 2), (1, 3))
        """
        refs = [self.axis(axis) for axis in axes]
        found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        step = {position: tuple(self.index_along(position, axis) for axis in refs) for position in range(self.size)}
        for position, along in step.items():
            base = position
            for axis, index in zip(refs, along):
                base -= index * self._strides[axis.name] * (axis.full // axis.end)
            found.setdefault((base,), []).append((along, position))
        return tuple(tuple(position for _, position in sorted(found[key])) for key in sorted(found))

    # -- other people's meshes --------------------------------------------------------------------------

    @classmethod
    def of(cls, mesh: Any) -> DeviceMesh:
        """Accept anything that is a mesh: ours, text, a dict, PyTorch's DeviceMesh, JAX's Mesh."""
        return mesh if isinstance(mesh, DeviceMesh) else cls(mesh)


def _named(sizes: Sequence[str], text: str = "") -> str:
    """How a mesh is written, with the sizes (and names) that were meant."""
    names = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text) if text else []
    if len(names) != len(sizes) or len(set(names)) != len(names) or "devices" in names:
        names = [chr(ord("a") + i) for i in range(len(sizes))] if len(sizes) <= 8 else []
    meant = ", ".join(f"{name}={size}" for name, size in zip(names, sizes))
    return f'write "{meant or "dp=2, tp=4"}": a name and a size for each axis'


def _read_axes(
    axes: Any, names: Sequence[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...] | None]:
    if names is not None:
        if not isinstance(axes, Iterable):
            raise MeshError(f"{axes!r} is no list of axis sizes", help='write DeviceMesh((2, 4), ("dp", "tp"))')
        if isinstance(axes, str):
            both = f"{axes}, {names}" if isinstance(names, str) else axes
            raise MeshError("sizes and names of the axes are expected, not text", help=f'write DeviceMesh("{both}")')
        shape = tuple(axes)
        if len(shape) != len(names):
            raise MeshError(f"{len(shape)} sizes but {len(names)} axis names")
        return shape, tuple(names), None
    if isinstance(axes, DeviceMesh):
        return axes.shape, axes.axis_names, axes.device_ids
    if isinstance(axes, str):
        try:
            return parse_mesh(axes)
        except NotationError as error:
            error.help = error.help or _named(re.findall(r"[0-9]+", axes), axes)
            raise
    if isinstance(axes, Mapping):
        return tuple(axes.values()), tuple(axes), None
    if hasattr(axes, "mesh_dim_names") and hasattr(axes, "mesh"):  # torch.distributed.DeviceMesh
        grid = axes.mesh
        names = axes.mesh_dim_names or tuple(f"dim_{i}" for i in range(len(grid.shape)))
        ids = tuple(int(device) for device in grid.flatten().tolist())
        return tuple(int(size) for size in grid.shape), tuple(names), ids
    grid = _devices(axes)
    if hasattr(axes, "axis_names") and grid is not None:  # jax.sharding.Mesh
        ids = tuple(int(getattr(device, "id", i)) for i, device in enumerate(grid.flatten()))
        return tuple(int(size) for size in grid.shape), tuple(axes.axis_names), ids
    if hasattr(axes, "axis_names") and hasattr(axes, "axis_sizes"):  # jax.sharding.AbstractMesh
        return tuple(axes.axis_sizes), tuple(axes.axis_names), None
    sizes = [axes] if isinstance(axes, int) else list(axes) if isinstance(axes, list | tuple) else []
    if sizes and all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise MeshError(f"the axes of the mesh have no names: {axes}", help=_named([str(size) for size in sizes]))
    raise MeshError(
        f"cannot read a mesh from {type(axes).__name__}",
        help='write DeviceMesh("dp=2, tp=4"), DeviceMesh((2, 4), ("dp", "tp")) or DeviceMesh({"dp": 2})',
    )


def _devices(mesh: Any) -> Any:
    """The devices of JAX's mesh; an abstract one raises an error of its own when it is asked."""
    try:
        return getattr(mesh, "devices", None)
    except Exception:
        return None


def _check(shape: tuple[int, ...], names: tuple[str, ...], ids: tuple[int, ...] | None) -> None:
    if len(names) > MOST_AXES:
        raise MeshError(f"a mesh of {len(names)} axes", help=f"a mesh has at most {MOST_AXES}")
    total = 1
    for name, size in zip(names, shape):
        if not isinstance(name, str) or not AXIS_NAME.match(name) or name in _RESERVED:
            raise MeshError(
                f"{name!r} is no name for a mesh axis",
                help="use letters, digits and _, not starting with a digit, and not '_' alone",
            )
        if isinstance(size, bool) or not isinstance(size, int):
            raise MeshError(f"axis {name!r} has size {size!r}, not a whole number")
        if size < 1:
            raise MeshError(f"axis {name!r} has size {size}", help="every axis needs at least one device")
        total *= size
        if total > MOST_DEVICES:  # before anything of that size is built, and without writing the number
            raise MeshError(f"a mesh of more than {MOST_DEVICES} devices", rows=[("up to axis", name)])
    for i, name in enumerate(names):
        if name in names[:i]:
            raise MeshError(f"axis {name!r} stands twice in one mesh", help="give each axis its own name")
    if ids is not None:
        if len(ids) != prod(shape):
            raise MeshError(f"{len(ids)} device ids for a mesh of {prod(shape)} devices")
        if len(set(ids)) != len(ids):
            raise MeshError("a device id stands twice in one mesh", rows=[("devices", str(list(ids)))])
        if any(device < 0 for device in ids):
            raise MeshError("a device id is negative", rows=[("devices", str(list(ids)))])
