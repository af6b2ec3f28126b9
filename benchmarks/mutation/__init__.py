"""Mutants for `benchmarks/mutants.py`: Programs broken on purpose, whether that changes a result, whether it is seen.

| file | what it holds |
|---|---|
| `subjects` | Programs that really split: NumPy functions and training steps of PyTorch, with random inputs |
| `functions` | the NumPy functions |
| `models` | the training steps |
| `judging` | by execution on the virtual mesh: does a mutant change a result; by proof: is it refused |
| `editing` | small changes of a Program |
| `sharding_kinds` | mistakes in collectives, slices and shardings |
| `value_kinds` | mistakes in what is computed: operands, constants, element types, updates |
| `far_kinds` | mistakes that show at full size only, and the large Programs they go into |
| `rule_kinds` | wrong rules, by which lowering splits wrongly |
| `correct` | correct Programs by the thousand, none of which may be refused |

To extend: a kind of mistake is a function from a Program to broken ones under `@kind("family", "what it is like in
public")`; the families ``collective``, ``slice`` and ``type`` count as "on collectives and slices, element types
included".
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for _place in ("tests/unit/proof", "tests"):  # mistakes, small graphs and models that the tests have already
    if str(ROOT / _place) not in sys.path:
        sys.path.insert(0, str(ROOT / _place))
