"""`train_step` and `shard_step`: a model and its optimizer become a `Step`, planned, proven, with state in shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import SpecError, front
from ...frontends.base import Framework, Source, capture_source, frontend_for
from ...plans.plan import read_plan
from ...plans.requests import Request, requests_of
from ...run.engine import check_engine, engine_for, is_one_of_several
from ...solve.names import check_recipe, check_solver
from ..arguments import call_of, check_loss, check_seconds, check_time_limit, mesh_of, step_form
from ..artefact import Plan
from ..deciding import Learning, decided, limit_requests, planner_of
from ..fitting import Smaller
from ..planning import bind_plan
from ..proven import check_verify
from ..specs import tree_requests
from .batches import WHAT_DATA, Batches, Call, check_data, data_axes_of, one_batch, smaller_batches
from .step import Step


@dataclass(frozen=True)
class Wishes:
    """How a step is to be split, as its makers' options say."""

    mesh: Any = None
    plan: Plan | None = None
    specs: Mapping[str, Any] | None = None
    in_specs: Sequence[Any] | Mapping[str, Any] | None = None
    recipe: str | None = None
    constraints: Any = None
    memory: int | str | None = None
    hardware: Any = "h100"
    solver: str = "auto"
    time_limit: float | None = None
    engine: Any = None
    verify: str | None = None

    def check(self, name: str) -> None:
        """That they go together."""
        check_solver(self.solver)
        check_engine(self.engine)
        check_time_limit(self.time_limit)
        if self.recipe is not None:
            check_recipe(self.recipe)
        if self.verify is not None:
            check_verify(self.verify)
        beside = ("mesh", "specs", "in_specs", "recipe", "constraints", "memory")
        said = [option for option in beside if getattr(self, option) is not None]
        if self.plan is not None:
            if said:
                raise SpecError(
                    f"{said[0]}= beside plan=, which has decided that", help=f"leave {said[0]}= or plan= out"
                )
            if not isinstance(self.plan, Plan):
                raise SpecError(
                    f"plan= takes a plan, not {self.plan!r}",
                    help="read a file with sw.load_plan, and give what it returns",
                )
        elif self.mesh is None:
            raise SpecError(f"{name} needs a mesh, or a plan that has one", help='write mesh="dp=2, tp=4"')
        other = next((option for option in ("recipe", "constraints", "memory") if option in said), None)
        if self.by_hand and other is not None:
            raise SpecError(
                f"{other}= is for the planner, but shardings are given by hand",
                help="say them as constraints=, which the planner keeps, or leave the other out",
            )

    @property
    def by_hand(self) -> bool:
        return self.specs is not None or self.in_specs is not None

    @property
    def proof(self) -> str:
        if self.verify is not None:
            return self.verify
        return "on" if self.plan is None else self.plan.verified

    def planned(
        self, source: Source, model: Any, call: Call, more: Sequence[Request] = (), engine: Any = None,
        smaller: Smaller | None = None,
    ) -> Plan:  # fmt: skip
        """The plan for what was captured."""
        engine = self.engine if engine is None else engine
        if self.plan is not None:
            plan = self.plan
            same = bind_plan(read_plan(plan.to_json()), source, plan.hardware, Learning(), plan.data.claimed)
            return Plan(same.data, source, same.planner, None, engine, self.proof)
        requests = tree_requests(source, model, *call, self.in_specs, None)
        requests += [*requests_of(self.specs), *requests_of(self.constraints), *([] if self.plan else more)]
        requests += limit_requests(self.memory, recipe=self.recipe)
        planner = planner_of(source, mesh_of(self.mesh), requests, self.hardware, Learning())
        if self.by_hand:
            data = planner.by_specs()
        else:
            data = decided(planner, source, self.solver, self.time_limit, smaller)
        return Plan(data, source, planner, self.mesh, engine, self.proof)


@front
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
    compile: str | None = None,
    **named: Any,
) -> Step:
    """Forward, backward and the optimizer's step, captured and split over a mesh, with state kept in shards.

    ``plan`` is what `plan` or `load_plan` returned for the same program: it is what trains.  Else ``specs`` gives
    shardings by the names of inputs (arguments, parameters, buffers, optimizer state) or by patterns of them, and what
    is not named follows by propagation; ``recipe`` takes a named baseline; and where neither is given the planner
    decides, with ``constraints``, ``memory``, ``hardware``, ``solver`` and ``time_limit`` as for `plan`.
    ``verify`` is that of `plan`, or the plan's own.  ``compile`` says in which form a device runs its part, on
    `shardwright.run.torch.TorchEngine`: ``"auto"`` takes the compiled one on CUDA if its first steps are no slower and
    fit in memory, ``"on"`` compiles, ``"graph"`` replays a CUDA graph, ``"off"``, the default, does neither.
    Every rank gives the whole batch; `train_step` has more to offer.
    """
    wishes = Wishes(
        mesh, plan, specs, in_specs, recipe, constraints, memory, hardware, solver, time_limit, engine, verify
    )
    wishes.check("shard_step")
    if plan is not None and not args and not kwargs and not named:
        if not plan.source.is_of(model, optimizer):
            raise SpecError(
                "the plan was made for another model or optimizer object",
                help="give the batch, too, shard_step(model, *batch, plan=plan, ...): the model is then captured",
            )
        return Plan(plan.data, plan.source, plan.planner, None, engine, wishes.proof).step(compile=compile)
    check_loss(loss)
    call = call_of(model, args, kwargs, named, shard_step, "shard_step")
    source = capture_source(model, args, call, optimizer=optimizer, loss=loss, training=True)
    return wishes.planned(source, model, (args, call)).step(example=(args, call), compile=compile)


