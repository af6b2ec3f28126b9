"""Prove a Program equal to its Graph.

Two checks, which know nothing of how a Program was planned or lowered.  *Structure* reads the text: single assignment,
shardings that exist, collectives that do what their operands and results say.  *Identity* runs Graph and Program over
prime fields, where sums do not depend on their order: linear ops are exact, any other function is a hash, and the
results must be equal to the last digit.  No tolerance, so no false alarm and no luck.

| file | what it holds |
|---|---|
| `structure` | `check_structure`: what a well-formed Program is |
| `identity` | `check_identity`: Graph and Program over fields, and who is to blame where they differ |
| `field` | `prepare_field` and `FieldArrays`: a field in the place of a frontend |
| `handlers` | who computes an op over a field, by name or by its record; ops of which nothing is known |
| `meaning` | ops by the exact meaning that their record carries, a function over `Arithmetic` |
| `modular` | `Field`, `FieldArray`: arithmetic modulo a prime in float64, order, hashes |
| `pointwise` | pointwise ops and reductions over a field |
| `contract` | contractions over a field, all as einsum |
| `byrule` | ops by their record: the same as another, made of parts, or with no more than their rule claims |
| `aten` | movement, lookup and random numbers in ATen's words |
| `moving` | movement, lookup, counting and sorting over a field |

To extend: nothing here.  An op brings its exact meaning in its record, a function over `spec.op_record.Arithmetic`, or
words that are a key of ``MEANINGS``; the oldest ops are lines in the ``HANDLERS`` of their family.  An op that has none
counts as a function of all its operands in full: right on whole tensors only, never skipped.
"""

from ..errors import VerifyError
from .field import FieldArrays, prepare_field
from .identity import check_identity
from .structure import check_structure

__all__ = ["FieldArrays", "VerifyError", "check_identity", "check_structure", "prepare_field"]
