"""What the page holds as data: lists of whole numbers with tables of texts beside them, and each tensor once.

Times are picoseconds, memory bytes; numbers in lists are places in the tables of the same record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..frontends.base import BUFFER, OPTIMIZER, PARAMETER
from ..ir.graph import TensorType
from ..ir.order import events_of
from ..ir.program import RUN, START
from ..spec.axes import axes_text
from ..spec.sharding import ShardingSpec
from ..spec.tensors import tensor_text
from .modules import Module
from .overview import KIND_NAMES, Overview
from .places import PHASES
from .schedule import COMPUTE

VERSION = 1
Row = dict[str, Any]
"""One line of a comparison: name, step_ps, compute_ps, exposed_ps, memory_bytes, fits; or name and why."""


class _Table:
    """Texts (or what has a text), each once, by number."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[Any, int] = {}

    def __call__(self, item: Any, shown: Any = None) -> int:
        if item not in self._known:
            self._known[item] = len(self.items)
            self.items.append(item if shown is None else shown)
        return self._known[item]


def page_data(view: Overview, plan_json: str, comparison: Sequence[Row] = ()) -> Row:
    """All that the page shows."""
    texts, tensors = _Table(), _Table()
    modules = _Table()
    for title in view.titles.values():
        modules(title)

    def tensor(type: TensorType, spec: ShardingSpec) -> int:
        return tensors((type, spec), _tensor(type, spec))

    program, schedule, places = view.program, view.schedule, view.places
    lanes = _Table()
    lanes(COMPUTE)
    instrs = []
    for n, instr in enumerate(program.instrs):
        made = [program.values[value] for value in instr.results[:1]]
        instrs.append([
            texts(instr.op), texts(places.modules[n]), modules(view.title(places.modules[n])),
            PHASES.index(places.phases[n]), schedule.starts.get(n, 0), schedule.times.get(n, 0),
            schedule.exposed.get(n, 0), lanes(axes_text(instr.axes) if instr.is_collective else COMPUTE),
            instr.bytes if instr.is_collective else 0,
            texts(str(instr.source) if instr.source is not None else ""),
            tensor(made[0].type, made[0].spec) if made else -1, texts(instr.cause),
        ])  # fmt: skip
    events = [
        [start, members[0] if kind in (RUN, START) else -1 - members[0]]
        for (kind, members), start in zip(events_of(program), schedule.event_starts)
    ]
    spans = []
    streams = {span.members: span for span in schedule.timeline.spans}
    for members, span in streams.items():
        first = program.instrs[members[0]]
        lane = lanes(axes_text(first.axes) if first.is_collective else COMPUTE)
        if span.end > span.start:
            spans.append([span.start, span.end, lane, list(members)])
    kinds = list(KIND_NAMES)
    alive = []
    for item in view.memory.spans:
        local = None if item.value is None else program.values[item.value]
        alive.append([
            texts(_value_name(view, item.value) or item.name), item.bytes, kinds.index(item.kind), item.first,
            item.last, modules(view.title(view.span_module(item))),
            -1 if local is None else tensor(local.type, local.spec),
        ])  # fmt: skip
    return {
        "version": VERSION, "overview": view.to_json(),
        "axes": [[name, size] for name, size in view.plan.mesh.axis_sizes.items()],
        "devices": list(view.plan.mesh.device_ids), "phases": list(PHASES), "kinds": [KIND_NAMES[k] for k in kinds],
        "rows": [_module(view, module, modules, tensor) for module in view.modules], "modules": modules.items,
        "instrs": instrs, "events": events, "spans": spans, "lanes": lanes.items,
        "stalls": [[stall.start, stall.end, stall.members[0]] for stall in schedule.stalls],
        "memory": alive, "peak_event": view.memory.event, "tensors": tensors.items, "texts": texts.items,
        "asked": [str(request) for request in view.plan.asked.requests], "comparison": list(comparison),
        "plan": plan_json,
    }  # fmt: skip


def as_script(data: Row) -> str:
    """JSON that may stand in a script element, whatever names are in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _value_name(view: Overview, value: int | None) -> str:
    """An input by its own name; what is computed by the number of its value."""
    if value is None:
        return ""
    local = view.program.values[value]
    about = view.places.inputs.get(local.origin) if local.origin is not None else None
    return about.name if about is not None else f"%{local.name}"


def _tensor(type: TensorType, spec: ShardingSpec) -> list[Any]:
    """Text, shape, for each dim the parts of axes (axis, how far in, ways), and axes over which a sum is pending."""
    names = spec.mesh.axis_names
    dims = [[[names.index(axis.name), axis.pre, axis.size] for axis in dim.axes] for dim in spec.dims]
    pending = [names.index(axis.name) for axis, _ in spec.partial]
    return [tensor_text(type.dtype, type.shape, spec), list(type.shape), dims, pending, str(spec)]


def _module(view: Overview, module: Module, modules: _Table, tensor: Any) -> Row:
    graph, homes = view.places.graph, view.plan.complete.homes
    total, own = module.total, module.own
    asked = view.plan.asked.requests
    title = view.title(module.path)
    return {
        "label": module.label, "id": modules(title), "count": module.count, "activation": module.activation,
        "compute": [total.compute[phase] for phase in PHASES], "comm": total.communication, "exposed": total.exposed,
        "sent": total.sent, "memory": total.memory, "own": own.time,
        "weights": [
            {
                "name": w.name, "tensor": tensor(graph.type(w.value), homes[w.value]), "role": w.role,
                "use": [list(pair) for pair in w.use.axes],
                "state": [
                    [about.name, tensor(graph.type(value), homes[value])]
                    for value, about in _state(view, w.value)
                ],
                "because": [str(request) for request in asked if w.value in request.pins or w.value in request.bans],
            }
            for w in module.weights
        ],
        "children": [_module(view, child, modules, tensor) for child in module.children],
    }  # fmt: skip


def _state(view: Overview, weight: int) -> Iterable[tuple[int, Any]]:
    about = view.places.inputs[weight]
    if about.role in (PARAMETER, BUFFER):
        for value, other in view.places.inputs.items():
            if other.role == OPTIMIZER and other.owner == about.name and view.places.graph.type(value).rank:
                yield value, other
