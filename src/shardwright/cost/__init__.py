"""What it costs: of one op under one way to split it, of one collective, and of a whole Program.

Costs are integers: picoseconds and bytes, per device.  An op costs a launch, its arithmetic at the peak rate of
its element type, and the bytes it touches at memory speed; a collective costs a launch, a latency for each step of
a ring, and the bytes that one device sends at the speed of the slowest axis it runs over.  Nothing here names an op:
what an op is like is its record's cost class.

| file | what it holds |
|---|---|
| `hardware` | `Hardware`, `Link`: the figures, with their source; presets `H100` and `VIRTUAL` |
| `compute` | `compute_cost`: an op by its cost class; the classes |
| `comm` | `communication_cost`: a collective, and a list of resharding steps |
| `memory` | `memory_cost` of an op's results; `peak_live`, liveness over any list of steps |
| `program` | `program_cost` and `program_memory`: the same, read off a Program's instructions |

To extend: another machine is another `Hardware`; a cost class is a line in `compute.CLASSES` and a branch in
`compute.op_time`; a better model replaces the body of the three ``*_cost`` functions, whose callers only add up.
"""

from .comm import communication_cost
from .compute import compute_cost
from .hardware import H100, Hardware, Link
from .memory import memory_cost
from .program import ProgramCost, program_cost, program_memory

__all__ = [
    "H100",
    "Hardware",
    "Link",
    "ProgramCost",
    "communication_cost",
    "compute_cost",
    "memory_cost",
    "program_cost",
    "program_memory",
]
