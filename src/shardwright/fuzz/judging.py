"""One program under one request, held against itself on one device and against what its plan said."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import numpy as np

from ..api import Plan, load_plan, plan, shard_map
from ..errors import PlanInfeasible, ShardwrightError
from ..ir.digest import program_digest
from ..ir.graph import Graph
from ..plans.requests import cap_gather, forbid
from .programs import FuzzProgram

BY_HAND, AUTOMATIC, SIMPLE, PLANNED = "by hand", "automatic", "simple", "planned"
WAYS = (BY_HAND, AUTOMATIC, SIMPLE, PLANNED)
ROUNDINGS = 64
"""Roundings of the largest number in the program by which two right answers may differ, for each of its calls."""
LIMITED_SECONDS = 4.0
"""For a plan within a limit of memory, and for saying why there is none."""
SENSITIVE = 64
"""How many times as far apart as the program is from itself on inputs that differ by a rounding."""


@dataclass(frozen=True, slots=True)
class Request:
    """How a program is split: the mesh, shardings by hand, who decides the rest, limits."""

    mesh: str
    way: str = BY_HAND
    in_specs: tuple[str | None, ...] = ()
    out_specs: tuple[str | None, ...] = ()
    hardware: str = "virtual"
    memory: float | None = None
    """A part of what the plan without a limit needs."""
    uneven: bool = False
    asked: tuple[tuple[str, str | int, str], ...] = ()
    """Of a plan: ``forbid``, a pattern and an axis; ``cap_gather``, bytes and nothing."""
    reload: bool = False
    """Whether the plan goes through its file."""
    printed: bool = False
    """Whether it is printed in every form."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program and how it is split."""

    program: FuzzProgram
    request: Request

    def only(self, kept: Sequence[int]) -> Case:
        """With these values of the program alone."""
        specs = tuple(spec for i, spec in enumerate(self.request.in_specs) if i in kept)
        return Case(self.program.only(kept), replace(self.request, in_specs=specs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case: ``ok``, ``refused`` (no plan within the limit), or what is wrong."""

    kind: str
    told: str = ""
    sensitive: bool = False
    """Whether numbers differed by more than roundings, but as the program does on inputs that are a rounding off."""

    @property
    def wrong(self) -> bool:
        return self.kind not in ("ok", "refused", "unfit")


def judge(case: Case) -> Verdict:
    """Plan, prove, run, compare."""
    program = case.program
    if not program.inputs:
        return Verdict("unfit", "nothing to split")
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = program(*program.arguments())
    except Exception as error:  # the program itself is none: what a shrink makes may be such a one
        return Verdict("unfit", _short(error))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return _judged(case, expected)
    except PlanInfeasible as error:
        limited = case.request.memory is not None or case.request.asked
        return Verdict("refused" if limited else "PlanInfeasible", str(error))
    except ShardwrightError as error:
        return Verdict(type(error).__name__, str(error))
    except Exception as error:
        return Verdict(f"raw {type(error).__name__}", _short(error))


def split(case: Case) -> Plan:
    """The plan of a case."""
    program, request = case.program, case.request
    args = program.arguments()
    specs: dict[str, Any] = {"in_specs": request.in_specs or None, "out_specs": list(request.out_specs) or None}
    if request.way != PLANNED:
        solver = "simple" if request.way == SIMPLE else "auto"
        mapped = shard_map(program, request.mesh, auto_sharding=request.way != BY_HAND, solver=solver,
                           hardware=request.hardware, **specs)  # fmt: skip
        return mapped.plan(*args)

    def planned(memory: int | None) -> Plan:
        asked = [_request(*said) for said in request.asked]
        return plan(program, *args, mesh=request.mesh, hardware=request.hardware, memory=memory, uneven=request.uneven,
                    constraints=asked, time_limit=None if memory is None else LIMITED_SECONDS, **specs)  # fmt: skip

    if request.memory is None:
        return planned(None)
    return planned(limit_of(case, planned(None).memory))


def limit_of(case: Case, free: int) -> int:
    """The limit of memory in bytes, where a plan without one needs ``free``."""
    return max(1, int((case.request.memory or 1.0) * free))


def _request(kind: str, what: str | int, axis: str) -> Any:
    return forbid(str(what), axis) if kind == "forbid" else cap_gather(what)


def _judged(case: Case, expected: list[Any]) -> Verdict:
    program, request = case.program, case.request
    made = split(case)
    args = program.arguments()
    if request.reload:
        saved, made = made, load_plan(made.to_json(), program, *args, hardware=request.hardware)
        if _said(saved) != _said(made) or saved.diff(made):
            return Verdict("file", f"the plan that was saved says {_said(saved)}, the one that was read {_said(made)}")
    if request.printed:
        _print(made)
    if Graph.parse(str(made.graph)) != made.graph:
        return Verdict("text", "the graph does not read back as it is printed")
    found = made(*args)
    sensitive, wrong = compare(program, found, expected)
    if wrong:
        return Verdict("numbers", wrong)
    return replace(_predictions(case, made), sensitive=sensitive)


def _predictions(case: Case, made: Plan) -> Verdict:
    """What was executed beside what the plan said."""
    done = made.executed
    assert done is not None
    if done.collectives != made.collectives:
        return Verdict("collectives", f"executed {done.collectives}, said {made.collectives}")
    if done.peak_bytes != made.memory:
        return Verdict("peak", f"{done.peak_bytes} B were held, {made.memory} said")
    if case.request.memory is not None and case.request.way == PLANNED:
        limit = made.planner.asked.memory
        if limit is not None and made.memory > limit:
            return Verdict("limit", f"{made.memory} B, limit {limit}")
    for kind, what, axis in case.request.asked:
        if not _keeps(made, kind, what, axis):
            return Verdict("asked", f"{kind}({what}, {axis}) is not kept by {made.program}")
    if made.lower_bound > made.cost.objective:
        return Verdict("bound", f"the bound {made.lower_bound} is above the cost {made.cost.objective}")
    return Verdict("ok")


def _said(made: Plan) -> tuple[Any, ...]:
    """What a plan says that is to be the same once it was saved and read."""
    digest = program_digest(made.program)
    return (made.specs, made.cost, made.memory, made.lower_bound, made.solver, made.collectives, digest)


def _print(made: Plan) -> None:
    """Every form in which users see a plan, but for the page."""
    made.text(all=True)
    made.trace()
    made.trace_events()
    made.explain(made.graph.values[0].name)


def _keeps(made: Plan, kind: str, what: str | int, axis: str) -> bool:
    """Whether the Program keeps what was asked, read off it in another way than planning does."""
    program, names = made.program, made.graph.values
    if kind == "cap_gather":
        gathered = [program.values[i.results[0]] for i in program.instrs if i.op == "all_gather"]
        return all(local.padded_bytes <= int(what) for local in gathered)
    copies = [x for x in program.values if x.origin is not None and fnmatchcase(names[x.origin].name, str(what))]
    return not any(part.name == axis for x in copies for dim in x.spec.dims for part in dim.axes)


def compare(program: FuzzProgram, found: Sequence[Any], expected: Sequence[Any]) -> tuple[bool, str]:
    """Whether numbers differ as much as on inputs a rounding off, and how they differ otherwise."""
    arrays = [(_array(a), _array(b)) for a, b in zip(found, expected, strict=True)]
    for i, (a, b) in enumerate(arrays):
        told = [(_dtype(x), tuple(np.shape(y))) for x, y in ((found[i], a), (expected[i], b))]
        if told[0] != told[1]:
            return False, f"output {i} is {told[0]}, on one device {told[1]}"
    bound = tolerance(program)
    far = [i for i, (a, b) in enumerate(arrays) if not _near(a, b, bound)]
    if not far:
        return False, ""
    spread = [_spread(program, expected, i) for i in far]
    for i, wide in zip(far, spread):
        if not _near(*arrays[i], SENSITIVE * wide + bound):
            a, b = arrays[i]
            apart = np.nanmax(np.abs(_wide(a) - _wide(b))) if a.size else 0
            return False, f"output {i} is off by {apart:.3g}, allowed {bound:.3g}: {_few(a)}, on one device {_few(b)}"
    return True, ""


def tolerance(program: FuzzProgram) -> float:
    """By how much right answers may differ: roundings of the largest number met, of the least exact type."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        values = program.values(program.arguments())
        values += program(*program.arguments())
    eps, largest = float(np.finfo(np.float64).eps), 1.0
    for value in values:
        for part in value if isinstance(value, tuple | list) else (value,):
            eps = max(eps, _eps(part))
            array = _array(part)
            if array.dtype.kind in "fc" and array.size:
                finite = np.abs(array[np.isfinite(array)])
                largest = max(largest, float(finite.max()) if finite.size else 0.0)
    return float(ROUNDINGS * eps * largest * max(1, len(program.calls)))


def _spread(program: FuzzProgram, expected: Sequence[Any], output: int) -> float:
    """How far the output moves when the inputs do by a rounding."""
    widest = 0.0
    for seed in range(3):
        random = np.random.default_rng(seed)
        args = [_nudged(argument, random) for argument in program.arguments()]
        try:
            moved, still = (_wide(_array(made[output])) for made in (program(*args), expected))
        except Exception:
            continue
        apart = np.abs(moved - still)
        apart = apart[np.isfinite(apart)]
        widest = max(widest, float(apart.max()) if apart.size else 0.0)
    return widest


def _nudged(argument: Any, random: np.random.Generator) -> Any:
    eps = _eps(argument)
    if not eps:
        return argument
    factor = 1 + eps * random.integers(-1, 2, tuple(argument.shape)).astype(np.float64)
    if isinstance(argument, np.ndarray):
        return (argument * factor).astype(argument.dtype)
    return (argument.double() * import_module("torch").asarray(factor)).to(argument.dtype)


def _near(a: Any, b: Any, bound: float) -> bool:
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(_wide(a), _wide(b), rtol=0, atol=bound, equal_nan=True))


def _wide(array: Any) -> Any:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _array(value: Any) -> Any:
    """As an array of NumPy; what NumPy has no type for, in a wider one."""
    if isinstance(value, np.ndarray | np.generic | int | float | bool | complex):
        return np.asarray(value)
    value = value.detach()
    return (value.double() if value.dtype.is_floating_point else value).numpy()


def _dtype(value: Any) -> str:
    return str(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)


def _eps(value: Any) -> float:
    """The rounding of a value's type; 0 for whole numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return float(np.finfo(value.dtype).eps) if value.dtype.kind in "fc" else 0.0
    dtype = getattr(value, "dtype", None)
    return float(import_module("torch").finfo(dtype).eps) if getattr(dtype, "is_floating_point", False) else 0.0


def _few(array: Any) -> str:
    return f"{np.array2string(array.reshape(-1)[:6], precision=5)} of {array.shape}"


def _short(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:400]} ({last.filename.rpartition('/')[2]}:{last.lineno})"
