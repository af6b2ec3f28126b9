"""What ops mean: the rule book.

Each op has an `OpRecord`; its rule is one line of notation, or a small function of the call that returns one.

| file | what it holds |
|---|---|
| `registry` | `rule`, `lookup`, `sharding_rule`; families by listing, third parties by entry point |
| `dims` | how the text of a rule is put together dim by dim |
| `pointwise` | elementwise ops, by what is known of the function (linear, rising, ...) |
| `contract` | matmul, dot, dot_general, tensordot, einsum, outer |
| `reduce` | sum, max, min, prod, any, all |
| `view` | reshape (the factor walk), transpose, broadcasts, squeeze, expand_dims |
| `index` | slice, flip, roll, pad, diagonal, concatenate; take, take_along_axis; update_slice, scatter |
| `scan` | cumsum, cumprod, sort, argsort, top_k, argmax, argmin |
| `create` | full, arange, constants; tril, triu |
| `random` | random numbers by key, step and place |
| `aten` | ATen's ops (a package of its own) |
| `structured` | ops in StableHLO's form: windows, decompositions, general gather and scatter, collectives |
| `reading` | graphs read backwards: masks made of positions, repeated heads, attention by its meaning (a package) |
| `extract` | `GraphExtractor`: a graph as JSON with every op's rule |

To extend: a line in a family file, ``rule("my_op", "b k, k n -> b n")``; for rules that depend on attributes
``@rule("my_op")`` over a function that returns the text.  A NumPy op brings its rule in a file of its own, by
`frontends.numpy.define.op`.  Outside this package, name a module or function in the
entry point group ``shardwright.rules``.
"""

from .extract import GraphExtractor
from .registry import lookup, records, rule, sharding_rule

__all__ = ["GraphExtractor", "lookup", "records", "rule", "sharding_rule"]
