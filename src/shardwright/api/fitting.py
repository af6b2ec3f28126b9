"""What would make a program fit in memory: a larger mesh, a smaller batch with accumulation, checkpoints in the model.

Only what was tried is said: a line is a plan that keeps all else that was asked for and fits, with its step time and
its memory.  State that is larger than all devices together is not tried.  Checkpoints are tried around each block of
the lists that a model's layers are in; where there is no such plan, it is said what checkpoints can save at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import Protocol, TypeVar

from ..cost import RESIDENT, memory_profile
from ..errors import BoundError, ShardwrightError
from ..frontends.base import Source
from ..plans import Plan, amount_text, duration
from ..plans.asked import Asked
from ..plans.requests import read_requests
from ..solve.planner import Planner
from ..spec.mesh import DeviceMesh

Key = TypeVar("Key")


class Smaller(Protocol):
    """The same training step in forms that hold less."""

    def smaller(self, factor: int) -> Source:
        """For a batch cut into so many, with gradients that add up."""

    def checkpointed(self) -> tuple[tuple[str, ...], Source] | None:
        """With checkpoints around the blocks of some lists, by name; None where there are none."""


SECONDS = 12.0
"""For all of it, unless less is left of the user's time limit; what is begun within it may end a little later."""
EACH = 2.0
"""For one plan: where memory is short a search for the fastest takes any time, and the first that fits will do."""
LEAN = "zero3"
"""The recipe that holds least where the batch divides: it tells soon whether a search is likely to find a plan."""
FACTORS = (2, 4, 8, 16)
"""How many times as many devices, and into how many a batch is cut."""
ROOM = 2**50
"""Bytes: more than any device has, so that nothing is short of memory."""


def fitting(planner: Planner, solver: str, left: float, smaller: Smaller | None) -> list[str]:
    """What would fit, a line for each; none where something else than memory is the reason, or time ran out.

    ``left`` are the seconds that are left of the user's time limit.
    """
    start = monotonic()
    seconds = min(SECONDS, left)
    if seconds <= 0 or not _is_short_of_memory(planner, solver, start + seconds / 4):
        return []
    lines = []
    if (wider := _first(_on_larger_meshes(planner), solver, start + seconds / 2)) is not None:
        mesh, plan = wider
        lines.append(f'with mesh="{mesh}" there is a plan: {_price(plan)}')
    if smaller is None:
        return lines
    if cut := _first(_of_smaller_batches(planner, smaller), solver, start + seconds * 3 / 4):
        count, plan = cut
        lines.append(f"with accumulate={count} there is a plan: at most {count} times {_price(plan)}")
    if monotonic() < start + seconds:
        if again := _first(_with_checkpoints(planner, smaller), solver, start + seconds):
            lists, plan = again
            lines.append(f"with torch.utils.checkpoint around each block of {lists} there is a plan: {_price(plan)}")
        elif (activations := _activations(planner)) is not None:
            lines.append(activations)
    return lines


def _price(plan: Plan) -> str:
    return f"{duration(plan.cost.objective)} a step, {amount_text(plan.memory)} a device"


def _is_short_of_memory(planner: Planner, solver: str, end: float) -> bool:
    """Whether there is a plan where memory is no limit; true by itself where nothing else was asked for."""
    others = tuple(request for request in planner.requested.requests if request.memory is None)
    if all(request.kind == "uneven" for request in others):
        return True
    roomy = replace(planner.keeping(others), hardware=planner.hardware.with_memory(ROOM))
    return _planned(roomy, solver, end) is not None


def _on_larger_meshes(planner: Planner) -> Iterator[tuple[DeviceMesh, Planner]]:
    """More of the outermost axis, as more machines are."""
    mesh = planner.mesh
    (name, size), *inner = mesh.axis_sizes.items()
    for factor in FACTORS:
        try:
            larger = DeviceMesh({name: size * factor, **dict(inner)})
            candidate = _rebound(planner, larger, None)
        except ShardwrightError:  # no such machine, or what was asked for does not go with it
            return
        yield larger, candidate


def _of_smaller_batches(planner: Planner, smaller: Smaller) -> Iterator[tuple[int, Planner]]:
    for factor in FACTORS:
        try:
            source = smaller.smaller(factor)
            candidate = _rebound(planner, planner.mesh, source)
        except Exception:  # the user's own code ran, which may take batches of one size only
            return
        yield source.form.accumulate, candidate


def _with_checkpoints(planner: Planner, smaller: Smaller) -> Iterator[tuple[str, Planner]]:
    try:
        found = smaller.checkpointed()
        if found is not None:
            yield " and ".join(found[0]), _rebound(planner, planner.mesh, found[1])
    except Exception:  # the user's own code ran, whose blocks may not be fit for it
        return


def _rebound(planner: Planner, mesh: DeviceMesh, source: Source | None) -> Planner:
    """The same requests, as they were written, of another mesh or program."""
    graph = planner.source if source is None else source.graph
    requests = read_requests(planner.requested.to_json())
    asked = Asked.of(graph, mesh, requests, planner.requested.stays)
    return replace(planner, source=graph, mesh=mesh, hardware=planner.hardware.on(mesh), requested=asked)


def _activations(planner: Planner) -> str | None:
    """What checkpointing in the model could save at most, where that might be enough; no plan of it is tried."""
    try:
        plan = planner.by_recipe(LEAN)
    except ShardwrightError:
        return None
    assert plan.program is not None
    saved = memory_profile(plan.program, RESIDENT, plan.complete.graph).by_kind.get("activation", 0)
    if not plan.memory - saved <= planner.limit < plan.memory:
        return None
    held, part = amount_text(plan.memory), amount_text(saved)
    return f"{LEAN} needs {held} a device, of which {part} are activations: checkpoints in the model save that at most"


def _first(candidates: Iterator[tuple[Key, Planner]], solver: str, end: float) -> tuple[Key, Plan] | None:
    """The first with a plan; where a recipe that holds little is too large, that is looked for from the other end."""
    unlikely: list[tuple[Key, Planner]] = []
    for key, planner in candidates:
        if monotonic() > end:
            break
        if not _may_fit(planner):
            continue
        if _recipe_is_too_large(planner):
            unlikely.append((key, planner))
        elif (plan := _planned(planner, solver, end)) is not None:
            return key, plan
    least = None
    for key, planner in reversed(unlikely):  # the largest factor is the likeliest
        if (plan := _planned(planner, solver, end)) is None:
            break
        least = key, plan
    return least


def _recipe_is_too_large(planner: Planner) -> bool:
    """Whether `LEAN` is; not where it does not go with the program."""
    try:
        return planner.by_recipe(LEAN).memory > planner.limit
    except ShardwrightError:
        return False


def _may_fit(planner: Planner) -> bool:
    """Whether all that is there from the start fits if it is split evenly."""
    graph = planner.source
    return sum(graph.type(value).bytes for value in graph.inputs) <= planner.limit * planner.mesh.size


def _planned(planner: Planner, solver: str, end: float) -> Plan | None:
    seconds = min(EACH, end - monotonic())
    if seconds <= 0:
        return None
    try:
        return planner.best(solver, seconds)
    except BoundError:  # a mistake of the planner is told wherever it shows
        raise
    except ShardwrightError:
        return None
