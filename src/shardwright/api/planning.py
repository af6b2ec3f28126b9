"""`plan`: the plan with the least predicted step time, with its bound; `compare`: plans and recipes in one table.

A program is captured, the planner decides, the decisions are lowered, and what is reported is read off the lowered
Program.  Where this process is one of several, rank 0 plans and the others get its plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cost.files import preset_names
from ..cost.hardware import hardware_of
from ..cost.machine import Hardware
from ..cost.program import ProgramCost
from ..errors import GraphError, ShardwrightError, SpecError, front
from ..frontends.base import Source, capture_source
from ..frontends.failing import constants_told
from ..ir.digest import program_hash
from ..plans import PlanCost, duration, gibibytes, read_plan, table
from ..plans.asked import Asked
from ..plans.requests import read_requests, requests_of
from ..solve.names import check_recipe, check_solver
from ..solve.planner import Planner
from ..solve.recipes import RECIPES
from ..spec.mesh import DeviceMesh
from .arguments import call_of, check_loss, check_path, check_time_limit, mesh_of, step_form
from .artefact import Plan
from .beside import priced_recipes
from .deciding import Learning, bound, decided, limit_requests, planner_of
from .foreign import foreign_view
from .proven import check_verify
from .specs import tree_requests
from .training.batches import one_batch, smaller_batches


@front
def plan(
    fn: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any,
    kwargs: Mapping[str, Any] | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    constraints: Any = None,
    memory: int | str | None = None,
    hardware: Any = "h100",
    solver: str = "auto",
    recipe: str | None = None,
    time_limit: float | None = None,
    optimizer: Any = None,
    loss: Any = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    autocast: Any = None,
    reduce_dtype: Any = None,
    on_nonfinite: str | None = None,
    learn: bool = False,
    rule_book: str | Path | None = None,
    uneven: bool = False,
    verify: str = "on",
    **named: Any,
) -> Plan:
    """The plan with the least predicted step time that fits in memory.

    ``fn`` is a function of NumPy arrays or PyTorch tensors, or a PyTorch module; with ``optimizer`` or ``loss`` it is
    a training step, and ``clip_grad_norm`` to ``on_nonfinite`` are those of `shardwright.torch.train_step`.  Its
    keyword arguments are ``kwargs``, or plain keywords that its signature names.  ``constraints`` is a mapping of names
    or patterns to shardings, `pin`, `forbid` and `cap_gather`, or a list of these; ``memory`` limits bytes per device;
    ``solver`` is ``"auto"``, ``"elimination"``, ``"ilp"``, ``"search"``, ``"messages"`` or
    ``"simple"``; ``recipe`` forces a named baseline.  With ``learn`` ops that the rule book does not know are studied
    by execution, and what is found is used and kept in the file ``rule_book``, if one is named.  With ``uneven`` dims
    may be split that do not divide; shards then count as large as the largest.  Before it first runs, a plan's Program
    is proven equal to what was captured, unless ``verify="off"``.

    >>> import numpy as np
    >>> from shardwright import ShapeDtype
    >>> x, w = ShapeDtype((4096, 1024), np.float32), ShapeDtype((1024, 1024), np.float32)
    >>> best = plan(lambda x, w: x @ w, x, w, mesh="d=8")
    >>> best.specs["x"], best.gap, best.collectives
    ('[d, _]', 0.0, [])
    """
    check_solver(solver)
    check_time_limit(time_limit)
    check_loss(loss)
    check_path(rule_book, "rule_book")
    check_verify(verify)
    if recipe is not None:
        check_recipe(recipe)
    call = call_of(fn, args, kwargs, named, plan, "plan")
    on = mesh_of(mesh)
    limits = limit_requests(memory, uneven, recipe)
    form = step_form(clip_grad_norm, accumulate, autocast, reduce_dtype, on_nonfinite)
    args, call = one_batch(fn, (args, call), form)
    source = capture_source(fn, args, call, optimizer=optimizer, loss=loss, form=form)
    requests = [*tree_requests(source, fn, args, call, in_specs, out_specs), *requests_of(constraints), *limits]
    told = constants_told(args, call)
    planner = planner_of(source, on, requests, hardware, Learning(learn, rule_book), notes=told)
    smaller = smaller_batches(fn, (args, call), form, optimizer, loss)
    return Plan(decided(planner, source, solver, time_limit, smaller), source, planner, mesh, verify=verify)


@front
def compare(
    fn: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any,
    plans: Plan | Sequence[Plan] | Mapping[str, Plan] = (),
    foreign: Mapping[str, Callable[..., Any]] | None = None,
    **about: Any,
) -> str:
    """The planner's plan, recipes and given plans in one table, fastest first; ``about`` is what `plan` takes.

    Plans that are given in a dict are called by its keys.

    Steps are those of simulated schedules: compute, and communication that it waits for.

    ``foreign`` are parallel programs of your own, by name: functions of a torch mesh, as `shardwright.torch.prove`
    takes them, which are run on the same arguments.
    """
    if not isinstance(plans, Mapping):
        listed = [plans] if isinstance(plans, Plan) or not isinstance(plans, Iterable) else plans
        plans = {f"given {i}": other for i, other in enumerate(listed)}
    for other in plans.values():
        if not isinstance(other, Plan):
            raise SpecError(
                f"plans= takes what sw.plan returned, not a {type(other).__name__}",
                help="read a file with sw.load_plan",
            )
    if "recipe" in about:
        raise SpecError("compare shows all recipes, so recipe= says nothing", help="leave it out")
    if isinstance(fn, Plan):
        raise SpecError(
            "compare takes a program, and plans of it beside it",
            help="sw.compare(fn, *args, mesh=..., plans=[one, other]); one.diff(other) says in what they differ",
        )
    best = plan(fn, *args, mesh=mesh, **about)
    for other in plans.values():
        if other.data.source != best.data.source:
            raise SpecError(
                "a plan of another program stands among plans=",
                rows=[("plan", other.data.name), ("program", best.data.name)],
                help="plan this program for these arguments",
            )
    limit = best.planner.limit
    rows: list[tuple[int, list[str]]] = []

    def add(name: str, cost: PlanCost | ProgramCost, held: int, count: int) -> None:
        fits = "" if held <= limit else "does not fit"
        # Somebody else's program runs as it is written: nothing is known of its order.
        exposed = cost.exposed if isinstance(cost, PlanCost) else cost.objective - cost.compute
        times = (cost.objective, cost.compute, exposed)
        figures = [duration(time, beside=best.cost.objective) for time in times]
        rows.append((cost.objective, [name, *figures, gibibytes(held), str(count), fits]))

    add(f"plan ({best.solver})", best.cost, best.memory, len(best.collectives))
    for name, other in plans.items():
        add(f"{name}: {other.solver}", other.cost, other.memory, len(other.collectives))
    for name, data in priced_recipes(best.planner, RECIPES):
        if not isinstance(data, str) and data.program is not None:
            add(name, data.cost, data.memory, len(data.program.collectives))
    for name, parallel in (foreign or {}).items():
        found = foreign_view(
            parallel, args, about.get("kwargs") or {}, mesh_of(mesh), best.planner.hardware, about.get("loss")
        )
        label = name if found.alike else f"{name} (slowest rank)"
        add(label, found.cost, found.memory, found.collectives)
    head = ["plan", "step", "compute", "exposed", "memory", "collectives", ""]
    return table([head, *(row for _, row in sorted(rows, key=lambda pair: pair[0]))])


@front
def load_plan(
    text: str | os.PathLike[str],
    fn: Callable[..., Any],
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    hardware: Any = None,
    optimizer: Any = None,
    loss: Any = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    autocast: Any = None,
    reduce_dtype: Any = None,
    on_nonfinite: str | None = None,
    rule_book: str | Path | None = None,
    verify: str = "on",
    **named: Any,
) -> Plan:
    """A plan from its JSON (the text, or the path of a file), for this program; one for another program is refused.

    The program is captured and the hash of its graph compared; ``optimizer`` to ``on_nonfinite`` as for `plan`.
    ``hardware`` is what it was planned for; a preset is found by the plan's word.  A plan that splits ops by rules that
    were learned needs their ``rule_book``.  What the file says of a proof is not believed: the Program is proven before
    it runs.
    """
    check_verify(verify)
    try:
        record = read_plan(_text_of(text))
    except ShardwrightError as error:
        if str(text) and not _is_text(text):
            error.add("file", str(text)[:200])
        error.help = error.help or _READ
        raise
    check_path(rule_book, "rule_book")
    call = call_of(fn, args, kwargs, named, load_plan, "load_plan", DECIDED)
    about = _machine(record["hardware"]) if hardware is None else hardware_of(hardware)
    if about.name != record["hardware"]:
        raise GraphError(
            "the plan was made for another machine",
            rows=[("plan", record["hardware"]), ("hardware", about.name)],
            help="pass hardware= as it was planned for, or plan anew",
        )
    form = step_form(clip_grad_norm, accumulate, autocast, reduce_dtype, on_nonfinite)
    args, call = one_batch(fn, (args, call), form)
    source = capture_source(fn, args, call, optimizer=optimizer, loss=loss, form=form)
    return bind_plan(record, source, about, Learning(rule_book=rule_book), True, verify)


def bind_plan(
    record: Mapping[str, Any], source: Source, hardware: Any, learning: Learning, claimed: bool, verify: str = "on"
) -> Plan:
    """A plan's record with the program that it is for; its bound is ``claimed`` where it comes from a file."""
    mesh = DeviceMesh(record["meshes"][0])
    if program_hash(source.graph) != record["source"]:  # before names are looked for in another program
        bound(record, Planner(source.graph, mesh, hardware_of(hardware), Asked(source.graph)), "the plan is")
    planner = planner_of(source, mesh, read_requests(record["asked"]), hardware, learning)
    return Plan(replace(bound(record, planner, "the plan is"), claimed=claimed), source, planner, verify=verify)


