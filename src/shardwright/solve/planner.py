"""`Planner`: one program on one mesh with what the user asked for; every way to a plan, lowered and priced.

| who decides | what is done |
|---|---|
| `Planner.best` | exact solvers of several sums, the fastest schedule of these and of the recipes (`scheduled`); or the simple solver by name |
| `Planner.by_recipe` | a named baseline |
| `Planner.by_specs` | what the user said is spread by propagation and completed by bytes |

What counts is read off the lowered Program: its schedule, its memory, and whether it keeps every request.  A machine
that does one thing after the other (`Hardware.overlaps`) has the sum of its ops and collectives as its time, and the
exact solver's bound is that of the step.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf
from time import monotonic

from ..cost import RESIDENT, Hardware, memory_profile, step_time
from ..cost.machine import RESERVED_PERCENT
from ..cost.program import instr_costs
from ..errors import BoundError, PlanInfeasible, ShardwrightError, SpecError, printable
from ..ir.core import CONSTRAINT
from ..ir.digest import program_hash
from ..ir.graph import Graph
from ..ir.program import Program
from ..lower import attention_as_meant, lower, ordered, without_repeats
from ..optimize.compact import OutOfTime
from ..plans.amounts import amount_text, duration
from ..plans.asked import Asked, broken
from ..plans.complete import Complete
from ..plans.plan import Plan, PlanCost, Rewrite
from ..plans.requests import Request, is_open
from ..propagation import apply_constraints, rule_of, run_hierarchical_propagation_pass
from ..propagation.complete import complete
from ..rules.registry import fuse_updates
from ..spec.axes import Axes
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .assignment import Assignment
from .bound import by_known_ways, is_foreseen
from .exact import Prepared, assigner_of, best_plan, held_by
from .model import Assigner
from .names import SIMPLE
from .recipes import DISTINCT
from .recipes.costs import recipe_complete, recipe_cost
from .recipes.parts import Known
from .repeated.depth import deep_time
from .scheduled import Scheduled
from .simple.solver import SimpleSolver

SPECS = "specs"
"""Whose decisions a plan by hand holds."""
DEFAULT_SECONDS = 120.0
"""Time for the solver where the user gives none: hard problems take any time for a proof."""
SEARCHING = 0.8
"""The part of the time for the search; the rest is for recipes, of which one may be faster than what was found."""
PRICED = 4_000
"""So many nodes are about lowered, ordered and simulated in a second: what is begun ends that much later."""
NOT_FOUND = "no plan was found that fits in memory"
BOUNDED = 400
"""The most nodes of a program for which a simple plan is given the planner's bound."""
UPDATES, ATTENTION, CONSTRAINTS = "updates", "attention", "constraints"
"""The passes over the graph: optimizer steps as single ops, attention as it was meant, and constraints inside the
program made ready."""
Say = Callable[[str], None]


def apply_rewrite(rewrite: Rewrite, asked: Asked) -> Asked:
    """Replay a pass over the graph; what was asked then speaks of the new graph."""
    if rewrite.name == UPDATES and not rewrite.arguments:
        found = fuse_updates(asked.graph, asked.spoken_of)
        return asked if found is None else asked.rewritten(found[0], {})
    if rewrite.name == ATTENTION and not rewrite.arguments:
        return asked.rewritten(attention_as_meant(asked.graph, asked.spoken_of), {})
    if rewrite.name == CONSTRAINTS and not rewrite.arguments:
        return asked.rewritten(*apply_constraints(asked.graph, asked.pins))
    raise SpecError(f"the plan's graph was rewritten by {rewrite.name!r}, which this version does not know")


def rewritten(asked: Asked) -> tuple[tuple[Rewrite, ...], Asked]:
    """The passes that a graph goes through before anything is decided, and what was asked, of the new graph."""
    found = []
    for name in (UPDATES, ATTENTION, CONSTRAINTS):
        if name == CONSTRAINTS and not any(node.op == CONSTRAINT for node in asked.graph.nodes):
            continue
        made = apply_rewrite(Rewrite(name), asked)
        if made.graph is not asked.graph or name == CONSTRAINTS:  # which may say more of the same graph
            found.append(Rewrite(name))
            asked = made
    return tuple(found), asked


