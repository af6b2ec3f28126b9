"""Draws how a program is split: meshes of 1 to 3 axes, shardings by hand, who decides the rest, limits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod

import numpy as np

from .drawing import numeric
from .judging import BY_HAND, PLANNED, Request
from .programs import FuzzProgram

AXIS_SIZES = (1, 2, 2, 2, 3, 3, 4, 4, 6)
MOST_DEVICES = (6, 12, 24)
FEW_DEVICES = (4, 6, 8)
AXES = ("x", "y", "z")
MEMORY = (0.95, 0.85, 0.7)
LIMITED = 0.2
"""The part of plans that are to need less memory: looking for those takes longest."""
ASKED, RELOADED, PRINTED = 0.2, 0.1, 0.05
"""The parts of plans of which something is forbidden, of those that go through a file, of those that are printed."""
MOST_CUT = 12
"""Devices of a mesh of which parts of axes are drawn: on 24, an uneven tensor may have 700 shardings, and planning
searches between every two of them for many minutes."""
GATHERED = (16, 128, 1024)
"""Bytes that a gather may leave."""
LARGE = 0.15
"""The part of plans with a limit, or with uneven shards, that are on meshes of any size: on three axes one of these
takes as long as a hundred others."""


def draw_mesh(rng: random.Random, small: bool = False) -> str:
    sizes: list[int] = []
    most = rng.choice(FEW_DEVICES if small else MOST_DEVICES)
    for _ in range(rng.choice((1, 1, 2, 2) if small else (1, 1, 2, 2, 3))):
        fitting = [n for n in AXIS_SIZES if n * prod(sizes) <= most]
        sizes.append(rng.choice(fitting))
    return ", ".join(f"{name}={size}" for name, size in zip(AXES, sizes))


def draw_spec(rng: random.Random, mesh: str, shape: Sequence[int], dtype: str) -> str:
    """Axes, whole or in two parts, on dims, whether they divide or not; what is left may be pending."""
    sizes = {name: int(size) for name, _, size in (axis.strip().partition("=") for axis in mesh.split(","))}
    parts: list[str] = []
    for axis, size in sizes.items():
        cuts = [n for n in (2, 3) if size % n == 0 and size > n]
        if cuts and prod(sizes.values()) <= MOST_CUT and rng.random() < 0.25:
            cut = rng.choice(cuts)
            parts += [f"{axis}:(1){cut}", f"{axis}:({cut}){size // cut}"]
        else:
            parts.append(axis)
    dims: list[list[str]] = [[] for _ in shape]
    pending: list[str] = []
    kind = rng.choice(("sum", "sum", "sum", "max", "min"))
    for part in rng.sample(parts, len(parts)):
        if shape and rng.random() < 0.65:
            dims[rng.randrange(len(shape))].append(part)
        elif "float" in dtype and rng.random() < 0.2:
            pending.append(part if kind == "sum" else f"{kind}({part})")
    text = "[" + ", ".join("+".join(dim) or "_" for dim in dims) + "]"
    return text + (f" // {', '.join(pending)}" if pending else "")


def draw_asked(rng: random.Random, mesh: str, inputs: int) -> tuple[tuple[str, str | int, str], ...]:
    """What no copy of a value, or of any, is to be split over; what gathers may leave at most."""
    axis = rng.choice([axis.strip().partition("=")[0] for axis in mesh.split(",")])
    forbidden: tuple[str, str | int, str] = ("forbid", rng.choice(("*", f"*{rng.randrange(inputs)}")), axis)
    capped: tuple[str, str | int, str] = ("cap_gather", rng.choice(GATHERED), "")
    return rng.choice(((forbidden,), (capped,), (forbidden, capped)))


def draw_request(rng: random.Random, program: FuzzProgram, outputs: Sequence[object], way: str) -> Request:
    """A mesh, shardings of some inputs and outputs, and limits where the way has them."""
    planned = way == PLANNED
    memory = rng.choice(MEMORY) if planned and rng.random() < LIMITED else None
    uneven = planned and rng.random() < 0.35
    mesh = draw_mesh(rng, small=(uneven or memory is not None) and rng.random() > LARGE)
    said = {BY_HAND: 0.75, PLANNED: 0.15}.get(way, 0.3)
    ins = [draw_spec(rng, mesh, fill.shape, fill.dtype) if rng.random() < said else None for fill in program.inputs]
    outs: list[str | None] = []
    if rng.random() < 0.4:
        arrays = [numeric(value) for value in outputs]
        outs = [draw_spec(rng, mesh, np.shape(a), str(a.dtype)) if rng.random() < 0.5 else None for a in arrays]
    return Request(
        mesh,
        way,
        tuple(ins) if any(ins) else (),
        tuple(outs) if any(outs) else (),
        rng.choice(("virtual", "h100")) if way != BY_HAND else "virtual",
        memory,
        uneven,
        draw_asked(rng, mesh, len(program.inputs)) if planned and rng.random() < ASKED else (),
        rng.random() < RELOADED,
        rng.random() < PRINTED,
    )


def draw_constraints(
    rng: random.Random, program: FuzzProgram, mesh: str, values: Sequence[object]
) -> tuple[tuple[int, str], ...]:
    """Shardings said inside the program, of some values."""
    said = []
    for i in range(len(program.inputs), len(values)):
        if hasattr(values[i], "dtype") and rng.random() < 0.1:
            array = numeric(values[i])
            said.append((i, draw_spec(rng, mesh, array.shape, str(array.dtype))))
    return tuple(said)
