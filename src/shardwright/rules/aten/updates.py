"""The step of an optimizer for one parameter: elementwise in parameter, gradient and state; options stand beside them.

Its meaning is the formula that the frontend has for it.
"""

from __future__ import annotations

from ...spec.op_record import Call, Flow
from ..dims import same_dims
from ..registry import rule


def _elementwise(call: Call) -> str:
    return same_dims(call, {})


for _name in ("shardwright.adam", "shardwright.sgd"):
    rule(_name, _elementwise, flow=Flow.POINTWISE, cost="update", meaning="parts", in_place=True)
