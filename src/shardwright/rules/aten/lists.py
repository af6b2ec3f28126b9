"""Ops on lists of tensors, made from their schemas: ``_foreach_*`` and fused optimizers.

Tensor i of every list goes with tensor i of the others, dim by dim; a single tensor stands beside all of them.
"""

from __future__ import annotations

from ...spec.record import Call, Flow, OpFacts, OpRecord
from ..dims import write
from ..registry import maker

_NOT_ELEMENTWISE = ("norm", "max", "powsum")
_LINEAR = ("neg", "zero", "copy", "clone")
_FUSED = ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad")


@maker
def lists(facts: OpFacts) -> OpRecord | None:
    name = facts.short.removeprefix("_foreach_")
    fused = facts.short in _FUSED
    if name == facts.short and not fused:
        return None
    reduces = name in _NOT_ELEMENTWISE
    return OpRecord(
        facts.name,
        lambda call: _rule(facts, call, name, reduces),
        flow=Flow.POINTWISE,
        cost="pointwise",
        meaning="by rule",
        beyond="of lists the book says only what holds tensor by tensor",
    )


def _rule(facts: OpFacts, call: Call, name: str, reduces: bool) -> str:
    slots = call.slots or (1,) * len(call.operands)
    count = max((slot or 0 for slot, (_, kind) in zip(slots, facts.tensors) if kind == "tensors"), default=0)
    shapes = list(call.operands)
    operands: list[list[str]] = []
    notes: dict[str, str] = {}
    for slot, (_, kind) in zip(slots, facts.tensors):
        for i in range(slot or 0):
            shape = shapes[len(operands)]
            item = i if kind == "tensors" else None
            names = [] if item is None else [f"t{item}x{d}" for d in range(len(shape))]
            if item is not None and shape != call.operands[item]:
                names = ["1"] * len(shape) if all(size == 1 for size in shape) else names
            operands.append(names)
    if reduces:
        notes = {name: "whole" for names in operands for name in names if name != "1"}
        results: list[list[str]] = [[]] * len(call.results)
    else:
        results = [[f"t{r % count}x{d}" for d in range(len(shape))] for r, shape in enumerate(call.results)]
    rows = []
    if name in _LINEAR and len(operands) == count:
        rows.append(f"{', '.join(['P(sum)'] * count)} -> {', '.join(['P(sum)'] * len(call.results))}")
    return write(operands, results, notes, rows)
