"""`Hardware`: the figures that costs are computed from, and two presets.

Rates are whole numbers per second and times are turned into whole picoseconds once, so that a cost is the same
integer on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import HardwareError, MeshError
from ..spec.axes import AxisRef
from ..spec.mesh import DeviceMesh

PS = 10**12
"""Picoseconds in a second."""


@dataclass(frozen=True, slots=True)
class Link:
    """How devices along a mesh axis talk: a collective costs a launch, ``alpha`` a step, and bytes at ``beta``."""

    alpha: float
    """Seconds for one step of a ring."""
    beta: int
    """Bytes a second that one device sends."""
    launch: float = 0.0
    """Seconds to start a collective."""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.launch < 0 or self.beta <= 0:
            raise HardwareError("a link needs alpha and launch of at least 0, and a beta above 0")

    @property
    def alpha_ps(self) -> int:
        return round(self.alpha * PS)

    @property
    def launch_ps(self) -> int:
        return round(self.launch * PS)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device and how many of it are joined.

    >>> H100.peak("bf16") // 10**12, H100.link("dp") == H100.link("tp")
    (989, True)
    >>> slow = H100.with_link("dp", Link(alpha=5e-6, beta=40 * 10**9))
    >>> slow.link("dp").beta // 10**9, slow.link("tp").beta // 10**9
    (40, 280)
    """

    name: str
    flops: tuple[tuple[str, int], ...]
    """Element type -> operations a second; a type that is not listed runs like the first that is."""
    bandwidth: int
    """Bytes a second between a device and its own memory."""
    memory: int
    """Bytes that a device has."""
    default_link: Link
    links: tuple[tuple[str, Link], ...] = ()
    """Mesh axis -> its link, where it is not the default one."""
    launch: float = 0.0
    """Seconds to start an op."""
    flops_percent: int = 100
    """Time of the arithmetic, in percent of what the peak rate promises."""
    bytes_percent: int = 100
    """Time of the memory traffic, in percent of what the bandwidth promises."""
    source: str = field(default="", compare=False)
    """Where the figures come from."""

    def __post_init__(self) -> None:
        if not self.flops or any(rate <= 0 for _, rate in self.flops):
            raise HardwareError(f"{self.name}: every element type needs a rate above 0, and one type is needed")
        if min(self.bandwidth, self.memory, self.flops_percent, self.bytes_percent) <= 0 or self.launch < 0:
            raise HardwareError(f"{self.name}: bandwidth, memory and percentages must be above 0, launch not below")

    def peak(self, dtype: str) -> int:
        """Operations a second on this element type."""
        for name, rate in self.flops:
            if name == dtype:
                return rate
        return self.flops[0][1]

    def link(self, axis: str | AxisRef) -> Link:
        name = axis if isinstance(axis, str) else axis.name
        for known, link in self.links:
            if known == name:
                return link
        return self.default_link

    @property
    def launch_ps(self) -> int:
        return round(self.launch * PS)

    def with_link(self, axis: str, link: Link) -> Hardware:
        """The same devices with one mesh axis joined otherwise, for example by a network."""
        kept = tuple(pair for pair in self.links if pair[0] != axis)
        return replace(self, links=(*kept, (axis, link)))

    def with_memory(self, memory: int) -> Hardware:
        return replace(self, memory=memory)

    def check(self, mesh: DeviceMesh) -> None:
        """Every axis that has a link of its own must be an axis of the mesh."""
        for name, _ in self.links:
            if name not in mesh.axis_names:
                error: MeshError = mesh.unknown_axis(name)
                raise error.add("links of", self.name)


def _rates(teraflops: Mapping[str, float], alike: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, int], ...]:
    """Element types that run at the rate of another are listed with it."""
    found = {name: round(rate * 10**12) for name, rate in teraflops.items()}
    for name, others in alike.items():
        found.update(dict.fromkeys(others, found[name]))
    return tuple(found.items())


H100 = Hardware(
    name="H100 SXM",
    flops=_rates(
        {"f32": 66.9, "f64": 66.9, "bf16": 989.4, "f8e4m3": 1978.9, "c64": 16.7},
        {"bf16": ("f16",), "f8e4m3": ("f8e5m2", "i8", "u8"), "c64": ("c128",)},
    ),
    bandwidth=3_350 * 10**9,
    memory=80 * 10**9,
    default_link=Link(alpha=0.8e-6, beta=280 * 10**9, launch=5.6e-6),
    launch=3.2e-6,
    flops_percent=94,
    bytes_percent=104,
    source=(
        "peaks, bandwidth and memory: NVIDIA H100 SXM5 data sheet, dense rates, f32 without TF32, complex a quarter of "
        "real; launch and percentages: the fit c0 + a*flops/peak + b*bytes/bandwidth to measured bf16 products (c0 3.2 "
        "us, a 0.94, b 1.04); link: ring model fitted to NCCL 2.29 on 2, 4 and 8 H100 (ai-dynamo/aiconfigurator, "
        "Apache-2.0), 17% mean error, up to 1.6x for messages from 16 MiB up"
    ),
)
"""Eight H100 joined by NVLink."""

VIRTUAL = replace(
    H100,
    name="virtual",
    default_link=Link(alpha=10e-9, beta=H100.default_link.beta),
    launch=0.0,
    source="the H100 without the time to start ops and collectives, which no small program could pay",
)
"""What `shard_map` reckons with: on a virtual mesh choices should show at the sizes one tries in a notebook."""
