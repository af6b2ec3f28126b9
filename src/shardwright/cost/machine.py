"""`Hardware`: the figures that costs are computed from, and which link a mesh axis runs over.

Rates are whole numbers per second and times are turned into whole picoseconds once, so that a cost is the same
integer on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import HardwareError, MeshError, near_misses
from ..spec.axes import AxisRef, axes_size
from ..spec.mesh import DeviceMesh
from .links import PS, AlphaBetaLink, Link, Wire

LINK_NAMES = {"node": "node", "nvlink": "node", "network": "network"}
"""What a user may call the two links of a machine."""
RESERVED_PERCENT = 6
"""Of a device's memory, for the driver's context, communication buffers and fragments: on 80 GB some 4.8 GB."""
UPDATE = "update"
"""Optimizer steps of single parameters: those of all are one launch, so none is counted for each of them."""
FUSED = "fused"
"""Kernels of a compiler, of chains of pointwise ops."""
ROLES = ("weight", "gradient", "renewed")
"""Collectives that can hide behind compute; see `overlap`."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Time of an op: ``launch + flops_percent/100 * flops/peak + bytes_percent/100 * bytes/bandwidth``.

    Where operations come as scores in tiles (`compute.Work`), two more: ``scores/rate`` is added, and both it and the
    arithmetic are stretched where the tiles do not fill the device.
    """

    launch: float = 0.0
    """Seconds to start an op."""
    flops_percent: int = 100
    """Time of the arithmetic, in percent of what the peak rate promises."""
    bytes_percent: int = 100
    """Time of the memory traffic, in percent of what the bandwidth promises."""
    scores: int = 0
    """Scores a second: what a query and a key make takes an exponential, beside the products; 0: no time of its own."""
    units: int = 0
    """Tiles that the device works on at once (its multiprocessors); 0: work always fills it."""
    unlike_percent: int = 0
    """`bytes_percent` where tensors are of several types or shapes, which kernels go through item by item; 0: alike."""
    unaligned_percent: int = 0
    """`flops_percent` where rows do not begin at multiples of 16 bytes, which matrix units want; 0: alike."""

    def __post_init__(self) -> None:
        if self.launch < 0 or min(self.flops_percent, self.bytes_percent) < 0:
            raise HardwareError("launch and percentages of a cost class must not be below 0")
        if min(self.scores, self.units, self.unlike_percent, self.unaligned_percent) < 0:
            raise HardwareError("the figures of a cost class must not be below 0")

    @property
    def launch_ps(self) -> int:
        return round(self.launch * PS)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a solver counts of a collective's time, in percent; the rest is taken to hide behind compute.

    An additive stand-in for the schedule: it says where to look for plans, and the schedule of each decides
    (`solve.scheduled`).

    >>> OVERLAPPED.shown("gradient", 1000) < OVERLAPPED.shown(None, 1000) == 1000
    True
    """

    weight: int = 100
    """Gathering a weight before its use."""
    gradient: int = 100
    """Reducing gradients, and what follows up to the new weights."""
    renewed: int = 100
    """Bringing new state to where it belongs, after its update."""
    other: int = 100
    """All else: what is computed next waits for it."""
    bucketed: bool = False
    """Whether what has a role is priced at the rate of a full bucket: it shares its start with others."""

    def __post_init__(self) -> None:
        if not all(0 <= share <= 100 for share in (self.weight, self.gradient, self.renewed, self.other)):
            raise HardwareError("what shows of a collective is between 0 and 100 percent")

    def share(self, role: str | None) -> int:
        """Percent that show of collectives of a role."""
        shares = {"weight": self.weight, "gradient": self.gradient, "renewed": self.renewed}
        return self.other if role is None else shares[role]

    def shown(self, role: str | None, ps: int) -> int:
        """What is left of a time."""
        return -(-ps * self.share(role) // 100)


NO_OVERLAP = Overlap()
OVERLAPPED = Overlap(weight=25, gradient=20)
"""From simulating typical training steps; see `tools/overlap_defaults.py`.  New state is needed when the step is over
and has next to nothing left to hide behind."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device, and how many of it are joined by what.

    ``default_link`` joins the devices of a node, ``network`` the nodes.  `on` binds a mesh: then a collective is
    split by counting how many members of its group share a node.
    """

    name: str
    flops: tuple[tuple[str, int], ...]
    """Element type -> operations a second; a type that is not listed runs like the first that is."""
    bandwidth: int
    """Bytes a second between a device and its own memory."""
    memory: int
    """Bytes that a device has."""
    default_link: Wire
    links: tuple[tuple[str, Wire], ...] = ()
    """Mesh axis -> its link, where the user says so."""
    launch: float = 0.0
    """Seconds to start an op; with the two percentages the `Roofline` of classes that have none of their own."""
    flops_percent: int = 100
    bytes_percent: int = 100
    source: str = field(default="", compare=False)
    """Where the figures come from."""
    network: Wire | None = None
    """Between nodes; None: there is one node, however many devices it has."""
    node: int | None = None
    """Devices in a node."""
    nodes: int | None = None
    """How many nodes there are; None: as many as a mesh needs."""
    classes: tuple[tuple[str, Roofline], ...] = ()
    """Cost class -> its own constants."""
    overlap: Overlap = NO_OVERLAP
    contention: int = 0
    """Percent that compute takes longer while a collective is under way, whose kernels use the same device; 0 where it
    was not measured."""
    compiled: bool = False
    """Whether programs run compiled: chains of pointwise ops are one pass over memory (`fusion`)."""
    mesh: DeviceMesh | None = None
    """The mesh that axes are counted on."""
    _prices: dict[object, int] = field(init=False, default_factory=dict, repr=False, compare=False)
    _rates: dict[object, tuple[int, int, int]] = field(init=False, default_factory=dict, repr=False, compare=False)
    _splits: dict[object, tuple[int, int]] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.flops or any(rate <= 0 for _, rate in self.flops):
            raise HardwareError(f"{self.name}: every element type needs a rate above 0, and one type is needed")
        if min(self.bandwidth, self.memory, self.flops_percent, self.bytes_percent) <= 0 or self.launch < 0:
            raise HardwareError(f"{self.name}: bandwidth, memory and percentages must be above 0, launch not below")
        if self.contention < 0:
            raise HardwareError(f"{self.name}: contention is {self.contention}%, and must not be below 0")
        if any(count is not None and count < 1 for count in (self.node, self.nodes)):
            raise HardwareError(f"{self.name}: a node has one device at least, and there is one node at least")
        if self.network is not None and self.node is None:
            raise HardwareError(f"{self.name}: with a network it must be said how many devices a node has")

    # -- figures ----------------------------------------------------------------------------------------

    def peak(self, dtype: str) -> int:
        """Operations a second on this element type."""
        for name, rate in self.flops:
            if name == dtype:
                return rate
        return self.flops[0][1]

    def roofline(self, kind: str) -> Roofline:
        """The constants of a cost class."""
        for name, found in self.classes:
            if name == kind:
                return found
        if kind in (UPDATE, FUSED):
            pointwise = self.roofline("pointwise")
            return replace(pointwise, launch=0.0 if kind == UPDATE else pointwise.launch, unlike_percent=0)
        return Roofline(self.launch, self.flops_percent, self.bytes_percent)

    def link(self, axis: str | AxisRef) -> Wire:
        """What was said of an axis, or the link inside a node."""
        name = axis if isinstance(axis, str) else axis.name
        for known, link in self.links:
            if known == name:
                return link
        return self.default_link

    @property
    def launch_ps(self) -> int:
        return round(self.launch * PS)

    # -- the same machine, otherwise --------------------------------------------------------------------

    def with_link(self, axis: str, link: Wire) -> Hardware:
        """The same devices with one mesh axis joined otherwise, for example by a network."""
        kept = tuple(pair for pair in self.links if pair[0] != axis)
        return replace(self, links=(*kept, (axis, link)))

    def with_links(self, links: Mapping[str, str | Wire]) -> Hardware:
        """Say over what mesh axes run: ``{"dp": "network", "tp": "nvlink"}``, or a link of your own."""
        found = self
        for axis, said in links.items():
            found = found.with_link(axis, self._named(said) if isinstance(said, str) else said)
        return found

    def _named(self, said: str) -> Wire:
        if said not in LINK_NAMES:
            help = near_misses(said, LINK_NAMES) or "say 'nvlink' (inside a node) or 'network'"
            raise HardwareError(f"{self.name} has no link called {said!r}", help=help)
        if LINK_NAMES[said] == "node":
            return self.default_link
        if self.network is None:
            raise HardwareError(
                f"{self.name} has no network", help="name a machine of several nodes, such as 'h100x4', or give a Link"
            )
        return self.network

    def with_memory(self, memory: int) -> Hardware:
        return replace(self, memory=memory)

    def as_compiled(self) -> Hardware:
        """The same machine, whose programs a compiler has fused."""
        return replace(self, name=f"{self.name}, compiled", compiled=True)

    def with_overlap(self, overlap: Overlap | None) -> Hardware:
        """With other discounts; None: a machine that does one thing after the other."""
        return replace(self, overlap=overlap or NO_OVERLAP)

    @property
    def overlaps(self) -> bool:
        """Whether collectives run beside compute; else a step takes the sum of both."""
        return self.overlap != NO_OVERLAP

    @property
    def usable_memory(self) -> int:
        """Bytes that a plan may take: what a device has, less what its runtime and its allocator need."""
        return self.memory - self.memory * RESERVED_PERCENT // 100

    def on(self, mesh: DeviceMesh) -> Hardware:
        """Bound to a mesh, whose axes are then counted in nodes."""
        self.check(mesh)
        return self if self.mesh == mesh else replace(self, mesh=mesh)

    def check(self, mesh: DeviceMesh) -> None:
        """Every axis that has a link of its own must be an axis of the mesh, and there must be enough devices."""
        for name, _ in self.links:
            if name not in mesh.axis_names:
                error: MeshError = mesh.unknown_axis(name)
                raise error.add("links of", self.name)
        if self.node is not None and self.nodes is not None and mesh.size > self.node * self.nodes:
            raise HardwareError(
                f"a mesh of {mesh.size} devices on {self.nodes} nodes of {self.node}",
                rows=[("mesh", str(mesh)), ("hardware", self.name)],
                help=f"{-(-mesh.size // self.node)} nodes would do",
            )

    # -- what a group runs over -------------------------------------------------------------------------

    def levels(self, axes: Sequence[AxisRef]) -> list[tuple[Wire, int]]:
        """The links of a collective over ``axes`` and the group size on each, from the inside out."""
        told = [(axis, self.link(axis)) for axis in axes if any(axis.name == name for name, _ in self.links)]
        free = tuple(axis for axis in axes if axis.size > 1 and all(axis != other for other, _ in told))
        inside, across = self.split(free) if free else (1, 1)
        found: list[tuple[Wire, int]] = [(self.default_link, inside)]
        if self.network is not None:
            found.append((self.network, across))
        for axis, wire in reversed(told):
            alike = (i for i, (known, _) in enumerate(found) if known == wire)
            at = None if isinstance(wire, AlphaBetaLink) else next(alike, None)  # Alpa prices each axis by itself
            if at is None:
                found.append((wire, axis.size))
            else:
                found[at] = wire, found[at][1] * axis.size
        return [(wire, ways) for wire, ways in found if ways > 1]

    def split(self, axes: tuple[AxisRef, ...]) -> tuple[int, int]:
        """Members of a group that share a node, and the nodes it spans.

        Without a mesh a group is taken to fill nodes.
        """
        found = self._splits.get(axes)
        if found is None:
            found = self._splits[axes] = self._count(axes)
        return found

    def _count(self, axes: tuple[AxisRef, ...]) -> tuple[int, int]:
        ways = axes_size(axes)
        if self.network is None or self.node is None:
            return ways, 1
        if self.mesh is None:
            inside = max(size for size in range(1, min(ways, self.node) + 1) if ways % size == 0)
            return inside, ways // inside
        devices = self.mesh.device_ids
        across = max(len({devices[p] // self.node for p in group}) for group in self.mesh.groups(axes))
        return -(-ways // across), across


__all__ = ["NO_OVERLAP", "OVERLAPPED", "Hardware", "Link", "Overlap", "Roofline"]
