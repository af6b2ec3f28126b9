"""Random parallel programs for `benchmarks/foreign_programs.py`, and mistakes in them.

| file | what it holds |
|---|---|
| `regions` | collectives with gradients, by hand, in all styles of calls |
| `blocks` | blocks of models, which a rank can hold a part of |
| `programs` | random compositions of blocks on random meshes, with wrappers and steps: `Subject` |
| `real` | all ranks on real numbers, in lock-step: does a mutant change a result |
| `mistakes` | mutants: mistakes put into the graphs of ranks |
| `tally` | programs and mutants judged, and counted |

To extend: a block is a class in `blocks` and a line in `programs`; a kind of mistake is a function in `mistakes`.
"""
