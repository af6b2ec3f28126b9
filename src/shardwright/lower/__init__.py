"""Rewrite a graph with complete shardings into the SPMD `Program`, mechanically.

| file | what it holds |
|---|---|
| `lowering` | `lower`: graph + complete shardings -> Program; the per-op pipeline by its four names |
| `attention` | `attention_as_meant`: a pass over graphs: masks become flags, repeated heads become shared ones |
| `redundancy` | `without_repeats`: communication that brings nothing new is left out |
| `ordering` | `ordered`: when instructions are issued: buckets, early starts, late waits |
| `pieces` | `cut`: a training step in pieces that run one after the other: gradients, norm, update |
| `updates` | `together`: optimizer steps next to each other, for kernels that do many at once |
| `forms` | local forms: masked lookup, offsets for created values, triangles |

To extend: a new local form is a function in `forms.FORMS`; an op uses it by ``factor: form(name)`` in its rule.
"""

from .attention import attention_as_meant
from .lowering import infer_output_sharding, lower
from .ordering import ordered
from .redundancy import without_repeats

__all__ = ["attention_as_meant", "infer_output_sharding", "lower", "ordered", "without_repeats"]
