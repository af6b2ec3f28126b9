"""Hardware as a TOML file: what `hardware="file.toml"` takes, `shardwright calibrate` writes, and presets are kept in.

```toml
schema = 1
name = "two of ours"
source = "measured on 3 May with shardwright calibrate"
memory_gb = 80
bandwidth_gbs = 3350                  # between a device and its own memory

[tflops]                              # by element type; the first also serves those not listed
f32 = 66.9
bf16 = 989.4

[compute]                             # launch + flops_percent * flops/peak + bytes_percent * bytes/bandwidth
launch_us = 3.2
flops_percent = 94
bytes_percent = 104
[compute.matmul]                      # the same for one cost class, where it differs
unaligned_percent = 600               # flops_percent of rows that do not begin at multiples of 16 bytes
[compute.pointwise]
unlike_percent = 180                  # bytes_percent of ops on several types or shapes
[compute.attention]
tscores = 3.36                        # 10**12 exponentials a second, one for each score
units = 132                           # tiles that are worked on at once: multiprocessors

[node]
devices = 8                           # in one node; nodes = 4 says how many nodes there are
[node.link]                           # measured: messages in bytes, then microseconds by kind and group size
bytes = [1024, 1048576, 67108864]
all_reduce.2 = [5.9, 14.7, 254.6]
all_reduce.8 = [15.6, 25.4, 324.5]

[network.link]                        # or a ring
latency_us = 10
rate_gbs = 40                         # that one device sends
launch_us = 20

[axes]                                # mesh axes that are not to be counted
dp = "network"

[overlap]                             # percent of the time that shows; without: all of it
weight = 25
gradient = 25
```

Unknown fields, wrong types and figures that cannot be are errors that name the field.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import HardwareError, ShardwrightError, near_misses
from ..ir.nodes import ITEM_BYTES
from ..spec.collective import COLLECTIVES
from .compute import CLASSES
from .links import US, Link, LinkTable, Wire
from .machine import LINK_NAMES, NO_OVERLAP, Hardware, Overlap, Roofline

SCHEMA = 1
GIGA, TERA = 10**9, 10**12
_ROOT = ("schema", "name", "source", "memory_gb", "bandwidth_gbs", "tflops", "compute", "node", "network", "axes")
_ROOFLINE = ("launch_us", "flops_percent", "bytes_percent")
_SCORED = ("tscores", "units")
_MORE = {"matmul": ("unaligned_percent",), "pointwise": ("unlike_percent",), "attention": _SCORED}
"""Figures that single classes have."""


def read_hardware(path: str | Path) -> Hardware:
    """The hardware that a file describes."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise HardwareError(
            f"cannot read the hardware file {str(path)!r}",
            rows=[("because", error.strerror or str(error))],
            help="shardwright calibrate writes one",
        ) from None
    except UnicodeDecodeError:
        raise HardwareError(f"the hardware file {str(path)!r} is not text in UTF-8") from None
    return parse_hardware(text, str(path))


def parse_hardware(text: str, where: str = "") -> Hardware:
    """The hardware that TOML text describes."""
    try:
        return _hardware(_Table(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError as error:
        found: ShardwrightError = HardwareError("the hardware file is not TOML", rows=[("because", str(error))])
        raise (found.add("file", where) if where else found) from None
    except ShardwrightError as error:
        raise (error.add("file", where) if where else error) from None


def preset_names() -> list[str]:
    """Presets that are kept as files."""
    folder = files(__package__).joinpath("presets")
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def read_preset(name: str) -> Hardware:
    text = files(__package__).joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
    return parse_hardware(text, f"preset {name}")


class _Table:
    """A table of the file that knows its own name and complains by it."""

    def __init__(self, data: Any, name: str) -> None:
        if not isinstance(data, dict):
            raise HardwareError(f"{name} must be a table", help=f"write [{name}]")
        self.data, self.name = data, name

    def path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def only(self, *known: str) -> None:
        for key in self.data:
            if key not in known:
                shown = ", ".join(known)
                help = near_misses(key, known)
                raise HardwareError(f"unknown field {self.path(key)}", rows=[("known", shown)], help=help)

    def table(self, key: str) -> _Table:
        return _Table(self.data.get(key, {}), self.path(key))

    def number(self, key: str, default: float | None = None) -> float:
        if key not in self.data and default is not None:
            return default
        found = self.data.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float):
            said = "is missing" if found is None else f"must be a number, not {found!r}"
            raise HardwareError(f"{self.path(key)} {said}")
        if not 0 <= found < float("inf"):
            raise HardwareError(f"{self.path(key)} is {found!r}", help="figures are finite and not below 0")
        return found

    def whole(self, key: str) -> int | None:
        found = self.data.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int):
            raise HardwareError(f"{self.path(key)} must be a whole number, not {found!r}")
        return found

    def percent(self, key: str, default: int) -> int:
        found = self.whole(key)
        return default if found is None else found

    def text(self, key: str, default: str | None = None) -> str:
        found = self.data.get(key, default)
        if not isinstance(found, str):
            said = "is missing" if found is None else f"must be text, not {found!r}"
            raise HardwareError(f"{self.path(key)} {said}")
        return found


