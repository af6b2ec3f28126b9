"""Small changes of a Program, beside those in the tests' `faults`; and the list of kinds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from program_faults import renamed, with_instr, with_value

from shardwright.ir.program import Instr, Local, Program
from shardwright.spec.axes import Axes
from shardwright.spec.sharding import DimSpec, ShardingSpec

Mutate = Callable[[Program], Iterator[Program]]
FAMILIES = ("collective", "slice", "type", "sharding", "value", "update")
FLOATS = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True)
class Kind:
    name: str
    family: str
    mutate: Mutate
    public: str = ""
    """Who had this bug in public."""


KINDS: dict[str, Kind] = {}


def kind(family: str, public: str = "") -> Callable[[Mutate], Mutate]:
    assert family in FAMILIES, family

    def add(mutate: Mutate) -> Mutate:
        name = mutate.__name__.replace("_", " ")
        KINDS[name] = Kind(name, family, mutate, public)
        return mutate

    return add


def after(program: Program, value: int, write: Callable[[Program, int], tuple[Program, list[Instr], int]]) -> Program:
    """Instructions after the maker of a value; later readers read what they make of it."""
    n = next((n for n, instr in enumerate(program.instrs) if value in instr.results), -1)
    grown, instrs, new = write(program, value)
    grown = renamed(grown, {value: new}, after=n)
    at = n + 1
    return replace(grown, instrs=(*grown.instrs[:at], *instrs, *grown.instrs[at:]))


def before_reader(
    program: Program, n: int, value: int, write: Callable[[Program, int], tuple[Program, list[Instr], int]]
) -> Program:
    """Instructions before one reader, which alone reads what they make."""
    grown, instrs, new = write(program, value)
    reader = grown.instrs[n]
    operands = tuple(
        tuple(new if v == value else v for v in o) if isinstance(o, tuple) else new if o == value else o
        for o in reader.operands
    )
    return with_instr(grown, n, *instrs, replace(reader, operands=operands))


def fresh(program: Program, like: Local, name: str, **changes: Any) -> tuple[Program, int]:
    """A new value with a name of its own and no note."""
    return with_value(program, like, f"{name}.{len(program.values)}", **{"origin": None, **changes})


def made(program: Program) -> list[int]:
    return [value for instr in program.instrs for value in instr.results]


def floats(program: Program) -> list[Local]:
    """Floating-point values that an instruction makes."""
    return [program.values[v] for v in made(program) if program.values[v].type.dtype in FLOATS]


def is_torch(program: Program) -> bool:
    return any(instr.op.startswith("aten.") for instr in program.instrs)


def cast_to(
    program: Program, value: int, dtype: str, name: str = "cast", into: int | None = None
) -> tuple[Program, Instr, int]:
    """A value in another element type, as a new value or ``into`` one that is there."""
    if into is None:
        local = program.values[value]
        program, into = fresh(program, local, name, type=replace(local.type, dtype=dtype))
    attrs: dict[str, Any] = {"dtype": dtype}
    if is_torch(program):
        attrs |= {"layout": None, "device": None, "pin_memory": None, "non_blocking": False, "memory_format": None}
    op = "aten._to_copy" if is_torch(program) else "cast"
    return program, Instr(op, (value,), (into,), tuple(sorted(attrs.items()))), into


def scaled(program: Program, value: int, by: float) -> tuple[Program, list[Instr], int]:
    """A value times a number."""
    local = program.values[value]
    if is_torch(program):
        grown, new = fresh(program, local, "scaled")
        return grown, [Instr("aten.mul.Tensor", (value, None), (new,), (("other", by),))], new
    whole = ShardingSpec.replicate(program.mesh, 0)
    grown, number = fresh(program, local, "number", type=replace(local.type, shape=()), spec=whole)
    grown, new = fresh(grown, local, "scaled")
    return grown, [
        Instr("full", (), (number,), (("value", by),)),
        Instr("multiply", (value, number), (new,)),
    ], new  # fmt: skip


def specced(spec: ShardingSpec, d: int, axes: Axes) -> ShardingSpec:
    """The same with other axes on one dim."""
    dims = (*spec.dims[:d], DimSpec(axes), *spec.dims[d + 1 :])
    return ShardingSpec.make(spec.mesh, dims, spec.partial)


def without_notes(program: Program) -> Program:
    """Nothing says which value of the Graph a value is."""
    return replace(
        program,
        values=tuple(replace(local, origin=None) for local in program.values),
        instrs=tuple(replace(instr, node=None) for instr in program.instrs),
    )


def with_other_notes(program: Program, rng: random.Random) -> Program:
    """Notes of values of one type exchanged at random: they are hints, and prove nothing."""
    values = list(program.values)
    by_type: dict[Any, list[int]] = {}
    for value in made(program):
        if rng.random() < 0.3:
            by_type.setdefault(values[value].type, []).append(value)
    for group in by_type.values():
        origins = [values[value].origin for value in group]
        rng.shuffle(origins)
        for value, origin in zip(group, origins):
            values[value] = replace(values[value], origin=origin)
    return replace(program, values=tuple(values))
