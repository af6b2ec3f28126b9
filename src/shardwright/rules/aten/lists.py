"""Ops on lists of tensors, made from their schemas: ``_foreach_*`` and fused optimizers.

Tensor i of every list goes with tensor i of the others, dim by dim; a single tensor stands beside all of them.
"""

from __future__ import annotations

from ...errors import RuleError
from ...spec.op_record import Call, Flow, OpFacts, OpRecord
from ...spec.rule import Factor, Mapped, OpShardingRule, Transfer
from ..registry import maker

_REDUCES = {"norm": "parts", "max": "whole", "powsum": "sum"}
"""How the elements of each tensor become one number: in parts, of all elements, or as a pending reduction."""
_OF_MATRICES = ("mm",)
_LINEAR = ("neg", "clone")
_FUSED = ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad")


@maker
def lists(facts: OpFacts) -> OpRecord | None:
    name = facts.short.removeprefix("_foreach_")
    fused = facts.short in _FUSED
    if name in _OF_MATRICES or (name == facts.short and not fused):
        return None
    return OpRecord(
        facts.name,
        lambda call: _rule(facts, call, name),
        flow=Flow.POINTWISE,
        cost="pointwise",
        meaning="parts" if _REDUCES.get(name) == "parts" else "by rule",
        beyond="of lists the book says only what holds tensor by tensor",
    )


def _rule(facts: OpFacts, call: Call, name: str) -> OpShardingRule:
    """Written as factors, not as text: a list may hold hundreds of tensors, of which each has its own."""
    slots = call.slots or (1,) * len(call.operands)
    kinds = [kind for slot, (_, kind) in zip(slots, facts.tensors) if slot is not None]
    counts = [slot for slot in slots if slot is not None]
    count = max((number for number, kind in zip(counts, kinds) if kind == "tensors"), default=0)
    items = [i if kind == "tensors" else None for number, kind in zip(counts, kinds) for i in range(number)]
    shapes = [call.operands[items.index(i)] for i in range(count)]
    reduced = _REDUCES.get(name)
    form = reduced if reduced == "parts" else None
    factors: list[Factor] = []
    mapped: list[Mapped] = []
    for i, shape in enumerate(shapes):
        mapped.append(tuple((len(factors) + d,) for d in range(len(shape))))
        factors += [Factor(f"t{i}x{d}", size, whole=reduced == "whole", form=form) for d, size in enumerate(shape)]
    operands: list[Mapped] = []
    for item, given in zip(items, call.operands):
        if item is not None and given == shapes[item]:
            operands.append(mapped[item])
        elif item is None and given:  # a number for each tensor
            operands.append(tuple((len(factors) + d,) for d in range(len(given))))
            factors += [Factor(f"o{len(operands)}x{d}", size, whole=True) for d, size in enumerate(given)]
        elif all(size == 1 for size in given):  # beside all of a tensor, such as a step or a learning rate
            operands.append(tuple((len(factors) + d,) for d in range(len(given))))
            factors += [Factor(f"o{len(operands)}x{d}", 1, broadcast=True) for d in range(len(given))]
        else:
            raise RuleError(f"tensors of a list have different shapes: {list(given)} beside {list(shapes[item or 0])}")
    results: list[Mapped] = []
    reductions: list[tuple[tuple[int, str], ...]] = []
    for r, made in enumerate(call.results):
        if reduced is None and made not in ((), shapes[r % count]):
            raise RuleError(f"result {r} of a list has another shape: {list(made)}")
        results.append(() if reduced or not made else mapped[r % count])
        reductions.append(tuple((f, reduced) for (f,) in mapped[r]) if reduced == "sum" else ())
    rows: tuple[Transfer, ...] = ()
    if name in _LINEAR and len(operands) == count:
        rows = (Transfer(("P(sum)",) * count, ("P(sum)",) * len(call.results)),)
    return OpShardingRule(tuple(factors), tuple(operands), tuple(results), tuple(reductions), rows)
