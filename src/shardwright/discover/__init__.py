"""LEARN RULES by execution.

Given an operator, run it on what each device would hold and see which placements are right; state the findings as the
smallest rule with its conditions; write it out.  One oracle serves every framework: tensors are NumPy arrays here, and
an operator's library turns them into its own.  Only files named ``torch_*``, ``book_torch*``, ``dtensor`` and
``audit*`` know PyTorch.

How a rule is found, file by file:

- ``placement``: R, S(dim), P(kind); ``operator``: operators, samples of calls; ``table``: what was found for one call;
  ``statement``: rules over all calls.
- ``torch_names``, ``torch_ops``: an operator from its name; the ATen calls below a function.  ``torch_samples``,
  ``torch_schema_samples``: calls from PyTorch's OpInfo database, or from schemas; ``widen``: more calls from those.
- ``inputs``: the registry of generators; ``adversarial``, ``adversarial_arithmetic``, ``adversarial_index``,
  ``adversarial_linear``, ``adversarial_order``: inputs on which false rules fail.
- ``encode``: a tensor cut or split over devices, and put together again; ``judge``: is it the wanted one;
  ``check``: the oracle; ``confirm``: its findings again on two mesh axes and in float32.
- ``cases``: the words a statement may use; ``synthesize``: the smallest statement in them; ``analyse``: category,
  linearity, factor notation; ``expression``: the small Python that rules are written in, read without `eval`.
- ``learn``: all of it for one operator; ``isolate``: in a process with limits; ``everything``: for all operators.
- ``report``: text, YAML, JSON, a line for the rule book; ``emit``, ``emit_source``, ``emit_tests``, ``emit_files``:
  DTensor code and its tests.
- ``book_compare``: our own rule book against what is found; ``book``: NumPy's; ``book_torch``, ``book_torch_calls``,
  ``book_torch_more``, ``book_torch_mesh``: ATen's, from calls of captured programs, each split on a mesh;
  ``book_torch_page``: beside DTensor's; ``book_names``: which ops are whose.
- ``dtensor``: what DTensor does; ``audit``, ``audit_cases``, ``audit_judge``, ``audit_samples``, ``audit_scripts``,
  ``audit_report``, ``audit_emit``: which of its rules are wrong or missing.

To extend: a generator is one decorated function (``inputs.generator``); a word for dims or a condition one function in
``cases``; a framework one ``Library`` and a function that makes `Operator`s.
"""

from .check import Counterexample, check, refute
from .inputs import Generator, generator, generators_for, register_generator
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
