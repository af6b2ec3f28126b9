"""What it costs: of one op under one strategy, of one collective, and of a whole Program.

Costs are integers: picoseconds and bytes, per device.  An op costs a launch, its arithmetic at the peak rate of
its element type, and the bytes it touches at memory speed, each with a constant fitted by cost class (attention also
its exponentials, and how far its tiles fill a device); a collective what was measured on the links that its axes run
over.  Nothing here names an op: what an op is like is its record's class.

| file | what it holds |
|---|---|
| `links` | `Link` (a ring), `LinkTable` (measured), `AlphaBetaLink` (Alpa): a collective inside one group |
| `machine` | `Hardware`: the figures, with their source; which link a mesh axis runs over; `Roofline`, `Overlap` |
| `files` | hardware as TOML, strictly read; the presets are such files, in `presets/` |
| `hardware` | `hardware_of`: a machine by name (``h100x4``), by file, or Alpa's (`alpha_beta`); `H100` and `VIRTUAL` |
| `fit` | from measurements to tables and constants, for `tools/make_presets.py` and calibrate |
| `compute` | `compute_cost`: an op by its cost class; the classes; `Work`: operations, scores and tiles |
| `fusion` | `fused_times`: what compiled programs take, where chains of pointwise ops are one kernel |
| `comm` | `communication_cost`: a collective, and a list of resharding steps; from bytes sent to messages |
| `overlap` | `graph_roles`, `program_roles`: which collectives can hide behind compute |
| `memory` | `memory_cost` of an op's results; `peak_live`, liveness over any list of steps |
| `profile` | `memory_profile`: the peak of a Program, when it is, and what is alive then |
| `program` | `program_cost`: time, read off a Program's instructions; the objective is additive |
| `combine` | `combined`: how many collectives are left when those that do not wait for each other run as one |
| `schedule` | `simulate`: a Program's order replayed, and what of its communication shows |

To extend: another machine is another file in `presets/`; a cost class is a line in `compute.CLASSES`, constants in the
presets, and for arithmetic a branch in `compute.operations`; another kind of link is a class with ``time`` in `links`.
"""

from .comm import communication_cost
from .compute import compute_cost
from .files import hardware_text, parse_hardware, read_hardware, write_hardware
from .hardware import H100, Hardware, Link, LinkTable, Overlap, Roofline, alpha_beta, hardware_of
from .memory import memory_cost
from .overlap import graph_roles, program_roles
from .profile import METERED, RESIDENT, MemoryProfile, MemoryRules, memory_profile, program_memory
from .program import ProgramCost, program_cost
from .schedule import Timeline, simulate, step_time

__all__ = [
    "H100",
    "METERED",
    "RESIDENT",
    "Hardware",
    "Link",
    "LinkTable",
    "MemoryProfile",
    "MemoryRules",
    "Overlap",
    "ProgramCost",
    "Roofline",
    "Timeline",
    "alpha_beta",
    "communication_cost",
    "compute_cost",
    "graph_roles",
    "hardware_of",
    "hardware_text",
    "memory_cost",
    "memory_profile",
    "parse_hardware",
    "program_cost",
    "program_memory",
    "program_roles",
    "read_hardware",
    "simulate",
    "step_time",
    "write_hardware",
]
