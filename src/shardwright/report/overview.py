"""`Overview`: everything that is shown of a plan, once, as data: the terminal, the page and ``--json`` read it.

Figures add up.  The step is its compute and what is exposed of its communication, on the simulated schedule; modules
add up to the step, and what is alive at the peak to the plan's memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..cost import Hardware
from ..frontends.base import BACKWARD, FORWARD, PARAMETER, Source
from ..ir.order import events_of
from ..ir.program import START, Program
from ..plans.plan import Plan
from ..spec.axes import axes_text
from ..spec.tensors import tensor_text
from .lifespans import Lifespan, Memory, memory_of
from .modules import Module, module_tree, titles_of
from .places import PHASES, ROOT, Places
from .schedule import Schedule, schedule_of
from .sentence import sentence
from .uses import activation_dims

KIND_NAMES = {
    "parameter": "weights", "state": "optimizer state", "input": "data and constants", "gradient": "gradients",
    "updated": "new weights and state", "activation": "activations", "copy": "copies in other shardings",
    "buffer": "communication buffers",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind over the same axes, in one phase."""

    phase: str
    kind: str
    axes: str
    count: int
    starts: int
    """Buckets count once."""
    bytes: int
    time: int
    exposed: int
    where: tuple[tuple[str, int], ...]
    """Modules and what is exposed (or else spent) there, most first."""


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors of one kind and module that are alive at the peak."""

    module: str
    kind: str
    bytes: int
    count: int
    largest: str
    """Its type and sharding, or what the buffer is for."""


@dataclass
class Overview:
    """A plan, taken apart; ``hardware`` is bound to the mesh."""

    plan: Plan
    program: Program
    source: Source
    hardware: Hardware
    proven: str = "not yet proven"
    """What was shown of it, in words."""

    @cached_property
    def places(self) -> Places:
        return Places.of(self.source, self.plan.complete.graph, self.program)

    @cached_property
    def schedule(self) -> Schedule:
        return schedule_of(self.program, self.hardware, self.plan.complete.graph)

    @cached_property
    def memory(self) -> Memory:
        return memory_of(self.program, self.plan.complete.graph)

    @cached_property
    def at_peak(self) -> list[Lifespan]:
        return self.memory.alive(self.memory.event)

    @cached_property
    def modules(self) -> list[Module]:
        return module_tree(self.places, self.schedule, self.plan.complete, self.at_peak)

    @cached_property
    def titles(self) -> dict[str, str]:
        return titles_of(self.modules)

    def title(self, path: str) -> str:
        return self.titles.get(path, path)

    # -- figures --------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.schedule.timeline.total

    @property
    def compute(self) -> int:
        return self.schedule.compute

    @property
    def exposed(self) -> int:
        return self.schedule.waiting

    @property
    def communication(self) -> int:
        return self.schedule.timeline.communication

    @cached_property
    def trains(self) -> bool:
        return any(phase == "update" for phase in self.places.node_phases)

    @cached_property
    def sentence(self) -> str:
        cut = activation_dims(self.places, self.plan.complete)
        text = sentence(self.plan.mesh, self.modules, cut, self.trains)
        return f"{text}; {self._gathers}" if self.trains and self._gathers else text

    @cached_property
    def _gathers(self) -> str:
        """Whether weights that are gathered for the forward pass are gathered again for the backward pass."""
        count = len(self.source.inputs_are)
        inputs = zip(self.program.inputs[:count], self.source.inputs_are)
        weight_of = {value: value for value, about in inputs if about.role == PARAMETER}
        gathered: dict[str, set[int]] = {FORWARD: set(), BACKWARD: set()}
        for n, instr in enumerate(self.program.instrs):
            weight = weight_of.get(instr.inputs[0]) if len(instr.inputs) == 1 else None
            if weight is None:
                continue
            if instr.op == "all_gather" and self.places.phases[n] in gathered:
                gathered[self.places.phases[n]].add(weight)
            elif not instr.is_collective:  # a weight transposed, cast or sliced is that weight
                weight_of.update(dict.fromkeys(instr.results, weight))
        first, again = gathered[FORWARD], gathered[FORWARD] & gathered[BACKWARD]
        if not first:
            return ""
        if not again:
            return "gathered weights are kept for the backward pass"
        some = "" if again == first else f"{len(again)} of {len(first)} "
        return f"{some}gathered weights are gathered again for the backward pass"

    @cached_property
    def phases(self) -> dict[str, tuple[int, int]]:
        """Phase -> compute, and exposed communication."""
        compute, exposed = Counter[str](), Counter[str]()
        for n, instr in enumerate(self.program.instrs):
            if not instr.is_collective:
                compute[self.places.phases[n]] += self.schedule.times[n]
        for n, time in self.schedule.exposed.items():
            exposed[self.places.phases[n]] += time
        return {phase: (compute[phase], exposed[phase]) for phase in PHASES if compute[phase] or exposed[phase]}

    @cached_property
    def peak_kinds(self) -> dict[str, int]:
        """At the peak: bytes by kind, most first; they add up to the plan's memory."""
        found = Counter[str]()
        for span in self.at_peak:
            found[span.kind] += span.bytes
        return dict(found.most_common())

    @cached_property
    def peak_place(self) -> tuple[str, str, int]:
        """Phase, what runs then, and when in the step."""
        event = self.memory.event
        if event < 0:
            return "", "the start", 0
        n = events_of(self.program)[event].members[0]
        instr = self.program.instrs[n]
        where = self.title(self.places.modules[n])
        return self.places.phases[n], f"{instr.op} in {where}", self.schedule.event_starts[event]

    @cached_property
    def held(self) -> list[Held]:
        """What is alive at the peak by module and kind, most first."""
        groups: dict[tuple[str, str], list[Lifespan]] = {}
        for span in self.at_peak:
            groups.setdefault((self.title(self.span_module(span)), span.kind), []).append(span)
        found = [
            Held(module, kind, sum(span.bytes for span in spans), len(spans), self.span_text(spans[0]))
            for (module, kind), spans in groups.items()
        ]
        return sorted(found, key=lambda item: (-item.bytes, item.module, item.kind))

    def span_module(self, span: Lifespan) -> str:
        if span.value is not None and self.program.values[span.value].origin is not None:
            return self.places.value_module(span.value)
        return ROOT if span.instr is None else self.places.modules[span.instr]

    def span_text(self, span: Lifespan) -> str:
        if span.value is None:
            return span.name
        local = self.program.values[span.value]
        return tensor_text(local.type.dtype, local.type.shape, local.spec)

    @cached_property
    def traffic(self) -> list[Traffic]:
        """Communication by phase, kind and axes; what is exposed most first."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        places, schedule = self.places, self.schedule
        for n, instr in enumerate(self.program.instrs):
            if instr.is_collective:
                groups.setdefault((places.phases[n], instr.op, axes_text(instr.axes)), []).append(n)
        bucket = {n: i for i, e in enumerate(events_of(self.program)) if e.kind == START for n in e.members}
        found = []
        for (phase, kind, axes), members in groups.items():
            shown, spent = Counter[str](), Counter[str]()
            for n in members:
                shown[self.title(places.modules[n])] += schedule.exposed.get(n, 0)
                spent[self.title(places.modules[n])] += schedule.times[n]
            exposed = sum(shown.values())
            where = (shown if exposed else spent).most_common()
            found.append(
                Traffic(
                    phase, kind, axes, len(members), len({bucket[n] for n in members}),
                    sum(self.program.instrs[n].bytes for n in members), sum(spent.values()), exposed,
                    tuple((title, time) for title, time in where if time),
                )
            )  # fmt: skip
        return sorted(found, key=lambda item: (-item.exposed, -item.time, item.kind, item.axes))

    @property
    def quality(self) -> str:
        """How good the plan is known to be, by what plans are chosen by."""
        plan = self.plan
        over = plan.gap_to(plan.lower_bound)
        if not plan.lower_bound and plan.cost.objective:
            return "how good is not known"
        said = f"within {100 * over:.2f}% of the best" if over else "no plan is better"
        return f"{said}, claimed by the file" if plan.claimed else said

    # -- as JSON ------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """For other programs: picoseconds and bytes, all whole numbers."""
        plan = self.plan
        phase, where, when = self.peak_place
        return {
            "name": plan.name, "mesh": str(plan.mesh), "hardware": plan.hardware, "summary": self.sentence,
            "step_ps": self.step, "compute_ps": self.compute, "exposed_ps": self.exposed,
            "communication_ps": self.communication,
            "phases": {name: {"compute_ps": c, "exposed_ps": e} for name, (c, e) in self.phases.items()},
            "objective_ps": plan.cost.objective, "lower_bound_ps": plan.lower_bound, "quality": self.quality,
            "solver": plan.solver, "timed_out": plan.timed_out, "proven": self.proven,
            "memory_bytes": plan.memory, "capacity_bytes": self.hardware.memory,
            "memory_kinds": self.peak_kinds, "peak": {"phase": phase, "where": where, "at_ps": when},
            "held": [_as_dict(item) for item in self.held],
            "modules": [_module_json(module) for module in self.modules],
            "collectives": [{**_as_dict(item), "where": dict(item.where)} for item in self.traffic],
            "inputs": plan.inputs, "notes": list(plan.notes),
        }  # fmt: skip


def _as_dict(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def _module_json(module: Module) -> dict[str, Any]:
    total = module.total
    return {
        "module": module.label, "path": module.path, "count": module.count, "activation": module.activation,
        "weights": [
            {"name": w.name, "tensor": w.text, "role": w.role, "state": list(w.state), "use": dict(w.use.axes)}
            for w in module.weights
        ],
        "compute_ps": dict(total.compute), "communication_ps": total.communication, "exposed_ps": total.exposed,
        "sent_bytes": total.sent, "collectives": dict(total.collectives), "peak_bytes": total.memory,
        "children": [_module_json(child) for child in module.children],
    }  # fmt: skip


def worth_a_row(module: Module, step: int, memory: int) -> bool:
    """Whether a module without tensors of its own takes a hundredth of anything."""
    total = module.total
    return bool(module.weights) or total.time * 100 >= step or total.memory * 100 >= max(memory, 1)
