"""What ops mean over a prime field, where sums do not depend on their order.

Linear ops are exact, any other function is a hash of its operands, a change of element type is a factor of its own.

| file | what it holds |
|---|---|
| `field` | `prepare_field` and `FieldArrays`: a field in the place of a frontend |
| `handlers` | who computes an op over a field, by name or by its record; element types; ops that nobody knows |
| `meaning` | ops by the exact meaning that their record carries, a function over `Arithmetic` |
| `modular` | `Field`, `FieldArray`: arithmetic modulo a prime in float64, order, hashes |
| `pointwise` | pointwise ops and reductions over a field |
| `arithmetic` | ATen's sums and products over a field, exactly |
| `contract` | contractions over a field, all as einsum |
| `byrule` | ops by their record: the same as another, made of parts, or with no more than their rule claims |
| `aten` | movement, lookup and random numbers in ATen's words |
| `moving` | movement, lookup, counting and sorting over a field |

To extend: nothing here.  An op brings its exact meaning in its record, a function over `spec.op_record.Arithmetic`, or
words that are a key of ``MEANINGS``; the oldest ops are lines in the ``HANDLERS`` of their family.  An op that has none
counts as a function of all its operands in full: right on whole tensors only, never skipped.
"""
