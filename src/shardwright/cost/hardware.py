"""The machines that are known by name, and whatever else says hardware.

| name | what |
|---|---|
| ``a100`` ``h100`` ``h200`` ``b200`` | nodes of eight joined by NVLink; a mesh of more devices spans several nodes, joined by 400 Gb/s for each device |
| ``h100x4`` | the same with exactly four nodes: a mesh that needs more is refused |
| ``h100-compiled`` | the same where programs run compiled: pointwise ops cost what fused kernels do |
| ``cpu`` | the machine that Shardwright is developed on |
| ``alpha_beta`` | Alpa's costs; with parameters: `alpha_beta` |
| ``file.toml`` | a file of your own (see `files`); `shardwright calibrate` writes one |

Mesh axes are counted from the inside: devices stand in row-major order and fill node after node, so inner axes run
over NVLink and an axis whose groups span nodes runs over the network.  ``links={"dp": "network"}`` says otherwise.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import HardwareError, near_misses
from .compute import ARITHMETIC, CLASSES
from .files import preset_names, read_hardware, read_preset
from .links import PS, AlphaBetaLink, Link, LinkTable, Wire
from .machine import NO_OVERLAP, OVERLAPPED, Hardware, Overlap, Roofline

_COMPILED = "-compiled"
_known: dict[str, Hardware] = {}


def hardware_of(
    said: str | Path | Hardware,
    nodes: int | None = None,
    links: Mapping[str, str | Wire] | None = None,
) -> Hardware:
    """The machine that a name, a file or a `Hardware` stands for.

    >>> hardware_of("h100x4").nodes, hardware_of("h100", nodes=4) == hardware_of("h100x4")
    (4, True)
    >>> hardware_of("h100").with_links({"dp": "network"}).link("dp") == hardware_of("h100").network
    True
    """
    found = said if isinstance(said, Hardware) else _named(said)
    if nodes is not None:
        if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
            raise HardwareError(f"{nodes!r} is no number of nodes")
        found = _of_nodes(found, nodes)
    return found.with_links(links) if links else found


def _named(said: str | Path) -> Hardware:
    if isinstance(said, str) and said.lower().endswith(_COMPILED):
        return _found(said[: -len(_COMPILED)]).as_compiled()
    return _found(said)


def _found(said: str | Path) -> Hardware:
    if isinstance(said, Path) or (isinstance(said, str) and said.endswith(".toml")):
        return read_hardware(said)
    if not isinstance(said, str):
        raise HardwareError(
            f"{type(said).__name__} is no hardware", help="give a name, the path of a TOML file, or a Hardware"
        )
    names = (*preset_names(), "virtual", "alpha_beta")
    match = re.fullmatch(r"(.+?)(?:x([0-9]+))?", said.lower())
    name, count = (match[1], match[2]) if match else (said, None)
    if name not in names or (count is not None and int(count) < 1):
        other = "name one of these, one with xN for N nodes, or a file that ends in .toml"
        help = near_misses(said.lower(), names) or other
        raise HardwareError(f"no hardware is called {said!r}", rows=[("known", ", ".join(names))], help=help)
    found = {"virtual": lambda: VIRTUAL, "alpha_beta": alpha_beta}.get(name, lambda: _preset(name))()
    return _of_nodes(found, int(count)) if count else found


def _of_nodes(found: Hardware, nodes: int) -> Hardware:
    if found.node is None or (found.network is None and nodes > 1):
        raise HardwareError(f"{found.name} has no network to join nodes by")
    return replace(found, nodes=nodes)


def _preset(name: str) -> Hardware:
    if name not in _known:
        _known[name] = read_preset(name)
    return _known[name]


def alpha_beta(
    alpha: float | Mapping[str, float] = 1.0,
    beta: float | Mapping[str, float] = 1.0,
    memory: int = 10**15,
    flop: float = 0.0,
) -> Hardware:
    """Alpa's cost model: a unit is a microsecond, and communication is all that counts.

    ``alpha`` and ``beta`` are those of every mesh axis, or by axis: ``{"x": 1, "y": 0.1}``.
    Alpa does not let a matrix product run replicated; with ``flop`` units for an operation it has its price instead.
    """
    axes = [*alpha] if isinstance(alpha, Mapping) else [*beta] if isinstance(beta, Mapping) else []
    for given in (alpha, beta):
        if isinstance(given, Mapping) and {*given} != {*axes}:
            raise HardwareError("alpha and beta must be given for the same mesh axes")

    def link(axis: str | None) -> AlphaBetaLink:
        a, b = (given[axis] if isinstance(given, Mapping) and axis else given for given in (alpha, beta))
        return AlphaBetaLink(*(x if isinstance(x, int | float) else max(x.values()) for x in (a, b)))

    free, counted = Roofline(0.0, 0, 0), Roofline(0.0, 100, 0)
    return Hardware(
        name="alpha_beta",
        flops=(("f32", round(10**6 / flop) if flop else 10**15),),
        bandwidth=10**15,
        memory=memory,
        default_link=link(None),
        links=tuple((axis, link(axis)) for axis in axes),
        classes=tuple((kind, counted if flop and kind in ARITHMETIC else free) for kind in CLASSES),
        source="the formulas of Alpa (Zheng et al., OSDI 2022), tie-breaking constants included",
    )


H100 = _preset("h100")
"""Nodes of eight H100 joined by NVLink."""

VIRTUAL = Hardware(
    name="virtual",
    flops=H100.flops,
    bandwidth=H100.bandwidth,
    memory=H100.memory,
    default_link=Link(alpha=10e-9, beta=280 * 10**9),
    flops_percent=94,
    bytes_percent=104,
    source="the H100 as a ring without the time to start ops and collectives, which no small program could pay",
)
"""What `shard_map` reckons with: on a virtual mesh choices should show at the sizes one tries in a notebook."""

__all__ = [
    "H100",
    "NO_OVERLAP",
    "OVERLAPPED",
    "PS",
    "VIRTUAL",
    "AlphaBetaLink",
    "Hardware",
    "HardwareError",
    "Link",
    "LinkTable",
    "Overlap",
    "Roofline",
    "alpha_beta",
    "hardware_of",
]
