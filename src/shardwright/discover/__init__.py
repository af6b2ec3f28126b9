"""LEARN RULES by execution.

Given an operator, run it on what each device would hold and see which placements are right; state the findings as the
smallest rule with its conditions; write it out.  One oracle serves every framework: tensors are NumPy arrays here, and
an operator's library turns them into its own.  Only `torch/`, `emit/`, `audit/` and parts of `book/` and `on_demand/`
know PyTorch.

| part | what it holds |
|---|---|
| `placement`, `operator`, `table`, `statement` | R, S(dim), P(kind); operators and calls; findings of a call; rules |
| `inputs/` | inputs on which false rules fail |
| `calls/` | more calls from given ones: varied, and fresh ones around what the operator names |
| `judging/` | a tensor cut over devices and put together again; is it the wanted one; the oracle |
| `synthesis/` | the smallest rules; fresh calls that refute them; both in turn, until none does |
| `analyse` | category, linearity, factors |
| `learn`, `isolate`, `everything` | all of it for one operator; in a process with limits; for all operators |
| `report` | text, YAML, JSON, a line for the rule book |
| `torch/` | PyTorch's operators, and samples of calls |
| `emit/` | DTensor code and its tests |
| `book/` | our own rule book against what is found |
| `audit/` | what DTensor does, and which of its rules are wrong or missing |
| `on_demand/` | rules of unknown ops, learned when a plan needs them |

To extend: a generator is one decorated function (``inputs.registry.generator``); a word for dims or a condition one
function in ``synthesis.conditions``; a framework one ``Library`` and a function that makes `Operator`s.
"""

from .inputs.registry import Generator, generator, generators_for, register_generator
from .judging.oracle import Counterexample, check, refute
from .learn import QUICK, THOROUGH, Effort, analyze_and_synthesize, discover, discover_strategies, study
from .operator import Operator, Sample, Slot
from .placement import P, Placement, R, S
from .statement import Rule, Statement

__all__ = [
    "QUICK",
    "THOROUGH",
    "Counterexample",
    "Effort",
    "Generator",
    "Operator",
    "P",
    "Placement",
    "R",
    "Rule",
    "S",
    "Sample",
    "Slot",
    "Statement",
    "analyze_and_synthesize",
    "check",
    "discover",
    "discover_strategies",
    "generator",
    "generators_for",
    "refute",
    "register_generator",
    "study",
]
