"""Optimizers in a captured program: their formulas, their state, and the numbers that stay alive between steps.

| file | what it holds |
|---|---|
| `stepping`, `optimizers` | an optimizer while a program is captured; SGD, Adam and AdamW as formulas |
| `own_steps`, `kept_state`, `trials` | any other optimizer's own code, its state, and trying its step aside first |
| `updates`, `recognising`, `residues` | an optimizer's step for a parameter as one op; found by what ops compute |
| `numbers`, `live_calls`, `options` | numbers that stay alive: options and step counts, in Python code and in calls |
| `watching` | what a program cannot follow, noticed at every step |
| `saving` | what a checkpoint calls parameters and buffers; numbers among the options of optimizers |

To extend: an optimizer whose step is tensor operations needs nothing; a family of steps with a fused kernel is a record
in `updates`.
"""
