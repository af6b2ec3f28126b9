"""Prove a Program equal to its Graph.

Two checks, which know nothing of how a Program was planned or lowered.  *Structure* reads the text: single assignment,
shardings that exist, collectives that do what their operands and results say.  *Identity* runs Graph and Program over
prime fields, where sums do not depend on their order: linear ops are exact, any other function is a hash, a change of
element type is a factor of its own, and the results must be equal to the last digit.  No tolerance, so no false alarm
and no luck.  Identity is shown in lemmas of a few instructions, each at sizes so small that a network of any size on a
mesh of any size takes seconds; why that is enough stands in `lemmas` and `shrink`.

| file | what it holds |
|---|---|
| `proving` | `prove`: all of it, with what it remembers and what it falls back on |
| `certificate` | `Certificate`: what was shown, and what is taken on trust |
| `same` | a planned graph and the one that was captured |
| `structure` | `check_structure`: what a well-formed Program is |
| `lemmas` | a Program cut into lemmas, by the notes that lowering leaves |
| `shrink` | a lemma at small sizes on a small mesh, and why it says the same |
| `sizes` | which sizes an op holds on to |
| `identity` | `check_identity`: Graph and Program over fields, and who is to blame where they differ |
| `fields/` | what ops mean over a prime field |
| `foreign` | the same for a parallel program that somebody else wrote, rank by rank |

Not shown: how floats are rounded (sums may be taken in another order), NaN and infinities beyond those that stand in
the program, overflow of whole numbers, and that an engine does what a Program says.

To extend: nothing here.  An op brings its exact meaning in its record, a function over `spec.op_record.Arithmetic`, or
words that are a key of ``MEANINGS``; the oldest ops are lines in the ``HANDLERS`` of their family.  An op that has none
counts as a function of all its operands in full: right on whole tensors only, never skipped.  `sizes` says which sizes
an op holds on to; what has no line there keeps all of them.
"""

from ..errors import VerifyError
from .certificate import Certificate, Trusted
from .fields.field import FieldArrays, prepare_field
from .identity import check_identity
from .proving import prove
from .structure import check_structure

__all__ = [
    "Certificate",
    "FieldArrays",
    "Trusted",
    "VerifyError",
    "check_identity",
    "check_structure",
    "prepare_field",
    "prove",
]
