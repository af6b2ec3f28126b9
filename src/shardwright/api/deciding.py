"""What is decided for a captured program: the planner with all that was asked, its best plan, or a plan's record bound
to the program.  Where this process is one of several, rank 0 decides and the others bind its plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from ..cost.hardware import hardware_of
from ..discover.on_demand.learn import learn_ops
from ..discover.on_demand.rule_trial import trusted_rules
from ..errors import GraphError, PlanInfeasible, RankError
from ..frontends.base import PARAMETER, Source
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph, Node
from ..plans import complete_of, read_plan
from ..plans.asked import Asked
from ..plans.plan import Plan as Data
from ..plans.plan import Rewrite
from ..plans.requests import Request, amount, read_requests
from ..propagation import rule_of
from ..propagation.check import check_complete
from ..run.engine import share_between_processes
from ..solve.names import check_recipe
from ..solve.planner import CONSTRAINTS, Planner
from ..solve.recipes.parts import Known
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from .fitting import Smaller, fitting
from .infeasible import diagnosed


@dataclass(frozen=True)
class Learning:
    """Whether ops without a rule are studied, and the user's book of what was found."""

    learn: bool = False
    rule_book: str | Path | None = None

    def run(self, graph: Graph) -> tuple[str, ...]:
        """Look at the ops of a program; notes about what was found.

        Rules that did not come with the project, learned ones among them, are tried: a false one is refused.
        """
        notes: tuple[str, ...] = ()
        if self.learn or self.rule_book is not None:
            notes = learn_ops(graph, self.rule_book, self.learn)
        trusted_rules(graph)
        return notes


def limit_requests(memory: int | str | None, uneven: bool = False, recipe: str | None = None) -> list[Request]:
    """What limits the choice, beside shardings."""
    found = [] if memory is None else [Request("memory", amount(memory, "memory"))]
    found += [Request("uneven", "yes")] if uneven else []
    return [*found, *([] if recipe is None else [Request("recipe", recipe)])]


def planner_of(
    source: Source,
    mesh: DeviceMesh,
    requests: Iterable[Request],
    hardware: Any,
    learning: Learning,
    stays: bool = False,
    notes: tuple[str, ...] = (),
) -> Planner:
    """A captured program on a mesh, with what was asked of it."""
    about = hardware_of(hardware).on(mesh)
    asked = Asked.of(source.graph, mesh, requests, stays)
    if not source.graph.outputs:
        notes = (*notes, f"{source.graph.name} returns no array and changes none, so nothing is computed")
    return Planner(source.graph, mesh, about, asked, (*notes, *learning.run(source.graph)), known=_known(source))


def _known(source: Source) -> Known | None:
    """What recipes need to know of inputs; nothing of a function whose arguments may as well be its weights."""
    parameters = frozenset(about.name for about in source.inputs_are if about.role == PARAMETER)
    batch = {about.name: about.batch_dim for about in source.inputs_are if about.batch_dim is not None}
    return Known(batch, parameters) if parameters and batch else None


def decided(
    planner: Planner, source: Source, solver: str, time_limit: float | None, smaller: Smaller | None = None
) -> Data:
    """The best plan; of several processes rank 0's, which the others bind to what they captured.

    ``smaller`` captures the same training step for a part of the batch: what is tried where the whole does not fit.
    """

    def make() -> Data:
        end = monotonic() + (inf if time_limit is None else time_limit)
        try:
            return planner.best(solver, time_limit)
        except PlanInfeasible as error:
            told = diagnosed(planner, error, solver, end - monotonic())
            if isinstance(told, Data):
                return told
            ways = fitting(planner, solver, end - monotonic(), smaller)
            told.help = "\n".join([*([told.help] if told.help else []), *ways]) or None
            raise told from None

    mine: list[Data] = []

    def text() -> str:
        mine.append(make())
        return mine[0].to_json()

    shared = share_between_processes(text, planner.mesh, source.framework.processes, "planning")
    if shared is None:
        return make()
    if mine:
        return mine[0]
    record = read_plan(shared)
    if record["asked"] != planner.requested.to_json():
        here, there = (", ".join(map(str, read_requests(said))) or "nothing" for said in (
            planner.requested.to_json(), record["asked"]
        ))  # fmt: skip
        raise RankError("this rank asks for another plan than rank 0", rows=[("here", here), ("rank 0", there)],
                        help="every rank has to ask for the same")  # fmt: skip
    return bound(record, planner, "rank 0 planned")


def bound(record: Mapping[str, Any], planner: Planner, whose: str) -> Data:
    """A plan's record bound to a program: its decisions held against rules and requests, its cost and memory computed
    from the Program."""
    if planner.source_hash != record["source"]:
        raise GraphError(
            f"{whose} for another program",
            rows=[("plan", f"{record['name']} {record['source'][:12]}"), ("program", planner.source_hash[:12])],
            help="plan this program anew",
        )
    rewrites = tuple(Rewrite(entry["name"], entry["arguments"]) for entry in record["rewrites"])
    if rewrites != planner.rewrites:
        planner = replace(planner, passes=rewrites)  # those of the version that made it
    if any(rewrite.name == CONSTRAINTS for rewrite in rewrites) != any(
        n.op == CONSTRAINT for n in planner.source.nodes
    ):
        raise GraphError(f"{whose} for a graph that was rewritten otherwise", help="plan this program anew")
    asked = planner.asked
    if asked.recipe is not None:
        check_recipe(asked.recipe)
        if record["solver"] != asked.recipe:
            fact = f"the plan was asked for by the recipe {asked.recipe!r}, and says that {record['solver']!r} made it"
            raise GraphError(fact, help="plan this program anew")
    complete = complete_of(record, asked.graph, planner.mesh, _rule_of)
    check_complete(complete, {**asked.pins, **asked.given}, {**asked.outs, **asked.out_specs})
    plan = planner.priced(complete, record["solver"], 0, record["timed_out"])
    claim = record["lower_bound"]
    plan = replace(plan, lower_bound=claim if claim <= plan.cost.objective else 0)
    lost = planner.broken(plan)
    if lost:
        rows = [("user", str(request)) for request in lost]
        raise GraphError("the plan does not keep what was asked of it", rows=rows, help="plan this program anew")
    return plan


def _rule_of(graph: Graph, node: Node) -> OpShardingRule | None:
    view = rule_of(graph, node)
    return None if view is None else view.rule
