"""`shard_map`: an ordinary function, split over a mesh.

A function is captured for the shapes it is called with, planned, lowered and compiled, once for each signature;
arguments and results are plain arrays: scattering and assembling happens on the host and is no collective.  What the
user's shardings leave open is spread by propagation, or chosen by the planner with ``auto_sharding``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from ..errors import front
from ..frontends.base import capture_source, frontend_for
from ..frontends.failing import constants_told
from ..ir.graph import Graph
from ..ir.program import Program
from ..plans.requests import requests_of
from ..run.engine import Executed, check_engine
from ..solve.names import check_solver
from .arguments import call_of, check_function, check_path, check_time_limit, mesh_of
from .artefact import Plan
from .debugging import show_decisions
from .deciding import Learning, decided, planner_of
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
        told = constants_told(args, kwargs)
        planner = planner_of(source, self.mesh, requests, self.hardware, self.learning, stays=True, notes=told)
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


@front
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
    check_function(fn, "shard_map")
    check_time_limit(time_limit)
    check_solver(solver)
    check_engine(engine)
    check_path(rule_book, "rule_book")
    check_verify(verify)
    learning = Learning(learn, rule_book)
    return ShardMapped(
        fn, mesh, in_specs, out_specs, auto_sharding, debug, specs, engine, solver, hardware, time_limit, learning,
        verify,
    )  # fmt: skip
