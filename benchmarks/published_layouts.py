"""Layouts that others publish, as constraints: each a file in `layouts/`, read for a program and a mesh.

| key | what it says |
|---|---|
| `of` | whose layout it is |
| `for` | models, by how their names begin |
| `units` | names of its own for mesh axes: `all`, `last`, or the `others` before the last; a mesh without such has not this layout |
| `pins` | shardings by name or pattern, in units; of several that match the first counts |

`@batch` stands for all data with a dim that counts examples and cuts that dim, `@parameter` for all parameters and the
optimizer's state of them, whose first dim that divides is cut.  State lies as its parameter does.
"""  # noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

from shardwright import DeviceMesh
from shardwright.frontends.base import DATA, OPTIMIZER, PARAMETER, Input, Source

FILES = Path(__file__).parent / "layouts"


def layouts_of(model: str, source: Source, mesh: DeviceMesh) -> Iterator[tuple[str, dict[str, str]]]:
    """The layouts that a model has on a mesh, each as what `sw.plan` takes as ``constraints``."""
    for path in sorted(FILES.glob("*.json")):
        said = json.loads(path.read_text())
        units = {name: _axes(which, mesh) for name, which in said["units"].items()}
        if any(model.startswith(name) for name in said["for"]) and all(units.values()):
            yield path.stem, dict(_pins(said["pins"], units, source, mesh))


def _axes(which: str, mesh: DeviceMesh) -> tuple[str, ...]:
    names = mesh.axis_names
    return {"all": names, "last": names[-1:], "others": names[:-1]}[which]


def _pins(
    said: Mapping[str, str], units: Mapping[str, tuple[str, ...]], source: Source, mesh: DeviceMesh
) -> Iterator[tuple[str, str]]:
    shapes = {source.graph.values[value].name: source.graph.type(value).shape for value in source.graph.inputs}
    for about in source.inputs_are:
        if about.name not in shapes:
            continue
        for pattern, spec in said.items():
            if _is_meant(pattern, about):
                yield about.name, _spec(pattern, spec, about, units, shapes[about.name], mesh)
                break


def _is_meant(pattern: str, about: Input) -> bool:
    if pattern == "@batch":
        return about.role == DATA and about.batch_dim is not None
    if pattern == "@parameter":
        return about.role == PARAMETER or (about.role == OPTIMIZER and bool(about.owner))
    return fnmatchcase(about.name, pattern)


def _spec(
    pattern: str, spec: str, about: Input, units: Mapping[str, tuple[str, ...]], shape: tuple[int, ...], mesh: Any
) -> str:
    if not pattern.startswith("@"):
        text = re.sub(r"[a-z]+", lambda unit: "+".join(units[unit[0]]), spec)
        dims = [dim.strip() for dim in text.strip("[]").split(",")]
        dims += ["_"] * (len(shape) - len(dims))
        ways = [_ways(dim.split("+"), mesh) for dim in dims]
        return "[" + ", ".join(dim if size % n == 0 else "_" for dim, size, n in zip(dims, shape, ways)) + "]"
    axes = units[spec]
    ways = _ways(axes, mesh)
    fitting = [about.batch_dim] if pattern == "@batch" else range(len(shape))
    cut = next((d for d in fitting if d is not None and shape[d] and shape[d] % ways == 0), None)
    return "[" + ", ".join("+".join(axes) if d == cut else "_" for d in range(len(shape))) + "]"


def _ways(axes: Any, mesh: DeviceMesh) -> int:
    return prod(mesh.axis_sizes[axis] if axis != "_" else 1 for axis in axes)


__all__ = ["layouts_of"]
