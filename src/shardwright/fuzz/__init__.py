"""FIND WHAT NOBODY THOUGHT OF: random programs, split at random, held against themselves on one device.

A case is a program and how it is split.  It is planned, proven, run on the virtual mesh and compared: numbers with
those of the program on one device, collectives and peak memory with what the plan said, memory with its limit.  What is
wrong is shrunk and printed as a script.

| file | what it holds |
|---|---|
| `programs` | `FuzzProgram`: a program as data, which runs and prints as Python |
| `drawing` | `Writer`: draws a program from a vocabulary, trying each call on real numbers |
| `numpy_words`, `torch_words` | the vocabularies: every family of rules |
| `torch_indexing`, `torch_layers` | of PyTorch: lookups and writes; norms, convolution, attention, losses |
| `requests` | draws meshes, shardings, limits |
| `judging` | `judge`: one case; what counts as equal |
| `shrinking` | the smallest case that is wrong in the same way |
| `script` | a case as a script of at most 15 lines |
| `session` | `fuzz_programs`: seed after seed |

To extend: a function in a vocabulary that adds a call; another frontend is a file of such functions and an entry in
`session.FRONTENDS`.
"""

from .judging import Case, Request, Verdict, judge
from .programs import Call, Fill, FuzzProgram, Name, Ref
from .script import script_of
from .session import Failure, Tally, draw_cases, draw_program, fuzz_programs
from .shrinking import shrink

__all__ = [
    "Call",
    "Case",
    "Failure",
    "Fill",
    "FuzzProgram",
    "Name",
    "Ref",
    "Request",
    "Tally",
    "Verdict",
    "draw_cases",
    "draw_program",
    "fuzz_programs",
    "judge",
    "script_of",
    "shrink",
]