@front
def train_step(
    model: Callable[..., Any],
    /,
    *,
    optimizer: Any,
    batch: Any,
    loss: Callable[[Any], Any] | None = None,
    mesh: Any = None,
    plan: Plan | None = None,
    data: str | None = None,
    data_axes: str | Sequence[str] | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    autocast: Any = None,
    reduce_dtype: Any = None,
    on_nonfinite: str | None = None,
    init: str = "rank0",
    timeout: float | None = None,
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
    compile: str | None = None,
) -> Step:
    """A training step of a model: planned, proven, with parameters and optimizer state in shards.

    ``batch`` is an example of what a call gets: a tuple of the model's arguments, or a dict of its keyword arguments;
    ``step(*batch)`` or ``step(**batch)`` trains on one.  ``loss`` gets the model's output, and what it returns comes
    back: the loss, or a tuple or dict of the loss and metrics.

    ``data`` says what a rank gives: ``"global"`` the whole batch, ``"local"`` its part (along ``data_axes``).
    ``clip_grad_norm`` limits the norm of all gradients, which is ``step.grad_norm``; ``accumulate=n`` cuts a batch into
    n that run one after the other and add up to one update; ``autocast`` is the type that forward computes in.  With
    ``on_nonfinite`` the norm is looked at before the update: ``"raise"`` or ``"skip"`` the step.  ``init`` says where
    the state comes from: ``"rank0"`` or, compared, ``"check"``.  ``timeout``: seconds that ranks wait for one
    that is in user code between steps, or in a step.  All else is as for `shard_step`.
    """
    wishes = Wishes(
        mesh, plan, specs, in_specs, recipe, constraints, memory, hardware, solver, time_limit, engine, verify
    )
    wishes.check("train_step")
    check_data(data)
    form = step_form(clip_grad_norm, accumulate, autocast, reduce_dtype, on_nonfinite)
    check_loss(loss)
    args, kwargs = _call(batch)
    call: Call = (args, call_of(model, args, kwargs, {}, train_step, "train_step"))
    framework: Framework = frontend_for(model, *call).FRAMEWORK
    on: Any = plan.data.mesh if plan is not None else mesh
    if data is None and (is_one_of_several() if engine is None else not _virtual(engine)):
        raise SpecError("train_step does not know what each rank gives: data= is missing", help=WHAT_DATA)
    if timeout is not None:
        check_seconds(timeout, "timeout")
        engine = engine_for(on, framework, engine, timeout)
    if plan is not None and plan.source.form != form:
        raise SpecError(
            "the plan was made for another form of the step",
            rows=[("plan", str(plan.source.form)), ("here", str(form))],
            help="give sw.plan the same clip_grad_norm=, accumulate=, autocast= and on_nonfinite=",
        )
    example = one_batch(model, call, form)
    parts: Batches | None = None
    if data == "local":
        given = (None, ()) if plan is None else (plan.source, plan.complete.inputs)
        data_axes = data_axes_of(mesh_of(on), data_axes, *given)
        parts = Batches(framework, engine_for(on, framework, engine), data, data_axes, accumulate)
        example = parts.whole(example)
    runs = engine if parts is None else parts.engine
    if plan is not None and plan.source.is_of(model, optimizer):
        made, known = Plan(plan.data, plan.source, plan.planner, None, runs, wishes.proof), None
    else:
        source = capture_source(model, *example, optimizer=optimizer, loss=loss, training=True, form=form)
        smaller = smaller_batches(model, example, form, optimizer, loss)
        made = wishes.planned(source, model, example, () if parts is None else parts.requests(source), runs, smaller)
        known = example
    return made.step(
        data=data or "global", data_axes=data_axes, on_nonfinite=on_nonfinite, init=init, example=known, compile=compile
    )


def _call(batch: Any) -> Call:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _virtual(engine: Any) -> bool:
    return engine == "virtual" or getattr(engine, "name", "") == "virtual"
