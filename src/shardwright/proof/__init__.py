"""Prove a Program equal to its Graph.

Two checks, which know nothing of how a Program was planned or lowered.  *Structure* reads the text: single assignment,
shardings that exist, collectives that do what their operands and results say.  *Identity* runs Graph and Program over
prime fields, where sums do not depend on their order: linear ops are exact, any other function is a hash, and the
results must be equal to the last digit.  No tolerance, so no false alarm and no luck.

| file | what it holds |
|---|---|
| `structure` | `check_structure`: what a well-formed Program is |
| `identity` | `check_identity`: Graph and Program over fields, and who is to blame where they differ |
| `field` | `prepare_field` and `FieldArrays`: a field in the place of a frontend; ops of which nothing is known |
| `modular` | `Field`, `FieldArray`: arithmetic modulo a prime in float64, order, hashes |
| `pointwise` | pointwise ops and reductions over a field |
| `contract` | contractions over a field, all as einsum |
| `byrule` | ops by their record: the same as another, made of parts, or with no more than their rule claims |
| `aten` | movement, lookup and random numbers in ATen's words |
| `moving` | movement, lookup, counting and sorting over a field |

To extend: an op is a line in the ``HANDLERS`` of its family, a function of the field, the call and its operands; an op
outside this package is understood by the ``meaning`` of its record, a key of ``MEANINGS``.  What neither knows counts
as a function of all its operands in full: right on whole tensors only, never skipped.
"""

from ..errors import VerifyError
from .field import FieldArrays, prepare_field
from .identity import check_identity
from .structure import check_structure

__all__ = ["FieldArrays", "VerifyError", "check_identity", "check_structure", "prepare_field"]