@dataclass(frozen=True)
class Planner:
    """A graph as captured, a mesh and a machine, with every request of the user."""

    source: Graph
    mesh: DeviceMesh
    hardware: Hardware
    requested: Asked
    """Bound to the graph as captured."""
    notes: tuple[str, ...] = ()
    """For every plan of it."""
    passes: tuple[Rewrite, ...] | None = None
    """Over the graph, where a plan says which; else all that there are for it."""
    known: Known | None = None
    """Which inputs are batch and parameters, where the Source tells."""

    def keeping(self, requests: tuple[Request, ...]) -> Planner:
        """The same program with these requests only."""
        return replace(self, requested=self.requested.keeping(requests))

    # -- what was asked for -------------------------------------------------------------------------------

    @cached_property
    def _rewritten(self) -> tuple[tuple[Rewrite, ...], Asked]:
        if self.passes is None:
            return rewritten(self.requested)
        return self.passes, reduce(lambda asked, rewrite: apply_rewrite(rewrite, asked), self.passes, self.requested)

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        return self._rewritten[0]

    @property
    def asked(self) -> Asked:
        """Bound to the graph that is decided upon."""
        return self._rewritten[1]

    @property
    def graph(self) -> Graph:
        return self.asked.graph

    @cached_property
    def _judged(self) -> dict[int, tuple[Complete, Plan]]:
        """Plans that were scheduled, by the identity of their decisions, which are kept with them."""
        return {}

    @cached_property
    def source_hash(self) -> str:
        return program_hash(self.source)

    # -- the exact problem --------------------------------------------------------------------------------

    @cached_property
    def whole(self) -> Assigner:
        """The numeric problem, without a limit of memory."""
        return assigner_of(self.graph, self.mesh, self.hardware, self.asked)

    def assigned(
        self, fixed: Mapping[int, ShardingSpec], strict: bool, solver: str, time_limit: float | None
    ) -> Assignment:
        """The exact solver's answer; ``fixed`` shardings stand fast beside what was asked."""
        return self._exact(self.asked.also(fixed, strict).limited(self.limit), solver, time_limit)

    def _exact(self, asked: Asked, solver: str, time_limit: float | None) -> Assignment:
        """The exact solver's answer, without a bound where it does not hold for all plans."""
        until = inf if time_limit is None else monotonic() + time_limit
        prepared = Prepared(self.graph, self.mesh, self.hardware, asked, until)
        try:
            found = best_plan(
                self.graph, self.mesh, self.hardware, asked, solver=solver, time_limit=time_limit, prepared=prepared
            )
        except OutOfTime:
            raise self._not_found(True) from None
        return replace(found, lower_bound=0) if prepared.is_joined else found

    def _not_found(self, timed_out: bool) -> PlanInfeasible:
        error = PlanInfeasible(NOT_FOUND, help="there may be one: allow more time or memory")
        error.timed_out = timed_out
        return error

    def _cut_short(self, failed: PlanInfeasible, seconds: float) -> PlanInfeasible:
        """Why there is no plan, where time was up before all was looked at."""
        failed.help = "\n".join([*([failed.help] if failed.help else []), _time_was_up(seconds, "a plan may be found")])
        failed.timed_out = True
        return failed

    def _told(self, plan: Plan, seconds: float) -> Plan:
        """A plan that was cut short, and says so."""
        note = _time_was_up(seconds, "a faster plan or a better bound may be found")
        notes = tuple(dict.fromkeys([*plan.complete.notes, note]))
        assert plan.program is not None
        program, complete = replace(plan.program, notes=notes), replace(plan.complete, notes=notes)
        return replace(plan, complete=complete, program=program, timed_out=True)

    # -- plans ------------------------------------------------------------------------------------------------

    def priced(self, decided: Complete, solver: str, lower_bound: int = 0, timed_out: bool = False) -> Plan:
        """A plan of these decisions: lowered, scheduled and measured."""
        lowered, graph = lower(decided), decided.graph
        program = without_repeats(lowered, decided.kept, self.limit)
        if program is not lowered:
            lower_bound = 0  # it speaks of plans as they are lowered
        times = instr_costs(program, self.hardware, graph)
        program = replace(program, notes=_notes(decided, program, times, self.notes))
        program = ordered(program, self.hardware, graph, times, self.limit)
        found = step_time(program, self.hardware, graph, times)
        cost = PlanCost(found.compute, found.communication, found.hidden, found.exposed)
        peak = memory_profile(program, RESIDENT).peak
        decided = replace(decided, notes=program.notes)
        return self.bounded(Plan(
            self.source_hash, self.hardware.name, self.asked, decided, cost, peak,
            0, solver, timed_out, self.rewrites, None, program,
        ), lower_bound)  # fmt: skip

    def bounded(self, plan: Plan, bound: int) -> Plan:
        """A plan with a bound of all plans with even splits whose axes stand in the order of the mesh, or as asked, and
        whose ops leave values as asked and carry sums alone, with the communication that they are lowered to.

        Nothing is known of other plans, such as those of which a pass takes communication out, nor where a compiler
        makes one pass of several ops, which no sum over ops foresees.
        """
        if self.hardware.compiled or (bound > plan.cost.objective and not self._is_foreseen(plan)):
            return replace(plan, lower_bound=0)
        if bound > plan.cost.objective:
            raise BoundError(
                f"a plan takes {duration(plan.cost.objective)}, which is less than the bound of {duration(bound)}",
                rows=[("plan", f"{plan.name} on ({plan.mesh}) by {plan.solver}")],
                help="this is a mistake in Shardwright; please report it with the program",
            )
        return replace(plan, lower_bound=bound)

    def _is_foreseen(self, plan: Plan) -> bool:
        """Whether a plan is one of those that bounds speak of."""
        assert plan.program is not None
        return (
            is_foreseen(plan.complete, self.asked.given, self.asked.out_specs.values())
            and lower(plan.complete).bytes == plan.program.bytes
            and by_known_ways(plan.complete, plan.program)
        )

    @property
    def limit(self) -> int:
        """Bytes of a device that a plan may take: what was asked, or what there is less a reserve."""
        return self.hardware.usable_memory if self.asked.memory is None else self.asked.memory

    def lowered(self, decided: Complete) -> Program:
        """The Program of a plan's decisions, as it runs."""
        program = without_repeats(lower(decided), decided.kept, self.limit)
        return ordered(program, self.hardware, decided.graph, limit=self.limit)

    def broken(self, plan: Plan) -> list[Request]:
        """What the user asked for and a plan does not keep."""
        assert plan.program is not None
        return broken(self.asked, plan.complete, plan.program, plan.memory)

    def by_specs(self) -> Plan:
        """What the user said, spread and completed."""
        return self.priced(self.said, SPECS)

    @property
    def said(self) -> Complete:
        """What the user said, spread and completed, not priced."""
        return self.spread(self.asked.pins, self._pinned)

    @property
    def _pinned(self) -> dict[int, ShardingSpec]:
        """What the user said in full; what was pushed to the value that a constraint reads is a hint only."""
        said = {value for request in self.asked.requests for value in request.pins}
        return {value: spec for value, spec in self.asked.pins.items() if value in said and not is_open(spec)}

    def spread(
        self,
        specs: Mapping[int, ShardingSpec],
        pinned: Mapping[int, ShardingSpec],
        forced: Mapping[int, tuple[Axes, ...]] | None = None,
    ) -> Complete:
        """Shardings of some values propagated to all, and completed."""
        found = run_hierarchical_propagation_pass(self.graph, specs, rule_of, out_specs=self.asked.outs)
        outs = {i: spec for i, spec in self.asked.outs.items() if not is_open(spec)}
        return complete(self.graph, self.mesh, found.specs, rule_of, pinned=pinned, out_specs=outs, forced=forced)

    def by_recipe(self, name: str) -> Plan:
        """A named baseline; what the user pinned comes before what it says."""
        pins, outs = self.asked.pins, self.asked.outs
        decided = recipe_complete(name, self.graph, self.mesh, pins, outs, self.known)
        if name != "replicated" and not any(spec.used_axes for spec in decided.inputs):
            note = f"the recipe {name!r} cuts nothing of this program on ({self.mesh})"
            decided = replace(decided, notes=(*decided.notes, note))
        return self.priced(decided, name)

    def recipe_may_win(self, name: str, time: int) -> bool:
        """Whether a recipe may take less than this: no step takes less than its compute, and a deep stack of equal
        layers hardly less than its short one lets expect."""
        asked, hardware = self.asked, self.hardware
        cost, folded = recipe_cost(name, self.graph, self.mesh, hardware, asked.pins, asked.outs, self.known)
        if not hardware.overlaps:
            return cost.total < time
        return cost.compute < time and (folded is None or deep_time(*folded, hardware) < time)

    def by_simple(self, debug: bool = False, say: Say = print, until: float = inf) -> Plan:
        """The plan of the solver of four phases."""
        hardware, asked = self.hardware, self.asked
        if asked.memory is not None:
            hardware = replace(hardware, memory=asked.memory)
        outs = {i: spec for i, spec in asked.outs.items() if not is_open(spec)}
        solver = SimpleSolver(self.mesh, hardware, debug=debug, log=say, until=until)
        solution = solver.solve(self.graph, given=dict(asked.pins), out_specs=outs)
        for n in range(len(self.graph.nodes)):
            if n not in solution.nodes:
                say(f"[shard_map] WARNING: No solution for node {n}")
        chosen = [solution.specs.get(value.id) for value in self.graph.values]
        pinned = {**solution.pinned, **self._pinned}
        decided = complete(
            self.graph, self.mesh, chosen, rule_of, pinned=pinned, out_specs=outs, forced=solution.forced
        )
        return self.priced(decided, SIMPLE)

    def scheduled(self, solver: str, until: float, strict: bool = False) -> Scheduled:
        """The search for the fastest schedule."""
        asked = self.asked.also({}, strict).limited(None)

        def judge(complete: Complete) -> tuple[int, int, int, int]:
            plan = self.priced(complete, solver)
            self._judged[id(complete)] = (complete, plan)
            time, sent = plan.cost.objective, plan.cost.communication
            if self.asked.memory is None or plan.program is None:
                return time, plan.memory, time, sent
            free = ordered(plan.program, self.hardware, self.graph)
            return time, plan.memory, min(time, step_time(free, self.hardware, self.graph).total), sent

        return Scheduled(self.graph, self.mesh, self.hardware, asked, self.limit, judge, until, solver)

    def by_schedule(self, solver: str, time_limit: float) -> Plan:
        """The plan whose schedule is fastest; where it does not keep what is forbidden, once more with less to choose
        from."""
        until = monotonic() + time_limit
        for strict in (False, True):
            search = self.scheduled(solver, until, strict)
            search.search()
            if search.suffers() and not (search.late and not search.judged):
                search.fit()
            best = search.best
            if best is None:
                raise self._not_found(search.late)
            search.raise_bound()
            found = best.assignment
            plan = replace(self._judged[id(found.complete)][1], solver=found.solver, timed_out=search.late)
            plan = self.bounded(plan, search.lower_bound)
            if not any(request.bans for request in self.broken(plan)):
                break
            # Copies may have been made by way of shardings that other tensors of the type have.
            sources = {v: tree for v, tree in found.complete.sources.items() if v not in self.asked.bans}
            other = self.priced(replace(found.complete, sources=sources), found.solver, 0, search.late)
            plan = self.bounded(other, search.lower_bound)
            if not any(request.bans for request in self.broken(plan)):
                break
        return plan

    def by_solver(self, solver: str, time_limit: float) -> Plan:
        """The exact plan by the sum of compute and communication; where it does not keep what is forbidden, once more
        with less to choose from."""
        end = monotonic() + time_limit
        found = self.assigned({}, False, solver, time_limit)
        plan = self._plan_of(found, found.complete)
        if any(request.bans for request in self.broken(plan)):
            # Copies may have been made by way of shardings that other tensors of the type have.
            sources = {v: tree for v, tree in found.complete.sources.items() if v not in self.asked.bans}
            plan = self._plan_of(found, replace(found.complete, sources=sources))
        if any(request.bans for request in self.broken(plan)):
            found = self.assigned({}, True, solver, max(1.0, end - monotonic()))
            plan = self._plan_of(found, found.complete)
        return plan

    def _plan_of(self, found: Assignment, decided: Complete) -> Plan:
        return self.priced(decided, found.solver, found.lower_bound, found.timed_out)

    def free_bound(self, seconds: float) -> int:
        """No plan without a limit of memory is cheaper; 0 if that is not known either."""
        try:
            if self.hardware.overlaps:
                search = self.scheduled("auto", monotonic() + seconds)
                search.raise_bound()
                return search.lower_bound
            return self._exact(self.asked.limited(None), "auto", seconds).lower_bound
        except PlanInfeasible:
            return 0

    def best(
        self, solver: str = "auto", time_limit: float | None = None, debug: bool = False, say: Say = print
    ) -> Plan:
        """The best plan that keeps every request; `PlanInfeasible` where none is found."""
        seconds = DEFAULT_SECONDS if time_limit is None else time_limit
        end = monotonic() + seconds
        pricing = len(self.graph.nodes) / PRICED
        searching = end - max((1 - SEARCHING) * seconds, pricing)
        if self.asked.recipe is not None:
            return self._recipe_asked_for(self.asked.recipe)
        if solver == SIMPLE:
            plan = self._kept(self.by_simple(debug, say, searching))
            if (late := monotonic() > searching) or len(self.graph.nodes) > BOUNDED:
                return self._told(plan, seconds) if late else plan
            return self.bounded(plan, self.free_bound(end - monotonic()))
        failed: PlanInfeasible | None = None
        best: Plan | None = None
        bound, late = 0, False
        try:
            best = (self.by_schedule if self.hardware.overlaps else self.by_solver)(solver, searching - monotonic())
            bound, late = best.lower_bound, best.timed_out
            self._kept(best)
        except PlanInfeasible as error:
            failed = error
            late = late or error.timed_out or monotonic() > searching
            bound = self.free_bound(end - monotonic()) if best is None and not late else bound
            best = None
        # Where time was up before there was a plan, the first recipe that will do is taken: first what holds least.
        tried = 0
        for name in sorted(DISTINCT, key=lambda name: name != "zero3") if best is None and late else DISTINCT:
            try:
                if monotonic() + pricing > end and (best is not None or tried):
                    late = True
                    break
                if best is not None and not self.recipe_may_win(name, best.cost.objective):
                    continue
                other = self.by_recipe(name)
                tried += 1
            except ShardwrightError:
                continue  # it does not go with what the user pinned
            if self._keeps(other) and (best is None or other.cost.objective < best.cost.objective):
                best = self.bounded(other, bound)
        if best is None:
            assert failed is not None
            raise self._cut_short(failed, seconds) if late else failed
        return self._told(best, seconds) if late else replace(best, timed_out=False)

    def _recipe_asked_for(self, name: str) -> Plan:
        plan = self.by_recipe(name)
        lost = self.broken(plan)
        rows = [("user", str(request)) for request in lost]
        if lost and all(request.memory is not None for request in lost):
            help = "allow more memory, take a larger mesh, or leave recipe out"
            raise PlanInfeasible(f"the plan needs {amount_text(plan.memory)} a device", rows=rows, help=help)
        if lost:
            fact = f"the recipe {name!r} does not keep what was asked for"
            raise PlanInfeasible(fact, rows=rows, help="leave recipe or these out")
        if plan.memory > self.limit:
            raise self._too_large(plan)
        return plan

    def _kept(self, plan: Plan) -> Plan:
        lost = self.broken(plan)
        if lost:
            rows = [("user", str(request)) for request in lost]
            raise PlanInfeasible("no plan was found that keeps everything asked for", rows=rows)
        if plan.memory > self.limit:
            raise self._too_large(plan)
        return plan

    def _keeps(self, plan: Plan) -> bool:
        """Whether a plan keeps what was asked, and fits."""
        return not self.broken(plan) and plan.memory <= self.limit

    def _too_large(self, plan: Plan) -> PlanInfeasible:
        has, limit = amount_text(self.hardware.memory), amount_text(self.limit)
        return PlanInfeasible(
            f"the plan needs {amount_text(plan.memory)} a device",
            rows=[("limit", f"{limit}: {self.hardware.name} has {has}, less a reserve of {RESERVED_PERCENT}%")],
            help="take a larger mesh, or say memory= to allow more",
        )


def _time_was_up(seconds: float, more: str) -> str:
    return f"time was up after {seconds:g} s: with more, {more}"


def _notes(decided: Complete, program: Program, times: Sequence[int], more: tuple[str, ...]) -> tuple[str, ...]:
    """With a note for each op that runs replicated for lack of a rule, and what it then takes."""
    graph, notes = decided.graph, [*decided.notes, *program.notes, *more]
    alone = {d.node for d in decided.decisions if d.rule is None and graph.nodes[d.node].results}
    took = {instr.node: time for instr, time in zip(program.instrs, times) if instr.node in alone}
    texts = {n: f"node {n}: {graph.nodes[n].op} has no rule and runs replicated" for n in sorted(alone)}
    notes = [note for note in notes if note not in texts.values()]
    notes += [f"{text} ({duration(took.get(n, 0))})" for n, text in texts.items()]
    return tuple(dict.fromkeys(map(printable, notes)))


__all__ = ["SPECS", "Planner", "apply_rewrite", "held_by", "rewritten"]