def _hardware(file: _Table) -> Hardware:
    file.only(*_ROOT, "overlap")
    if file.whole("schema") != SCHEMA:
        said = file.data.get("schema")
        raise HardwareError(f"schema is {said!r}, not {SCHEMA}", help=f"write schema = {SCHEMA} at the top")
    compute, node, network = file.table("compute"), file.table("node"), file.table("network")
    compute.only(*_ROOFLINE, *CLASSES)
    node.only("devices", "nodes", "link")
    network.only("link")
    general = _roofline(compute, Roofline())
    classes = tuple(
        (kind, _roofline(compute.table(kind), general, (*_ROOFLINE, *_MORE.get(kind, ()))))
        for kind in CLASSES
        if kind in compute.data
    )
    overlap = file.table("overlap")
    overlap.only("weight", "gradient")
    found = Hardware(
        name=file.text("name"),
        flops=_flops(file.table("tflops")),
        bandwidth=round(file.number("bandwidth_gbs") * GIGA),
        memory=round(file.number("memory_gb") * GIGA),
        default_link=_link(node.table("link")),
        launch=general.launch,
        flops_percent=general.flops_percent,
        bytes_percent=general.bytes_percent,
        source=file.text("source", ""),
        network=_link(network.table("link")) if "network" in file.data else None,
        node=node.whole("devices"),
        nodes=node.whole("nodes"),
        classes=classes,
        overlap=Overlap(overlap.percent("weight", 100), overlap.percent("gradient", 100)),
    )
    axes = file.table("axes")
    return found.with_links({axis: axes.text(axis) for axis in axes.data})


def _flops(table: _Table) -> tuple[tuple[str, int], ...]:
    table.only(*ITEM_BYTES)
    return tuple((name, round(table.number(name) * TERA)) for name in table.data)


def _roofline(table: _Table, default: Roofline, only: tuple[str, ...] = ()) -> Roofline:
    if only:
        table.only(*only)
    return Roofline(
        table.number("launch_us", default.launch * 10**6) / 10**6,
        table.percent("flops_percent", default.flops_percent),
        table.percent("bytes_percent", default.bytes_percent),
        round(table.number("tscores", 0.0) * TERA),
        table.whole("units") or 0,
        table.whole("unlike_percent") or 0,
        table.whole("unaligned_percent") or 0,
    )


def _link(table: _Table) -> Wire:
    if "bytes" not in table.data:
        table.only("latency_us", "rate_gbs", "launch_us")
        launch = table.number("launch_us", 0.0) / 10**6
        return Link(table.number("latency_us") / 10**6, round(table.number("rate_gbs") * GIGA), launch)
    table.only("bytes", *COLLECTIVES)
    sizes = _numbers(table.path("bytes"), table.data["bytes"])
    if any(size != int(size) for size in sizes):
        raise HardwareError(f"{table.path('bytes')} must be whole numbers")
    rows: dict[str, dict[int, list[float]]] = {}
    for kind in COLLECTIVES:
        series = table.table(kind)
        for ways, row in series.data.items():
            if not ways.isdecimal():
                raise HardwareError(f"{series.path(ways)} must name a group size", help=f"write {kind}.8 = [...]")
            rows.setdefault(kind, {})[int(ways)] = _numbers(series.path(ways), row)
    try:
        return LinkTable.of([int(size) for size in sizes], rows)
    except HardwareError as error:
        raise error.add("in", table.name) from None


