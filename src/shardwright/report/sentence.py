"""A plan in one sentence: what each mesh axis is for, in the words that people use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..frontends.base import PARAMETER
from ..spec.mesh import DeviceMesh
from .modules import Module, Weight
from .uses import COPIED, GATHERED, IDLE, SPLIT, STATE

_SMALL = 2**16
"""Bytes of a weight below which it does not speak for a plan, where there are larger ones: biases and norms."""

_OTHERS = 3
"""So many kinds of exceptions are named."""


def sentence(mesh: DeviceMesh, modules: Iterable[Module], cut: Mapping[str, str], trains: bool) -> str:
    """``cut`` says what each axis splits of the activations."""
    weights = [
        (title, weight, module.count)
        for title, module in _titled(modules)
        for weight in module.weights
        if weight.role == PARAMETER
    ]
    sizes = {axis: mesh.axis_sizes[axis] for axis in mesh.axis_names}
    if not weights:
        return _joined([_activations(axis, cut[axis]) for axis in sizes])
    least = _SMALL if any(weight.bytes >= _SMALL for _, weight, _ in weights) else 0
    groups: Counter[tuple[tuple[str, str], ...]] = Counter()
    for _, weight, count in weights:
        if weight.bytes >= least:
            groups[weight.use.axes] += weight.bytes * count
    main = groups.most_common(1)[0][0]
    parts = [_axis(axis, use, cut[axis], trains) for axis, use in main]
    text = _joined(parts)
    layers = [title for title, weight, count in weights if count > 1 and weight.use.axes == main]
    if layers and len(groups) > 1:
        text += " in the layers"
    others: dict[str, list[str]] = {}
    for title, weight, _ in weights:
        if weight.bytes >= least and weight.use.axes != main:
            others.setdefault(_other(weight, main, cut, trains), []).append(title)
    parts = [f"{_named(titles)}: {said}" for said, titles in others.items()]
    if len(parts) > _OTHERS:
        parts[_OTHERS:] = [f"{sum(map(len, [*others.values()][_OTHERS:]))} more tensors otherwise"]
    return "; ".join([text, *parts])


def _named(titles: Iterable[str]) -> str:
    """Modules by what they stand in: ``layers.0-31.self_attn.(k_proj, v_proj)``."""
    inside: dict[str, list[str]] = {}
    for title in dict.fromkeys(titles):
        around, _, name = title.rpartition(".")
        inside.setdefault(around, []).append(name)
    found = []
    for around, names in inside.items():
        inner = names[0] if len(names) == 1 else f"({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
        found.append(f"{around}.{inner}".removeprefix("."))
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _titled(modules: Iterable[Module], around: str = "") -> Iterable[tuple[str, Module]]:
    for module in modules:
        title = f"{around}.{module.label}" if around else module.label
        yield title, module
        yield from _titled(module.children, title)


def _joined(parts: Iterable[str]) -> str:
    """Axes of which the same is said together: ``ZeRO-3 over dp and pods``."""
    axes: dict[str, list[str]] = {}
    for part in parts:
        what, _, axis = part.rpartition(" over ")
        axes.setdefault(what, []).append(axis)
    return ", ".join(f"{what} over {' and '.join(names)}" for what, names in axes.items())


def _activations(axis: str, cut: str) -> str:
    return f"replicated over {axis}" if cut == "nothing" else f"{cut} split over {axis}"


def _axis(axis: str, use: str, cut: str, trains: bool) -> str:
    if use == SPLIT:
        also = ", sequence split" if cut == "sequence" else ", batch split" if cut == "batch" else ""
        return f"tensor parallel{also} over {axis}"
    if use in (GATHERED, STATE):
        work = "data parallel" if cut == "batch" else "work repeated" if cut == "nothing" else f"{cut} split"
        what = "weights" if not trains else "weights and state" if use == GATHERED else "optimizer state"
        name = "" if not trains else " (ZeRO-3)" if use == GATHERED else " (ZeRO-1)"
        return f"{work} with {what} split{name} over {axis}"
    if use == COPIED:
        return f"data parallel over {axis}"
    return f"sequence parallel over {axis}" if cut == "sequence" else _activations(axis, cut)


_ROWS = {0: "rows", 1: "columns"}


def _other(weight: Weight, main: tuple[tuple[str, str], ...], cut: Mapping[str, str], trains: bool) -> str:
    """What is otherwise for a weight; only the axes that are."""
    usual = dict(main)
    parts = []
    for axis, use in weight.use.axes:
        if use == usual[axis]:
            continue
        if use == SPLIT and weight.use.dims:
            dims = " and ".join(_ROWS.get(d, f"dim {d}") for d in weight.use.dims)
            parts.append(f"split by {dims} over {axis}")
        elif use in (COPIED, IDLE):
            parts.append(f"whole over {axis}")
        else:
            parts.append(_axis(axis, use, cut[axis], trains))
    return _joined(parts)
