"""`shard_map`: an ordinary function, split over a mesh; `shard_step`: a training step with its state in shards.

A function is captured for the shapes it is called with, planned, lowered and compiled, once for each signature;
arguments and results are plain arrays: scattering and assembling happens on the host and is no collective.  What the
user's shardings leave open is spread by propagation, or chosen by the planner with ``auto_sharding``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..frontends.base import capture_source, frontend_for
from ..ir.graph import Graph
from ..ir.program import Program
from ..plans.plan import read_plan
from ..plans.requests import requests_of
from ..run.engine import Executed
from ..run.runner import Step
from ..solve.planner import check_recipe, check_solver
from .arguments import call_of, check_path, check_time_limit, mesh_of
from .artefact import Plan
from .debugging import show_decisions
from .planning import Learning, bind_plan, decided, limit_requests, planner_of
from .proven import check_verify
from .specs import tree_requests


class ShardMapped:
    """What `shard_map` returns: call it, or look at what it became."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Any,
        in_specs: Any,
        out_specs: Any,
        auto_sharding: bool,
        debug: bool,
        specs: Mapping[str, Any] | None,
        engine: Any,
        solver: str,
        hardware: Any,
        time_limit: float | None,
        learning: Learning,
        verify: str,
    ) -> None:
        self.fn, self.mesh = fn, mesh_of(mesh)
        self._given = mesh  # a mesh of PyTorch brings its process groups
        self.in_specs, self.out_specs, self.specs = in_specs, out_specs, specs
        self.auto_sharding, self.debug, self.engine = auto_sharding, debug, engine
        self.solver, self.hardware, self.time_limit, self.learning = solver, hardware, time_limit, learning
        self.verify = verify
        self.executed: Executed | None = None
        """What the last call did: collectives, peak of live bytes."""
        self._plans: dict[Any, tuple[Hashable, Plan]] = {}
        self.__name__ = getattr(fn, "__name__", "fn")
        self.__doc__ = fn.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan = self.plan(*args, **kwargs)
        result = plan(*args, **kwargs)
        self.executed = plan.executed
        return result

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, made now or before."""
        key = frontend_for(self.fn, args, kwargs).FRAMEWORK.signature(args, kwargs)
        known = self._plans.get(key)
        if known is None or known[0] != known[1].source.fingerprint():  # such as a module that was in training mode
            plan = self._planned(args, kwargs)
            known = self._plans[key] = plan.source.fingerprint(), plan
        return known[1]

    def _planned(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Plan:
        call_of(self.fn, args, kwargs, {}, shard_map, "shard_map")
        source = capture_source(self.fn, args, kwargs)
        if self.debug:
            print(f"[shard_map] captured {source.graph.name}: {len(source.graph.nodes)} nodes")
        requests = [
            *tree_requests(source, self.fn, args, kwargs, self.in_specs, self.out_specs),
            *requests_of(self.specs),
        ]
        planner = planner_of(source, self.mesh, requests, self.hardware, self.learning, stays=True)
        if not self.auto_sharding:
            data = planner.by_specs()
        elif self.solver == "simple":
            data = planner.best(self.solver, self.time_limit, self.debug)
        else:
            data = decided(planner, source, self.solver, self.time_limit)
            if self.debug:
                show_decisions(planner, data, print)
        plan = Plan(data, source, planner, self._given, self.engine, self.verify)
        if self.debug:
            print(plan.program)
        return plan

    # -- to look at -------------------------------------------------------------------------------------

    def program(self, *args: Any, **kwargs: Any) -> Program:
        return self.plan(*args, **kwargs).program

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        return self.plan(*args, **kwargs).complete.graph


def shard_map(
    fn: Callable[..., Any],
    mesh: Any,
    in_specs: Any = None,
    out_specs: Any = None,
    auto_sharding: bool = False,
    debug: bool = False,
    *,
    specs: Mapping[str, Any] | None = None,
    engine: Any = None,
    solver: str = "auto",
    hardware: Any = "virtual",
    time_limit: float | None = None,
    learn: bool = False,
    rule_book: str | Path | None = None,
    verify: str = "on",
) -> ShardMapped:
    """Split a function of NumPy arrays or PyTorch tensors over a mesh, or a PyTorch module.

    ``in_specs`` mirrors the arguments (one spec may stand for a whole subtree; None leaves it to propagation),
    ``out_specs`` the results.  An output without one keeps the sharding it has.  ``auto_sharding`` lets the planner of
    `plan` decide where nothing is said, for this ``hardware``; ``debug`` prints how.  ``solver`` (``"simple"`` is the
    one of four phases), ``time_limit``, ``learn`` and ``rule_book`` are those of `plan`.  ``specs`` gives shardings by
    names or patterns of inputs (``{"*.q_proj.weight": P("tp", None)}``), and ``engine`` says where it runs:
    ``"virtual"`` in this process, ``"torch"`` on those that ``torchrun`` started (what it does by itself where there
    are several).  Before it first runs, what it became is proven equal to the function, unless ``verify="off"``.

    >>> import numpy as np
    >>> from shardwright import P
    >>> f = shard_map(lambda x, w: x @ w, "dp=2, tp=2", in_specs=(P("dp", "tp"), P("tp", None)))
    >>> x, w = np.ones((4, 8)), np.ones((8, 2))
    >>> float(f(x, w).sum()), f.program(x, w).collectives
    (64.0, [Collective(kind='all_reduce', axis='tp', bytes=32)])
    """
    check_time_limit(time_limit)
    check_solver(solver)
    check_path(rule_book, "rule_book")
    check_verify(verify)
    learning = Learning(learn, rule_book)
    return ShardMapped(
        fn, mesh, in_specs, out_specs, auto_sharding, debug, specs, engine, solver, hardware, time_limit, learning,
        verify,
    )  # fmt: skip


def shard_step(
    model: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any = None,
    plan: Plan | None = None,
    kwargs: Mapping[str, Any] | None = None,
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    specs: Mapping[str, Any] | None = None,
    in_specs: Sequence[Any] | Mapping[str, Any] | None = None,
    recipe: str | None = None,
    constraints: Any = None,
    memory: int | str | None = None,
    hardware: Any = "h100",
    solver: str = "auto",
    time_limit: float | None = None,
    engine: Any = None,
    verify: str | None = None,
    **named: Any,
) -> Step:
    """Forward, backward and the optimizer's step, captured and split over a mesh, with state kept in shards.

    ``plan`` is what `plan` or `load_plan` returned for the same program: it is what trains.  Else ``specs`` gives
    shardings by the names of inputs (arguments, parameters, buffers, optimizer state) or by patterns of them, and what
    is not named follows by propagation; ``recipe`` takes a named baseline; and where neither is given the planner
    decides, with ``constraints``, ``memory``, ``hardware``, ``solver`` and ``time_limit`` as for `plan`.
    ``verify`` is that of `plan`, or the plan's own.
    """
    check_solver(solver)
    check_time_limit(time_limit)
    if recipe is not None:
        check_recipe(recipe)
    proof = verify if verify is not None else plan.verified if isinstance(plan, Plan) else "on"
    if plan is not None:
        mixed = {
            "mesh": mesh, "specs": specs, "in_specs": in_specs, "recipe": recipe, "constraints": constraints,
            "memory": memory,
        }  # fmt: skip
        said = [name for name, value in mixed.items() if value is not None]
        if said:
            raise SpecError(f"{said[0]}= beside plan=, which has decided that", help=f"leave {said[0]}= or plan= out")
        if not isinstance(plan, Plan):
            raise SpecError(
                f"plan= takes a plan, not {plan!r}", help="read a file with sw.load_plan, and give what it returns"
            )
        if not args and not kwargs and not named:
            if not plan.source.is_of(model, optimizer):
                raise SpecError(
                    "the plan was made for another model or optimizer object",
                    help="give the batch, too, shard_step(model, *batch, plan=plan, ...): the model is then captured",
                )
            return Plan(plan.data, plan.source, plan.planner, None, engine, proof).step()
    elif mesh is None:
        raise SpecError("shard_step needs a mesh, or a plan that has one", help='write mesh="dp=2, tp=4"')
    by_hand = specs is not None or in_specs is not None
    if by_hand and (recipe is not None or constraints is not None or memory is not None):
        other = "recipe" if recipe is not None else "constraints" if constraints is not None else "memory"
        raise SpecError(
            f"{other}= is for the planner, but shardings are given by hand",
            help="say them as constraints=, which the planner keeps, or leave the other out",
        )
    call = call_of(model, args, kwargs, named, shard_step, "shard_step")
    source = capture_source(model, args, call, optimizer=optimizer, loss=loss, training=True)
    if plan is not None:
        same = bind_plan(read_plan(plan.to_json()), source, plan.hardware, Learning(), plan.data.claimed)
        return Plan(same.data, source, same.planner, None, engine, proof).step()
    requests = tree_requests(source, model, args, call, in_specs, None)
    requests += [*requests_of(specs), *requests_of(constraints)]
    planner = planner_of(
        source, mesh_of(mesh), [*requests, *limit_requests(memory, recipe=recipe)], hardware, Learning()
    )
    data = planner.by_specs() if by_hand else decided(planner, source, solver, time_limit)
    return Plan(data, source, planner, mesh, engine, proof).step()
