"""`Plan`: what users hold: a plan's data with its source and, lazily, its Program.  Look at it, ask it why, run it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..cost import Hardware
from ..errors import GraphError, ShardwrightError, front
from ..frontends.base import Source
from ..ir.graph import Graph
from ..ir.program import Collective, Program
from ..plans import Complete, read_plan
from ..plans.plan import Plan as Data
from ..plans.plan import PlanCost
from ..plans.requests import Request, read_requests
from ..proof import Certificate
from ..report import Overview, headline, listing, plan_text, trace_events, write_page
from ..run.engine import Engine, Executed, compare_launch, engine_for
from ..run.runner import Runner
from ..solve.planner import SPECS, Planner
from ..spec.sharding import ShardingSpec
from .arguments import check_numbers
from .beside import comparison_rows
from .deciding import Learning, bound, decided, planner_of
from .explain import explained
from .proven import check_verify, proven_for, proven_here
from .training.batches import Batches, Call, check_data, data_axes_of, global_by_default
from .training.step import Step


class Plan:
    """A plan together with its program: what was asked, planned and kept is what runs.

    ``plan(*args)`` runs it once on whole arrays; ``plan.step()`` trains it, with state kept in shards.
    """

    def __init__(
        self, data: Data, source: Source, planner: Planner, mesh: Any = None, engine: Any = None, verify: str = "on"
    ) -> None:
        check_verify(verify)
        self.data = data
        """What was decided; it travels as JSON."""
        self.source = source
        """What was captured."""
        self.planner = planner
        """The program with what was asked, to ask more about it."""
        self._mesh, self._engine = data.mesh if mesh is None else mesh, engine
        self.verified = verify
        """``"off"`` where the Program runs unproven, as the user wished."""
        self.certificate: Certificate | None = None
        """What was shown of the Program, once it is."""
        self.proven_pieces = 0
        """Of a step that runs in pieces: how many of them are proven, each equal to its part of what was captured."""

    # -- the data -------------------------------------------------------------------------------------------

    @property
    def complete(self) -> Complete:
        return self.data.complete

    @property
    def graph(self) -> Graph:
        """The graph that the decisions speak of: as captured, after the plan's rewrites."""
        return self.complete.graph

    @property
    def cost(self) -> PlanCost:
        return self.data.cost

    @property
    def memory(self) -> int:
        """Peak bytes of a device."""
        return self.data.memory

    @property
    def lower_bound(self) -> int:
        return self.data.lower_bound

    @property
    def gap(self) -> float:
        """How far above the best plan this one may be, as a part of its objective; a file's bound does not count."""
        return self.data.gap

    @property
    def solver(self) -> str:
        return self.data.solver

    @property
    def specs(self) -> dict[str, str]:
        """The sharding of every input, by name."""
        return self.data.inputs

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know, such as ops without a rule."""
        return self.data.notes

    @property
    def hardware(self) -> Hardware:
        return self.planner.hardware

    @cached_property
    def program(self) -> Program:
        return self.planner.lowered(self.complete) if self.data.program is None else self.data.program

    @property
    def collectives(self) -> list[Collective]:
        return self.program.collectives

    def to_json(self) -> str:
        shown = None if self.certificate is None else self.certificate.to_json()
        return replace(self.data, certificate=shown).to_json()

    @front
    def diff(self, other: Plan) -> list[str]:
        """What another plan does otherwise, a line each."""
        if not isinstance(other, Plan):
            raise GraphError(f"a plan cannot be compared with a {type(other).__name__}", help="give another plan")
        return self.data.diff(other.data)

    # -- running --------------------------------------------------------------------------------------------

    def verify(self) -> Certificate:
        """Prove that the Program computes what was captured; raises `VerifyError` with what is wrong."""
        self.certificate = proven_here(self.graph, self.program, self.source.graph)
        return self.certificate

    @cached_property
    def engine(self) -> Engine:
        """What runs it in this process."""
        engine = engine_for(self._mesh, self.source.framework, self._engine)
        compare_launch(engine, self.hardware.node)
        return engine

    @cached_property
    def runner(self) -> Runner:
        """The Program proven and compiled, once, for the engine that this process has."""
        if self.verified == "on":
            self.certificate = proven_for(self.engine, self.graph, self.program, self.source)
        return Runner(self.source, self.program, self.engine)

    @property
    def executed(self) -> Executed | None:
        """What the last call did: collectives, peak of live bytes."""
        return self.runner.executed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the virtual mesh, or on the processes that torchrun started: whole tensors in, whole tensors out."""
        check_numbers(self.source, args, kwargs)
        return self.runner(*args, **kwargs)

    @front
    def step(
        self,
        *,
        data: str | None = None,
        data_axes: str | Sequence[str] | None = None,
        on_nonfinite: str | None = None,
        init: str = "rank0",
        example: Call | None = None,
        compile: str | None = None,
    ) -> Step:
        """The plan's own program as a training step: parameters and optimizer state are kept in shards.

        ``step(*batch)`` runs one; ``step.sync()`` writes the state back into model and optimizer.  Options are those of
        `shardwright.torch.train_step`; ``example`` is a call of the shapes that were planned, if one is at hand.
        """
        if not self.source.graph.updates and not self.source.gradients:
            raise GraphError(
                "the planned program changes no state, so there is nothing to train",
                help="plan with optimizer= and loss=, or call the plan",
            )
        check_data(data)
        check_numbers(self.source, (), {})
        if data is None:
            data = global_by_default(self.engine)
        axes: tuple[str, ...] = ()
        if data == "local":
            axes = data_axes_of(self.data.mesh, data_axes, self.source, self.complete.inputs)
        batches = Batches(self.source.framework, self.engine, data, axes, self.source.form.accumulate)
        return Step(self, self.like, batches, on_nonfinite, init, example, compile)

    def like(self, source: Source, specs: Mapping[str, ShardingSpec]) -> Plan:
        """The plan of another capture of the same program, such as one for a smaller batch, with state sharded as it
        is.

        Where only sizes differ, every decision is kept; where a rule or a limit does not allow that, what is left
        beside the state is decided anew.
        """
        record = {**read_plan(self.to_json()), "source": ""}
        asked, mesh = read_requests(record["asked"]), self.data.mesh
        names = {about.name for about in source.inputs_are}
        planner = planner_of(source, mesh, asked, self.hardware, Learning())
        try:
            data = bound({**record, "source": planner.source_hash}, planner, "the plan is")
        except ShardwrightError:
            pins = [Request("in_specs", (n, str(s)), spec=s) for n, s in specs.items() if n in names]
            planner = planner_of(source, mesh, [*asked, *pins], self.hardware, Learning())
            data = planner.by_specs() if self.data.solver == SPECS else decided(planner, source, "auto", None)
        return Plan(data, source, planner, self._mesh, self.engine, self.verified)

    # -- looking at it --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return plan_text(self.overview)

    def __repr__(self) -> str:
        return headline(self.overview)

    @cached_property
    def _overview(self) -> Overview:
        return Overview(self.data, self.program, self.source, self.hardware.on(self.program.mesh))

    @property
    def overview(self) -> Overview:
        """All that is shown of it, as data: step, memory, modules, communication; `to_json` for other programs."""
        self._overview.proven = self._shown
        return self._overview

    @front
    def text(self, all: bool = False) -> str:
        """What ``print(plan)`` shows; with ``all`` every module, collective and input."""
        return plan_text(self.overview, all)

    @front
    def html(self, path: str | os.PathLike[str], compare: bool = True) -> Path:
        """Write the plan as one page for a browser; it needs no network.

        With ``compare`` all recipes stand beside it, which takes as long as planning each of them.
        """
        rows = comparison_rows(self.planner, self.overview) if compare else ()
        return write_page(path, self.overview, self.to_json(), rows)

    def trace_events(self) -> dict[str, Any]:
        """The simulated step as Chrome trace events: ``json.dump`` it to a file for ui.perfetto.dev."""
        return trace_events(self.overview)

    @property
    def _shown(self) -> str:
        if self.certificate is not None:
            return "proven"
        if self.proven_pieces:
            return f"proven, in {self.proven_pieces} pieces"
        return "not yet proven" if self.verified == "on" else 'not proven, verify="off"'

    @front
    def explain(self, name: str) -> str:
        """How a value is sharded, what every other sharding would cost, and what makes the next best one cost more.

        ``name`` is that of an input or of an intermediate value.  All else is chosen anew around each sharding.
        """
        return explained(self.planner, self.data, name)

    def trace(self) -> str:
        """The program in order of time, forward, backward and update apart, with what each module takes."""
        return listing(self.overview)