def _numbers(name: str, found: Any) -> list[float]:
    if not isinstance(found, list) or any(isinstance(x, bool) or not isinstance(x, int | float) for x in found):
        raise HardwareError(f"{name} must be a list of numbers")
    if not all(0 <= x < float("inf") for x in found):
        raise HardwareError(f"{name} holds a figure that is not finite, or below 0")
    return found


# -- writing --------------------------------------------------------------------------------------------


def hardware_text(hardware: Hardware) -> str:
    """The file that describes a hardware; reading it gives an equal one.

    A mesh it is bound to is left out, and so are links of single axes other than the machine's own two.
    """
    return "\n".join(_lines(hardware)) + "\n"


def _lines(hardware: Hardware) -> Iterator[str]:
    yield f"schema = {SCHEMA}"
    yield f"name = {_quoted(hardware.name)}"
    yield f"source = {_quoted(hardware.source)}"
    yield f"memory_gb = {_plain(hardware.memory, GIGA)}"
    yield f"bandwidth_gbs = {_plain(hardware.bandwidth, GIGA)}"
    yield from ("", "[tflops]")
    for dtype, rate in hardware.flops:
        yield f"{dtype} = {_plain(rate, TERA)}"
    yield from ("", "[compute]")
    yield from _roofline_lines(Roofline(hardware.launch, hardware.flops_percent, hardware.bytes_percent))
    for kind, roofline in hardware.classes:
        yield f"[compute.{kind}]"
        yield from _roofline_lines(roofline)
    if hardware.node is not None or hardware.nodes is not None:
        yield from ("", "[node]")
        yield from (f"{key} = {x}" for key, x in (("devices", hardware.node), ("nodes", hardware.nodes)) if x)
    yield from ("", "[node.link]", *_link_lines(hardware.default_link))
    if hardware.network is not None:
        yield from ("", "[network.link]", *_link_lines(hardware.network))
    own = {name: wire for name, wire in zip(("network", "node"), (hardware.network, hardware.default_link)) if wire}
    told = {axis: name for axis, wire in hardware.links for name in own if own[name] == wire and name in LINK_NAMES}
    if told:
        yield from ("", "[axes]", *(f"{axis} = {_quoted(name)}" for axis, name in told.items()))
    if hardware.overlap != NO_OVERLAP:
        yield from ("", "[overlap]")
        yield f"weight = {hardware.overlap.weight}"
        yield f"gradient = {hardware.overlap.gradient}"


def _roofline_lines(roofline: Roofline) -> Iterator[str]:
    yield f"launch_us = {_plain(roofline.launch_ps, US)}"
    yield f"flops_percent = {roofline.flops_percent}"
    yield f"bytes_percent = {roofline.bytes_percent}"
    if roofline.scores:
        yield f"tscores = {_plain(roofline.scores, TERA)}"
    for key in ("units", "unlike_percent", "unaligned_percent"):
        if getattr(roofline, key):
            yield f"{key} = {getattr(roofline, key)}"


def _link_lines(wire: Wire) -> Iterator[str]:
    if isinstance(wire, LinkTable):
        yield f"bytes = {list(wire.sizes)}"
        for kind, ways, row in wire.times:
            yield f"{kind}.{ways} = [{', '.join(_plain(time, US) for time in row)}]"
    elif isinstance(wire, Link):
        yield f"latency_us = {_plain(wire.alpha_ps, US)}"
        yield f"rate_gbs = {_plain(wire.beta, GIGA)}"
        yield f"launch_us = {_plain(wire.launch_ps, US)}"
    else:
        raise HardwareError("Alpa's costs have no file form", help="use alpha_beta(...) in Python")


def _plain(whole: int, unit: int) -> str:
    """A whole number in a larger unit, exactly, as short as it goes.

    >>> _plain(3_200_000, 10**6), _plain(66_900_000_000_000, 10**12), _plain(10, 10**6)
    ('3.2', '66.9', '0.00001')
    """
    digits = len(str(unit)) - 1
    rest = str(whole % unit).rjust(digits, "0").rstrip("0")
    return f"{whole // unit}.{rest}" if rest else str(whole // unit)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'


def write_hardware(hardware: Hardware, path: str | Path) -> None:
    Path(path).write_text(hardware_text(hardware), encoding="utf-8")