def _is_text(text: Any) -> bool:
    """A plan's JSON, and not the name of a file."""
    return not isinstance(text, str | os.PathLike) or (isinstance(text, str) and text.lstrip().startswith(("{", "[")))


def _text_of(text: str | os.PathLike[str]) -> str:
    if not isinstance(text, str | os.PathLike):
        raise SpecError(f"load_plan takes a plan's JSON as text or a file, not a {type(text).__name__}", help=_READ)
    if isinstance(text, str) and text.lstrip().startswith(("{", "[")):
        return text
    if not str(text):
        raise GraphError("the text is empty, and no plan", help=_READ)
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise GraphError(f"no plan can be read from {str(text)[:80]!r}: {reason}", help=_READ) from None


DECIDED = ("mesh", "in_specs", "out_specs", "constraints", "memory", "solver", "recipe", "time_limit", "uneven")
"""Options of `plan` that a saved plan answers."""
_READ = 'give what to_json() returned, or the file that it was written to: load_plan("plan.json", fn, *args)'


def _machine(name: str) -> Hardware:
    """The preset of this name."""
    for preset in (*preset_names(), "virtual"):
        found = hardware_of(preset)
        if name in (found.name, found.as_compiled().name):
            return found if found.name == name else found.as_compiled()
    raise GraphError(f"the plan was made for {name!r}, which is no preset", help="pass hardware= as it was planned for")
